"""Clients that are rough with the transport: slow, huge, cut off, or not HTTP at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

ANSWER_WAIT_S: Final = 20.0
HUGE_BYTES: Final = 50_000_000
BLOCK: Final = b"x" * 65_536
SLOW_BYTES: Final = 40
SLOW_PAUSE_S: Final = 0.05


class Rough:
    """One such client at a time. `hung` counts those that the server left without an end."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host = host
        self._port = port
        self._key = key
        self.counts: dict[str, int] = {}
        self.findings: list[str] = []

    async def visit(self, dice: random.Random) -> None:
        """Do one rough thing, and see that the connection comes to an end."""
        kind = dice.choice(("huge", "slow", "cut", "left", "garbage", "chunks", "lying"))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            with suppress(OSError):
                await getattr(self, f"_{kind}")(writer, dice)
            if kind != "left":
                await self._end(kind, reader)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _end(self, kind: str, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                with suppress(OSError):
                    answer = await reader.read()
                    if answer.split(b" ")[1:2] and answer.split(b" ")[1][:1] == b"5":
                        self.findings.append(f"{kind}: {answer[:200]!r}")
        except TimeoutError:
            self.findings.append(f"{kind}: no end within {ANSWER_WAIT_S:g} s")

    def _head(self, length: str) -> bytes:
        lines = (
            *("POST /v1/responses HTTP/1.1", "host: gateway", "connection: close"),
            *(f"authorization: Bearer {self._key}", "content-type: application/json"),
            *(length, "", ""),
        )
        return "\r\n".join(lines).encode()

    async def _huge(self, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        """50 MB: announced, or in chunks without a word before."""
        announced = dice.random() < 0.5
        length = f"content-length: {HUGE_BYTES}" if announced else "transfer-encoding: chunked"
        writer.write(self._head(length))
        for _ in range(HUGE_BYTES // len(BLOCK)):
            writer.write(BLOCK if announced else b"%x\r\n%s\r\n" % (len(BLOCK), BLOCK))
            await writer.drain()

    async def _slow(self, writer: asyncio.StreamWriter, _: random.Random) -> None:
        """Byte by byte, and never all of it."""
        writer.write(self._head("content-length: 1000"))
        for _number in range(SLOW_BYTES):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(SLOW_PAUSE_S)
        writer.write_eof()

    async def _cut(self, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        """Half a body, then no more."""
        writer.write(self._head("content-length: 100000") + b'{"model":' * dice.randrange(99))
        writer.write_eof()

    async def _left(self, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        """A good request whose client leaves at once, or in the middle of the answer."""
        body = b'{"model":"gpt-oss-20b","input":"[[sim tokens=300]] go","stream":true}'
        writer.write(self._head(f"content-length: {len(body)}") + body)
        await writer.drain()
        await asyncio.sleep(dice.choice((0.0, 0.01, 0.1)))

    async def _garbage(self, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        """Not HTTP."""
        writer.write(dice.randbytes(dice.randrange(1, 3000)) + b"\r\n\r\n")
        writer.write_eof()

    async def _chunks(self, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        """Chunks with sizes that are none."""
        writer.write(self._head("transfer-encoding: chunked"))
        writer.write(dice.choice((b"-1\r\n", b"zz\r\nx\r\n", b"f" * 40 + b"\r\n", b"5\r\nab")))
        writer.write_eof()

    async def _lying(self, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        """Lengths that contradict each other, or are none."""
        length = dice.choice(("-1", "1e3", "9" * 40, "5\r\ncontent-length: 6", "0x10"))
        writer.write(self._head(f"content-length: {length}") + b'{"model":1}')
        writer.write_eof()
