"""Backends die and freeze under streams of all kinds; nobody may notice more than a pause.

Some streams are bound by a grammar, and their model heeds no schema of itself: what is valid of
them is due to the grammars of those that go on with them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.checker import COMMON, RULES
from tests.chaos.fleet import Build, fleet
from tests.chaos.load import Load, carry, clients_of, failures, judge, read_all
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.oracle import UNPACED
from tests.chaos.report import Report
from tests.chaos.schemas import WARM_UPS, Task, valid
from tests.fakes.random_schemas import random_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from tests.chaos.checker import Evidence, Rule, Rules
    from tests.chaos.history import Record, Transcript
    from tests.chaos.report import Form


DRIFTS: Final = ("prose", "types", "extra")


@dataclass(frozen=True, slots=True)
class Size:
    """What one form of the scenario is made of; `bound` streams beside those of the load."""

    build: Build
    load: Load
    terms: Terms
    bound: int = 0


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        build=Build(replicas=2, backends=3),
        load=Load(streams=1000, words=190, tokens_per_s=15, at_once=80, give_up_s=500),
        bound=300,
        terms=Terms(blows_per_member=20, peace_s=(2.0, 9.0), down_s=(0.5, 4.0)),
    ),
    "short": Size(
        build=Build(replicas=1, backends=2),
        load=Load(streams=24, words=40, tokens_per_s=25, at_once=24, give_up_s=60),
        bound=12,
        terms=Terms(blows_per_member=1, peace_s=(0.3, 0.9), down_s=(0.5, 2.0)),
    ),
}


async def run(form: Form, seed: int) -> Report:
    """All streams are exact, or valid, whatever happens to the backends."""
    size = SIZES[form]
    report = Report("backends", form, seed)
    lanes = schedule(Random(f"nemesis {seed}"), size.terms, size.build.backends)
    tasks = bound_tasks(Random(f"bound {seed}"), size)
    first = [replace(task, tokens_per_s=UNPACED) for task in tasks]
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.load.give_up_s)
        warm_ups = first[: WARM_UPS * size.build.backends]
        await read_all(replace(size.load, kinds=("unstored",)), clients, warm_ups, seed)
        async with unleashed(lanes, running.backends) as dealt:
            free, bound = await asyncio.gather(
                carry(size.load, clients, seed), read_all(size.load, clients, tasks, seed + 1)
            )
        transcripts = [*free, *bound]
        report.numbers |= {"kills": dealt.kill, "freezes": dealt.freeze, "bound": len(bound)}
        report.anomalies += failures(transcripts)
        records = await judge(report, running, transcripts, rules=MIXED)
    report.seconds("stall", stalls(transcripts, records))
    return report


def bound_tasks(rng: Random, size: Size) -> list[Task]:
    """Answers and calls in turn."""
    return [
        Task(random_schema(rng), number % 2 == 1, size.load.tokens_per_s, rng.choice(DRIFTS))
        for number in range(size.bound)
    ]


def _is_bound(evidence: Evidence) -> bool:
    return any(isinstance(one.question, Task) for one in evidence.transcripts)


def _valid(evidence: Evidence) -> Iterator[str]:
    return valid(evidence) if _is_bound(evidence) else iter(())


def _of_free(name: str) -> Rule:
    def rule(evidence: Evidence) -> Iterator[str]:
        return iter(()) if _is_bound(evidence) else RULES[name](evidence)

    return rule


MIXED: Final[Rules] = {
    **COMMON,
    **{name: _of_free(name) for name in RULES.keys() - COMMON.keys()},
    "valid": _valid,
}
"""The words of a bound answer are not known beforehand."""


def stalls(transcripts: list[Transcript], records: Mapping[UUID, Record]) -> list[float]:
    """The longest silence of every stored stream that went on elsewhere."""
    moved = {
        uuid
        for uuid, record in records.items()
        if any(line.recomputed_tokens for line in record.usage)
    }
    return [one.longest_silence_s() for one in transcripts if one.uuid in moved]
