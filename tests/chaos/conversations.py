"""Clients share conversations while replicas, backends and the database die and freeze.

`run_unlocked` is the same with the lock torn out: there the checker must find something, or it
could not be believed when it finds nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from gateway import ids
from tests.chaos import census, checker, witness
from tests.chaos.fleet import LEASE_S, Build, fleet
from tests.chaos.history import Anomaly
from tests.chaos.load import SETTLE_S, clients_of
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.prompts import read_journals
from tests.chaos.report import Report
from tests.chaos.sessions import Session, Sessions
from tests.chaos.talkers import Heard, Talker, all_items, new_conversation, seconds_until_free
from tests.chaos.turn_rules import compare, replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.chaos.database import ChaosPostgres
    from tests.chaos.fleet import Fleet, Replica
    from tests.chaos.readers import Clients
    from tests.chaos.report import Form

_OF_WHAT_WAS_SAID: Final = ("body", "booked")
FREE_MAX_S: Final = LEASE_S + 10.0
"""When nobody dies any more, what was left behind has ended after its lease or has been said."""
UNLOCKED_SETTLE_S: Final = 2.0
STARTS_MAX: Final = 10
START_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """For `span_s` so many talkers share the conversations, and sessions store nothing.

    Every member is struck according to the terms; the database is away `outages` times, `away_s`
    after `peace_s` each.
    """

    build: Build
    conversations: int
    talkers: int
    sessions: int
    span_s: float
    words: int
    tokens_per_s: int
    terms: Terms
    outages: int = 0
    away_s: float = 1.0
    peace_s: tuple[float, float] = (5.0, 20.0)


_BRIEF: Final = {"background": {"lease_s": 1.0}}
SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=3, backends=2, journals=True),
        conversations=10,
        talkers=16,
        sessions=4,
        span_s=90,
        words=20,
        tokens_per_s=30,
        terms=Terms(blows_per_member=12, peace_s=(3.0, 12.0), down_s=(0.5, 6.0)),
        outages=3,
    ),
    "short": Size(
        Build(replicas=2, backends=2, sections=_BRIEF, journals=True),
        conversations=3,
        talkers=8,
        sessions=2,
        span_s=3,
        words=10,
        tokens_per_s=60,
        terms=Terms(blows_per_member=1, peace_s=(0.8, 1.6), down_s=(0.5, 1.2)),
    ),
}
UNLOCKED_SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=3, backends=2, program="tests.chaos.unlocked", journals=True),
        conversations=4,
        talkers=16,
        sessions=0,
        span_s=20,
        words=30,
        tokens_per_s=30,
        terms=Terms(blows_per_member=0, peace_s=(0.0, 0.0), down_s=(0.0, 0.0)),
    ),
    "short": Size(
        Build(replicas=2, backends=1, program="tests.chaos.unlocked", journals=True),
        conversations=1,
        talkers=6,
        sessions=0,
        span_s=2,
        words=10,
        tokens_per_s=60,
        terms=Terms(blows_per_member=0, peace_s=(0.0, 0.0), down_s=(0.0, 0.0)),
    ),
}


@dataclass(frozen=True, slots=True)
class Supervised:
    """A replica as a service manager keeps it: started again when it found no database."""

    replica: Replica

    def start(self) -> None:
        for _ in range(STARTS_MAX - 1):
            try:
                self.replica.start()
            except AssertionError:
                self.replica.kill()
                time.sleep(START_PAUSE_S)
            else:
                return
        self.replica.start()

    def kill(self) -> None:
        self.replica.kill()

    def freeze(self) -> None:
        self.replica.freeze()

    def thaw(self) -> None:
        self.replica.thaw()


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that clients saw."""

    heard: Heard
    sessions: Sessions


async def run(form: Form, seed: int) -> Report:
    """Every turn is added once and sees what it should; no conversation stays locked."""
    report = Report("conversations", form, seed)
    await _trial(report, SIZES[form])
    return report


async def run_unlocked(form: Form, seed: int) -> Report:
    """Writers write over each other: the checker sees it."""
    report = Report("unlocked", form, seed, must_fail=True)
    await _trial(report, UNLOCKED_SIZES[form])
    return report


