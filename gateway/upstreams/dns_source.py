from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dns.exception
import dns.name
import dns.nameserver
import dns.resolver
from dns.asyncresolver import Resolver as AsyncResolver
from dns.rdtypes.IN.SRV import SRV
from typing_extensions import override

from gateway.upstreams.backend_sources import BackendSource, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dns.rdata import Rdata

    from gateway.upstreams.backend import Backend


ANSWER_S: Final = 5.0
"""For each name server."""
DEFAULT_PORT: Final = 8000
EMPTY_S: Final = 60.0


class DnsSource(BackendSource):
    """Looks a host up at an interval; members are named by address or SRV target, and port."""

    empty_s = EMPTY_S

    def __init__(
        self,
        name: str,
        host: str,
        backend_at: Callable[[str], Backend],
        *,
        refresh_s: float,
        servers: Sequence[str] = (),
        port: int | None = DEFAULT_PORT,
    ) -> None:
        # `backend_at` makes the backend at `host:port`; it raises `ValueError` if there can be
        # none. `port` None: look up SRV records, which have ports. `servers` are `host:port`, each
        # may take `ANSWER_S`. Without any, those of the system are read for each look-up, because
        # they change.
        super().__init__(name, refresh_s=refresh_s)
        self._host = host
        self._backend_at = backend_at
        self._port = port
        self._servers: list[str | dns.nameserver.Nameserver] = [
            dns.nameserver.Do53Nameserver(host.strip("[]"), int(port))
            for host, _, port in (one.rpartition(":") for one in servers)
        ]

    @override
    async def fetch(self) -> tuple[Backend, ...]:
        if self._port is None:
            return self._backends(await self._services())
        return self._backends(f"{one}:{self._port}" for one in await self._addresses())

    async def _addresses(self) -> list[str]:
        # IPv6 only where there is no IPv4: a server with both addresses is one server.
        if addresses := await self._lookup("A"):
            return [one.to_text() for one in addresses]
        return [f"[{one.to_text()}]" for one in await self._lookup("AAAA")]

    async def _services(self) -> list[str]:
        services = [one for one in await self._lookup("SRV") if isinstance(one, SRV)]
        first = min((one.priority for one in services), default=0)
        # A single `.` says that there is no such service.
        return [
            f"{one.target.to_text(omit_final_dot=True)}:{one.port}"
            for one in services
            if one.priority == first and one.target != dns.name.root
        ]

    def _backends(self, addresses: Iterable[str]) -> tuple[Backend, ...]:
        # Sorted, because name servers rotate their answers.
        return tuple(map(self._backend, sorted(set(addresses))))

    def _backend(self, address: str) -> Backend:
        try:
            return self._backend_at(address)
        except ValueError as error:
            raise SourceError(f"{address} of {self._host} cannot be a backend: {error}") from error

    async def _lookup(self, kind: str) -> list[Rdata]:
        try:
            resolver = self._resolver()
            answer = await resolver.resolve(self._host, kind, search=True, raise_on_no_answer=False)
        except dns.resolver.NXDOMAIN:
            return []
        except dns.exception.DNSException as error:
            raise SourceError(f"cannot look up {self._host}: {error}") from error
        return list(answer)

    def _resolver(self) -> AsyncResolver:
        resolver = AsyncResolver(configure=not self._servers)
        if self._servers:
            resolver.nameservers = self._servers
        resolver.timeout = ANSWER_S
        resolver.lifetime = ANSWER_S * len(resolver.nameservers)
        return resolver
