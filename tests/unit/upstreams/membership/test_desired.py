"""Which backends are wanted, whatever sources say and in whatever order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend import Backend
from gateway.upstreams.backend_sources import (
    Answer,
    Membership,
    SourceBackends,
    SourceError,
    changes,
    merged,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = st.sampled_from("abcdef")
BACKENDS = st.builds(
    Backend, name=NAMES, base_url=st.sampled_from(["http://one:1", "http://two:2"])
)
SETS = st.lists(BACKENDS, max_size=6, unique_by=lambda one: one.name).map(tuple)
ANSWERS: st.SearchStrategy[Answer] = st.one_of(SETS, st.just(SourceError("away")))


@pytest.mark.slow
@given(SETS, SETS)
def test_changes_lead_from_one_set_to_the_other(
    before: tuple[Backend, ...], after: tuple[Backend, ...]
) -> None:
    known, wanted = ({one.name: one for one in some} for some in (before, after))
    change = changes(known, wanted)
    left = {name: one for name, one in known.items() if name not in change.leave}
    assert left | {name: wanted[name] for name in change.join} == wanted
    assert all(wanted[name] == one for name, one in left.items())
    same = {name for name, one in known.items() if wanted.get(name) == one}
    assert not same & {*change.join, *change.leave}


@pytest.mark.slow
@given(SETS, SETS, st.integers(0, 8))
def test_of_several_with_one_name_the_first_counts_and_the_others_are_told(
    one: tuple[Backend, ...], two: tuple[Backend, ...], members_max: int
) -> None:
    wanted = merged({"one": one, "two": two}, members_max)
    assert list(wanted.backends.values())[: len(one)] == list(one)[:members_max]
    assert len(wanted.backends) <= members_max
    assert set(wanted.backends) <= {backend.name for backend in (*one, *two)}
    if len({backend.name for backend in (*one, *two)}) < len(one) + len(two):
        assert wanted.unused


def test_what_is_beyond_the_bound_is_told() -> None:
    found = tuple(Backend(str(number), "http://a:1") for number in range(3))
    assert merged({"one": found}, 2).unused == ("1 more backends are not used: at most 2 are",)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 30), ANSWERS), max_size=12))
def test_a_source_is_believed_but_for_faults_and_what_is_empty_for_too_short(
    said: list[tuple[float, Answer]],
) -> None:
    known, now = SourceBackends(empty_s=60), 0.0
    believed: tuple[Backend, ...] = ()
    empty_since: float | None = None
    for seconds, answer in said:
        now += seconds
        has_changed = known.update(answer, now)
        before = believed
        if isinstance(answer, SourceError):
            assert known.fault == "away"
        else:
            assert known.fault is None
            empty_since = None if answer else now if empty_since is None else empty_since
            if answer or (empty_since is not None and now - empty_since >= 60):
                believed = answer
        assert known.members == believed
        assert has_changed == (before != believed)
        assert known.is_doubted == (empty_since is not None and bool(believed))


def test_an_empty_answer_is_believed_at_once_where_it_need_not_be_doubted() -> None:
    known = SourceBackends()
    assert known.update((Backend("a", "http://a:1"),), 0)
    assert known.update((), 0)
    assert known.members == ()


class Source:
    """Says nothing by itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.empty_s = 0.0


@pytest.mark.slow
@given(SETS, st.lists(st.tuples(st.sampled_from(["one", "two"]), ANSWERS), max_size=20))
def test_after_any_answers_the_pool_has_what_was_said_last_and_nothing_else(
    fixed: tuple[Backend, ...], said: list[tuple[str, Answer]]
) -> None:
    applied = [list(fixed)]

    async def apply(backends: Sequence[Backend]) -> None:
        applied.append(list(backends))

    membership = Membership(
        fixed,
        [Source("one"), Source("two")],  # type: ignore[list-item]
        apply,
        metrics=Metrics(),
        clock=lambda: 0.0,
    )
    last: dict[str, tuple[Backend, ...]] = {"one": (), "two": ()}
    faulty: set[str] = set()
    for source, answer in said:
        asyncio.run(membership.update(source, answer))
        if isinstance(answer, SourceError):
            faulty.add(source)
        else:
            faulty.discard(source)
            last[source] = answer
        assert applied[-1] == list(merged({"": fixed, **last}, 100).backends.values())
        assert all(
            any(text.startswith(f"{one} does") for text in membership.warnings) for one in faulty
        )
