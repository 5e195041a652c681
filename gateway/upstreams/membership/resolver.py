"""Asks name servers: over UDP, and over TCP where the answer has no room in one packet."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from gateway.upstreams.membership.dns_message import (
    NO_ERROR,
    NO_SUCH_NAME,
    DnsError,
    question,
    read_answer,
)
from gateway.upstreams.membership.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.upstreams.membership.dns_message import DnsAnswer

SYSTEM_FILE: Final = Path("/etc/resolv.conf")
DNS_PORT: Final = 53
_SERVERS_MAX: Final = 3
_DOMAINS_MAX: Final = 32
_DOTS_MAX: Final = 15
_LENGTH_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class NameServers:
    """Whom to ask, each an address and a port, and how names are completed: with fewer than `dots`
    dots in them, `domains` are tried behind them first.
    """

    servers: tuple[tuple[str, int], ...]
    domains: tuple[str, ...] = ()
    dots: int = 1

    def spellings(self, name: str) -> list[str]:
        """The whole names that a name may stand for, the likeliest first."""
        if name.endswith("."):
            return [name]
        longer = [f"{name}.{domain}" for domain in self.domains]
        return [name, *longer] if name.count(".") >= self.dots else [*longer, name]


def system_servers(text: str) -> NameServers:
    """What a file such as /etc/resolv.conf says."""
    servers: list[tuple[str, int]] = []
    domains: tuple[str, ...] = ()
    dots = 1
    for line in text.splitlines():
        keyword, *values = line.split("#")[0].split(";")[0].split() or [""]
        if keyword == "nameserver" and values:
            servers.append((values[0], DNS_PORT))
        elif keyword in {"search", "domain"}:
            domains = tuple(one.strip(".") for one in values[:_DOMAINS_MAX] if one.strip("."))
        elif keyword == "options":
            for option in values:
                name, _, count = option.partition(":")
                if name == "ndots" and count.isdigit():
                    dots = min(int(count), _DOTS_MAX)
    return NameServers(tuple(servers[:_SERVERS_MAX]) or (("127.0.0.1", DNS_PORT),), domains, dots)


class Resolver:
    """Asks one name server after the other, until one knows whether there are such records."""

    def __init__(self, servers: Sequence[str] = (), *, answer_s: float) -> None:
        """`servers` are addresses with ports; none: those of the system, read for each question,
        because they change. One has `answer_s` seconds to answer.
        """
        self._given = tuple(
            (host.strip("[]"), int(port))
            for host, _, port in (one.rpartition(":") for one in servers)
        )
        self._answer_s = answer_s

    async def ask(self, name: str, kind: int) -> DnsAnswer | None:
        """The records of a name; None where there are none. Raises `SourceError`."""
        known = NameServers(self._given) if self._given else self._system()
        for spelling in known.spellings(name):
            answer = await self._of_any(known, spelling, kind)
            if answer.addresses or answer.services:
                return answer
        return None

    def _system(self) -> NameServers:
        try:
            return system_servers(SYSTEM_FILE.read_text("utf-8", errors="replace"))
        except OSError as error:
            raise SourceError(f"cannot read {SYSTEM_FILE}: {error.strerror}") from error

    async def _of_any(self, known: NameServers, name: str, kind: int) -> DnsAnswer:
        faults = []
        for host, port in known.servers:
            try:
                asked = question(secrets.randbelow(1 << 16), name, kind)
                async with asyncio.timeout(self._answer_s):
                    answer = await _over_udp(host, port, asked)
                    if answer.truncated:
                        answer = await _over_tcp(host, port, asked)
            except TimeoutError:
                faults.append(f"{host}:{port} does not answer")
            except (OSError, DnsError, asyncio.IncompleteReadError) as error:
                faults.append(f"{host}:{port}: {error}")
            else:
                if answer.code in {NO_ERROR, NO_SUCH_NAME}:
                    return answer
                faults.append(f"{host}:{port} refuses with code {answer.code}")
        raise SourceError(f"cannot look up {name}: {'; '.join(faults)}")


async def _over_udp(host: str, port: int, asked: bytes) -> DnsAnswer:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[DnsAnswer] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Exchange(asked, answered), remote_addr=(host, port)
    )
    try:
        transport.sendto(asked)
        return await answered
    finally:
        transport.close()


class _Exchange(asyncio.DatagramProtocol):
    """Waits for the answer to one question; what is none may come from anybody, and is dropped."""

    def __init__(self, asked: bytes, answered: asyncio.Future[DnsAnswer]) -> None:
        self._asked = asked
        self._answered = answered

    @override
    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._answered.done():
            return
        try:
            self._answered.set_result(read_answer(data, self._asked))
        except DnsError:
            return

    @override
    def error_received(self, exc: Exception) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc)


async def _over_tcp(host: str, port: int, asked: bytes) -> DnsAnswer:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(len(asked).to_bytes(_LENGTH_BYTES) + asked)
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        return read_answer(await reader.readexactly(length), asked)
    finally:
        writer.close()
