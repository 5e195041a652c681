"""(p) What becomes of three times as much as the backends can do.

Two simulated servers with `SLOTS` places each, which let what comes on top wait, as engines do.
Requests come at random (open loop), whatever becomes of those before. Capacity is what the places
can do if they are never empty. Clients do not try again.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING, Final, NamedTuple

import httpx2

from tests.fakes.http_client import NO_TLS
from tests.fakes.simulator import simulator_process
from tests.load.figures import Column, Target
from tests.load.processes import RunVoid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

SERVERS: Final = 2
SLOTS: Final = 8
TOKENS_PER_S: Final = 50.0
FIRST_TOKEN_S: Final = 0.2
TOKENS: Final = (50, 150)
SERVICE_S: Final = FIRST_TOKEN_S + sum(TOKENS) / 2 / TOKENS_PER_S
CAPACITY_PER_S: Final = SERVERS * SLOTS / SERVICE_S
"""Responses."""
LEARNING_S: Final = 40.0
MEASURED_S: Final = 30.0
QUICK_S: Final = 8.0
BEGINS_S: Final = 40.0
BUSY, OVER, BEGINS, UNBOUND = "90 %", "300 %", "300 %, as it begins", "300 %, admission off"


class _Row(NamedTuple):
    """A load, as a share of what the servers can do; what comes in the first `learning_s` does not
    count.
    """

    load: float
    is_bound: bool = True
    learning_s: float = LEARNING_S


_ROWS: Final = {
    BUSY: _Row(0.9),
    OVER: _Row(3.0),
    BEGINS: _Row(3.0, learning_s=0.0),
    UNBOUND: _Row(3.0, is_bound=False),
}


@dataclass(slots=True)
class Seen:
    """What clients saw of the requests of the measured time."""

    first_s: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0
    tokens: list[tuple[float, int]] = field(default_factory=list)
    """When a response was complete, and what it was asked for."""


class Overload:
    """Rows are loads, as shares of what the servers can do."""

    letter = "p"
    title = "more than the backends can do, at two simulated servers"
    is_quick = False
    columns = (
        Column("done, of capacity", "goodput", 3),
        Column("first token p50 ms", "first_p50_ms"),
        Column("p99 ms", "first_p99_ms"),
        Column("at the backend p99 ms", "backend_p99_ms"),
        Column("refused, of all", "refused", 3),
    )
    targets = (
        Target(OVER, "done, of capacity", "goodput", 0.97, is_floor=True),
        Target(OVER, "first token p99", "first_p99_ms", 2.0, "times", BUSY),
        Target(BEGINS, "first token p99", "first_p99_ms", 2.0, "times", BUSY),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return tuple(_ROWS)

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        def measure(row: str) -> Figures:
            load, is_bound, learning_s = _ROWS[row]
            measured_s = MEASURED_S if learning_s else BEGINS_S
            if quick:
                measured_s = QUICK_S
            with ExitStack() as running:
                options = {
                    "running_max": SLOTS,
                    "queued_max": 100_000,
                    "tokens_per_s": TOKENS_PER_S,
                    "first_token_delay_s": FIRST_TOKEN_S,
                }
                urls = [
                    running.enter_context(simulator_process(**options)).url for _ in range(SERVERS)
                ]
                backends = [{"name": f"b{i}", "url": url} for i, url in enumerate(urls)]
                admission = {"enabled": is_bound}
                child = running.enter_context(
                    stack.fresh("gateway", backends=backends, admission=admission)
                )
                requests = OpenLoop(child.port, stack.key, load * CAPACITY_PER_S)
                return asyncio.run(requests.run(learning_s, measured_s))

        yield measure


class OpenLoop:
    """Requests at random times, so many a second."""

    def __init__(self, port: int, key: str, rate_per_s: float) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._key = key
        self._rate_per_s = rate_per_s
        self._random = Random(17)
        self._seen = Seen()
        self._since = self._until = 0.0

    async def run(self, learning_s: float, measured_s: float) -> Figures:
        """Load for the time in which slots are learned, then measure."""
        headers = {"authorization": f"Bearer {self._key}"}
        self._since = time.perf_counter() + learning_s
        self._until = self._since + measured_s
        async with (
            httpx2.AsyncClient(
                base_url=self._url,
                headers=headers,
                verify=NO_TLS,
                trust_env=False,
                timeout=None,
                limits=httpx2.Limits(max_connections=None),
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            sent = [group.create_task(self._request(client))]
            at = time.perf_counter()
            while (at := at + self._random.expovariate(self._rate_per_s)) < self._until:
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                sent.append(group.create_task(self._request(client)))
            before = await _waited(client)
            await asyncio.sleep(max(0.0, self._until - time.perf_counter()))
            for task in sent:
                task.cancel()
        return self._figures(measured_s, before)

    async def _request(self, client: httpx2.AsyncClient) -> None:
        tokens, began = self._random.randint(*TOKENS), time.perf_counter()
        body = {
            "model": "gpt-oss-20b",
            "input": f"[[sim tokens={tokens} think=none]] go",
            "max_output_tokens": tokens,
            "stream": True,
            "store": False,
        }
        is_counted = began >= self._since
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            if answer.status_code == 503:
                self._seen.refused += is_counted
                return
            has_begun = False
            async for line in answer.aiter_lines():
                if line == "event: response.output_text.delta" and not has_begun:
                    has_begun = True
                    self._first(time.perf_counter(), began)
                elif line == "event: response.failed":
                    self._seen.failed += is_counted
                    return
        self._seen.tokens.append((time.perf_counter(), tokens))

    def _first(self, now: float, began: float) -> None:
        if self._since <= now <= self._until:
            self._seen.first_s.append(now - began)

    def _figures(self, measured_s: float, backend_p99_s: float) -> Figures:
        seen = self._seen
        if len(seen.first_s) < 2:
            raise RunVoid("nothing was answered")
        done = sum(count for at, count in seen.tokens if self._since <= at <= self._until)
        centiles = quantiles(seen.first_s, n=100)
        refused = seen.refused + seen.failed
        return {
            # A response of n tokens takes a place for FIRST_TOKEN_S, too.
            "goodput": done / measured_s / (CAPACITY_PER_S * sum(TOKENS) / 2),
            "first_p50_ms": centiles[49] * 1e3,
            "first_p99_ms": centiles[98] * 1e3,
            "backend_p99_ms": backend_p99_s * 1e3,
            "refused": refused / (refused + len(seen.first_s)),
        }


async def _waited(client: httpx2.AsyncClient) -> float:
    """The 99th of a hundred first tokens, from when backends were sent the prompts (a bound of its
    bucket); those of the first seconds are among them.
    """
    text = (await client.get("/metrics")).text
    counts: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith("gateway_upstream_first_token_seconds_bucket"):
            name, _, count = line.rpartition(" ")
            bound = float(name.partition('le="')[2].partition('"')[0])
            counts[bound] = counts.get(bound, 0.0) + float(count)
    total = max(counts.values(), default=0.0)
    return min((bound for bound, count in counts.items() if count >= 0.99 * total), default=0.0)
