"""(h) Background streams: how many tokens a process makes durable, and how soon they are seen."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from gateway.store.migration.migrate import upgrade
from tests.fakes.key_services import sealing
from tests.load import loading
from tests.load.figures import Column, Target
from tests.load.loading import Load, word_times
from tests.load.processes import RunVoid
from tests.load.systems import BACKGROUND, SYSTEMS
from tests.load.workloads.streams import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

SATURATED: Final = "saturated"
SEALED: Final = "saturated, content encrypted"
SEALED_PACED: Final = "10,000 tokens/s, content encrypted"
SAME: Final = "10,000 tokens/s, same replica"
OTHER: Final = "10,000 tokens/s, read on another one"
FASTEST: Final = Load(streams=64, requests=320, tokens=1000)
PACED: Final = Load(streams=200, requests=200, tokens=300, rate_per_s=50, ramp_s=3)
KEYS: Final = "keys"
SEALED_ROWS: Final = "sealed"
SETTLING_S: Final = 0.5
"""After the last request: what that cost is over then, and all streams run."""
MEASURED_MIN: Final = 100
TOKENS_PER_S_MIN: Final = 100_000
VISIBLE_P50_US, VISIBLE_P99_US = 15_000, 60_000


class Durable:
    """In the last row responses are created on one process and read on a second one, which knows of
    them only by PostgreSQL."""

    letter = "h"
    title = "background streams, every token durable before it is shown"
    is_quick = True
    columns = (
        Column("tokens/s", "tokens_per_s"),
        Column("token p50 μs", "latency_p50_us"),
        Column("p90", "latency_p90_us"),
        Column("p99", "latency_p99_us"),
        Column("CPU μs/token", "cpu_us", 2),
        Column("PostgreSQL μs/token", "database_us", 2),
        Column("tokens/event", "tokens_per_event", 1),
        Column("busy: system", "busy", 2),
        Column("backend", "backend_busy", 2),
        Column("clients", "client_busy", 2),
    )
    targets = (
        Target(SATURATED, "tokens/s", "tokens_per_s", TOKENS_PER_S_MIN, is_floor=True),
        *(
            target
            for row in (SAME, OTHER)
            for target in (
                Target(row, "p50 μs from written to read", "latency_p50_us", VISIBLE_P50_US),
                Target(row, "p99 μs from written to read", "latency_p99_us", VISIBLE_P99_US),
            )
        ),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        rows = [SATURATED, SEALED, SAME, SEALED_PACED, OTHER]
        return rows if BACKGROUND in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        system = SYSTEMS[BACKGROUND]
        with ExitStack() as second:
            child = stack.child(system)
            other = second.enter_context(stack.fresh("gateway"))
            beside = _beside(stack)
            sealed = second.enter_context(beside.fresh("gateway", encryption=_encryption(stack)))
            paced = replace(PACED, tokens=200, ramp_s=2) if quick else PACED
            loads = {
                SATURATED: replace(FASTEST, requests=128) if quick else FASTEST,
                SEALED: replace(FASTEST, requests=128) if quick else FASTEST,
                SAME: paced,
                SEALED_PACED: paced,
                OTHER: replace(paced, followed_on=other.port),
            }
            loading.warm_up(stack, [BACKGROUND], WARM_UP)
            loading.warm_up(stack, [BACKGROUND], replace(WARM_UP, followed_on=other.port))
            loading.measure(stack, system, WARM_UP, children=[sealed])

            def measure(row: str) -> Figures:
                by = [sealed if row in {SEALED, SEALED_PACED} else child]
                if row in {SATURATED, SEALED}:
                    return loading.measure(stack, system, loads[row], children=by)
                times = stack.new_path("times")
                load = replace(loads[row], times=str(times))
                seen = loading.measure(stack, system, load, children=by)
                return {**seen, **visible(load, word_times(times))}

            yield measure


def _beside(stack: Stack) -> Stack:
    """The same with another database, which has the tenant: processes without keys would take
    responses that a process with keys has queued, and the other way round.
    """
    parts = urlsplit(stack.database_url)
    url = urlunsplit((parts.scheme, parts.netloc, f"/{SEALED_ROWS}", parts.query, ""))
    asyncio.run(_make_database(stack.database_url, SEALED_ROWS))
    asyncio.run(upgrade(url))
    asyncio.run(_copy_tenants(stack.database_url, url))
    return replace(stack, database_url=url)


async def _copy_tenants(url: str, other_url: str) -> None:
    one, other = await asyncpg.connect(url), await asyncpg.connect(other_url)
    try:
        for table in ("tenants", "api_keys"):
            rows = await one.fetch(f"SELECT * FROM {table}")
            columns = list(rows[0].keys())
            places = ", ".join(f"${at}" for at in range(1, len(columns) + 1))
            await other.executemany(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})",
                [tuple(row.values()) for row in rows],
            )
    finally:
        await one.close()
        await other.close()


def _encryption(stack: Stack) -> dict[str, Any]:
    """Settings of a process that seals all content; its keys are in a database beside."""
    parts = urlsplit(stack.database_url)
    asyncio.run(_make_database(stack.database_url, KEYS))
    keys_url = urlunsplit((parts.scheme, parts.netloc, f"/{KEYS}", parts.query, ""))
    return sealing(stack.new_path("kek").parent, keys_url)


async def _make_database(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()


def visible(load: Load, words: Sequence[tuple[int, int]]) -> Figures:
    """μs from sent to read, of the words that were sent while all streams ran.

    `words`: when each was sent and read (ns). Raises `RunVoid` without any.
    """
    first = min(sent for sent, _ in words)
    begins = first + int((load.ramp_s + SETTLING_S) * 1e9)
    ends = first + int(load.words / load.rate_per_s * 1e9)
    taken = [(read - sent) / 1e3 for sent, read in words if begins <= sent < ends]
    if len(taken) < MEASURED_MIN:
        raise RunVoid("the streams had not all begun when the first of them ended")
    cuts = quantiles(taken, n=100)
    return {
        "latency_p50_us": cuts[49],
        "latency_p90_us": cuts[89],
        "latency_p99_us": cuts[98],
        "measured": len(taken),
    }
