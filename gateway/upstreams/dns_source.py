"""Backends from DNS: the addresses of a host, or its SRV records.

Look-ups are bounded in time, with the name servers of the system or of the settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import dns.exception
import dns.name
import dns.nameserver
import dns.resolver
from dns.asyncresolver import Resolver as AsyncResolver
from dns.rdtypes.IN.SRV import SRV

from gateway.upstreams.backend_sources import SourceError, polled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from dns.rdata import Rdata

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.backend_sources import Answer, BackendTemplate


ANSWER_S: Final = 5.0
"""For which one name server is waited for."""


class Resolver:
    """Asks one name server after the other, each for `ANSWER_S` at most."""

    def __init__(self, servers: Sequence[str] = ()) -> None:
        # `servers` are `host:port`. Without any, the system's are read for each look-up, because
        # they change.
        self._servers: list[str | dns.nameserver.Nameserver] = [
            dns.nameserver.Do53Nameserver(host.strip("[]"), int(port))
            for host, _, port in (one.rpartition(":") for one in servers)
        ]

    async def lookup(self, name: str, kind: str) -> list[Rdata]:
        """Return the records of a kind (`A`, `AAAA`, `SRV`); empty if the name has none.

        Raises `SourceError`.
        """
        try:
            resolver = self._resolver()
            answer = await resolver.resolve(name, kind, search=True, raise_on_no_answer=False)
        except dns.resolver.NXDOMAIN:
            return []
        except dns.exception.DNSException as error:
            raise SourceError(f"cannot look up {name}: {error}") from error
        return list(answer)

    def _resolver(self) -> AsyncResolver:
        resolver = AsyncResolver(configure=not self._servers)
        if self._servers:
            resolver.nameservers = self._servers
        resolver.timeout = ANSWER_S
        resolver.lifetime = ANSWER_S * len(resolver.nameservers)
        return resolver


DEFAULT_PORT: Final = 8000
EMPTY_S: Final = 60.0
"""For which an answer without addresses is doubted."""


@dataclass(frozen=True, slots=True)
class DnsTiming:
    """Seconds between two looks, and for which it is not believed that there is nothing."""

    refresh_s: float
    empty_s: float = EMPTY_S


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
        timing: DnsTiming,
        *,
        port: int | None = DEFAULT_PORT,
    ) -> None:
        # `port` None: look up SRV records, which have ports.
        self.name = name
        self.empty_s = timing.empty_s
        self._host = host
        self._resolver = resolver
        self._template = template
        self._port = port
        self._refresh_s = timing.refresh_s

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
