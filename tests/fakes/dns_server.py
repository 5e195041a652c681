"""A name server on loopback, over UDP and TCP, that answers what it was told to.

Its messages are written by hand here, with names that point back as real servers' do: the code
under test must not be what it is compared with.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = {1: "A", 28: "AAAA", 33: "SRV", 5: "CNAME"}
UDP_BYTES_MAX = 512


def labels(name: str) -> bytes:
    return b"".join(bytes([len(one)]) + one.encode() for one in name.split(".") if one) + b"\0"


def record(kind: int, data: bytes, *, name: bytes = b"\xc0\x0c") -> bytes:
    """By default of the name that was asked for, which stands behind the header."""
    return name + struct.pack(">HHIH", kind, 1, 5, len(data)) + data


@dataclass
class DnsServer:
    """`zone` has records by name and kind: addresses, or (priority, weight, port, target). A name
    that is not in it does not exist; `code` is what all questions are answered with, if not 0.
    """

    zone: dict[tuple[str, str], list[str] | list[tuple[int, int, int, str]]] = field(
        default_factory=dict
    )
    code: int = 0
    is_silent: bool = False
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """What was asked: name, kind, and over what."""
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, message: bytes, over: str) -> bytes | None:
        name, place = self._name(message)
        (kind_number,) = struct.unpack_from(">H", message, place)
        kind = KINDS[kind_number]
        self.asked.append((name, kind, over))
        if self.is_silent:
            return None
        question = message[12 : place + 4]
        rows = self.zone.get((name, kind), [])
        exists = any(known == name for known, _ in self.zone)
        code = self.code or (0 if exists else 3)
        records = [] if code else [self._record(kind_number, row) for row in rows]
        body = b"".join(records)
        if over == "udp" and 12 + len(question) + len(body) > UDP_BYTES_MAX:
            return message[:2] + struct.pack(">HHHHH", 0x8380, 1, 0, 0, 0) + question
        flags = 0x8180 | code
        header = message[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        return header + question + body

    def _record(self, kind: int, row: str | tuple[int, int, int, str]) -> bytes:
        if isinstance(row, tuple):
            return record(kind, struct.pack(">HHH", *row[:3]) + labels(row[3]))
        return record(kind, ip_address(row).packed)

    @staticmethod
    def _name(message: bytes) -> tuple[str, int]:
        parts, place = [], 12
        while length := message[place]:
            parts.append(message[place + 1 : place + 1 + length].decode())
            place += 1 + length
        return ".".join(parts), place + 1


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    @override
    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data, "udp")
        if answer is not None:
            # First what is no answer to this question: anybody may send that.
            self._transport.sendto(b"\0\0" + answer[2:] if answer[:2] != b"\0\0" else b"", addr)
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def dns_server(**zone: object) -> AsyncIterator[DnsServer]:
    """A server that answers while entered."""
    server = DnsServer(**zone)  # type: ignore[arg-type]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2))
        answer = server.answer(await reader.readexactly(length), "tcp")
        if answer is not None:
            writer.write(len(answer).to_bytes(2) + answer)
            await writer.drain()
        writer.close()

    tcp = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = tcp.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Udp(server), local_addr=("127.0.0.1", server.port)
    )
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
