"""Streams are asked for again, from anywhere, at any replica, live and finished: the same bytes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly, Connection, Transcript
from tests.chaos.load import clients_of, failures, judge
from tests.chaos.oracle import question
from tests.chaos.readers import create, create_body, created_id, resume
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.oracle import Question
    from tests.chaos.readers import Clients
    from tests.chaos.report import Form

OPENING_EVENTS: Final = 6
"""About so many events of a stream carry no word."""
BEYOND: Final = 5
"""How far behind the end a reader may ask to begin."""


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds of `at_once` responses: each is read `live` times while it runs and `after` times
    when it is over."""

    build: Build
    rounds: int
    at_once: int
    words: int
    tokens_per_s: int
    live: int
    after: int
    give_up_s: float


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(Build(replicas=3), 10, 10, 80, 40, live=20, after=80, give_up_s=500),
    "short": Size(Build(replicas=2), 1, 4, 30, 20, live=8, after=20, give_up_s=60),
}


@dataclass(slots=True)
class Reading:
    """One GET, with padding or without."""

    padded: bool
    connection: Connection


async def run(form: Form, seed: int) -> Report:
    """Every GET is answered with exactly what follows `starting_after`."""
    size = SIZES[form]
    report = Report("resume", form, seed)
    rng = Random(f"readings {seed}")
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.give_up_s)
        transcripts = []
        readings = 0
        for _ in range(size.rounds):
            asked = [
                question(rng, words=size.words, tokens_per_s=size.tokens_per_s)
                for _ in range(size.at_once)
            ]
            outcomes = await asyncio.gather(*(_one(clients, size, one, rng) for one in asked))
            for transcript, wrong in outcomes:
                transcripts.append(transcript)
                report.anomalies += wrong
                readings += size.live + size.after
        report.anomalies += failures(transcripts)
        await judge(report, running, transcripts)
    report.numbers["readings"] = readings
    return report


async def _one(
    clients: Clients, size: Size, asked: Question, rng: Random
) -> tuple[Transcript, list[Anomaly]]:
    """Create a response and read it again and again; what every reading must be equal to."""
    transcript = Transcript(asked, stored=True)
    first = Connection(clients.anywhere())
    transcript.connections.append(first)
    body = create_body(asked, store=True, background=True)
    await clients.stream(create(body), first, stop=lambda connection: bool(connection.frames))
    transcript.response_id = created_id(first)
    if transcript.response_id is None:
        return transcript, []
    readings = [_reading(clients, size, rng) for _ in range(size.live)]
    await asyncio.gather(
        clients.follow(transcript),
        *(_read(clients, transcript.response_id, one, size, rng) for one in readings),
    )
    for _ in range(size.after):
        reading = _reading(clients, size, rng)
        readings.append(reading)
        await _read(clients, transcript.response_id, reading, None, rng)
    return transcript, await _compare(clients, transcript.response_id, readings)


def _reading(clients: Clients, size: Size, rng: Random) -> Reading:
    after = rng.randint(-1, size.words + OPENING_EVENTS + BEYOND)
    return Reading(rng.random() < 0.5, Connection(clients.anywhere(), after))


async def _read(
    clients: Clients, response_id: str, reading: Reading, live: Size | None, rng: Random
) -> None:
    """Now, or at some moment while it runs."""
    if live is not None:
        await asyncio.sleep(rng.uniform(0, live.words / live.tokens_per_s))
    request = resume(response_id, reading.connection.after, padded=reading.padded)
    await clients.stream(request, reading.connection)


async def _compare(clients: Clients, response_id: str, readings: list[Reading]) -> list[Anomaly]:
    whole: dict[bool, list[bytes]] = {}
    for padded in (False, True):
        connection = Connection(clients.anywhere())
        await clients.stream(resume(response_id, -1, padded=padded), connection)
        whole[padded] = [frame.data for frame in connection.frames]
    anomalies = []
    for reading in readings:
        connection = reading.connection
        shown = [frame.data for frame in connection.frames]
        if shown != whole[reading.padded][connection.after + 1 :] or not connection.done:
            found = (
                f"r{connection.replica} after {connection.after}: {connection.status}, "
                f"{len(shown)} of {len(whole[reading.padded])} events, done={connection.done}, "
                f"padded={reading.padded} {connection.body[:200]!r}"
            )
            anomalies.append(Anomaly("suffix", response_id, found))
    return anomalies
