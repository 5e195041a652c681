from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.routing.prefix_index import (
    MARKS_MAX,
    HashedPrefix,
    Placement,
    marks_of,
    member_id,
)

KEY = b"key" * 8
counts = st.integers(0, 2**32 - 1)
placements = st.builds(
    Placement,
    counts,
    counts,
    counts,
    st.lists(st.tuples(counts, st.integers(0, 2**64 - 1)), max_size=MARKS_MAX).map(tuple),
)


def prefix(length: int, seed: int = 0) -> HashedPrefix:
    return HashedPrefix(array("I", (seed + n for n in range(length))), KEY)


@pytest.mark.slow
@given(placements)
def test_what_is_packed_is_read_back(placement: Placement) -> None:
    assert Placement.unpack(placement.pack()) == placement


@given(st.binary(max_size=80))
def test_what_others_wrote_is_read_or_left_alone(packed: bytes) -> None:
    placement = Placement.unpack(packed)
    assert placement is None or placement.pack() == packed


@pytest.mark.slow
@given(st.integers(1, 1500), st.integers(0, 900), st.integers(0, 600))
def test_held_is_the_longest_of_its_marks_that_the_prompt_has(
    prompt: int, said: int, more: int
) -> None:
    turn = prefix(prompt + said)
    placement = Placement(1, 0, 0, tuple(marks_of(turn, (prompt, prompt + said))))
    assert placement.held(prefix(prompt + said + more)) == prompt + said
    # What was thought is left out of the next prompt: it goes on behind what was asked.
    cut = HashedPrefix(turn.ids[:prompt] + array("I", [7] * (said + 1)), KEY)
    assert placement.held(cut) == prompt
    assert placement.held(prefix(prompt + said + more, seed=1)) == 0
    assert placement.held(HashedPrefix(turn.ids, b"other" * 5)) == 0


@pytest.mark.slow
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_marks_are_few_and_the_last_ones_stay(steps: list[int]) -> None:
    marks: list[tuple[int, int]] = []
    length = 0
    for step in steps:
        length += step
        marks = marks_of(prefix(length), (length,), marks)
    lengths = [mark for mark, _ in marks]
    assert len(lengths) == min(len(steps), MARKS_MAX)
    assert lengths == sorted(lengths)
    assert lengths[-4:] == [sum(steps[: n + 1]) for n in range(len(steps))][-4:]


def test_marks_of_another_prompt_are_dropped() -> None:
    old = marks_of(prefix(600, seed=5), (100, 600))
    assert marks_of(prefix(700), (700, 900, 0), old) == [(700, prefix(700).at(700))]


def test_names_have_numbers_that_all_replicas_agree_on() -> None:
    assert member_id("gpu-1") == 0x8882E7EB
    assert member_id("gpu-1") != member_id("gpu-2")
