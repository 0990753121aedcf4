"""Files in memory without a name, where the system has and allows them: `doctor` tries the same. Needs no torch."""

import os


def nameless_file() -> int | None:
    """Return a new one that peers can open through /proc, None where there is none: no memfd in this Python or kernel,
    one that seccomp refuses, or no /proc."""
    try:
        fd = os.memfd_create("odc")
    except (AttributeError, OSError):
        return None
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
    except OSError:
        os.close(fd)
        return None
    return fd
