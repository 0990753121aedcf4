"""`odc_engine`, but device 1 is killed in its second minibatch, unless torchrun has restarted it. Run by torchrun."""

import os
import signal
import sys

from odc_engine.cli import main
from odc_engine.devices.process import ProcessDevice

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    really = ProcessDevice.minibatch

    def minibatch(self: ProcessDevice, number: int):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(self, number)

    ProcessDevice.minibatch = minibatch  # type: ignore[method-assign]

sys.exit(main(sys.argv[1:]))
