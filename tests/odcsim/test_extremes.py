"""Numbers and files beyond all reason: refused in one line, or answered, and never waited for."""

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from odcsim import timeline
from odcsim.catalog import fits, gpu, hf_config, model
from odcsim.cli import main, options
from odcsim.errors import InputError
from odcsim.executors import des
from odcsim.fitting import logs, measurements, robust
from odcsim.profile import write
from odcsim.reading import load
from odcsim.support.archive import Archive

TINY = ["--model", "tiny", "--gpu", "a100"]


@pytest.mark.parametrize("seconds", ["1e-320", "1e-10", "1e306", "inf", "nan", "0", "-1", "1e10"])
def test_seconds_that_nobody_measured_are_refused(seconds, tmp_path):
    (tmp_path / "log.csv").write_text(f"lengths,seconds\n512,0.1\n1024,{seconds}\n")
    with pytest.raises(InputError, match=f"log.csv:3: seconds is '{seconds}'; expected a number above zero"):
        logs.read_log(tmp_path / "log.csv")


def test_the_same_of_measurements(tmp_path):
    row = {"kind": "forward", "tokens": 1, "squares": 1, "seconds": 1e-300}
    about = {"format": measurements.FORMAT, "version": 1, "model": "tiny", "gpu": "a100", "compute": [row]}
    (tmp_path / "m.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"compute\[0\].seconds is 1e-300"):
        measurements.read(tmp_path / "m.json")


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-200, 1e200])
def test_columns_that_no_float_holds_the_squares_of_tell_nothing_apart(size):
    columns = np.column_stack([np.ones(6), size * np.arange(1, 7)])
    with pytest.raises(InputError, match="do not tell the coefficients apart"):
        robust.solve(columns, np.arange(1.0, 7.0))


def test_columns_that_only_rounding_tells_apart_are_refused(monkeypatch):
    def singular(*_):
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(robust, "_errors", singular)
    with pytest.raises(InputError, match="do not tell the coefficients apart"):
        robust.solve(np.column_stack([np.ones(6), np.arange(6.0)]), np.arange(1.0, 7.0))


def test_what_is_no_number_is_null_in_json(capsys):
    options.print_json({"a": [float("nan"), 1.5], "b": {"c": float("inf")}, "d": (1,)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}, "d": [1]}


