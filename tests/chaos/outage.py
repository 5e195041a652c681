"""The database is killed, frozen and away for a while: what was seen is there, and work goes on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly, Connection
from tests.chaos.load import Load, carry, clients_of, failures, judge
from tests.chaos.oracle import question
from tests.chaos.readers import create_body
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.fleet import Fleet
    from tests.chaos.readers import Clients
    from tests.chaos.report import Form

PROBE_INTERVAL_S: Final = 0.1
PROBE_WORDS: Final = 3
REFUSAL_MAX_S: Final = 6.0
"""A request that cannot be stored is told so within the time that statements and connects have."""


@dataclass(frozen=True, slots=True)
class Size:
    """How often the server is killed and restarted at once, and how long the other faults last."""

    build: Build
    load: Load
    kills: int
    kill_every_s: tuple[float, float]
    away_s: float
    frozen_s: float


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=2, backends=1),
        Load(400, words=190, tokens_per_s=20, at_once=60, give_up_s=400, kinds=("background",)),
        kills=20,
        kill_every_s=(0.5, 2.5),
        away_s=10.0,
        frozen_s=6.0,
    ),
    "short": Size(
        Build(replicas=1, backends=1),
        Load(12, words=90, tokens_per_s=20, at_once=12, give_up_s=90, kinds=("background",)),
        kills=1,
        kill_every_s=(0.4, 0.8),
        away_s=1.0,
        frozen_s=2.5,
    ),
}


@dataclass(slots=True)
class Probes:
    """Small requests that were made while the database was away, by whether they are stored."""

    unstored: list[Connection] = field(default_factory=list)
    stored: list[Connection] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)


async def run(form: Form, seed: int) -> Report:
    """Nothing seen is lost; without a database only what needs one is refused."""
    size = SIZES[form]
    report = Report("postgres", form, seed)
    rng = Random(f"outage {seed}")
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.load.give_up_s)
        await _warm(clients)
        probes = Probes()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(carry(size.load, clients, seed))
            await _faults(running, clients, size, rng, probes)
        report.numbers |= {"kills": size.kills, "away_s": size.away_s, "frozen_s": size.frozen_s}
        report.anomalies += failures(reading.result())
        await judge(report, running, reading.result())
    report.anomalies += _wrong(probes)
    report.numbers |= {"unstored": len(probes.unstored), "refused": len(probes.stored)}
    report.seconds("refusal", probes.answered_s)
    return report


async def _warm(clients: Clients) -> None:
    """Every replica knows the key before the database goes."""
    for replica in range(len(clients.urls)):
        answer = await clients.call("GET", "/v1/models", replica=replica)
        assert answer.status == 200, answer.body


async def _faults(fleet: Fleet, clients: Clients, size: Size, rng: Random, probes: Probes) -> None:
    database = fleet.database
    for _ in range(size.kills):
        await asyncio.sleep(rng.uniform(*size.kill_every_s))
        await asyncio.to_thread(database.kill)
        await asyncio.to_thread(database.start)
    await asyncio.sleep(rng.uniform(*size.kill_every_s))
    await database.kill_one_connection()
    await asyncio.sleep(rng.uniform(*size.kill_every_s))
    await asyncio.to_thread(database.kill)
    await _probe(clients, size.away_s, rng, probes)
    await asyncio.to_thread(database.start)
    await asyncio.sleep(rng.uniform(*size.kill_every_s))
    await asyncio.to_thread(database.freeze)
    await _probe(clients, size.frozen_s, rng, probes)
    await asyncio.to_thread(database.thaw)


async def _probe(clients: Clients, seconds: float, rng: Random, probes: Probes) -> None:
    """Ask small questions of both kinds, each for itself, for so long."""
    over = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < over:
            group.create_task(_ask(clients, rng, probes, store=False))
            # One that is sent just before the end may be stored after it.
            if time.monotonic() < over - REFUSAL_MAX_S / 2 or not probes.stored:
                group.create_task(_ask(clients, rng, probes, store=True))
            await asyncio.sleep(PROBE_INTERVAL_S)


async def _ask(clients: Clients, rng: Random, probes: Probes, *, store: bool) -> None:
    body = create_body(question(rng, words=PROBE_WORDS), store=store, stream=False)
    began = time.monotonic()
    answer = await clients.call("POST", "/v1/responses", body)
    if store:
        probes.stored.append(answer)
        probes.answered_s.append(time.monotonic() - began)
    else:
        probes.unstored.append(answer)


def _wrong(probes: Probes) -> list[Anomaly]:
    """What was not stored must have worked; what could not be stored, been refused with a hint."""
    wrong = [
        Anomaly("unstored", "-", f"answered {one.status}: {one.body[:200]!r}")
        for one in probes.unstored
        if one.status != 200
    ]
    for one in probes.stored:
        if one.status == 503 and "retry-after" not in one.headers:
            wrong.append(Anomaly("unavailable", "-", "503 without Retry-After"))
        if one.status not in (200, 503):
            wrong.append(Anomaly("unavailable", "-", f"{one.status}: {one.body[:200]!r}"))
    return wrong
