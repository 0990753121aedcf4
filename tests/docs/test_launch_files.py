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

SBATCH, JOB, SWEEP = (ROOT / "docs/launch" / name for name in ("odc.sbatch", "odc.yaml", "sweep.sbatch"))
LAUNCH = ROOT / "docs" / "howto" / "launch.md"
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def joined(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def engine_calls(text: str) -> list[list[str]]:
    """Arguments of every `odc_engine` in a shell's text, with words in place of its variables."""
    found = [shlex.split(line, comments=True) for line in joined(text) if "odc_engine" in line]
    return [words[words.index("odc_engine") + 1 :] for words in found if "odc_engine" in words]


def understood(text: str):
    """Doctor and run of a file, which our parser takes."""
    doctor, run = map(build_parser().parse_args, engine_calls(text))
    assert doctor.backend == run.backend == "nvshmem"
    assert not doctor.gpu_selftest
    assert (run.accumulate, run.sync) == ("slots", "on-demand")
    return doctor


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def options_of(script: Path) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def manifest():
    """Its service, its job, the template of its pods and the one container, and what that runs."""
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(JOB.read_text())
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == ["/bin/bash", "-ceu"]
    return service, job, pod, container, *container["args"]


@needs_bash
def test_the_tasks_of_an_array_make_one_table(tmp_path):
    """As Slurm starts them, one after the other here; the command is this package's."""
    assert options_of(SWEEP)["array"].startswith("1-")
    grid = 'trace = "uniform:min=20,max=900,samples=64"\nmodel = "tiny"\ngpu = "a100"\ndevices = [2, 4, 8]\n'
    (tmp_path / "grid.toml").write_text(grid + "minibatch = 2\nminibatches = 2\n")
    code = "import sys; from odcsim.cli import main; sys.exit(main())"
    program(tmp_path / "odcsim", f"exec {sys.executable} -c '{code}' \"$@\"")
    known = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SLURM_ARRAY_TASK_COUNT": "2"}
    for task in ("1", "2"):
        env = known | {"SLURM_ARRAY_TASK_ID": task, "SLURM_CPUS_PER_TASK": "1"}
        subprocess.run(["bash", SWEEP, "grid.toml", "out.csv"], env=env, cwd=tmp_path, check=True, capture_output=True)
    for name in ("out.csv", "alone.csv"):
        assert odcsim.cli.main(["sweep", str(tmp_path / "grid.toml"), "-o", str(tmp_path / name), "--jobs", "1"]) == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


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


@needs_bash
@pytest.mark.parametrize("well", [True, False])
def test_the_batch_job_ends_where_the_doctor_finds_what_is_lacking(slurm, well):
    folder, env = slurm
    program(folder / "odc_engine", f'echo "$1" >> {folder}/calls\n[[ $1 != doctor ]] || exit {int(not well)}')
    done = subprocess.run(["bash", SBATCH, "s.jsonl", "t.npz"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == int(not well), done.stderr
    assert (folder / "calls").read_text().split() == ["doctor"] * 2 + ["run"] * 2 * well


@needs_bash
def test_a_loop_under_plain_srun_is_told_what_torch_asks_for(slurm):
    folder, env = slurm
    [block] = [text for text in blocks(LAUNCH) if "python train.py" in text]
    wanted = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    told = f"import os; print(*(os.environ[name] for name in {wanted}))"
    (folder / "train.py").write_text(f"from odc_engine.started import started\n{told}\nassert started().here == 8\n")
    done = subprocess.run(["bash", "-euc", block], env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["7 16 7 8 gpu0 29500", "15 16 7 8 gpu0 29500"], done.stderr


def test_every_run_on_gpus_says_what_it_computes_in(manifest):
    texts = [(path.name, text) for path in ROOT.glob("docs/**/*.md") for text in blocks(path)]
    texts += [(SBATCH.name, SBATCH.read_text()), (JOB.name, manifest[-1])]
    calls = [(name, call) for name, text in texts for call in engine_calls(text) if call[0] in ("run", "profile")]
    found = [(name, call) for name, call in calls if {"cuda_ipc", "nvshmem", "cuda"} & {*call}]
    assert {"launch.md", "gpus.md", SBATCH.name, JOB.name} <= {name for name, _ in found}
    assert [(name, call) for name, call in found if "bfloat16" not in call] == []


def test_the_batch_script_has_a_task_for_each_gpu_and_for_each_device_of_the_page_s_schedule():
    understood(SBATCH.read_text().replace("$devices", "16"))
    options = options_of(SBATCH)
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert len(options) == SBATCH.read_text().count("\n#SBATCH")
    lines = [line for text in blocks(LAUNCH) for line in joined(text)]
    [made] = [shlex.split(line, comments=True) for line in lines if line.startswith("odcsim balance")]
    given = odcsim.cli.build_parser().parse_args(made[1:])
    assert given.devices == int(options["nodes"]) * int(options["ntasks-per-node"])
    assert any(line.split()[:2] == ["sbatch", "docs/launch/odc.sbatch"] and given.output in line for line in lines)


def test_the_manifest_is_a_service_and_an_indexed_job(manifest):
    service, job, pod, container, _ = manifest
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]  # memory held for network cards
    limits, [memory] = container["resources"]["limits"], [v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v]
    assert any(name.startswith("rdma/") for name in limits)
    assert int(limits["memory"].removesuffix("Gi")) > int(memory["sizeLimit"].removesuffix("Gi"))


def test_the_manifest_s_torchrun_has_every_pod_and_every_gpu_and_flags_that_exist(manifest):
    service, job, _, container, text = manifest
    [line] = [line for line in joined(text) if "torchrun" in line]
    words = shlex.split(line)
    given = dict(itertools.pairwise(words))
    assert given["--nnodes"] == str(job["spec"]["completions"])
    assert given["--node-rank"] == "$JOB_COMPLETION_INDEX"
    assert given["--nproc-per-node"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    assert given["--master-addr"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert understood(text).devices == int(given["--nnodes"]) * int(given["--nproc-per-node"])
    run = pytest.importorskip("torch.distributed.run")
    known = {option for action in run.get_args_parser()._actions for option in action.option_strings}
    assert {word for word in words[: words.index("odc_engine")] if word.startswith("--")} <= known
