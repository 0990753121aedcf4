"""The files under docs/launch, as far as no cluster is needed: they parse, and every flag in them exists."""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT

import odcsim.cli
from odc_engine.cli import build_parser

ROOM = ROOT / "docs" / "launch"
SBATCH, JOB, SWEEP = ROOM / "odc.sbatch", ROOM / "odc.yaml", ROOM / "sweep.sbatch"
LAUNCH = ROOT / "docs" / "howto" / "launch.md"
BACKSLASH = "\\\n"


def engine_calls(text: str) -> list[list[str]]:
    """Arguments of every `odc_engine` in a shell's text, with words in place of its variables."""
    found = []
    for line in text.replace(BACKSLASH, " ").splitlines():
        words = shlex.split(line, comments=True) if "odc_engine" in line else []
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


def torchrun_of(job) -> str:
    [line] = [line for line in command_of(job).replace(BACKSLASH, " ").splitlines() if "torchrun" in line]
    return line


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
    for name in ("out.csv", "alone.csv"):
        assert odcsim.cli.main(["sweep", str(tmp_path / "grid.toml"), "-o", str(tmp_path / name), "--jobs", "1"]) == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


def test_an_array_s_shares_are_its_tasks():
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SWEEP.read_text(), re.MULTILINE))
    assert options["array"].startswith("1-")


def test_the_batch_script_s_calls_are_ours():
    doctor, run = map(checked, engine_calls(SBATCH.read_text().replace("$devices", "16")))
    assert not doctor.gpu_selftest
    assert doctor.backend == run.backend == "nvshmem"
    assert (run.accumulate, run.sync) == ("slots", "on-demand")


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path):
    """A batch job of two machines with eight tasks each. `srun` starts its command on the last of each machine."""
    own = 'for ((i = 7; i < 16; i += 8)); do export SLURM_PROCID=$i SLURM_LOCALID=7; "$@" || failed=$?; done'
    program(tmp_path / "srun", f'while [[ $1 == --* ]]; do shift; done\nfailed=0\n{own}\nexit "$failed"')
    program(tmp_path / "scontrol", 'echo "$*" >&2; printf "gpu0\\ngpu1\\n"')
    program(tmp_path / "python", f'exec {sys.executable} "$@"')
    numbers = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NTASKS": "16"}
    usual = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SLURM_JOB_NODELIST": "gpu[0-1]"}
    return tmp_path, usual | numbers


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("well", [True, False])
def test_the_batch_job_ends_where_the_doctor_finds_what_is_lacking(slurm, well):
    folder, env = slurm
    program(folder / "odc_engine", f'echo "$1" >> {folder}/calls\n[[ $1 != doctor ]] || exit {int(not well)}')
    done = subprocess.run(["bash", SBATCH, "s.jsonl", "t.npz"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == int(not well), done.stderr
    assert (folder / "calls").read_text().split() == ["doctor"] * 2 + ["run"] * 2 * well


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_loop_under_plain_srun_is_told_what_torch_asks_for(slurm):
    folder, env = slurm
    [block] = [text for text in blocks(LAUNCH) if "python train.py" in text]
    wanted = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    told = f"import os; print(*(os.environ[name] for name in {wanted}))"
    (folder / "train.py").write_text(f"from odc_engine.started import started\n{told}\nassert started().here == 8\n")
    done = subprocess.run(["bash", "-euc", block], env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["7 16 7 8 gpu0 29500", "15 16 7 8 gpu0 29500"], done.stderr


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def runs_on_gpus() -> list[tuple[str, list[str]]]:
    """Every `run` and `profile` that pages and files start on GPUs."""
    texts = [(path.name, text) for path in ROOT.glob("docs/**/*.md") for text in blocks(path)]
    texts += [(SBATCH.name, SBATCH.read_text()), (JOB.name, command_of(manifest()[1]))]
    calls = [(name, call) for name, text in texts for call in engine_calls(text)]
    gpus = {"cuda_ipc", "nvshmem", "cuda"}
    return [(name, call) for name, call in calls if call[0] in ("run", "profile") and gpus & {*call}]


def test_every_run_on_gpus_says_what_it_computes_in():
    found = runs_on_gpus()
    assert {"launch.md", "gpus.md", SBATCH.name, JOB.name} <= {name for name, _ in found}
    assert [(name, call) for name, call in found if "bfloat16" not in call] == []


def test_the_page_s_schedule_is_for_as_many_devices_as_its_job_has_tasks():
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SBATCH.read_text(), re.MULTILINE))
    lines = [line for text in blocks(LAUNCH) for line in text.replace(BACKSLASH, " ").splitlines()]
    [made] = [shlex.split(line, comments=True) for line in lines if line.startswith("odcsim balance")]
    given = odcsim.cli.build_parser().parse_args(made[1:])
    assert given.devices == int(options["nodes"]) * int(options["ntasks-per-node"])
    assert any(line.split()[:2] == ["sbatch", "docs/launch/odc.sbatch"] and given.output in line for line in lines)


def test_the_page_says_which_ports_are_open_and_over_what():
    table = LAUNCH.read_text(encoding="utf-8").partition("### Ports")[2].partition("### ")[0]
    named = {"MASTER_PORT", "GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "NCCL_SOCKET_IFNAME"}
    assert {name for name in named if name in table} == named


def test_a_pod_may_hold_memory_for_its_network_cards():
    _, job = manifest()
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert any(name.startswith("rdma/") for name in container["resources"]["limits"])
    [memory] = [v["emptyDir"] for v in job["spec"]["template"]["spec"]["volumes"] if "emptyDir" in v]
    assert int(container["resources"]["limits"]["memory"].removesuffix("Gi")) > int(memory["sizeLimit"][:-2])


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
    words = shlex.split(torchrun_of(job))
    given = dict(itertools.pairwise(words))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert given["--nnodes"] == str(job["spec"]["completions"])
    assert given["--node-rank"] == "$JOB_COMPLETION_INDEX"
    assert given["--nproc-per-node"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    name, service = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
    assert given["--master-addr"] == f"{name}-0.{service}"


def test_the_manifest_s_flags_are_torchrun_s_and_ours():
    _, job = manifest()
    doctor, engine = map(checked, engine_calls(command_of(job)))
    assert doctor.backend == engine.backend == "nvshmem"
    given = dict(itertools.pairwise(shlex.split(torchrun_of(job))))
    assert doctor.devices == int(given["--nnodes"]) * int(given["--nproc-per-node"])
    run = pytest.importorskip("torch.distributed.run")
    words = shlex.split(torchrun_of(job))
    flags = [word for word in words[: words.index("odc_engine")] if word.startswith("--")]
    known = {option for action in run.get_args_parser()._actions for option in action.option_strings}
    assert set(flags) <= known
