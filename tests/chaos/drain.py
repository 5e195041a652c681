"""Replicas are told to end under load, one after the other: nobody in the foreground is cut off,
and what runs in the background goes on elsewhere at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos import takeovers
from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly
from tests.chaos.load import clients_of, failures, judge
from tests.chaos.oracle import question
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.fleet import Fleet
    from tests.chaos.history import Transcript
    from tests.chaos.readers import Clients
    from tests.chaos.report import Form

LATE_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    """`ends` times a replica is told to end while `at_once` streams of each kind are read."""

    build: Build
    ends: int
    at_once: int
    words: int
    tokens_per_s: int
    peace_s: float
    give_up_s: float


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(Build(replicas=3, backends=1), 50, 12, 60, 20, peace_s=0.2, give_up_s=1500),
    "short": Size(Build(replicas=2, backends=1), 1, 6, 40, 30, peace_s=0.5, give_up_s=60),
}


async def run(form: Form, seed: int) -> Report:
    """Every stream that had begun in the foreground ends well; background ones never stop."""
    size = SIZES[form]
    report = Report("drain", form, seed)
    over = asyncio.Event()
    rng = Random(f"drain {seed}")
    async with fleet(size.build) as running:
        await takeovers.install(running.database.url)
        clients = clients_of(running, seed, size.give_up_s)
        async with asyncio.TaskGroup() as group:
            reading = [
                group.create_task(_keep_asking(clients, size, rng, over, number))
                for number in range(2 * size.at_once)
            ]
            ended_s = await _end_one_by_one(running, size, report)
            over.set()
        transcripts = [transcript for one in reading for transcript in one.result()]
        report.anomalies += failures(transcripts)
        await judge(report, running, transcripts)
        noted = await takeovers.noted(running.database.url)
    released = [takeover.late_s for takeover in noted if takeover.released]
    report.numbers |= {"ends": size.ends, "released": len(released)}
    report.seconds("taken_up", released)
    report.seconds("ended", ended_s)
    if form == "full" and report.numbers["taken_up_max_s"] > LATE_MAX_S:
        found = f"{report.numbers['taken_up_max_s']} s after a release"
        report.anomalies.append(Anomaly("late", "-", found))
    return report


async def _end_one_by_one(fleet: Fleet, size: Size, report: Report) -> list[float]:
    """SIGTERM, wait for the end, start it again; seconds that each end took."""
    seconds = []
    for number in range(size.ends):
        replica = fleet.replicas[number % len(fleet.replicas)]
        await asyncio.sleep(size.peace_s)
        began = time.monotonic()
        replica.child.terminate()
        code = await asyncio.to_thread(replica.child.exit_code)
        seconds.append(time.monotonic() - began)
        if code != 0 or "Traceback" in replica.child.output:
            found = f"{replica.name}: {code} {replica.child.output[-1000:]}"
            report.anomalies.append(Anomaly("end", "-", found))
        replica.kill()
        await asyncio.to_thread(replica.start)
    return seconds


async def _keep_asking(
    clients: Clients, size: Size, rng: Random, over: asyncio.Event, number: int
) -> list[Transcript]:
    """One stream after the other, in the foreground or the background."""
    transcripts: list[Transcript] = []
    while not over.is_set():
        asked = question(rng, words=size.words, tokens_per_s=size.tokens_per_s)
        if number % 2:
            key = f"drain-{number}-{len(transcripts)}"
            transcripts.append(await clients.background(asked, idempotency_key=key))
        else:
            transcripts.append(await clients.foreground(asked, store=bool(number % 4)))
    return transcripts
