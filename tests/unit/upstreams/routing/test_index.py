from __future__ import annotations

from array import array
from collections import OrderedDict
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.routing.prefix_index import (
    HOLDERS_MAX,
    NEWS_TICKS,
    STEP,
    TAILS_MAX,
    HashedPrefix,
    Held,
    PrefixIndex,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = b"key" * 8
ALL = (0, 0, 0, 0, 0)
"""Of members 1 to 4 any time counts."""


def prefix(length: int, seed: int = 0) -> HashedPrefix:
    return HashedPrefix(array("I", (seed * 31 + n for n in range(length))), KEY)


def index(entries_max: int = 1000) -> PrefixIndex:
    return PrefixIndex(entries_max)


def tokens(found: dict[int, Held]) -> dict[int, int]:
    return {member: held.tokens for member, held in found.items()}


def test_each_member_is_found_with_the_deepest_it_was_sent() -> None:
    known, prompt = index(), prefix(2000)
    known.touch(prefix(600), 1, 5)
    known.touch(prompt, 2, 6)
    assert known.find(prompt, ALL) == {1: Held(STEP, 5), 2: Held(3 * STEP, 6)}


def test_of_another_prompt_nothing_is_found() -> None:
    known = index()
    known.touch(prefix(2000), 1, 5)
    assert known.find(prefix(2000, seed=1), ALL) == {}
    assert known.find(prefix(100), ALL) == {}


def test_what_was_used_too_long_ago_counts_for_nothing() -> None:
    known = index()
    known.touch(prefix(2000), 1, 5)
    known.touch(prefix(600), 1, 9)
    assert tokens(known.find(prefix(2000), (0, 5))) == {1: 3 * STEP}
    assert tokens(known.find(prefix(2000), (0, 6))) == {1: STEP}
    assert tokens(known.find(prefix(2000), (0, 10))) == {}


def test_members_that_are_not_asked_about_are_not_found() -> None:
    known = index()
    known.touch(prefix(600), 3, 5)
    assert known.find(prefix(600), (0, 0, 0)) == {}


def test_a_turn_is_found_where_it_ended_between_two_boundaries() -> None:
    known, turn = index(), prefix(1300)
    news = known.touch(turn, 1, 5, (1300,))
    assert [tail for _, tail in news] == [0, 0, 0, 1300 - 2 * STEP]
    assert tokens(known.find(prefix(1400), ALL)) == {1: 1300}
    assert tokens(known.find(prefix(1299), ALL)) == {1: 2 * STEP}


def test_of_several_ends_behind_one_boundary_the_last_ones_are_kept() -> None:
    known = index()
    ends = [STEP + 10 * n for n in range(1, TAILS_MAX + 2)]
    for end in ends:
        known.touch(prefix(end), 1, 5, (end,))
    assert tokens(known.find(prefix(ends[-1] + 1), ALL)) == {1: ends[-1]}
    assert tokens(known.find(prefix(ends[1] + 1), ALL)) == {1: ends[1]}
    assert tokens(known.find(prefix(ends[0] + 1), ALL)) == {1: STEP}


def test_an_end_on_a_boundary_is_that_boundary() -> None:
    known = index()
    assert [tail for _, tail in known.touch(prefix(2 * STEP), 1, 5, (2 * STEP,))] == [0, 0]
    assert tokens(known.find(prefix(1400), ALL)) == {1: 2 * STEP}


def test_what_is_told_of_is_new_or_the_deepest() -> None:
    known, prompt = index(), prefix(2000)
    assert [digest for digest, _ in known.touch(prompt, 1, 5)] == prompt.digests
    assert [digest for digest, _ in known.touch(prompt, 1, 6)] == prompt.digests[-1:]
    assert [digest for digest, _ in known.touch(prompt, 2, 6)] == prompt.digests
    assert known.touch(prefix(100), 1, 6) == []


def test_what_is_still_in_use_is_told_of_again_after_a_while() -> None:
    known, prompt = index(), prefix(2000)
    known.touch(prompt, 1, 5)
    assert len(known.touch(prompt, 1, NEWS_TICKS - 1)) == 1
    assert len(known.touch(prompt, 1, NEWS_TICKS)) == 3
    known.touch(prompt, 2, NEWS_TICKS)
    assert len(known.touch(prompt, 1, NEWS_TICKS)) == 1


def test_what_others_tell_late_does_not_make_it_older() -> None:
    known, prompt = index(), prefix(STEP)
    known.touch(prompt, 1, 50)
    known.touch(prompt, 1, 20)
    assert known.find(prompt, ALL) == {1: Held(STEP, 50)}


def test_boundaries_that_were_touched_before_are_left_alone() -> None:
    known, prompt = index(), prefix(2000)
    known.touch(prompt, 1, 5, from_place=2)
    assert len(known) == 1


def test_the_least_recent_go_first() -> None:
    known = index(4)
    known.touch(prefix(2 * STEP), 1, 5)
    known.touch(prefix(2 * STEP, seed=1), 1, 6)
    known.touch(prefix(2 * STEP), 1, 7)
    known.touch(prefix(STEP, seed=2), 1, 8)
    assert tokens(known.find(prefix(2 * STEP), ALL)) == {1: 2 * STEP}
    assert len(known) == 4
    known.bound(1)
    assert len(known) == 1
    assert tokens(known.find(prefix(STEP, seed=2), ALL)) == {1: STEP}


@pytest.mark.slow
def test_it_never_has_more_entries_than_its_bound() -> None:
    known, random = index(500), Random(1)
    for n in range(1_000_000):
        known.put(random.getrandbits(12), 1 + random.randrange(4), n)
    assert len(known) == 500


operations = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 5), st.sampled_from([0, 1, 60])), max_size=60
)


@pytest.mark.slow
@given(operations, st.integers(1, 8))
def test_it_is_a_bounded_map_to_the_last_members(
    puts: Sequence[tuple[int, int, int]], entries_max: int
) -> None:
    """Against the plainest thing that does the same."""
    known, model = index(entries_max), OrderedDict[int, list[tuple[int, int]]]()
    now = 1
    prompts = [HashedPrefix([n] * STEP, KEY) for n in range(10)]
    for place, member, passed in puts:
        now += passed
        holders = model.pop(place, [])
        known_at = dict(holders).get(member)
        is_new = known_at is None or known_at // NEWS_TICKS != now // NEWS_TICKS
        others = [(one, at) for one, at in holders if one != member]
        model[place] = [(member, now), *others][:HOLDERS_MAX]
        if len(model) > entries_max:
            model.popitem(last=False)
        assert known.put(prompts[place].digests[0], member, now) == is_new
    for place, prompt in enumerate(prompts):
        expected = {member: Held(STEP, at) for member, at in model.get(place, [])}
        assert known.find(prompt, [0] * 6) == expected