async def _trial(report: Report, size: Size) -> None:
    rng = Random(f"nemesis {report.seed}")
    lanes = schedule(rng, size.terms, size.build.replicas + size.build.backends)
    async with fleet(size.build) as running:
        await witness.install(running.database.url)
        clients = clients_of(running, report.seed, size.span_s + 2 * SETTLE_S)
        conversations = [await new_conversation(clients) for _ in range(size.conversations)]
        seen = Seen(Heard(), Sessions())
        supervised = [Supervised(replica) for replica in running.replicas]
        async with (
            unleashed(lanes[: size.build.replicas], supervised) as replicas,
            unleashed(lanes[size.build.replicas :], running.backends) as backends,
        ):
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(_outages(running.database, size, rng, over))
                _let_talk(group, size, report.seed, clients, conversations, seen, over)
                await asyncio.sleep(size.span_s)
                over.set()
        report.numbers |= {
            "kills": replicas.kill + backends.kill,
            "freezes": replicas.freeze + backends.freeze,
            "outages": size.outages,
        }
        if not report.must_fail:
            await _settle(report, clients, conversations, seen.heard)
        settle_s = UNLOCKED_SETTLE_S if report.must_fail else SETTLE_S
        await census.until_all_ended(running.database.url, settle_s)
        await _judge(report, running, clients, conversations, seen)


def _let_talk(
    group: asyncio.TaskGroup,
    size: Size,
    seed: int,
    clients: Clients,
    conversations: Sequence[str],
    seen: Seen,
    over: asyncio.Event,
) -> None:
    pace = {"words": size.words, "tokens_per_s": size.tokens_per_s}
    for number in range(size.talkers):
        rng = Random(f"talker {seed} {number}")
        talker = Talker(f"t{number}", clients, rng, seen.heard)
        group.create_task(talker.talk(conversations, over, **pace))
    for number in range(size.sessions):
        rng = Random(f"session {seed} {number}")
        session = Session(f"s{number}", clients, rng, seen.sessions)
        group.create_task(session.go_on(over, **pace))


async def _outages(database: ChaosPostgres, size: Size, rng: Random, over: asyncio.Event) -> None:
    """Kill the database at random moments, and start it again a little later."""
    for _ in range(size.outages):
        await asyncio.sleep(rng.uniform(*size.peace_s))
        if over.is_set():
            return
        await asyncio.to_thread(database.kill)
        await asyncio.sleep(size.away_s)
        await asyncio.to_thread(database.start)


async def _settle(
    report: Report, clients: Clients, conversations: Sequence[str], heard: Heard
) -> None:
    """Now that all is well, every conversation takes a turn, in the time that was promised."""

    async def free(number: int, conversation: str) -> float:
        talker = Talker(f"last{number}", clients, Random(number), heard)
        return await seconds_until_free(talker, conversation)

    waited_s = await asyncio.gather(
        *(free(number, conversation) for number, conversation in enumerate(conversations))
    )
    report.seconds("free", waited_s)
    report.anomalies += [
        Anomaly("stuck", conversation, f"it took no turn for {seconds} s")
        for conversation, seconds in zip(conversations, waited_s, strict=True)
        if seconds > FREE_MAX_S
    ]


async def _judge(
    report: Report, fleet: Fleet, clients: Clients, conversations: Sequence[str], seen: Seen
) -> None:
    url, heard = fleet.database.url, seen.heard
    witnessed = await witness.heard(url)
    replayed = replay(witnessed)
    prompts = read_journals(backend.journal for backend in fleet.backends if backend.journal)
    report.anomalies += replayed.anomalies
    report.anomalies += compare(replayed, witnessed, prompts, heard)
    report.anomalies += seen.sessions.compare(prompts)
    for conversation in conversations:
        uuid = ids.parse_conversation_id(conversation)
        listed = await all_items(clients, conversation)
        if uuid is None or listed != list(witnessed.items.get(uuid, ())):
            report.anomalies.append(Anomaly("final", conversation, "listed is not what is stored"))
    report.anomalies += [
        Anomaly("odd", "-", f"answered {one.status}: {one.body[:300]!r}") for one in heard.odd
    ]
    records = await census.records(url)
    transcripts = [telling.transcript for telling in heard.tellings]
    # A process that was taken for dead may tell its client more than the sweep, which ended what
    # it was at, can know of it.
    abandoned = {
        uuid for uuid, one in records.items() if one.status == "failed" and not one.durable
    }
    report.anomalies += [
        found
        for found in checker.check(transcripts, records, checker.COMMON)
        if found.rule not in _OF_WHAT_WAS_SAID
        or ids.parse_response_id(found.response) not in abandoned
    ]
    report.numbers |= {
        "turns": len(transcripts),
        "events": sum(1 for transcript in transcripts for _ in transcript.frames()),
        **Counter(record.status for record in records.values()),
        "locked": heard.locked,
        "deeds": len(heard.deeds),
        "listings": len(heard.listings),
        "session_turns": seen.sessions.turns,
        "recoveries": seen.sessions.recoveries,
    }
    held_s = {uuid: s for one in replayed.timelines.values() for uuid, s in one.held_s.items()}
    report.seconds("held", list(held_s.values()))
    report.seconds("abandoned", [held_s[uuid] for uuid in abandoned & held_s.keys()])
