"""Where the time of a response went, of any log: spans do not overlap, and sum up to all of it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, get_args

from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import Finished, Mark, Queued, Step
from gateway.eventlog.fold.execution import PHASES, execution_of, unpacked_timeline
from tests.fakes.toy_logs import apply_all, logs, new_fold

if TYPE_CHECKING:
    from gateway.entries import Entry

BEGIN_MS = 1_795_000_000_000
TIMES = st.integers(BEGIN_MS - 100, BEGIN_MS + 5000)
STEPS = st.sampled_from([step for step in get_args(Step) if step != "commit"])
PLACES = st.sampled_from(["", "reasoning", "final", "function_call", "b-1"])
MARKS = st.one_of(
    st.builds(Mark, STEPS, TIMES, PLACES),
    st.builds(Mark, st.just("commit"), TIMES, st.integers(0, 10_000).map(str)),
)


@st.composite
def marked_logs(draw: st.DrawFn) -> tuple[list[Entry], list[Entry]]:
    """A log, and the same with marks anywhere before its end."""
    log = draw(logs(background=draw(st.booleans())))
    marked = list(log)
    for mark, place in draw(st.lists(st.tuples(MARKS, st.integers(0, 60)), max_size=30)):
        first = isinstance(log[0], Queued)
        marked.insert(min(max(place, first), len(marked) - 1), mark)
    return log, marked


@given(marked_logs())
def test_marks_change_no_event(drawn: tuple[list[Entry], list[Entry]]) -> None:
    plain, marked = drawn
    one, other = new_fold(background=True), new_fold(background=True)
    assert apply_all(one, marked) == apply_all(other, plain)
    assert one.shown.encoded_response() == other.shown.encoded_response()


@given(marked_logs(), st.booleans())
def test_phases_are_as_long_as_the_response_and_lanes_do_not_overlap(
    drawn: tuple[list[Entry], list[Entry]], is_over: bool
) -> None:
    log = drawn[1] if is_over else drawn[1][:-1]
    fold = new_fold(background=True)
    apply_all(fold, log)
    moments = unpacked_timeline(fold.timeline.packed())
    assert moments == fold.timeline.moments
    found = execution_of(moments, begin_ms=BEGIN_MS, now_ms=BEGIN_MS + 6000)
    assert found.is_over == is_over
    assert sum(found.totals.values()) == found.duration_ms >= 0
    assert {phase.name for phase in found.phases} <= set(PHASES)
    assert all(one.end_ms == other.begin_ms for one, other in pairwise(found.phases))
    lanes = (found.phases, found.replicas, found.attempts, found.messages, found.tools)
    for lane in (*lanes, found.commits):
        assert all(0 <= span.begin_ms <= span.end_ms <= found.duration_ms for span in lane)
        assert all(one.end_ms <= other.begin_ms for one, other in pairwise(lane))
        assert all(span.tokens >= 0 for span in lane)
    written = fold.output_tokens + fold.usage.voided_tokens
    assert sum(span.tokens for span in found.messages) <= written
    assert sum(span.tokens for span in found.attempts) <= written
    assert found.sentence.endswith(".")


@given(marked_logs())
def test_a_timeline_has_the_ends_of_all_logs(drawn: tuple[list[Entry], list[Entry]]) -> None:
    fold = new_fold(background=True)
    apply_all(fold, drawn[1])
    *before, last = fold.timeline.moments
    end = drawn[1][-1]
    assert isinstance(end, Finished)
    assert (last.kind, last.name) == ("finished", end.status)
    assert all(one.at_ms <= other.at_ms for one, other in pairwise([*before, last]))
