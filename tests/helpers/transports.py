"""Devices that say that they are on several machines, or on systems that lack something; and whom they name for what
cannot be done."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from odc_engine.backends import machines
from odc_engine.backends.shm import futex
from odc_engine.errors import PeerLost
from odcsim.errors import InputError


@contextlib.contextmanager
def spread(rank: int, over: tuple[int, ...]) -> Iterator[None]:
    """Devices that say that they are on so many machines."""
    with pytest.MonkeyPatch.context() as patch:
        if len(set(over)) > 1:
            patch.setattr(machines, "here", lambda: f"machine {over[rank]}")
        yield


@contextlib.contextmanager
def lacking(*names: str) -> Iterator[None]:
    """As on a system that lacks these, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        if "kernel 5.3" in names:
            patch.setattr(os, "pidfd_open", Mock(side_effect=OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))))
        if "memfd" in names:
            patch.delattr(os, "memfd_create")
        if "pidfd" in names:
            patch.delattr(os, "pidfd_open")
        if "futex" in names:
            patch.setattr(futex, "_libc", None)
        yield


def lost(call: Callable[[], Any]) -> list[int]:
    """The devices that are named for what cannot be done."""
    try:
        call()
    except PeerLost as error:
        return error.devices
    return []


def refused(call: Callable[[], Any]) -> str:
    """By what kind of error: of input, or because of another device."""
    try:
        call()
    except (InputError, PeerLost) as error:
        return type(error).__name__
    return ""
