"""A load of streams of all kinds, and the verdict on what became of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

from tests.chaos import census, checker
from tests.chaos.history import Anomaly
from tests.chaos.oracle import question
from tests.chaos.readers import Clients

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from tests.chaos.checker import Rules
    from tests.chaos.fleet import Fleet
    from tests.chaos.history import Record, Transcript
    from tests.chaos.oracle import Asked
    from tests.chaos.report import Report

Kind = Literal["background", "stored", "unstored"]
SETTLE_S = 30.0
"""Seconds that responses may need to end when all readers are done."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams of so many words, `at_once` of them at a time; kinds take turns.

    Readers that have seen no end after `give_up_s` give up.
    """

    streams: int
    words: int
    tokens_per_s: int
    at_once: int
    give_up_s: float
    kinds: tuple[Kind, ...] = ("background", "stored", "unstored")


def clients_of(fleet: Fleet, seed: int, give_up_s: float) -> Clients:
    """Clients that give up `give_up_s` from now."""
    rng = Random(f"replicas {seed}")
    return Clients(fleet.urls, fleet.key, rng, time.monotonic() + give_up_s)


async def carry(load: Load, clients: Clients, seed: int) -> list[Transcript]:
    """Read all streams of random words to their ends."""
    rng = Random(f"questions {seed}")
    asked = [
        question(rng, words=load.words, tokens_per_s=load.tokens_per_s) for _ in range(load.streams)
    ]
    return await read_all(load, clients, asked, seed)


async def read_all(
    load: Load, clients: Clients, asked: Sequence[Asked], seed: int
) -> list[Transcript]:
    """Ask all this, kind after kind, and read every stream to its end."""
    places = asyncio.Semaphore(load.at_once)

    async def read(number: int) -> Transcript:
        kind = load.kinds[number % len(load.kinds)]
        async with places:
            if kind == "background":
                key = f"{seed}-{number}"
                return await clients.background(asked[number], idempotency_key=key)
            return await clients.foreground(asked[number], store=kind == "stored")

    return list(await asyncio.gather(*map(read, range(len(asked)))))


async def judge(
    report: Report,
    fleet: Fleet,
    transcripts: Sequence[Transcript],
    *,
    settle_s: float = SETTLE_S,
    rules: Rules = checker.RULES,
) -> dict[UUID, Record]:
    """Wait `settle_s` for the ends, read all of it twice, enter what was found into the report."""
    url = fleet.database.url
    await census.until_all_ended(url, settle_s)
    before = await census.records(url)
    report.anomalies += checker.check(transcripts, before, rules)
    report.anomalies += checker.unchanged(before, await census.records(url))
    report.numbers |= {
        "streams": len(transcripts),
        "events": sum(1 for transcript in transcripts for _ in transcript.frames()),
        "connections": sum(len(transcript.connections) for transcript in transcripts),
        "completed": sum(record.status == "completed" for record in before.values()),
        "failed_over": sum(
            any(line.recomputed_tokens for line in record.usage) for record in before.values()
        ),
    }
    return before


def failures(transcripts: Sequence[Transcript]) -> list[Anomaly]:
    """Readers that never heard the end of what they had asked for, or heard of another end."""
    return [
        Anomaly("failure", transcript.response_id or "-", _story(transcript))
        for transcript in transcripts
        if not (transcript.ended and transcript.completed)
    ]


def _story(transcript: Transcript) -> str:
    """The last connections: which replica, after what, its status, how many events."""
    steps = [
        f"r{one.replica}>{one.after} {one.status} +{len(one.frames)} {one.body[:120]!r}"
        for one in transcript.connections[-3:]
    ]
    last = transcript.last_event or {}
    if transcript.ended:
        steps.append(f"{last['type']} {last['response']['error']}")
    return f"{len(transcript.connections)} connections, {'; '.join(steps)}"
