"""Replicas die and freeze under background responses; readers go on anywhere.

`run_unfenced` is the same with the fence torn out: there the checker must find something, or it
could not be believed when it finds nothing.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos import takeovers
from tests.chaos.backends import Size, stalls
from tests.chaos.fleet import LEASE_S, Build, fleet
from tests.chaos.history import Anomaly
from tests.chaos.load import SETTLE_S, Load, carry, clients_of, failures, judge
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.report import Form

LATE_MAX_S: Final = 1.0
"""A response may be nobody's so long, once its lease has ended."""
_BRIEF: Final = {"background": {"lease_s": 1.0}}
_UNFENCED: Final = {
    "background": {"lease_s": 1.0, "attempts_max": 4},
    # Who wakes up shall find what its backend has sent meanwhile, and write it.
    "upstream": {"stall_timeout_s": 60.0},
}

SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=3, backends=2),
        Load(300, words=290, tokens_per_s=12, at_once=30, give_up_s=500, kinds=("background",)),
        Terms(blows_per_member=8, peace_s=(1.0, 6.0), down_s=(1.0, 6.0)),
    ),
    "short": Size(
        Build(replicas=2, backends=1, sections=_BRIEF),
        Load(16, words=60, tokens_per_s=25, at_once=16, give_up_s=90, kinds=("background",)),
        Terms(blows_per_member=1, peace_s=(0.4, 0.8), down_s=(0.5, 2.0)),
    ),
}
UNFENCED_SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=3, backends=1, program="tests.chaos.unfenced", sections=_UNFENCED),
        Load(40, words=200, tokens_per_s=15, at_once=40, give_up_s=40, kinds=("background",)),
        Terms(2, peace_s=(0.5, 1.5), down_s=(4.0, 5.0), kinds=("freeze",)),
    ),
    "short": Size(
        Build(replicas=2, backends=1, program="tests.chaos.unfenced", sections=_UNFENCED),
        Load(12, words=70, tokens_per_s=15, at_once=12, give_up_s=7, kinds=("background",)),
        Terms(1, peace_s=(0.5, 0.7), down_s=(2.4, 2.6), kinds=("freeze",)),
    ),
}


async def run(form: Form, seed: int) -> Report:
    """Nothing is lost, doubled or reordered; in the full form nobody waits longer than promised."""
    report = Report("replicas", form, seed)
    await _trial(report, SIZES[form])
    if form == "full" and report.numbers["late_max_s"] > LATE_MAX_S:
        found = f"{report.numbers['late_max_s']} s after a lease had ended"
        report.anomalies.append(Anomaly("late", "-", found))
    return report


async def run_unfenced(form: Form, seed: int) -> Report:
    """Frozen owners wake up and write: the checker sees it."""
    report = Report("unfenced", form, seed, must_fail=True)
    await _trial(report, UNFENCED_SIZES[form])
    return report


async def _trial(report: Report, size: Size) -> None:
    lanes = schedule(Random(f"nemesis {report.seed}"), size.terms, size.build.replicas)
    async with fleet(size.build) as running:
        await takeovers.install(running.database.url)
        clients = clients_of(running, report.seed, size.load.give_up_s)
        async with unleashed(lanes, running.replicas) as dealt:
            transcripts = await carry(size.load, clients, report.seed)
        report.numbers |= {"kills": dealt.kill, "freezes": dealt.freeze}
        if not report.must_fail:
            report.anomalies += failures(transcripts)
        settle_s = 2.0 if report.must_fail else SETTLE_S
        records = await judge(report, running, transcripts, settle_s=settle_s)
        noted = await takeovers.noted(running.database.url)
    late = [takeover.late_s for takeover in noted if not takeover.released]
    report.numbers["takeovers"] = len(late)
    report.seconds("late", late)
    report.seconds("stall", stalls(transcripts, records))
    report.numbers["lease_s"] = size.build.sections.get("background", {}).get("lease_s", LEASE_S)
