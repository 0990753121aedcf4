"""`odc_engine` on what it takes for two machines of one device each, with the fake for NVSHMEM."""

import sys

from fake_nvshmem import FakeNvshmem

from odc_engine.backends.nvshmem import library
from odc_engine.cli import main

if __name__ == "__main__":
    library.refuse_without_nvshmem = lambda: None
    library.Nvshmem = lambda _gpu: FakeNvshmem((1, 1))
    sys.exit(main(sys.argv[1:]))
