"""Waiting on a word of shared memory until a peer changes it, without polling where the kernel can do that."""

import ctypes
import platform
import sys
import time

_NUMBERS = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1  # without FUTEX_PRIVATE_FLAG: waiters are in other processes
_EVERYBODY = 2**31 - 1
_POLL = 100e-6

_number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
_libc = ctypes.CDLL(None, use_errno=True) if _number is not None else None


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, seen: int, seconds: float) -> None:
    """Return when woken, when the word no longer holds `seen`, or after `seconds`; callers look again themselves."""
    if _libc is None:
        time.sleep(_POLL)
        return
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    _libc.syscall(_number, ctypes.c_void_p(address), _FUTEX_WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake everybody who waits on the word."""
    if _libc is not None:
        _libc.syscall(_number, ctypes.c_void_p(address), _FUTEX_WAKE, _EVERYBODY, None, None, 0)
