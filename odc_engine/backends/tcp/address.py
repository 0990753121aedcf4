"""Under which address other machines reach this one: that of the interface that gloo is told to use, else that from
which torch's store is reached, else that of the route to other networks."""

import fcntl
import os
import socket
import struct

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from odcsim.errors import InputError

INTERFACE = "GLOO_SOCKET_IFNAME"
FIX = f"set {INTERFACE} to the interface that reaches the other machines"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ELSEWHERE = "192.0.2.1"  # nobody's, by RFC 5737. Nothing is sent there


def own() -> str:
    if names := os.environ.get(INTERFACE, ""):
        return _of(names.split(",")[0].strip())
    for host in (_store_host(), _ELSEWHERE):
        if host and not (found := _towards(host)).startswith("127."):
            return found
    return "127.0.0.1"


def _of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            told = fcntl.ioctl(asking, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            raise InputError(f"no address of interface '{interface}' ({error.strerror})", fix=FIX) from None
    return socket.inet_ntoa(told[20:24])


def _towards(host: str) -> str:
    """From where packets to a host start. None is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((host, 9))
        except OSError:
            return "127.0.0.1"
        return str(asking.getsockname()[0])


def _store_host() -> str:
    store = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))  # a file has none
