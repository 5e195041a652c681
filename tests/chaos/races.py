"""Two things at once: a cancel and the end; many requests with one Idempotency-Key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly, Connection, Transcript
from tests.chaos.load import clients_of, failures, judge
from tests.chaos.oracle import question
from tests.chaos.readers import PAUSE_S, create, create_body, created_id, learn
from tests.chaos.report import Report
from tests.chaos.wire import json_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from tests.chaos.history import Record
    from tests.chaos.oracle import Question
    from tests.chaos.readers import Clients
    from tests.chaos.report import Form

WORDS: Final = 12
TOKENS_PER_S: Final = 200
RACE_S: Final = 0.25
"""A response of so many words takes about half as long, from its creation to its end."""
_RETRY: Final = (0, 429, 503)


@dataclass(frozen=True, slots=True)
class Size:
    """How many races, how many at once; `copies` requests share one key."""

    build: Build
    cancels: int
    keys: int
    copies: int
    at_once: int
    give_up_s: float


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(Build(replicas=3), 1000, 1000, copies=5, at_once=24, give_up_s=500),
    "short": Size(Build(replicas=2), 16, 12, copies=4, at_once=8, give_up_s=60),
}


async def run(form: Form, seed: int) -> Report:
    """One outcome, one response and one line of usage each."""
    size = SIZES[form]
    report = Report("races", form, seed)
    rng = Random(f"races {seed}")
    places = asyncio.Semaphore(size.at_once)
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.give_up_s)

        async def cancelled() -> tuple[Transcript, Connection]:
            async with places:
                return await _cancel(clients, rng)

        async def repeated(number: int) -> list[Transcript]:
            async with places:
                return await _repeat(clients, f"{seed}-{number}", size.copies, rng)

        cancels = await asyncio.gather(*(cancelled() for _ in range(size.cancels)))
        repeats = await asyncio.gather(*map(repeated, range(size.keys)))
        transcripts = [one for one, _ in cancels] + [copy for copies in repeats for copy in copies]
        report.anomalies += failures([one for one, _ in cancels if not one.ended])
        records = await judge(report, running, transcripts)
    report.anomalies += _wrong_cancels(cancels, records)
    report.anomalies += _wrong_repeats(repeats, len(records) - size.cancels)
    report.numbers |= {
        "cancels": size.cancels,
        "cancelled": sum(record.status == "cancelled" for record in records.values()),
        "keys": size.keys,
        "copies": size.keys * size.copies,
    }
    return report


async def _cancel(clients: Clients, rng: Random) -> tuple[Transcript, Connection]:
    """Create, wait for some moment around the end, cancel, and read how it ended."""
    transcript = Transcript(_short_question(rng), stored=True)
    first = Connection(clients.anywhere())
    transcript.connections.append(first)
    body = create_body(transcript.question, store=True, background=True)
    await clients.stream(create(body), first, stop=lambda connection: bool(connection.frames))
    transcript.response_id = created_id(first)
    await asyncio.sleep(rng.uniform(0, RACE_S))
    path = f"/v1/responses/{transcript.response_id}/cancel"
    answer = await clients.call("POST", path)
    if transcript.response_id is not None:
        await clients.follow(transcript)
    return transcript, answer


async def _repeat(clients: Clients, key: str, copies: int, rng: Random) -> list[Transcript]:
    """The same request several times at once; all but one copy are cut at some moment."""
    asked = _short_question(rng)
    body = create_body(asked, store=True, background=rng.random() < 0.5)
    request = create(body, {"idempotency-key": key})

    async def send(cut_after: int | None) -> Transcript:
        transcript = Transcript(asked, stored=True)
        await asyncio.sleep(rng.uniform(0, RACE_S))
        while not transcript.connections or transcript.connections[-1].status in _RETRY:
            connection = Connection(clients.anywhere())
            transcript.connections.append(connection)
            await clients.stream(request, connection, stop=_cut(cut_after))
            if not clients.left_s or connection.left:
                break
            await asyncio.sleep(PAUSE_S if connection.status in _RETRY else 0)
        learn(transcript)
        return transcript

    cuts = [rng.randrange(WORDS + 8) for _ in range(copies - 1)]
    return list(await asyncio.gather(send(None), *map(send, cuts)))


def _short_question(rng: Random) -> Question:
    return question(rng, words=WORDS, tokens_per_s=TOKENS_PER_S)


def _cut(events: int | None) -> Callable[[Connection], bool]:
    def stop(connection: Connection) -> bool:
        return events is not None and len(connection.frames) >= events

    return stop


def _wrong_cancels(
    cancels: Sequence[tuple[Transcript, Connection]], records: Mapping[UUID, Record]
) -> list[Anomaly]:
    """What the canceller was told must be what became of it."""
    wrong = []
    for transcript, answer in cancels:
        record = records.get(transcript.uuid) if transcript.uuid else None
        status = record.status if record else "gone"
        told = {200: "cancelled", 400: "completed"}.get(answer.status, f"answer {answer.status}")
        if told != status or (answer.status == 200 and json_body(answer)["status"] != status):
            found = f"the canceller was told {told}, it is {status}: {answer.body[:200]!r}"
            wrong.append(Anomaly("cancel", transcript.response_id or "-", found))
    return wrong


def _wrong_repeats(repeats: Sequence[Sequence[Transcript]], responses: int) -> list[Anomaly]:
    """One response for a key, and the one reader who stayed was told all of it."""
    wrong = []
    if responses != len(repeats):
        found = f"{responses} responses for {len(repeats)} keys"
        wrong.append(Anomaly("repeated", "-", found))
    for copies in repeats:
        named: defaultdict[str, int] = defaultdict(int)
        for copy in copies:
            if copy.response_id is not None:
                named[copy.response_id] += 1
        if len(named) != 1 or not copies[0].ended:
            last = copies[0].connections[-1]
            found = f"{dict(named)}, the reader who stayed: {last.status} {last.body[:200]!r}"
            wrong.append(Anomaly("repeated", copies[0].response_id or "-", found))
    return wrong