@pytest.mark.parametrize("time", [1e306, -1e306, np.inf, np.nan])
def test_times_beyond_all_reason_are_no_timeline(time, tmp_path, capsys):
    assert main(["balance", "uniform:min=1,max=9,samples=8", *TINY, "--devices", "2", "--minibatch", "2",
                 "--minibatches", "1", "--balancer", "lb-mini", "-o", str(tmp_path / "s.jsonl")]) == 0  # fmt: skip
    path = tmp_path / "t.npz"
    assert main(["simulate", str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--gpu", "a100", "-o", str(path)]) == 0
    with np.load(path) as archive:
        columns = {name: archive[name].copy() for name in archive.files}
    columns["0.had"][0, 0, 0] = time
    np.savez(path, **columns)
    with pytest.raises(InputError, match="block 0 holds a time that is not finite, or beyond all reason"):
        timeline.read(path)
    capsys.readouterr()
    assert main(["trace-json", str(path), "-o", str(tmp_path / "t.json")]) == 2
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("taker", [2, 2**31, 2**62, -2])
def test_a_taker_that_there_is_not_is_no_device(taker, tmp_path):
    """Such numbers were counted up to."""
    assert main(["balance", "uniform:min=1,max=9,samples=8", *TINY, "--devices", "2", "--minibatch", "2",
                 "--minibatches", "1", "--balancer", "pool", "-o", str(tmp_path / "s.jsonl")]) == 0  # fmt: skip
    path = tmp_path / "t.npz"
    assert main(["simulate", str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--gpu", "a100", "-o", str(path)]) == 0
    with np.load(path) as archive:
        columns = {name: archive[name].copy() for name in archive.files}
    columns["0.takers"][0, 0] = taker
    np.savez(path, **columns)
    with pytest.raises(InputError, match="block 0 names takers that its devices do not have"):
        timeline.read(path)


class Counted:
    """A generator whose draws are counted."""

    def __init__(self):
        self.rng, self.draws = np.random.default_rng(0), 0

    def exponential(self, scale):
        self.draws += 1
        return self.rng.exponential(scale)

    def lognormal(self, mean, sigma):
        return self.rng.lognormal(mean, sigma)


@pytest.mark.parametrize(("start", "work"), [(0.0, 1e15), (1e9, 1.0), (1e15, 1e15), (1e300, 1.0), (0.0, 1e300)])
def test_a_speed_that_swings_for_ages_is_told_at_once(start, work):
    """A draw for each spell would never end: spells this many even out, and those that passed are forgotten."""
    rng = Counted()
    speed = des._Speed(0.5, 1e-3, rng)
    took = speed.seconds(start, work)
    assert took == pytest.approx(work, rel=0.05, abs=np.spacing(start))
    assert rng.draws <= 3 * des.MANY


def npz(**columns) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **columns)
    return out.getvalue()


def claiming(head: dict, held: int) -> bytes:
    """An NPZ with one column of `held` zeros, whose head claims something else."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("length.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False} | head)
        member.write(bytes(held))
    return out.getvalue()


CLAIMS = {
    "more than there is": (claiming({"shape": (10**12,)}, 80), "claims 8,000,000,000,000 bytes and holds 80"),
    "less than there is": (claiming({"shape": (5,)}, 80), "claims 40 bytes and holds 80"),
    "many of nothing": (claiming({"shape": (10**12,), "descr": "|V0"}, 0), "claims 0 bytes and holds 0"),
    "objects": (claiming({"shape": (10,), "descr": "|O"}, 80), "objects"),
    "less than none": (claiming({"shape": (-10,)}, 0), "cannot be read"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_archive_is_believed_how_much_it_holds(claim, tmp_path):
    content, told = CLAIMS[claim]
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=told):
        load(tmp_path / "a.npz")


def test_only_the_columns_in_use_are_read(tmp_path, monkeypatch):
    (tmp_path / "a.npz").write_bytes(npz(text=np.array(["a", "b"]), length=np.array([5, 6])))
    read, really = [], Archive.pieces
    monkeypatch.setattr(Archive, "pieces", lambda self, name, rows: read.append(name) or really(self, name, rows))
    assert load(tmp_path / "a.npz").lengths.tolist() == [5, 6]
    assert set(read) == {"length"}


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_reads_as_numpy_does(order):
    columns = {"a": np.asarray(np.arange(12.0).reshape(3, 4), order=order), "text": np.array("x"), "none": np.array([])}
    with Archive(io.BytesIO(npz(**columns))) as archive:
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


def test_a_folder_called_like_a_fitted_model_does_not_get_its_seconds(tmp_path):
    """A fit belongs to a shape."""
    (tmp_path / FITTED).mkdir()
    (tmp_path / FITTED / "config.json").write_text(json.dumps(SHAPE))
    small, fitted = hf_config.read_config(tmp_path / FITTED), model(FITTED)
    assert small.name == FITTED
    assert fits.choose(fitted, gpu("a100"), 8).fidelity == "published fit"
    estimated = fits.choose(small, gpu("a100"), 8)
    assert estimated.fidelity != "published fit"
    assert estimated.forward.linear < fits.choose(fitted, gpu("a100"), 8).forward.linear / 10


def test_nor_those_of_a_profile_of_its_name(tmp_path):
    (tmp_path / FITTED).mkdir()
    (tmp_path / FITTED / "config.json").write_text(json.dumps(SHAPE))
    fitted = fits.choose(model(FITTED), gpu("a100"), 8)
    write(fitted, tmp_path / "profile.json")
    path, small = str(tmp_path / "profile.json"), hf_config.read_config(tmp_path / FITTED)
    assert fits.choose(model(FITTED), gpu("a100"), 8, path).forward == fitted.forward
    assert fits.choose(small, gpu("a100"), 8, path).forward.linear < fitted.forward.linear / 10


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
    for argv in (["trace", "info", "a.arrow"], ["trace", "info", "a.arrow", "--column", "other"]):
        command = [sys.executable, "-m", "odcsim", *argv]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1
