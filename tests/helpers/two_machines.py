"""`odc_engine` on what it takes for two machines of one device each, with the fake for NVSHMEM."""

import sys

from fake_nvshmem import FakeNvshmem

from odc_engine import placement
from odc_engine.cli import main
from odc_engine.runs import run

if __name__ == "__main__":
    run.refuse_without_nvshmem = lambda: None
    placement.nvshmem_library.Nvshmem = lambda _gpu: FakeNvshmem((1, 1))
    sys.exit(main(sys.argv[1:]))
