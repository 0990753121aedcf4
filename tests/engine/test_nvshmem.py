"""NVSHMEM as far as a machine without a GPU goes: processes start it together, its versions agree, and kernels link its
device library. Skipped where nvshmem4py is not installed, which `make test` does on Linux for x86-64."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("nvshmem", reason="needs nvshmem4py: pip install 'odcsim[gpu]' -c constraints.txt")

from odc_engine.backends import nvshmem_library
from odc_engine.probes.ranks import on_ranks

pytestmark = pytest.mark.slow


def started(_rank):
    import nvshmem.bindings
    import nvshmem.core

    nvshmem_library.start()
    return nvshmem.bindings.init_status(), nvshmem.core.my_pe(), nvshmem.core.n_pes()


def test_two_processes_without_a_gpu_know_each_other():
    assert on_ranks(started, 2, 60.0) == [(nvshmem_library.BOOTSTRAPPED, rank, 2) for rank in range(2)]


def test_the_bitcode_is_of_the_host_library_s_version():
    versions = nvshmem_library.versions()
    assert versions.agree
    assert versions.path.endswith(".bc")


@pytest.mark.parametrize("name", ["get", "put"])
def test_kernels_link_the_device_library(name, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from odc_engine.kernels import remote

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"target": "*fp32", "source": "*fp32", "nbytes": "i32", "device": "i32", "block": "constexpr"}
    libraries = {"extern_libs": {remote.LIBRARY: nvshmem_library.versions().path}}
    source = ASTSource(getattr(remote, name), types, {(4,): 1 << 16})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=libraries)
    assert made.asm["cubin"][:4] == b"\x7fELF"
    assert remote._STATE in made.asm["ptx"]  # by which a module is found that must be told
    assert ".extern .func" not in made.asm["ptx"]
