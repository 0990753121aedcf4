"""Kernels of collectives are told from those that compute, whoever wrote them and wherever a name says it."""

import pytest

from odcsim.fitting.nccl import is_collective, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-gather"),
        ("void ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all-reduce"),
        ("rccl_main_kernel", ""),
        ("mscclKernel_Sum_half_LL_false(ncclDevComm*)", ""),
        ("void mscclpp::allreduce7<__half>(void*)", "all-reduce"),
        ("void at::native::one_shot_all_reduce_kernel<c10::BFloat16>(...)", "all-reduce"),
        ("two_shot_all_reduce_kernel_inplace", "all-reduce"),
        ("multimem_all_reduce_kernel", "all-reduce"),
        ("multimem_all_gather_kernel", "all-gather"),
    ],
)
def test_kernels_of_collectives(name, kind):
    assert is_collective(name)
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    "name",
    ["void at::native::reduce_kernel<512, 1>(...)", "sm90_xmma_gemm_bf16", "vectorized_gather_kernel", "Memcpy HtoD"],
)
def test_kernels_that_compute(name):
    assert not is_collective(name)
