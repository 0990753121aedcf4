"""What goes wrong while devices work together, and how to get what is not installed."""

FOR_ENGINE = "pip install 'odcsim[engine]' -c constraints.txt"
FOR_GPUS = "pip install 'odcsim[gpu]' -c constraints.txt"


class EngineError(RuntimeError):
    """Told in one line by the command, without a traceback."""


class PeerLost(EngineError):
    """A device died or stopped answering. Names the device; nothing of this minibatch can be saved."""

    def __init__(self, devices: list[int], what: str) -> None:
        self.devices, self.what = devices, what
        names = ", ".join(map(str, devices))
        super().__init__(f"device {names} {what}" if len(devices) == 1 else f"devices {names} {what}")


class BadGradient(EngineError):
    """A gradient that is not finite, with the device, microbatch and unit it came from."""
