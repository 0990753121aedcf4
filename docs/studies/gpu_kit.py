"""Build a folder that asks a GPU where nothing can be installed, and no network is: `make gpu-kit`.

    python docs/studies/gpu_kit.py [-o gpu-kit]

It holds our packages as they are installed, the programs of the ladder, tests/gpu, and for Python 3.11 and 3.12 what
else they need and a machine with torch for CUDA 13, Triton and numpy may lack. Of what such a machine has, its own
counts. Nothing is installed there: `PYTHONPATH` is all.
"""

import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ours

from odcsim.errors import InputError

PYTHONS = ("3.11", "3.12")
LARGEST = 64 << 20  # bytes of the whole folder
# Packages, and the module by which each is found.
PURE = {
    "simpy": "simpy",
    "plotly": "plotly",
    "narwhals": "narwhals",
    "rich": "rich",
    "markdown-it-py": "markdown_it",
    "mdurl": "mdurl",
    "pygments": "pygments",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "cuda-pathfinder": "cuda.pathfinder",
}
COMPILED = {"nvshmem4py-cu13": "nvshmem", "cuda-core": "cuda.core"}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 34)] + ["manylinux2014_x86_64"]
# Sources, kernels of languages that we do not use, CUDA 12, notebooks' widgets.
LEFT_OUT = (
    *(f"*.{kind}" for kind in ("cpp", "c", "h", "hpp", "pyx", "pxd", "pxi", "pyi")),
    "nvshmem/*/device/*",
    "cuda/core/cu12/*",
    "plotly/labextension/*",
    "plotly/package_data/widgetbundle.js",
    "plotly-*.data/*",
)
PROGRAMS = ("ours", "validate_gpu", "gpu_record", "page_table")
HELPERS = ("own_process", "ranks", "jobs", "shard_laws")  # of tests/gpu
README = """\
# A kit for one GPU

No installation and no network: a Python 3.11 or 3.12 with torch for CUDA 13, Triton and numpy. From any folder,

```sh
gpu-kit/run 1 --out home          # at most nine minutes, and so are 2 and 3
gpu-kit/run selftest              # whether the kernels move the right bytes
gpu-kit/run --cpu --out tried     # the ladder on a CPU
PYTHONPATH=$(python3 gpu-kit/path.py) python3 gpu-kit/docs/studies/validate_gpu.py 1 --out home   # the same by hand
PYTHONPATH=$(python3 gpu-kit/path.py) python3 -m pytest -c gpu-kit/pytest.ini gpu-kit/tests/gpu   # pytest -m gpu
```

`PYTHON` is the interpreter where it is not `python3`. What is in `home` after a rung goes to where the page is written
(docs/studies/gpu_record.py). Profiles are measured here and fitted there.
"""
RUN = """\
#!/bin/sh
# ./run 1 --out DIR: a rung of the ladder. ./run selftest: see README.md.
here=$(cd "$(dirname "$0")" && pwd) && python=${PYTHON:-python3} || exit
PYTHONPATH=$("$python" "$here/path.py") || exit
export PYTHONPATH
case "$1" in
selftest) shift && exec "$python" -m odc_engine doctor --gpu-selftest "$@" ;;
*) exec "$python" "$here/docs/studies/validate_gpu.py" "$@" ;;
esac
"""
PATH = '''\
"""Prints what PYTHONPATH has to be for this Python: the kit's own folder, and a folder for each package that is not
there. What is there counts."""

import importlib.util
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def lacks(module):
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # of what it lies in
        return True


found = [HERE / "lib", HERE / "docs/studies"]
for kind, packages in json.loads((HERE / "packages.json").read_text()).items():
    if kind in ("any", "py%d%d" % sys.version_info[:2]):
        found += [HERE / kind / name for name, module in packages.items() if lacks(module)]
print(os.pathsep.join([*map(str, found), *filter(None, [os.environ.get("PYTHONPATH")])]))
'''
PYTEST = """\
[pytest]
markers = gpu: needs an NVIDIA GPU
pythonpath = tests/helpers
addopts = -ra -m gpu -p no:cacheprovider
"""


def build(kit: Path) -> None:
    """Anew."""
    shutil.rmtree(kit, ignore_errors=True)
    kit.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="odc-kit-") as folder:
        wheels = Path(folder)
        pip("wheel", "--no-deps", "-w", str(wheels / "ours"), str(ours.ROOT))
        unpack((wheels / "ours").glob("*.whl"), kit / "lib")
        fetched(PURE, PYTHONS[-1], wheels / "any", kit / "any")
        for python in PYTHONS:
            kind = tag(python)
            fetched(COMPILED, python, wheels / kind, kit / kind)
    (kit / "packages.json").write_text(json.dumps({"any": PURE} | {tag(python): COMPILED for python in PYTHONS}))
    written(kit)


def tag(python: str) -> str:
    return "py" + python.replace(".", "")


def written(kit: Path) -> None:
    """The programs, the tests, and how to start them."""
    studies, helpers = kit / "docs/studies", kit / "tests/helpers"
    for folder in (studies, helpers):
        folder.mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(ours.HERE / f"{name}.py", studies)
    for name in HELPERS:
        shutil.copy(ours.HELPERS / f"{name}.py", helpers)
    shutil.copytree(ours.ROOT / "tests/gpu", kit / "tests/gpu", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("README.md", README), ("path.py", PATH), ("pytest.ini", PYTEST), ("run", RUN)):
        (kit / name).write_text(text)
    (kit / "run").chmod(0o755)


def fetched(packages: Iterable[str], python: str, wheels: Path, to: Path) -> None:
    """Each in a folder of its own, in the version that is here."""
    for name in packages:
        how = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        how += [word for platform in PLATFORMS for word in ("--platform", platform)]
        pip("download", *how, "-d", str(wheels / name), pinned(name))
        unpack((wheels / name).glob("*.whl"), to / name)


def pinned(name: str) -> str:
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


def unpack(wheels: Iterable[Path], to: Path) -> None:
    """Without what is left out; compiled modules without their debug information where there is a `strip`."""
    to.mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not any(fnmatch.fnmatch(name, of) for of in LEFT_OUT)]
            archive.extractall(to, names)
    modules = [str(path) for path in to.rglob("*.so")]
    if modules and (strip := shutil.which("strip")):
        subprocess.run([strip, "--strip-unneeded", *modules], check=True)


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words[:1], "-q", *words[1:]]
    if subprocess.run(command, check=False).returncode:
        raise InputError(f"pip {words[0]} {words[-1]} failed", fix="see above")


def size(kit: Path) -> int:
    return sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", dest="kit", type=Path, default=Path("gpu-kit"), metavar="DIR", help="(gpu-kit)")
    args = parser.parse_args(arguments)
    try:
        build(args.kit)
    except InputError as error:
        print(f"gpu-kit: {error}", file=sys.stderr)
        return 2
    found = size(args.kit)
    print(f"{args.kit}: {found / (1 << 20):.1f} MiB; {args.kit}/run 1 --out DIR")
    if found > LARGEST:
        print(f"gpu-kit: more than {LARGEST >> 20} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
