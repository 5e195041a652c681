"""Laws of the builder, for whatever segments and ends come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules
from gateway.eventlog.fold.event_builder import Builder
from gateway.eventlog.fold.lifecycle import ENVELOPES
from gateway.generation import (
    SegmentEnded,
    SegmentEvent,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    TokenUsage,
)
from gateway.protocol.responses.response_object import Outcome
from tests.fakes.event_grammar import check_stream
from tests.fakes.response_heads import CREATED_AT, response_head
from tests.fakes.toy_logs import ALLOWED, TOOL_RULES

if TYPE_CHECKING:
    from gateway.protocol.stream_events import Event

laws = settings(deadline=None)

OUTCOMES = (
    Outcome("completed", completed_at=CREATED_AT + 1, usage=TokenUsage(5, 3, 7, 2)),
    Outcome("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    Outcome("failed", error={"code": "server_error", "message": "Broken off."}),
    Outcome("cancelled"),
)
_HOSTED = {
    SegmentKind.WEB_SEARCH_CALL: "builtin:browser.search",
    SegmentKind.CODE_INTERPRETER_CALL: "builtin:python",
    SegmentKind.MCP_CALL: "srv.add",
    SegmentKind.MCP_APPROVAL_REQUEST: "srv.ask",
}
_TOOLS = _HOSTED | {rule.kind: rule.name for rule in reversed(TOOL_RULES.values())}
_ARGUMENTS = {
    SegmentKind.LOCAL_SHELL_CALL: '{"command":["ls"]}',
    SegmentKind.SHELL_CALL: '{"commands":["ls",""]}',
    SegmentKind.APPLY_PATCH_CALL: '{"operation":{"type":"delete_file","path":"a"}}',
    SegmentKind.TOOL_SEARCH_CALL: '{"query":"a"}',
}
_texts = st.text(alphabet='ab"\\\n\u2028\x00é\U0001f600', min_size=1, max_size=4).map(SegmentText)


@st.composite
def segments(draw: st.DrawFn) -> list[SegmentEvent]:
    """One segment from its start to its end, cut off or not."""
    kind = draw(st.sampled_from(SegmentKind))
    start = SegmentStarted(kind, _TOOLS.get(kind, ""))
    end = SegmentEnded(0, 9, complete=draw(st.booleans()))
    texts = draw(st.lists(_texts, max_size=4))
    if not ENVELOPES[kind].delta and draw(st.booleans()):
        texts = [SegmentText(_ARGUMENTS.get(kind, "{}"))]
    return [start, *texts, end]


@st.composite
def conversations(draw: st.DrawFn) -> list[SegmentEvent]:
    """Segments one after the other; the last may not have ended."""
    events = [event for segment in draw(st.lists(segments(), max_size=5)) for event in segment]
    return events[: -draw(st.integers(0, 1)) or None]


def build(batches: list[list[SegmentEvent]], outcome: Outcome) -> list[Event]:
    """The whole stream."""
    builder = Builder(response_head(), OutputRules(TOOL_RULES, ALLOWED, summary="detailed"))
    events = builder.start()
    for batch in batches:
        events += builder.feed(batch)
        events += builder.alive()
    return events + builder.finish(outcome)


@pytest.mark.slow
@laws
@given(conversations(), st.sampled_from(OUTCOMES))
def test_whatever_comes_the_stream_is_lawful(said: list[SegmentEvent], outcome: Outcome) -> None:
    stream = check_stream(build([said], outcome))
    assert stream.response["status"] == outcome.status
    assert [item["type"] for item in stream.items] == _expected_types(said)


@pytest.mark.slow
@laws
@given(conversations(), st.sampled_from(OUTCOMES))
def test_cuts_between_feeds_change_no_item(said: list[SegmentEvent], outcome: Outcome) -> None:
    whole = check_stream(build([said], outcome))
    single = check_stream(build([[event] for event in said], outcome))
    assert whole.items == single.items


@pytest.mark.slow
@laws
@given(conversations(), st.sampled_from(OUTCOMES))
def test_all_text_of_the_segments_is_in_the_items(
    said: list[SegmentEvent], outcome: Outcome
) -> None:
    stream = check_stream(build([said], outcome))
    shown = "".join(_text_of(item) for item in stream.items)
    assert shown == "".join(text for kind, text in _told(said) if ENVELOPES[kind].delta)


def _text_of(item: dict[str, Any]) -> str:
    if "content" in item:
        (part,) = item["content"]
        return str(part.get("text", part.get("refusal")))
    if item["type"] in {"mcp_approval_request", "tool_search_call"}:
        return ""
    return str(item.get("arguments", item.get("input", item.get("code", ""))))


def _told(said: list[SegmentEvent]) -> list[tuple[SegmentKind, str]]:
    """Every text, with the kind of its segment."""
    texts: list[tuple[SegmentKind, str]] = []
    kind = SegmentKind.REASONING
    for event in said:
        if isinstance(event, SegmentStarted):
            kind = event.kind
        elif isinstance(event, SegmentText):
            texts.append((kind, event.text))
    return texts


def _expected_types(said: list[SegmentEvent]) -> list[str]:
    """One item for each call and for each other segment that says something."""
    types: list[str] = []
    kind, text = SegmentKind.REASONING, ""
    for event in said:
        if isinstance(event, SegmentStarted):
            kind, text = event.kind, ""
            if ENVELOPES[kind].needs_delta:
                types.append(kind.value)
        elif isinstance(event, SegmentText):
            is_said = ENVELOPES[kind].delta and not ENVELOPES[kind].needs_delta
            if not text and is_said:
                types.append("reasoning" if kind is SegmentKind.REASONING else "message")
            text += event.text
        elif event.complete and (
            _ARGUMENTS.get(kind) == text or kind is SegmentKind.MCP_APPROVAL_REQUEST
        ):
            types.append(kind.value)
    return types
