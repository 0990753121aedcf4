"""Errors of the engine, and the commands that install missing packages."""

FOR_ENGINE = "pip install 'odcsim[engine]' -c constraints.txt"
FOR_GPUS = "pip install 'odcsim[gpu]' -c constraints.txt"
FOR_TORCH = "pip install 'torch>=2.11,<2.16'"


class EngineError(RuntimeError):
    """A failure that the command line prints as one line, without a traceback."""


class PeerLost(EngineError):
    """A rank died or stopped answering. The message names it; the current minibatch is lost."""

    def __init__(self, devices: list[int], what: str) -> None:
        self.devices, self.what = devices, what
        names = ", ".join(map(str, devices))
        super().__init__(f"device {names} {what}" if len(devices) == 1 else f"devices {names} {what}")


class BadGradient(EngineError):
    """A gradient is NaN or infinite. The message names the rank, microbatch and unit."""
