"""Numbers and files beyond all reason: refused, or answered, and never waited for."""

import io
import json
import subprocess
import sys
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest

from odcsim import measurements
from odcsim.catalog import fits, gpu, hf_config, model
from odcsim.cli import options
from odcsim.errors import InputError
from odcsim.executors import des
from odcsim.fitting import microbatch_logs, robust
from odcsim.profile import write
from odcsim.reading import load
from odcsim.support.inputs import Archive


@pytest.mark.parametrize("seconds", ["1e-320", "1e-10", "1e306", "inf", "nan", "0", "-1", "1e10"])
def test_seconds_that_nobody_measured_are_refused(seconds, tmp_path):
    (tmp_path / "log.csv").write_text(f"lengths,seconds\n512,0.1\n1024,{seconds}\n")
    row = {"kind": "forward", "tokens": 1, "squares": 1, "seconds": float(seconds)}
    about = {"format": measurements.FORMAT, "version": 1, "model": "tiny", "gpu": "a100", "compute": [row]}
    (tmp_path / "m.json").write_text(json.dumps(about))
    for read, name in ((microbatch_logs.read_log, "log.csv:3"), (measurements.read, "m.json")):
        with pytest.raises(InputError) as refused:
            read(tmp_path / name.partition(":")[0])
        assert str(refused.value).startswith(f"{tmp_path / name}: ")


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-200, 1e200])
def test_columns_that_tell_nothing_apart_are_refused(size):
    """No float holds their squares, or only rounding tells them apart."""
    with pytest.raises(InputError):
        robust.solve(np.column_stack([np.ones(6), size * np.arange(1, 7)]), np.arange(1.0, 7.0))


def test_what_is_no_number_is_null_in_json(capsys):
    options.print_json({"a": [float("nan"), 1.5], "b": {"c": float("inf")}, "d": (1,)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}, "d": [1]}


@pytest.mark.parametrize(("start", "work"), [(0.0, 1e15), (1e9, 1.0), (1e15, 1e15), (1e300, 1.0), (0.0, 1e300)])
def test_a_speed_that_swings_for_ages_is_told_at_once(start, work):
    """A draw for each spell would never end: spells this many even out, and those that passed are forgotten."""
    rng = Mock(wraps=np.random.default_rng(0))
    took = des._Speed(0.5, 1e-3, rng).seconds(start, work)
    assert took == pytest.approx(work, rel=0.05, abs=np.spacing(start))
    assert rng.exponential.call_count <= 3 * des.MANY


@pytest.mark.parametrize(
    ("head", "held"),
    [({"shape": (10**12,)}, 80), ({"shape": (5,)}, 80), ({"shape": (10**12,), "descr": "|V0"}, 0),
     ({"shape": (10,), "descr": "|O"}, 80), ({"shape": (-10,)}, 0)],
    ids=["more than there is", "less than there is", "many of nothing", "objects", "less than none"],
)  # fmt: skip
def test_no_archive_is_believed_how_much_it_holds(head, held, tmp_path):
    """Of one column of `held` zeros, whose head claims something else."""
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("length.npy", "w") as f,
    ):
        np.lib.format.write_array_header_1_0(f, {"descr": "<i8", "fortran_order": False} | head)
        f.write(bytes(held))
    with pytest.raises(InputError):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_reads_as_numpy_does(order):
    columns = {"a": np.asarray(np.arange(12.0).reshape(3, 4), order=order), "text": np.array("x"), "none": np.array([])}
    np.savez_compressed(out := io.BytesIO(), **columns)
    with Archive(out) as archive:
        assert archive.files == list(columns)
        for name, column in columns.items():
            assert archive[name].dtype == column.dtype
            assert np.array_equal(archive[name], column)
            assert archive.shape(name) == column.shape


SHAPE = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip
FITTED = "r1-distill-qwen-1.5b"


@pytest.mark.parametrize("by_profile", [False, True])
def test_a_folder_called_like_a_fitted_model_does_not_get_its_seconds(by_profile, tmp_path):
    """A fit belongs to a shape, and so does a profile."""
    (tmp_path / FITTED).mkdir()
    (tmp_path / FITTED / "config.json").write_text(json.dumps(SHAPE))
    small, fitted = hf_config.read_config(tmp_path / FITTED), fits.profile_for(model(FITTED), gpu("a100"), 8)
    write(fitted, tmp_path / "profile.json")
    path = str(tmp_path / "profile.json") if by_profile else None
    assert (small.name, fitted.fidelity) == (FITTED, "published fit")
    assert fits.profile_for(model(FITTED), gpu("a100"), 8, path).forward == fitted.forward
    assert fits.profile_for(small, gpu("a100"), 8, path).forward.linear < fitted.forward.linear / 10
    assert fits.profile_for(small, gpu("a100"), 8).fidelity != "published fit"


ODD = """
import sys, pyarrow
from pyarrow import ipc
column = pyarrow.ListArray.from_buffers(
    pyarrow.list_(pyarrow.int64()), 2, [None, pyarrow.py_buffer(bytes(7) + b"\\x10\\x02" + bytes(3))],
    children=[pyarrow.array([1, 2])],
)
batch = pyarrow.record_batch([column, column], ["input_ids", "other"])
with pyarrow.OSFile("a.arrow", "wb") as out, ipc.new_stream(out, batch.schema) as stream:
    stream.write_batch(batch)
"""


def test_a_damaged_arrow_file_does_not_end_the_process(tmp_path):
    """Offsets far beyond its values: pyarrow reads there unless it is asked to look first."""
    pytest.importorskip("pyarrow")
    subprocess.run([sys.executable, "-c", ODD], cwd=tmp_path, check=True)
    for more in ([], ["--column", "other"]):
        command = [sys.executable, "-m", "odcsim", "trace", "info", "a.arrow", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1
