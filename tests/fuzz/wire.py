"""A campaign against how the server reads HTTP, while probes and a client with a key go on asking.

Every connection must come to its end, what is wrong must be refused and nothing behind it answered,
the event loop must not be held up, and memory must not grow.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count, cycle, repeat
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psutil

from tests.fuzz.campaign import Outcome
from tests.fuzz.judge import STATUSES
from tests.fuzz.wire_forms import BROKEN_CHUNKS, HEALTH, HOST, SMUGGLING, damaged, endless

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "server": {"connections_max": 200, "head_timeout_s": 3, "keepalive_timeout_s": 3},
    "limits": {"body_timeout_s": 3},
    "rate_limits": {"reads_per_minute_max": 0},  # probes ask as often as they can
}
AT_ONCE: Final = 8
WAIT_S: Final = 30.0
FLOOD: Final = 300
"""Connections of one flood: more than there may be."""
BLOCK: Final = 65_536
BLOCKS: Final = 300
TRICKLE_S: Final = 0.2
PIPELINED: Final = 3000
LENGTH: Final = b"content-length: 100\r\n"
CLOSE: Final = b"connection: close\r\n"
INTERIM: Final = b"HTTP/1.1 100 "
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_ALLOWED: Final = STATUSES | {100, 431}


class Wire:
    """One end of a connection, and what came over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def say(self, *pieces: bytes) -> None:
        """Write them, each by itself, as far as the server takes them."""
        with suppress(OSError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()

    def end(self) -> None:
        """No more comes from here."""
        with suppress(OSError):
            self.writer.write_eof()

    async def answers(self) -> list[bytes]:
        """All answers, when the server has closed; what a reset took away is missing."""
        data = bytearray()
        with suppress(OSError):
            while part := await self._reader.read(BLOCK):
                data += part
        starts = [match.start() for match in _STATUS.finditer(data)]
        ends = [*starts[1:], len(data)]
        return [bytes(data[start:end]) for start, end in zip(starts, ends, strict=bool(starts))]


class WireCampaign:
    """`visits` of rough clients with the dice of `seed` to the gateway at `url`, process `pid`."""

    def __init__(self, url: str, key: str, *, pid: int, visits: int, seed: int) -> None:
        self._address = urlsplit(url)
        self._key = f"authorization: Bearer {key}\r\n".encode()
        self._process = psutil.Process(pid)
        self._visits = iter(range(visits))
        self._seed = seed
        self._flooding = asyncio.Lock()
        self.counts: Counter[str] = Counter()
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """All of them, and the probes beside them."""
        probing = asyncio.create_task(self._probe())
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._go_on(random.Random(self._seed * AT_ONCE + number)))
        probing.cancel()
        await asyncio.wait([probing])
        self.outcome.rough = self.counts
        return self.outcome

    async def _go_on(self, dice: random.Random) -> None:
        kinds = ("smuggled", "chunks", "endless", "slow", "half_closed", "pipelined", "damaged")
        for number in self._visits:
            kind = "flood" if number % 40 == 0 else dice.choice((*kinds, "bytewise"))
            self.counts[kind] += 1
            try:
                async with asyncio.timeout(WAIT_S):
                    await getattr(self, f"_{kind}")(dice)
            except TimeoutError:
                self._note(f"{kind}: no end within {WAIT_S:g} s")
            self.outcome.memory.append(self._process.memory_info().rss)

    def _note(self, finding: str) -> None:
        self.outcome.findings[finding[:400]] += 1

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.transport.abort()

    def _judge(self, kind: str, asked: bytes, answers: list[bytes], *wanted: int) -> None:
        """The statuses must be those, if any are named, but what was reset may be missing."""
        statuses = [int(answer[9:12]) for answer in answers]
        self.outcome.statuses.update(statuses)
        if not _ALLOWED.issuperset(statuses) or (wanted and statuses != list(wanted)):
            self._note(f"{kind}: {statuses} for {asked[:200]!r}")

    async def _probe(self) -> None:
        """What an orchestrator asks, and a client with a key, each on a connection of its own."""
        for path, key in cycle(((b"healthz", b""), (b"readyz", b""), (b"v1/models", self._key))):
            request = b"GET /" + path + b" HTTP/1.1\r\n" + HOST + key + CLOSE + b"\r\n"
            try:
                async with asyncio.timeout(WAIT_S), self._connected() as wire:
                    await wire.say(request)
                    self._judge("probe", request, await wire.answers(), 200)
            except (OSError, TimeoutError) as error:
                self._note(f"probe of /{path.decode()}: {error!r}")

    async def _smuggled(self, dice: random.Random) -> None:
        """What may be read in two ways, with another request behind it."""
        form = dice.choice(SMUGGLING)
        async with self._connected() as wire:
            await wire.say(form + HEALTH)
            self._judge("smuggled", form, await wire.answers(), 400)

    async def _chunks(self, dice: random.Random) -> None:
        """Chunks that are none, of a body that is waited for, with another request behind it."""
        form = self._create(b"transfer-encoding: chunked\r\n") + dice.choice(BROKEN_CHUNKS)
        async with self._connected() as wire:
            await wire.say(form + HEALTH)
            self._judge("chunks", form, await wire.answers(), 400)

    async def _endless(self, dice: random.Random) -> None:
        """As fast as it can, for as long as it is taken."""
        start, more = endless(dice)
        block = more * (BLOCK // len(more))
        async with self._connected() as wire:
            await wire.say(start, *repeat(block, BLOCKS))
            wire.end()
            self._judge("endless", start + more, await wire.answers())

    async def _slow(self, dice: random.Random) -> None:
        """The same byte by byte: its time is bounded, too."""
        start, more = endless(dice)
        async with self._connected() as wire:
            await self._trickle(wire, dice.choice((start, self._create(LENGTH))), more)
            self._judge("slow", start + more, await wire.answers())

    async def _trickle(self, wire: Wire, start: bytes, more: bytes) -> None:
        try:
            wire.writer.write(start)
            for number in count():
                wire.writer.write(more[number % len(more) :][:1])
                await wire.writer.drain()
                await asyncio.sleep(TRICKLE_S)
        except OSError:
            return

    async def _half_closed(self, dice: random.Random) -> None:
        """Complete requests, behind which the client's side ends."""
        body = b'{"model":"gpt-oss-20b","input":"[[sim tokens=40]] go","stream":%b}'
        body %= dice.choice((b"true", b"false"))
        create = self._create(b"content-length: %d\r\n" % len(body)) + body
        requests = dice.choices((HEALTH, create), k=dice.randrange(1, 4))
        async with self._connected() as wire:
            await wire.say(b"".join(requests))
            wire.end()
            answers = [one for one in await wire.answers() if not one.startswith(INTERIM)]
            self._judge("half_closed", b"".join(requests), answers, *(200 for _ in requests))

    async def _pipelined(self, dice: random.Random) -> None:
        """Thousands of requests in one write; some clients do not wait for the answers."""
        async with self._connected() as wire:
            await wire.say(HEALTH * PIPELINED)
            if dice.random() < 0.5:
                wire.end()
                answers = await wire.answers()
                self._judge("pipelined", HEALTH, answers, *(200 for _ in range(PIPELINED)))

    async def _bytewise(self, _: random.Random) -> None:
        """A good request, byte by byte."""
        body = b'{"model":"gpt-oss-20b","input":"[[sim tokens=4]] go"}'
        request = self._create(LENGTH.replace(b"100", b"%d" % len(body)) + CLOSE) + body
        async with self._connected() as wire:
            await wire.say(*(bytes([byte]) for byte in request))
            self._judge("bytewise", request, await wire.answers(), 200)

    async def _damaged(self, dice: random.Random) -> None:
        """Good requests, with damage."""
        body = b'5;a=b\r\n{"x":\r\n2\r\n1}\r\n0\r\na: b\r\n\r\n'
        request = self._create(b"transfer-encoding: chunked\r\n") + body
        form = damaged(dice, dice.choice((HEALTH * 2, request, request + HEALTH)))
        async with self._connected() as wire:
            await wire.say(form)
            wire.end()
            self._judge("damaged", form, await wire.answers())

    async def _flood(self, dice: random.Random) -> None:
        """More connections than there may be, which say little and stay for as long as they may."""
        async with self._flooding, AsyncExitStack() as stack:
            for _ in range(FLOOD):
                with suppress(OSError):
                    wire = await stack.enter_async_context(self._connected())
                    wire.writer.write(endless(dice)[0])
            await asyncio.sleep(dice.choice((0.0, TRICKLE_S, 2.0)))

    def _create(self, framing: bytes) -> bytes:
        """The head of a request with a key, whose body is waited for."""
        kind = b"content-type: application/json\r\n"
        return b"POST /v1/responses HTTP/1.1\r\n" + HOST + self._key + kind + framing + b"\r\n"
