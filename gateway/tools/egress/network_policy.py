"""Rules for the connections made for a model, a page or a tool server. No I/O here.

A URL that they name may lead into the operator's own network: by a name that resolves there, by an
IPv6 address that embeds an IPv4 one, by a redirect. So all addresses of a name are checked before a
connection to one of them, and nothing is resolved twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import httpx2

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from gateway.settings.sections import Destinations

Reason = Literal["scheme", "userinfo", "host", "port", "address", "redirect"]

HOST_CHARS_MAX: Final = 253
"""https://www.rfc-editor.org/rfc/rfc1035#section-2.3.4"""
URL_CHARS_MAX: Final = 2048
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class EgressRefused(Exception):
    """Refusal. The message names no address: it would disclose an internal network."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


def host_and_port_of(url: str) -> tuple[str, int]:
    # The host and the port that an operator's URL leads to.
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS[parts.scheme]


def requested_host(url: str) -> str:
    """Return the host that a request reaches: in lower case, and in ASCII, also its dots.

    Raises `ValueError`.
    """
    try:
        return httpx2.URL(url).raw_host.decode().lower()
    except httpx2.InvalidURL as error:
        raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Targets that one purpose may connect to. `networks` need not be public; any port is open
    there unless `network_ports` lists those that are. `hosts` are trusted, wherever they lead.
    """

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    ports: frozenset[int] = frozenset(_DEFAULT_PORTS.values())
    network_ports: frozenset[int] = frozenset()
    hosts: frozenset[tuple[str, int]] = frozenset()
    public: bool = True
    plain_http: bool = True

    @classmethod
    def to(cls, destinations: Destinations, *, plain_http: bool = True) -> NetworkPolicy:
        # The policy of the operator's settings.
        return cls(
            networks=tuple(map(ip_network, destinations.allowed_networks)),
            hosts=destinations.hosts,
            public=destinations.public,
            plain_http=plain_http,
        )

    def origin(self, url: str) -> Origin:
        """Return the origin of a URL. Raises `EgressRefused`."""
        try:
            parts = urlsplit(url)
            host, port = requested_host(url), parts.port
        except ValueError:
            raise EgressRefused("host", "the URL is malformed") from None
        scheme = parts.scheme
        if scheme not in _DEFAULT_PORTS or (scheme == "http" and not self.plain_http):
            allowed = "http and https" if self.plain_http else "https"
            raise EgressRefused("scheme", f"only {allowed} URLs can be opened")
        if parts.username is not None or parts.password is not None:
            raise EgressRefused("userinfo", "a URL with a user name or a password is not opened")
        if not host or len(host) > HOST_CHARS_MAX or len(url) > URL_CHARS_MAX:
            raise EgressRefused("host", "the URL has no host, or is too long")
        port = _DEFAULT_PORTS[scheme] if port is None else port
        is_open = port in self.ports or self._may_be_ours(port) or (host, port) in self.hosts
        if not is_open:
            raise EgressRefused("port", f"port {port} is not open to tools")
        return Origin(scheme, host, port)

    def redirected(self, before: Origin, url: str) -> Origin:
        """Return the origin of a redirect, which may not drop TLS. Raises `EgressRefused`."""
        origin = self.origin(url)
        if before.scheme == "https" and origin.scheme != "https":
            raise EgressRefused("redirect", "a redirect from https to http is not followed")
        return origin

    def checked(self, host: str, addresses: tuple[str, ...], port: int) -> tuple[str, ...]:
        """Return the addresses if all are allowed: one inside and one outside is an attack. Raises
        `EgressRefused`.
        """
        if not addresses:
            raise EgressRefused("host", "the host has no address")
        if (host.lower(), port) in self.hosts:
            return addresses
        for address in addresses:
            if not self.allows(address, port):
                raise EgressRefused("address", "the host is not reachable for tools")
        return addresses

    def allows(self, address: str, port: int) -> bool:
        """Return True for an allowed address, as `getaddrinfo` writes it."""
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        parsed = _unmapped(parsed)
        if any(parsed in network for network in self.networks):
            return port in self.network_ports if self.network_ports else True
        return self.public and port in self.ports and is_public(parsed)

    def _may_be_ours(self, port: int) -> bool:
        return bool(self.networks) and (not self.network_ports or port in self.network_ports)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return True for a public address that embeds none that is not public.

    `ipaddress.is_global` calls NAT64 and 6to4 addresses public whatever they embed. DNS64 gives
    every IPv4 host a NAT64 address, so the embedded one is checked; the tunnels are refused.
    """
    if isinstance(address, IPv6Address):
        if any(address in network for network in _REFUSED):
            return False
        embedded = _embedded(address)
        if embedded is not None:
            return is_public(embedded)
        if address not in _GLOBAL:
            return False
    return address.is_global and not address.is_multicast and address not in _OF_CLOUDS


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _embedded(address: IPv6Address) -> IPv4Address | None:
    # A translator's IPv6 address holds the IPv4 one in its last 32 bits.
    if any(address in network for network in _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


_EMBEDDING: Final = (
    ip_network("64:ff9b::/96"),  # NAT64: https://www.rfc-editor.org/rfc/rfc6052
    ip_network("::/96"),  # IPv4-compatible: https://www.rfc-editor.org/rfc/rfc4291
)
_GLOBAL: Final = ip_network("2000::/3")  # https://www.rfc-editor.org/rfc/rfc4291#section-2.4
_OF_CLOUDS: Final = frozenset({IPv4Address("168.63.129.16")})
"""In every network of Azure the host of the machine itself.

https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16"""
_REFUSED: Final = (
    ip_network("2001::/32"),  # Teredo
    ip_network("2002::/16"),  # 6to4, given up by https://www.rfc-editor.org/rfc/rfc7526
)
