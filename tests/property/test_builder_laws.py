"""Laws of the builder, for whatever segments and ends come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.generation import (
    SegmentEnded,
    SegmentEvent,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    TokenUsage,
)
from gateway.output.builder import Builder
from gateway.protocol.responses import Outcome
from tests.fakes.event_grammar import check_stream
from tests.fakes.response_heads import CREATED_AT, response_head

if TYPE_CHECKING:
    from gateway.protocol.events import Event

laws = settings(deadline=None)

OUTCOMES = (
    Outcome("completed", completed_at=CREATED_AT + 1, usage=TokenUsage(5, 3, 7, 2)),
    Outcome("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    Outcome("failed", error={"code": "server_error", "message": "Broken off."}),
    Outcome("cancelled"),
)
_texts = st.text(alphabet='ab"\\\n\u2028\x00é\U0001f600', min_size=1, max_size=4).map(SegmentText)


@st.composite
def segments(draw: st.DrawFn) -> list[SegmentEvent]:
    """One segment from its start to its end, cut off or not."""
    kind = draw(st.sampled_from(SegmentKind))
    start = SegmentStarted(kind, "get_weather" if kind is SegmentKind.FUNCTION_CALL else "")
    end = SegmentEnded(0, 9, complete=draw(st.booleans()))
    return [start, *draw(st.lists(_texts, max_size=4)), end]


@st.composite
def conversations(draw: st.DrawFn) -> list[SegmentEvent]:
    """Segments one after the other; the last may not have ended."""
    events = [event for segment in draw(st.lists(segments(), max_size=5)) for event in segment]
    return events[: -draw(st.integers(0, 1)) or None]


def build(batches: list[list[SegmentEvent]], outcome: Outcome) -> list[Event]:
    """The whole stream."""
    builder = Builder(response_head())
    events = builder.start()
    for batch in batches:
        events += builder.feed(batch)
        events += builder.alive()
    return events + builder.finish(outcome)


@laws
@given(conversations(), st.sampled_from(OUTCOMES))
def test_whatever_comes_the_stream_is_lawful(said: list[SegmentEvent], outcome: Outcome) -> None:
    stream = check_stream(build([said], outcome))
    assert stream.response["status"] == outcome.status
    assert [item["type"] for item in stream.items] == _expected_types(said)


@laws
@given(conversations(), st.sampled_from(OUTCOMES))
def test_cuts_between_feeds_change_no_item(said: list[SegmentEvent], outcome: Outcome) -> None:
    whole = check_stream(build([said], outcome))
    single = check_stream(build([[event] for event in said], outcome))
    assert whole.items == single.items


@laws
@given(conversations(), st.sampled_from(OUTCOMES))
def test_all_text_of_the_segments_is_in_the_items(
    said: list[SegmentEvent], outcome: Outcome
) -> None:
    stream = check_stream(build([said], outcome))
    shown = "".join(
        item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        for item in stream.items
    )
    assert shown == "".join(event.text for event in said if isinstance(event, SegmentText))


def _expected_types(said: list[SegmentEvent]) -> list[str]:
    """One item for each call and for each other segment that says something."""
    types: list[str] = []
    kind = SegmentKind.REASONING
    is_shown = False
    for event in said:
        if isinstance(event, SegmentStarted):
            kind, is_shown = event.kind, False
        says = isinstance(event, SegmentText) or kind is SegmentKind.FUNCTION_CALL
        if says and not is_shown:
            is_shown = True
            is_bare = kind in {SegmentKind.REASONING, SegmentKind.FUNCTION_CALL}
            types.append(kind.value if is_bare else "message")
    return types
