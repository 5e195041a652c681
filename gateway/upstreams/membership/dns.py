"""Backends from DNS: the addresses of a host, or its SRV records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dns.name
from dns.rdtypes.IN.SRV import SRV

from gateway.upstreams.membership.source import polled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.membership.desired import Answer
    from gateway.upstreams.membership.resolver import Resolver
    from gateway.upstreams.membership.source import BackendTemplate

DEFAULT_PORT: Final = 8000
EMPTY_S: Final = 60.0
"""For which an answer without addresses is doubted."""


class DnsSource:
    """Looks a host up at an interval. Members are named by address and port, or by the name and
    the port that an SRV record has: both stay as long as the server does.
    """

    def __init__(
        self,
        name: str,
        host: str,
        resolver: Resolver,
        template: BackendTemplate,
        *,
        refresh_s: float,
        port: int | None = DEFAULT_PORT,
    ) -> None:
        # `port` None: look up SRV records, which have ports.
        self.name = name
        self.empty_s = EMPTY_S
        self._host = host
        self._resolver = resolver
        self._template = template
        self._port = port
        self._refresh_s = refresh_s

    async def fetch(self) -> tuple[Backend, ...]:
        """Return all backends now. Raises `SourceError`."""
        if self._port is None:
            return self._backends(await self._services())
        return self._backends(f"{one}:{self._port}" for one in await self._addresses())

    def watch(self) -> AsyncGenerator[Answer]:
        return polled(self.fetch, self._refresh_s)

    async def _addresses(self) -> list[str]:
        # IPv6 only where there is no IPv4: a server with both addresses is one server.
        if found := await self._resolver.lookup(self._host, "A"):
            return [one.to_text() for one in found]
        return [f"[{one.to_text()}]" for one in await self._resolver.lookup(self._host, "AAAA")]

    async def _services(self) -> list[str]:
        services = [
            one for one in await self._resolver.lookup(self._host, "SRV") if isinstance(one, SRV)
        ]
        first = min((one.priority for one in services), default=0)
        # A single `.` says that there is no such service.
        return [
            f"{one.target.to_text(omit_final_dot=True)}:{one.port}"
            for one in services
            if one.priority == first and one.target != dns.name.root
        ]

    def _backends(self, places: Iterable[str]) -> tuple[Backend, ...]:
        # Sorted, because name servers rotate their answers.
        return tuple(self._template.backend(place) for place in sorted(set(places)))
