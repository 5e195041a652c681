"""Backends die and freeze under streams of all kinds; nobody may notice more than a pause."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.fleet import Build, fleet
from tests.chaos.load import Load, carry, clients_of, failures, judge
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tests.chaos.history import Record, Transcript
    from tests.chaos.report import Form


@dataclass(frozen=True, slots=True)
class Size:
    """What one form of the scenario is made of."""

    build: Build
    load: Load
    terms: Terms


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=2, backends=3),
        Load(streams=1000, words=190, tokens_per_s=15, at_once=80, give_up_s=500),
        Terms(blows_per_member=20, peace_s=(2.0, 9.0), down_s=(0.5, 4.0)),
    ),
    "short": Size(
        Build(replicas=1, backends=2),
        Load(streams=24, words=40, tokens_per_s=25, at_once=24, give_up_s=60),
        Terms(blows_per_member=1, peace_s=(0.3, 0.9), down_s=(0.5, 2.0)),
    ),
}


async def run(form: Form, seed: int) -> Report:
    """All streams are exact, whatever happens to the backends."""
    size = SIZES[form]
    report = Report("backends", form, seed)
    lanes = schedule(Random(f"nemesis {seed}"), size.terms, size.build.backends)
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.load.give_up_s)
        async with unleashed(lanes, running.backends) as dealt:
            transcripts = await carry(size.load, clients, seed)
        report.numbers |= {"kills": dealt.kill, "freezes": dealt.freeze}
        report.anomalies += failures(transcripts)
        records = await judge(report, running, transcripts)
    report.seconds("stall", stalls(transcripts, records))
    return report


def stalls(transcripts: list[Transcript], records: Mapping[UUID, Record]) -> list[float]:
    """The longest silence of every stored stream that went on elsewhere."""
    moved = {
        uuid
        for uuid, record in records.items()
        if any(line.recomputed_tokens for line in record.usage)
    }
    return [one.longest_silence_s() for one in transcripts if one.uuid in moved]
