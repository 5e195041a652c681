"""Many requests at once to one gateway, each judged, and the gateway's memory watched."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2
import psutil

from tests.fuzz.judge import finding
from tests.fuzz.rough import Rough
from tests.fuzz.sockets import Sockets
from tests.fuzz.targets import Asker, Known

if TYPE_CHECKING:
    from tests.fuzz.targets import Request

AT_ONCE: Final = 24
ANSWER_WAIT_S: Final = 60.0
ROUGH_SHARE: Final = 0.004
SOCKET_SHARE: Final = 0.03
WARM_SHARE: Final = 0.3
"""The part of the requests after which memory must not grow any more."""
SAMPLES: Final = 200
FINDINGS_MAX: Final = 40


@dataclass
class Outcome:
    """What came of it: of requests by status, of connections by close code. `memory` are samples of
    the gateway's resident bytes, evenly spread.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    closes: Counter[int] = field(default_factory=Counter)
    rough: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)

    @property
    def growth_bytes(self) -> int:
        """How much more it held in the last tenth than just after it was warm; medians."""
        warm = int(len(self.memory) * WARM_SHARE)
        part = max(1, len(self.memory) // 10)
        early, late = self.memory[warm : warm + part], self.memory[-part:]
        return sorted(late)[len(late) // 2] - sorted(early)[len(early) // 2]


class Campaign:
    """`requests` requests with the dice of `seed` to the gateway at `url`, process `pid`."""

    def __init__(self, url: str, key: str, *, pid: int, requests: int, seed: int) -> None:
        self._url = url
        self._key = key
        self._process = psutil.Process(pid)
        self._requests = requests
        self._seed = seed
        self._asked = 0
        self._known = Known()
        parts = urlsplit(url)
        self._rough = Rough(str(parts.hostname), parts.port or 80, key)
        self._sockets = Sockets(url, key)
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """All of them."""
        limits = httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        async with (
            httpx2.AsyncClient(
                base_url=self._url,
                headers={"authorization": f"Bearer {self._key}"},
                timeout=ANSWER_WAIT_S,
                trust_env=False,
                limits=limits,
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(AT_ONCE):
                dice = random.Random(self._seed * AT_ONCE + number)
                group.create_task(self._ask(client, dice))
        self.outcome.rough.update(self._rough.counts)
        self.outcome.closes = self._sockets.closes
        self.outcome.findings.update((*self._rough.findings, *self._sockets.findings))
        return self.outcome

    async def _ask(self, client: httpx2.AsyncClient, dice: random.Random) -> None:
        asker = Asker(dice, self._known)
        while self._asked < self._requests:
            self._asked += 1
            if self._asked % max(1, self._requests // SAMPLES) == 0:
                self.outcome.memory.append(self._process.memory_info().rss)
            kind = dice.random()
            if kind < ROUGH_SHARE:
                await self._rough.visit(dice)
            elif kind < ROUGH_SHARE + SOCKET_SHARE:
                await self._sockets.visit(dice, asker)
            else:
                await self._one(client, asker.request())

    async def _one(self, client: httpx2.AsyncClient, asked: Request) -> None:
        try:
            answer = await client.request(
                asked.method, asked.path, content=asked.body, headers=asked.headers
            )
        except httpx2.TimeoutException:
            what = f"{asked.method} {asked.path[:120]} {asked.headers}"
            self._note(f"no end within {ANSWER_WAIT_S:g} s: {what}", asked.body)
        except httpx2.TransportError as error:
            what = f"{asked.method} {asked.path[:80]} {asked.headers} {len(asked.body)} bytes"
            self._note(f"{type(error).__name__}: {error}: {what}")
        else:
            self.outcome.statuses[answer.status_code] += 1
            fault = finding(asked, answer.status_code, answer.headers, answer.content, self._known)
            if fault is not None:
                self._note(fault, asked.body)

    def _note(self, fault: str, body: bytes = b"") -> None:
        if len(self.outcome.findings) < FINDINGS_MAX:
            with suppress(UnicodeError):
                fault = f"{fault} BODY {body[:600].decode(errors='replace')}"
            self.outcome.findings[fault] += 1
