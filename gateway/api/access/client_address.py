"""Client addresses behind trusted proxies.

Each proxy appends its peer's address to `X-Forwarded-For`, so the list is read from its end: the
first address that is not trusted is the client's, and entries before it may be forged.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from starlette.types import Scope

    from gateway.tenancy import Network

    Address = IPv4Address | IPv6Address

_HOPS_MAX: Final = 32


def client_address(scope: Scope, trusted: Sequence[Network]) -> Address | None:
    """Return the address; None over a Unix socket, or if a proxy forwards an invalid one."""
    client = scope.get("client")
    address = _parse_address(client[0]) if client else None
    if address is None or not is_in(address, trusted):
        return address
    for hop in _forwarded_hops(scope):
        address = _parse_address(hop)
        if address is None or not is_in(address, trusted):
            return address
    return address


def is_from_proxy(scope: Scope, trusted: Sequence[Network]) -> bool:
    client = scope.get("client") if trusted else None
    address = _parse_address(client[0]) if client else None
    return address is not None and is_in(address, trusted)


def is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _forwarded_hops(scope: Scope) -> list[str]:
    # The last hop first.
    lines = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    hops = b",".join(lines).decode("latin-1").split(",") if lines else []
    return [hop.strip() for hop in hops[: -_HOPS_MAX - 1 : -1]]


def _parse_address(text: str) -> Address | None:
    # Some proxies write the address with a port or in brackets.
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
