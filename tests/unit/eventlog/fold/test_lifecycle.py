"""The tables agree with each other and with what clients expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.eventlog.fold.lifecycle import (
    ANNOTATION_EVENT,
    CLOSING_EVENTS,
    COMMAND_EVENTS,
    COMPACTION_EVENTS,
    ENVELOPES,
    EVENT_FIELDS,
    ITEM_STATUSES,
    LISTING_EVENTS,
    RESPONSE_STATUSES,
    STATUS_EVENTS,
    SUMMARY_CLOSING_EVENTS,
    SUMMARY_DELTA_EVENT,
    SUMMARY_OPENING_EVENT,
    advance,
)
from gateway.generation import SegmentKind
from gateway.protocol.stream_events import TERMINAL_TYPES

if TYPE_CHECKING:
    from gateway.protocol.responses.response_object import ResponseStatus


def test_every_kind_of_segment_has_an_envelope() -> None:
    assert set(ENVELOPES) == set(SegmentKind)


def test_every_event_of_an_envelope_has_fields() -> None:
    used = {
        name
        for envelope in ENVELOPES.values()
        for name in (
            *(*envelope.opening, envelope.delta, *envelope.closing),
            *(*envelope.running, *envelope.completed, *envelope.failed),
        )
        if name
    }
    beside = {
        *COMMAND_EVENTS,
        *COMPACTION_EVENTS,
        SUMMARY_OPENING_EVENT,
        SUMMARY_DELTA_EVENT,
        *SUMMARY_CLOSING_EVENTS,
        *(name for names in LISTING_EVENTS.values() for name in names),
        ANNOTATION_EVENT,
    }
    assert used | beside == set(EVENT_FIELDS)


@pytest.mark.requirement("stream.one-end")
def test_every_terminal_status_has_exactly_one_terminal_event_and_it_is_last() -> None:
    terminal = {status for status, following in RESPONSE_STATUSES.items() if not following}
    assert terminal == set(CLOSING_EVENTS)
    for types in CLOSING_EVENTS.values():
        assert [name in TERMINAL_TYPES for name in types] == [False] * (len(types) - 1) + [True]


def test_every_status_is_shown_by_an_event() -> None:
    assert set(STATUS_EVENTS) | set(CLOSING_EVENTS) == set(RESPONSE_STATUSES)
    assert not set(STATUS_EVENTS) & set(CLOSING_EVENTS)


@pytest.mark.requirement("status.transitions")
def test_a_terminal_status_is_never_left() -> None:
    statuses: list[ResponseStatus] = ["completed", "incomplete", "failed", "cancelled"]
    for status in statuses:
        with pytest.raises(ValueError, match=f"cannot follow {status}"):
            advance(RESPONSE_STATUSES, status, "in_progress")


def test_an_item_can_only_be_closed_once() -> None:
    assert advance(ITEM_STATUSES, "in_progress", "completed") == "completed"
    with pytest.raises(ValueError, match="incomplete cannot follow completed"):
        advance(ITEM_STATUSES, "completed", "incomplete")
