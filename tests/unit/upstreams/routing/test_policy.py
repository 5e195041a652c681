"""The rule of routing, and the mutants of it that must fail (W = 0, no slack, all members)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.upstreams.routing.costs import (
    HOLD_BACK_DELAY_S,
    WARM_SHARE,
    Candidate,
    RoutingPolicy,
    choose,
    choose_owner,
    considered,
    cost_s,
    delay_s,
    drained,
    hold_back,
    unread,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICY = RoutingPolicy()
W, EPS = POLICY.uncached_weight, POLICY.delay_slack_share
PROMPT = 10_000
RATE = 10_000.0


def one(name: str, held: int = 0, delay: float = 0.0, rate: float = RATE) -> Candidate:
    return Candidate(name, held, delay, rate)


def chosen(candidates: Sequence[Candidate], policy: RoutingPolicy = POLICY, seed: int = 1) -> str:
    return choose(candidates, PROMPT, policy, Random(seed)).name


fleets = st.lists(
    st.tuples(st.integers(0, PROMPT - 1), st.floats(0, 50), st.floats(2_000, 200_000)),
    min_size=1,
    max_size=10,
).map(lambda rows: [one(f"m{n}", *row) for n, row in enumerate(rows)])


@pytest.mark.slow
@given(fleets, st.integers(0, 100))
def test_only_a_candidate_is_chosen_and_the_same_for_the_same_reasons(
    fleet: list[Candidate], seed: int
) -> None:
    first = choose(fleet, PROMPT, POLICY, Random(seed))
    assert first in fleet
    assert choose(fleet, PROMPT, POLICY, Random(seed)) == first


@pytest.mark.slow
@given(fleets, st.integers(0, 9), st.integers(0, PROMPT), st.floats(0, 50))
def test_more_of_the_prompt_or_less_delay_never_makes_a_member_lose(
    fleet: list[Candidate], place: int, more: int, less: float
) -> None:
    assume(max(member.held for member in fleet) >= WARM_SHARE * PROMPT)
    best = choose(fleet, PROMPT, POLICY, Random(1))
    better = best._replace(held=min(PROMPT - 1, best.held + more))
    # The idlest is what all are compared with: with less delay it would be another comparison.
    if best.delay_s > min(member.delay_s for member in fleet):
        floor = min(member.delay_s for member in fleet)
        better = better._replace(delay_s=max(floor, best.delay_s - less))
    others = [better if member == best else member for member in fleet]
    assert choose(others, PROMPT, POLICY, Random(1)).name == best.name


def test_cold_prompts_are_shared_evenly_by_idle_members() -> None:
    random = Random(7)
    fleet = [one("a"), one("b")]
    counts = Counter(choose(fleet, PROMPT, POLICY, random).name for _ in range(4000))
    assert all(0.45 <= count / 4000 <= 0.55 for count in counts.values())


def test_who_holds_the_prompt_is_chosen_among_equals() -> None:
    assert chosen([one("a"), one("b", 9_000), one("c")]) == "b"


@given(st.floats(0.001, 10))
def test_who_holds_the_prompt_is_left_when_it_is_busier_than_reading_costs(least: float) -> None:
    warm_until = (1 + EPS) * least + W * 9_000 / RATE
    fleet = [one("a", 0, least), one("b", 9_000, warm_until * 0.999)]
    assert chosen(fleet) == "b"
    fleet = [one("a", 0, least), one("b", 9_000, warm_until * 1.001)]
    assert chosen(fleet) == "a"


@given(st.floats(0.05, 5), st.floats(0, 0.999))
def test_when_all_queues_are_ten_times_as_long_sessions_stay(least: float, slack: float) -> None:
    """Overload: the noise of long queues must not scatter what is warm."""
    fleet = [one("warm", 6_000, (1 + EPS * slack) * least), one("cold", 0, least)]
    longer = [member._replace(delay_s=10 * member.delay_s) for member in fleet]
    assert chosen(fleet) == chosen(longer) == "warm"


def test_without_slack_sessions_would_scatter_in_overload() -> None:
    fleet = [one("warm", 6_000, 50.0), one("cold", 0, 40.0)]
    assert chosen(fleet) == "warm"
    assert chosen(fleet, replace(POLICY, delay_slack_share=0.0)) == "cold"


def test_without_the_weight_of_what_is_read_the_idlest_would_win() -> None:
    fleet = [one("warm", 9_000, 0.1), one("cold", 0, 0.0)]
    assert chosen(fleet) == "warm"
    assert chosen(fleet, replace(POLICY, uncached_weight=0.0)) == "cold"


def test_of_two_that_cost_the_same_the_less_busy_is_taken() -> None:
    assert chosen([one("a", delay=1.0), one("b", delay=0.9), one("c", delay=0.6)]) == "c"


def test_a_faster_member_is_taken_by_a_cold_prompt() -> None:
    assert chosen([one("slow", rate=5_000.0), one("fast", rate=20_000.0)]) == "fast"


def test_a_cold_prompt_looks_at_two_of_the_idlest_and_not_at_all() -> None:
    """Replicas that all saw one member empty would all go there."""
    fleet = [one(f"m{n}", delay=1.0) for n in range(7)] + [one("idle", delay=0.9)]
    random = Random(3)
    looked = [considered(fleet, PROMPT, random) for _ in range(400)]
    assert {len(some) for some in looked} == {2}
    share = sum(any(member.name == "idle" for member in some) for some in looked) / 400
    assert 0.15 < share < 0.35
    fleet = [one(f"m{n}", held=n * 100, delay=1.0) for n in range(8)]
    names = [member.name for member in considered(fleet, PROMPT, random)]
    assert names[:2] == ["m7", "m6"]
    assert len(set(names)) == 4


def test_a_warm_prompt_looks_at_all() -> None:
    fleet = [one(f"m{n}", held=6_000 if n == 3 else 0) for n in range(8)]
    assert considered(fleet, PROMPT, Random(1)) == fleet


def test_an_owner_is_taken_unless_it_is_busier_than_reading_all_would_cost() -> None:
    fleet = [one("a", delay=0.1), one("b", delay=0.1), one("c", delay=2.0)]
    assert choose_owner(fleet, "c", PROMPT, POLICY, Random(1)).name == "c"
    fleet[2] = fleet[2]._replace(delay_s=2.3)
    assert choose_owner(fleet, "c", PROMPT, POLICY, Random(1)).name in "ab"


def test_a_delay_adds_what_is_to_be_read_and_who_waits() -> None:
    assert delay_s(5_000, 10, 3, RATE) == pytest.approx(0.5 + 0.04 + 0.3)


@given(st.floats(0, 1e6), st.floats(-5, 100), st.floats(0, 1e5))
def test_what_was_told_earlier_is_partly_done_and_never_less_than_nothing(
    amount: float, seconds: float, per_s: float
) -> None:
    left = drained(amount, seconds, per_s)
    assert 0 <= left <= amount
    assert left == pytest.approx(max(0, amount - 0.7 * per_s * max(0, seconds)))


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=9),
    st.floats(0, 1e6),
    st.floats(2_000, 200_000),
)
def test_what_is_being_read_is_one_prompt_at_most(
    prompts: list[int], seconds: float, rate: float
) -> None:
    owed, count = sum(prompts), len(prompts)
    left = unread(owed, count, seconds, rate)
    assert owed - owed / count <= left <= owed
    assert unread(owed, count, 0.0, rate) == owed
    assert unread(owed, count, seconds + 1, rate) <= left


@pytest.mark.slow
@given(fleets, st.booleans())
def test_a_session_is_held_back_only_where_it_begins_and_most_are_busy(
    fleet: list[Candidate], is_continued: bool
) -> None:
    held = hold_back(fleet, PROMPT, is_continued=is_continued)
    is_busy = median(member.delay_s for member in fleet) > HOLD_BACK_DELAY_S
    is_warm = any(member.held >= WARM_SHARE * PROMPT for member in fleet)
    assert held == (is_busy and not is_warm and not is_continued)


def test_where_there_is_nobody_nothing_is_held_back() -> None:
    assert not hold_back([], PROMPT, is_continued=False)


@pytest.mark.slow
@given(fleets)
def test_a_cost_is_never_negative(fleet: list[Candidate]) -> None:
    least = min(member.delay_s for member in fleet)
    assert all(cost_s(member, PROMPT, least, POLICY) >= 0 for member in fleet)
