"""The files under docs/launch, as far as no cluster is needed: they parse, and every flag in them exists."""

import itertools
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from scripts import ROOT

import odcsim.cli
from odc_engine.cli import build_parser

ROOM = ROOT / "docs" / "launch"
SBATCH, JOB, SWEEP = ROOM / "odc.sbatch", ROOM / "odc.yaml", ROOM / "sweep.sbatch"
BACKSLASH = "\\\n"


def engine_calls(text: str) -> list[list[str]]:
    """Arguments of every `odc_engine` in a shell's text, with words in place of its variables."""
    found = []
    for line in text.replace(BACKSLASH, " ").splitlines():
        words = shlex.split(line, comments=True)
        if "odc_engine" in words:
            found.append(words[words.index("odc_engine") + 1 :])
    return found


def checked(call: list[str]):
    """A call that our command understands."""
    return build_parser().parse_args(call)


def manifest() -> list:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(JOB.read_text()))


def command_of(job) -> str:
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/bash", "-ceu"]
    [text] = container["args"]
    return text


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", [SBATCH, SWEEP], ids=lambda path: path.name)
def test_bash_reads_the_batch_script(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_tasks_of_an_array_make_one_table(tmp_path):
    """As Slurm starts them, one after the other here; the command is this package's."""
    grid = 'trace = "uniform:min=20,max=900,samples=64"\nmodel = "tiny"\ngpu = "a100"\ndevices = [2, 4, 8]\n'
    (tmp_path / "grid.toml").write_text(grid + "minibatch = 2\nminibatches = 2\n")
    code = "import sys; from odcsim.cli import main; sys.exit(main())"
    (tmp_path / "odcsim").write_text(f"#!/bin/bash\nexec {sys.executable} -c '{code}' \"$@\"\n")
    (tmp_path / "odcsim").chmod(0o755)
    known = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SLURM_ARRAY_TASK_COUNT": "2"}
    for task in ("1", "2"):
        env = known | {"SLURM_ARRAY_TASK_ID": task, "SLURM_CPUS_PER_TASK": "1"}
        subprocess.run(["bash", SWEEP, "grid.toml", "out.csv"], env=env, cwd=tmp_path, check=True, capture_output=True)
    alone = ["sweep", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "alone.csv"), "--jobs", "1"]
    assert odcsim.cli.main(alone) == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


def test_an_array_s_shares_are_its_tasks():
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SWEEP.read_text(), re.MULTILINE))
    assert options["array"].startswith("1-")


def test_the_batch_script_s_calls_are_ours():
    doctor, run = map(checked, engine_calls(SBATCH.read_text()))
    assert not doctor.gpu_selftest
    assert (run.backend, run.accumulate, run.sync) == ("nvshmem", "slots", "on-demand")


def test_slurm_starts_a_task_for_each_gpu():
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SBATCH.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert len(options) == len(re.findall(r"^#SBATCH", SBATCH.read_text(), re.MULTILINE))


def test_no_file_needs_mpi():
    for path in ROOM.iterdir():
        words = set(re.findall(r"[\w-]+", path.read_text()))
        assert not words & {"mpirun", "mpiexec", "--mpi", "pmix"}


def test_the_manifest_is_a_service_and_an_indexed_job():
    service, job = manifest()
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    claims = {volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]}
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == claims


def test_the_manifest_s_torchrun_has_every_pod_and_every_gpu():
    _, job = manifest()
    words = shlex.split(command_of(job))
    given = dict(itertools.pairwise(words))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert given["--nnodes"] == str(job["spec"]["completions"])
    assert given["--node-rank"] == "$JOB_COMPLETION_INDEX"
    assert given["--nproc-per-node"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    name, service = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
    assert given["--master-addr"] == f"{name}-0.{service}"


def test_the_manifest_s_flags_are_torchrun_s_and_ours():
    _, job = manifest()
    [call] = engine_calls(command_of(job))
    assert checked(call).backend == "nvshmem"
    run = pytest.importorskip("torch.distributed.run")
    words = shlex.split(command_of(job))
    flags = [word for word in words[: words.index("odc_engine")] if word.startswith("--")]
    known = {option for action in run.get_args_parser()._actions for option in action.option_strings}
    assert set(flags) <= known
