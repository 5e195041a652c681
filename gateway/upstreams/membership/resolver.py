"""DNS look-ups, bounded in time, with the name servers of the system or of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dns.exception
import dns.nameserver
import dns.resolver
from dns.asyncresolver import Resolver as AsyncResolver

from gateway.upstreams.membership.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dns.rdata import Rdata

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
