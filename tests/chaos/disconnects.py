"""Clients leave at any moment; a second later nobody works for them and nothing of them is left."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psutil

from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly, Connection, Transcript
from tests.chaos.load import clients_of, judge
from tests.chaos.oracle import question
from tests.chaos.readers import create, create_body, created_id
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.fleet import Fleet
    from tests.chaos.readers import Clients
    from tests.chaos.report import Form

RUNNING: Final = ("waiting", "running", "stalled")
WITHIN_S: Final = 1.0
"""Seconds after the last client has left, by which no backend works for any."""
SETTLE_S: Final = 15.0
STEP_S: Final = 0.05
STRAY_DESCRIPTORS: Final = 12
"""A pool may hold more connections than when it was first looked at: those of a database, a spare
one for each backend."""
_CONNECTIONS: Final = """
SELECT count(*) FILTER (WHERE state LIKE 'idle in transaction%') FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Size:
    """So many clients leave, `at_once` at a time."""

    build: Build
    clients: int
    at_once: int
    words: int
    tokens_per_s: int
    give_up_s: float


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(Build(replicas=2, backends=2), 1000, 100, 60, 30, give_up_s=200),
    "short": Size(Build(replicas=1, backends=1), 40, 20, 40, 40, give_up_s=60),
}


async def run(form: Form, seed: int) -> Report:
    """Nothing runs, nothing leaks, and the replicas end as soon as they are told to."""
    size = SIZES[form]
    report = Report("disconnects", form, seed)
    rng = Random(f"leavers {seed}")
    places = asyncio.Semaphore(size.at_once)
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.give_up_s)

        async def leave(number: int, *, early: bool = True) -> Transcript:
            async with places:
                return await _leave(clients, size, rng, store=bool(number % 2), early=early)

        await asyncio.gather(*(leave(number, early=False) for number in range(8)))
        before = _descriptors(running)
        transcripts = list(await asyncio.gather(*map(leave, range(size.clients))))
        report.numbers["idle_after_s"] = await _until_idle(running, report)
        report.anomalies += await _leaks(running, clients, before)
        stored = [one for one in transcripts if one.stored]
        await judge(report, running, stored)
        report.anomalies += await _bad_ends(running)
    report.numbers["left"] = sum(one.connections[0].left for one in transcripts)
    return report


async def _leave(
    clients: Clients, size: Size, rng: Random, *, store: bool, early: bool
) -> Transcript:
    """Ask, and hang up after some time, which may be before the answer begins."""
    asked = question(rng, words=size.words, tokens_per_s=size.tokens_per_s)
    transcript = Transcript(asked, stored=store)
    connection = Connection(clients.anywhere())
    transcript.connections.append(connection)
    stays_s = rng.uniform(0, size.words / size.tokens_per_s) if early else size.give_up_s
    request = create(create_body(asked, store=store))
    try:
        async with asyncio.timeout(stays_s):
            await clients.stream(request, connection)
    except TimeoutError:
        connection.left = True
    transcript.response_id = created_id(connection)
    return transcript


async def _until_idle(fleet: Fleet, report: Report) -> float:
    """Seconds until no backend works any more; more than `WITHIN_S` are an anomaly."""
    began = time.monotonic()
    while time.monotonic() < began + SETTLE_S:
        asked = [row for backend in fleet.backends for row in await _asked(backend)]
        if not any(row["outcome"] in RUNNING for row in asked):
            break
        await asyncio.sleep(STEP_S)
    idle_s = round(time.monotonic() - began, 3)
    if idle_s > (WITHIN_S if report.form == "full" else SETTLE_S):
        found = f"backends still worked {idle_s} s after the last client had left"
        report.anomalies.append(Anomaly("orphans", "-", found))
    return idle_s


async def _asked(backend: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = await asyncio.to_thread(backend.asked.requests)
    return rows


async def _leaks(fleet: Fleet, clients: Clients, before: list[int]) -> list[Anomaly]:
    """Slots, file descriptors and transactions that did not come back within `SETTLE_S`."""
    found: list[str] = []
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        found = await _held(fleet, clients, before)
        if not found:
            return []
        await asyncio.sleep(STEP_S * 4)
    return [Anomaly("leak", "-", one) for one in found]


async def _held(fleet: Fleet, clients: Clients, before: list[int]) -> list[str]:
    held = []
    for number, (now, then) in enumerate(zip(_descriptors(fleet), before, strict=True)):
        if now > then + STRAY_DESCRIPTORS:
            held.append(f"r{number} has {now} file descriptors, and had {then}")
        metrics = await clients.call("GET", "/metrics", replica=number)
        for line in metrics.body.decode().splitlines():
            name, _, value = line.rpartition(" ")
            gauge = name.partition("{")[0]
            # The request for the metrics is itself in flight.
            allowed = float(gauge == "gateway_requests_in_flight")
            if gauge.endswith("_in_flight") and not name.startswith("#") and float(value) > allowed:
                held.append(f"r{number} says {line}")
    connection = await asyncpg.connect(fleet.database.url)
    try:
        if open_transactions := await connection.fetchval(_CONNECTIONS):
            held.append(f"{open_transactions} transactions are open")
    finally:
        await connection.close()
    return held


def _descriptors(fleet: Fleet) -> list[int]:
    return [psutil.Process(replica.child.process.pid).num_fds() for replica in fleet.replicas]


async def _bad_ends(fleet: Fleet) -> list[Anomaly]:
    """A replica without work ends by itself when it is told to, with code 0 and no traceback."""
    bad = []
    for replica in fleet.replicas:
        replica.child.terminate()
        code = await asyncio.to_thread(replica.child.exit_code)
        if code != 0 or "Traceback" in replica.child.output:
            bad.append(Anomaly("end", "-", f"{replica.name}: {code} {replica.child.output[-500:]}"))
    return bad
