"""What happens to a fleet, one at a time: more and more load, a failure, a burst, a slow member.

Each scenario simulates what it needs, yields the lines that tell of it, and `Missed` what is below
a target.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from gateway.upstreams.routing.costs import RoutingPolicy
from tests.load.fleet.run import Fleet, Plan, simulate
from tests.load.fleet.targets import BACK_WITHIN, CAPACITY_TIMES, HERD_TIMES, IN_TIME
from tests.load.fleet.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.load.fleet.run import Result

EVENT_S: Final = 400.0
"""When it happens."""
LASTS_S: Final = 60.0
SETTLES_S: Final = 120.0
BURST_PER_S: Final = 12.0
LOAD_STEP: Final = 0.1
LOAD_MAX: Final = 1.5


class Missed(str):
    """A target that was not reached."""

    __slots__ = ()


def capacity(seed: int, seconds: float) -> Iterator[str]:
    """The most load, by 10 %, at which 95 % have their first token in time: beside round robin.
    Queues need minutes to get long: what begins in the first 400 s is not counted.
    """
    for name in ("agents", "mix"):
        plan = Plan(name, seconds=min(seconds, 200.0), warm_s=400.0, seed=seed)
        ours = _most_load(plan)
        turns = _most_load(replace(plan, policy="round robin"))
        line = f"{name}: 95 % in time up to {ours:.0%} of the load, round robin {turns:.0%}"
        yield line
        if ours < CAPACITY_TIMES * turns:
            yield Missed(f"{line}: {CAPACITY_TIMES} times as much wanted")


def _most_load(plan: Plan) -> float:
    """0 where even the least step is too much."""
    least, most = 0, round(LOAD_MAX / LOAD_STEP)
    while least < most:
        middle = (least + most + 1) // 2
        if simulate(replace(plan, load=middle * LOAD_STEP)).in_time >= IN_TIME:
            least = middle
        else:
            most = middle - 1
    return least * LOAD_STEP


def failure(seed: int, seconds: float) -> Iterator[str]:
    """At 70 % one of eight dies, and comes back empty after a minute."""
    back_s, until_s = EVENT_S + LASTS_S, 300.0 + max(seconds, 400.0)

    def fail(fleet: Fleet) -> None:
        fleet.members[0].fail()

    def come_back(fleet: Fleet) -> None:
        fleet.revive(fleet.members[0])

    events = ((EVENT_S, fail), (back_s, come_back))
    for name in ("agents", "mix"):
        plan = Plan(name, load=0.7, seconds=until_s - 300.0, seed=seed, events=events)
        result = simulate(plan)
        before = result.between(300.0, EVENT_S)
        parts = {
            "before": before,
            "away": result.between(EVENT_S, back_s),
            "back": result.between(back_s, EVENT_S + SETTLES_S),
            "later": result.between(EVENT_S + SETTLES_S, until_s),
        }
        for when, part in parts.items():
            yield f"{name}: {when:6} {_told(part)}"
        requests = parts["back"].by_member
        busiest = requests["gpu-0"] * plan.members / max(1, requests.total())
        yield f"{name}: who came back had {busiest:.2f} times its share in the first minute"
        if parts["later"].share < before.share - BACK_WITHIN:
            yield Missed(f"{name}: {parts['later'].share:.3f} cached after {SETTLES_S:.0f} s")
        if busiest > HERD_TIMES:
            yield Missed(f"{name}: all ran to the member that came back")


def burst(seed: int, seconds: float) -> Iterator[str]:
    """At 70 % of the mix everybody asks the same for a minute, 12 times a second."""
    random, kind = Random(seed), Traffic.one_prompt

    def begin(fleet: Fleet) -> None:
        fleet.begin(kind)
        if fleet.world.now < EVENT_S + LASTS_S:
            fleet.world.after(random.expovariate(BURST_PER_S), partial(begin, fleet))

    plan = Plan("mix", load=0.7, seconds=seconds, seed=seed, events=((EVENT_S, begin),))
    for policy in (RoutingPolicy(), "round robin", "rendezvous"):
        result = simulate(replace(plan, policy=policy))
        span = (EVENT_S, EVENT_S + LASTS_S)
        asked = result.between(*span, kinds={kind.__name__})
        others = result.between(*span, kinds={"agent", "chat", "rag"})
        total = asked.by_member.total()
        used = sum(count > 0.05 * total for count in asked.by_member.values())
        name = policy if isinstance(policy, str) else "prefix"
        yield f"{name:11}: the burst {_told(asked)}, at {used} members; others {_told(others)}"


def slow(seed: int, seconds: float) -> Iterator[str]:
    """At 75 % one of eight is half as fast as the others, and nobody is told."""
    for name in ("agents", "mix"):
        plan = Plan(name, load=0.75, seconds=seconds, seed=seed)
        for policy in (RoutingPolicy(), "round robin"):
            for speeds in ((), (0.5,)):
                result = simulate(replace(plan, policy=policy, speeds=speeds))
                which = policy if isinstance(policy, str) else "prefix"
                yield f"{name}: {which:11} {len(speeds)} slow: {_told(result)}"


def large(seed: int, seconds: float) -> Iterator[str]:
    """32 members at 90 % of the mix."""
    plan = Plan("mix", members=32, seconds=min(seconds, 100.0), warm_s=200.0, seed=seed)
    oracle = simulate(replace(plan, policy="oracle", replicas=1))
    yield f"oracle                 {_told(oracle)}"
    for policy, replicas in ((RoutingPolicy(), 1), (RoutingPolicy(), 8), ("round robin", 8)):
        result = simulate(replace(plan, policy=policy, replicas=replicas))
        name = policy if isinstance(policy, str) else "prefix"
        yield f"{name:11} {replicas} replicas {_told(result)}, busiest {result.imbalance:.2f}"


def overload(seed: int, seconds: float) -> Iterator[str]:
    """Documents at 115 %, with and without the slack."""
    plan = Plan("rag", load=1.15, seconds=seconds, seed=seed)
    yield f"with slack    {_told(simulate(plan))}"
    strict = RoutingPolicy(delay_slack_share=0.0)
    yield f"without slack {_told(simulate(replace(plan, policy=strict)))}"


def _told(result: Result) -> str:
    return (
        f"{result.share:.3f} cached, p50 {result.quantile(0.5):.2f} s, "
        f"p99 {result.quantile(0.99):.2f} s, {result.in_time:.1%} in time"
    )


SCENARIOS: Final[dict[str, Callable[[int, float], Iterator[str]]]] = {
    one.__name__: one for one in (capacity, failure, burst, slow, large, overload)
}
