"""Laws of the Open Responses dialect, for whatever a log says: it validates, and it is the same."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules
from gateway.entries import Entry, Queued
from gateway.protocol.call_items import call_of
from gateway.protocol.items import CustomToolCall
from gateway.protocol.responses import open_responses
from tests.conformance.checking import Document, read_specification
from tests.fakes.toy_logs import apply_all, new_fold, steered_logs

if TYPE_CHECKING:
    from gateway.protocol.stream_events import Event

laws = settings(deadline=None)
Json = dict[str, Any]
Case = tuple[OutputRules, list[Entry]]


@cache
def document() -> Document:
    return Document(read_specification())


def shown(events: list[Event]) -> list[Json]:
    """What a client of the dialect has of them."""
    found = [open_responses.shown(event) for event in events]
    return [orjson.loads(event.data) for event in found if event]


def said(item: Json) -> tuple[str, ...]:
    """What an item says, whichever dialect it is in."""
    match item["type"]:
        case "message" | "reasoning":
            parts = [*item["content"], *item.get("summary", ())]
            return tuple(part.get("text", part.get("refusal")) for part in parts)
        case "function_call":
            return item["name"], item["arguments"]
        case "custom_tool_call":
            return item["name"], call_of(CustomToolCall.model_validate(item)).arguments
        case kind:
            return (kind.removesuffix("_call"),)


@pytest.mark.slow
@pytest.mark.requirement("open-responses.no-extensions")
@pytest.mark.requirement("open-responses.union")
@pytest.mark.requirement("traps.reasoning-names")
@laws
@given(steered_logs(), st.booleans())
def test_every_stream_is_valid_and_says_what_it_says_to_others(case: Case, queued: bool) -> None:
    rules, log = case
    fold = new_fold(background=queued, rules=rules)
    events = apply_all(fold, [Queued(), *log] if queued else log)
    body = document().stream(shown(events))
    for ours, theirs in zip(fold.response()["output"], body["output"], strict=True):
        assert (ours["id"], ours["status"]) == (theirs["id"], theirs["status"])
        assert said(ours) == said(theirs)[: len(said(ours))]


@pytest.mark.slow
@laws
@given(steered_logs(), st.data())
def test_what_there_is_so_far_is_valid(case: Case, data: st.DataObject) -> None:
    rules, log = case
    fold = new_fold(rules=rules)
    events = apply_all(fold, log[: data.draw(st.integers(1, len(log)))])
    for event in shown(events):
        document().event(event)
    document().response(open_responses.body(fold.response()))
    document().items(open_responses.items([one.item for one in fold.items()]))


@pytest.mark.slow
@laws
@given(steered_logs())
def test_an_event_is_shown_under_its_number_and_as_long(case: Case) -> None:
    rules, log = case
    for event in apply_all(new_fold(rules=rules), log):
        found = open_responses.shown(event)
        if found is not None:
            assert (found.sequence_number, found.delta_length) == (
                event.sequence_number,
                event.delta_length,
            )
            assert found.is_terminal == event.is_terminal
        assert not (found is None and event.is_terminal)
