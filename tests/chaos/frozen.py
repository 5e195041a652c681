"""Replicas freeze under stored foreground streams for longer than their leases, and come back.

Meanwhile the others end what those were generating. What its client is told by the one that comes
back must be what is stored then, and be booked.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.backends import Size
from tests.chaos.fleet import Build, fleet
from tests.chaos.load import Load, carry, clients_of, judge
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.report import Form

_BRIEF: Final = {
    "background": {"lease_s": 1.0},
    # Who wakes up shall find what its backend has sent meanwhile, and show it.
    "upstream": {"stall_timeout_s": 60.0},
}

SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=3, backends=2, sections=_BRIEF),
        Load(240, words=250, tokens_per_s=12, at_once=30, give_up_s=500, kinds=("stored",)),
        Terms(6, peace_s=(1.0, 8.0), down_s=(2.0, 12.0), kinds=("freeze",)),
    ),
    "short": Size(
        Build(replicas=2, backends=1, sections=_BRIEF),
        Load(16, words=150, tokens_per_s=12, at_once=16, give_up_s=90, kinds=("stored",)),
        Terms(1, peace_s=(1.0, 6.0), down_s=(9.0, 10.0), kinds=("freeze",)),
    ),
}
"""A process looks for what is abandoned every 2.5 to 7.5 seconds."""


async def run(form: Form, seed: int) -> Report:
    """Streams may fail; nothing that was shown is lost, and everything is booked."""
    report = Report("frozen", form, seed)
    size = SIZES[form]
    lanes = schedule(Random(f"nemesis {seed}"), size.terms, size.build.replicas)
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.load.give_up_s)
        async with unleashed(lanes, running.replicas) as dealt:
            transcripts = await carry(size.load, clients, seed)
        report.numbers |= {"freezes": dealt.freeze}
        records = await judge(report, running, transcripts)
    report.numbers["ended_by_others"] = sum(
        record.status == "failed" and record.epoch > 1 for record in records.values()
    )
    return report
