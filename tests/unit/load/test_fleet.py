"""The simulated fleet: routing reaches its targets there, and what it consists of is needed."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.routing.costs import RoutingPolicy
from tests.load.fleet.choices import Board, Routed
from tests.load.fleet.events import World
from tests.load.fleet.member import SLOTS, Job, SimulatedMember
from tests.load.fleet.prompts import Message, SimulatedPrefix
from tests.load.fleet.run import Fleet, Plan, Result, Row, simulate
from tests.load.fleet.targets import BACK_WITHIN, TARGETS, lost_by_replicas, missed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

SHORT = {"warm_s": 150.0, "seconds": 150.0}
LONGEST = "chat"
"""The workload that takes as long as all others together."""
simulated = functools.cache(simulate)
"""A plan has one result, which several tests look at."""


def plan(workload: str, **more: object) -> Plan:
    return replace(Plan(workload, **SHORT), **more)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [pytest.param(LONGEST, marks=pytest.mark.nightly), *sorted(TARGETS.keys() - {LONGEST})],
)
def test_the_targets_are_reached_by_three_replicas(workload: str) -> None:
    oracle = simulate(plan(workload, policy="oracle", replicas=1))
    assert list(missed(workload, simulated(plan(workload)), oracle)) == []


@pytest.mark.slow
def test_members_that_take_turns_find_less_than_half_of_it() -> None:
    taking_turns = simulate(plan("agents", policy="round robin"))
    assert taking_turns.share < 0.6
    assert simulated(plan("agents")).goodput > 1.5 * taking_turns.goodput


@pytest.mark.nightly
def test_without_rows_and_exchange_sessions_are_lost_between_replicas() -> None:
    """Each of the two makes up for the other, nearly."""
    shares = {
        (rows, exchange): simulated(plan("agents", reads_rows=rows, exchanges=exchange)).share
        for rows, exchange in ((True, True), (True, False), (False, True), (False, False))
    }
    assert shares[True, True] > TARGETS["agents"].share
    assert shares[False, True] > TARGETS["agents"].share
    assert shares[False, False] < TARGETS["agents"].share
    assert shares[False, False] < shares[True, False] - 0.05
    assert shares[True, False] < shares[True, True] - 0.02


@pytest.mark.slow
def test_without_the_weight_of_what_is_read_the_cache_is_not_used() -> None:
    result = simulate(plan("agents", policy=RoutingPolicy(uncached_weight=0.0)))
    assert result.share < TARGETS["agents"].share


@pytest.mark.nightly
def test_without_slack_the_fleet_collapses_above_what_it_can_carry() -> None:
    over = plan("rag", load=1.15)
    ours = simulate(over)
    strict = simulate(replace(over, policy=RoutingPolicy(delay_slack_share=0.0)))
    assert ours.in_time > strict.in_time + 0.3
    assert ours.share > strict.share + 0.08


@pytest.mark.slow
def test_what_the_exchange_loses_repeats_or_brings_late_costs_no_more_than_its_absence() -> None:
    def trouble(random: Random) -> Sequence[float]:
        return random.choice([(), (0.01, 0.5), (60.0,), (3.0,), (0.01,)])

    troubled = simulate(plan("agents", board=lambda: Board(trouble)))
    without = simulated(plan("agents", exchanges=False))
    assert troubled.share > without.share - 0.01
    assert troubled.unanswered == 0


@pytest.mark.slow
def test_one_of_eight_may_fail_and_come_back() -> None:
    def fail(fleet: Fleet) -> None:
        fleet.members[0].fail()

    def come_back(fleet: Fleet) -> None:
        fleet.revive(fleet.members[0])

    events = ((250.0, fail), (290.0, come_back))
    result = simulate(Plan("agents", load=0.7, warm_s=150.0, seconds=250.0, events=events))
    before = result.between(150, 250).share
    assert result.between(290, 400).share > before - BACK_WITHIN
    assert result.in_time > 0.95


def test_many_replicas_may_find_a_little_less_than_one() -> None:
    assert list(lost_by_replicas("mix", {1: 0.95, 3: 0.96, 8: 0.93})) == []
    assert list(lost_by_replicas("mix", {3: 0.96, 8: 0.5})) == []
    assert list(lost_by_replicas("mix", {1: 0.95, 8: 0.91})) == [
        "mix: 0.910 cached with 8 replicas, 0.950 with 1"
    ]


def test_a_part_of_a_result_is_of_that_time_and_of_these_sessions() -> None:
    result = Result()
    for row in (
        Row(1.0, 10, 20, 0.5, "gpu-0", "chat"),
        Row(2.0, 30, 30, 4.0, "gpu-1", "rag"),
        Row(9.0, 0, 99, 1.0, "gpu-0", "chat"),
    ):
        result.add(row)
    part = result.between(1.0, 9.0)
    assert (part.share, part.in_time, part.by_member.total()) == (0.8, 0.5, 2)
    assert result.between(0.0, 9.5, {"rag"}).share == 1.0


@pytest.mark.nightly
def test_when_all_is_over_nothing_is_owed_by_anybody() -> None:
    fleet = Fleet(plan("mix"))
    fleet.run()
    fleet.is_open = False
    fleet.world.run(5_000)
    routers = [chooser.router for chooser in fleet.replicas if isinstance(chooser, Routed)]
    loads = [router.member(one.name) for router in routers for one in fleet.members]
    assert len(loads) == 24
    assert {(one.in_flight, one.owed) for one in loads} == {(0, 0)}


# The model itself.


def member(kv_tokens: int = 100_000) -> tuple[World, SimulatedMember, list[tuple[str, float]]]:
    world = World()
    return world, SimulatedMember("a", world, kv_tokens=kv_tokens), []


def send(
    world: World,
    one: SimulatedMember,
    told: list[tuple[str, float]],
    *messages: int,
    said: int = 10,
) -> Job:
    prefix = SimulatedPrefix(tuple(Message(id_, 5_000) for id_ in messages))
    job = Job(
        prefix,
        (Message(hash(messages), said),),
        world.now,
        on_first=lambda _: told.append(("first", world.now)),
        on_end=lambda _: told.append(("end", world.now)),
        on_lost=lambda _: told.append(("lost", world.now)),
    )
    one.send(job)
    return job


def test_a_prompt_takes_its_time_and_the_second_time_almost_none() -> None:
    world, one, told = member()
    send(world, one, told, 1, 2)
    world.run(100)
    assert told[0][1] == pytest.approx(1.0 + 5 * 0.008)
    assert told[1][1] == pytest.approx(told[0][1] + 9 * 0.00815)
    job = send(world, one, told, 1, 2)
    world.run(200)
    assert job.cached == 10_000 // 16 * 16 - 16
    assert told[2][1] < 100.02


def test_what_does_not_fit_goes_the_oldest_first_and_leaves_before_roots() -> None:
    world, one, told = member(kv_tokens=20_100)
    for messages in ((1, 2), (1, 3), (4, 5)):
        send(world, one, told, *messages)
        world.run(world.now + 100)
    held = [one.cache.held(SimulatedPrefix((Message(1, 5_000), Message(n, 5_000)))) for n in (2, 3)]
    assert held[0] < 5_000 <= held[1] + 16
    assert one.cache.free >= 0


def test_a_member_that_dies_tells_everybody_and_is_empty() -> None:
    world, one, told = member()
    for n in range(3):
        send(world, one, told, n)
    world.run(0.6)
    one.fail()
    world.run(100)
    assert [what for what, _ in told] == ["lost"] * 3
    assert one.cache.free == 100_000
    assert not one.running


def test_more_than_its_slots_have_to_wait() -> None:
    world, one, told = member(kv_tokens=10_000_000)
    for n in range(SLOTS + 5):
        send(world, one, told, n, said=10_000)
    world.run(60)
    assert one.running == SLOTS
    assert len(one.waiting) == 5


def test_digests_agree_as_far_as_messages_do() -> None:
    one = SimulatedPrefix((Message(1, 700), Message(2, 700)))
    other = SimulatedPrefix((Message(1, 700), Message(3, 900)))
    assert one.digests[0] == other.digests[0]
    assert one.digests[1] != other.digests[1]
    assert one.at(700) == other.at(700)
    assert one.at(701) != other.at(701)
