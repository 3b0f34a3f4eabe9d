"""Which addresses the operator may connect to for a metric source.

The question is asked where the connection is made, of the very address that it will go to: however
a host is written, whatever its name resolves to and however often that changes.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiohttp.connector import AddrInfoType

Network: TypeAlias = IPv4Network | IPv6Network

METADATA: Final = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's host
        "100.100.100.200/32",  # Alibaba Cloud
        "192.0.0.192/32",  # Oracle Cloud, classic
        "fd00:ec2::/32",  # AWS: metadata, DNS, time
        "fd20:ce::254/128",  # Google Cloud, IPv6
    )
)
"""Where clouds give credentials to whoever asks, beside the link-local addresses (our list)."""
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
"""IPv6 networks whose last 32 bits are an IPv4 address (RFC 6052, RFC 8215)."""


class Refused(OSError):  # noqa: N818  # a consequence, not a suffix
    """This address is not connected to."""


def guarded(allowed: Sequence[Network]) -> Callable[[AddrInfoType], socket.socket]:
    """Makes sockets for addresses that may be connected to; raises ``Refused`` for others.

    Args:
        allowed: Networks that may be connected to although they are of a refused kind.
    """

    def make(info: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        if why := refusal(str(address[0]), allowed):
            raise Refused(errno.EACCES, f"it is a {why} address; see allowAddresses")
        return socket.socket(family, kind, protocol)

    return make


def refusal(address: str, allowed: Sequence[Network]) -> str:
    """Of which kind an address is that is not connected to; empty for one that is."""
    seen = ip_address(address.partition("%")[0])
    meant = (seen, *_inside(seen))
    if any(one in network for one in meant for network in allowed):
        return ""
    return next((kind for one in meant if (kind := _kind(one))), "")


def _kind(seen: IPv4Address | IPv6Address) -> str:
    if seen.is_loopback:
        return "loopback"
    if seen.is_link_local:
        return "link-local"
    if seen.is_unspecified or seen in _ZERO:
        return "unspecified"
    if seen.is_multicast or seen == _BROADCAST:
        return "multicast"
    return "metadata" if any(seen in network for network in METADATA) else ""


_ZERO: Final = ip_network("0.0.0.0/8")
_BROADCAST: Final = ip_address("255.255.255.255")


def _inside(seen: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    """IPv4 addresses that an IPv6 address leads to."""
    if isinstance(seen, IPv4Address):
        return ()
    nat64 = any(seen in network for network in _NAT64)
    last = IPv4Address(int(seen) & 0xFFFFFFFF) if nat64 or int(seen) >> 32 == 0 else None
    teredo = seen.teredo[1] if seen.teredo else None
    return tuple(one for one in (seen.ipv4_mapped, seen.sixtofour, teredo, last) if one)
