"""Under which address other machines reach this one: that of the interface that gloo is told to use, else that from
which torch's store is reached, else that of the route to other networks. One of IPv6 where there is none of IPv4.
"""

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from odcsim.errors import InputError

INTERFACE = "GLOO_SOCKET_IFNAME"
FIX = f"set {INTERFACE} to the interface that reaches the other machines"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_IPV6 = Path("/proc/net/if_inet6")  # address, number, prefix, scope, flags and interface, a line for each address
_EVERYWHERE = "00"  # the scope of those that are not of a link or a machine alone
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # nobody's, by RFC 5737 and 3849. Nothing is sent there
_OWN = "127.0.0.1"


def own() -> str:
    if names := os.environ.get(INTERFACE, ""):
        return _of(names.split(",")[0].strip())
    for host in (_store_host(), *_ELSEWHERE):
        if host and not ipaddress.ip_address(found := _towards(host)).is_loopback:
            return found
    return _OWN


def _of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            told = fcntl.ioctl(asking, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            if found := _of_ipv6(interface):
                return found
            raise InputError(f"no address of interface '{interface}' ({error.strerror})", fix=FIX) from None
    return socket.inet_ntoa(told[20:24])


def _of_ipv6(interface: str) -> str:
    lines = [line.split() for line in _IPV6.read_text().splitlines()] if _IPV6.exists() else []
    found = (told for told, _, _, scope, _, name in lines if scope == _EVERYWHERE and name == interface)
    return next((str(ipaddress.IPv6Address(bytes.fromhex(told))) for told in found), "")


def _towards(host: str) -> str:
    """From where packets to a host start. None is sent."""
    try:
        ways = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return _OWN
    for family, kind, protocol, _, where in sorted(ways, key=lambda way: way[0] != socket.AF_INET):
        with socket.socket(family, kind, protocol) as asking:
            try:
                asking.connect(where)
            except OSError:
                continue
            return str(asking.getsockname()[0]).partition("%")[0]
    return _OWN


def _store_host() -> str:
    store = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))  # a file has none
