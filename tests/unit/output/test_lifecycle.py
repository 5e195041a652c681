"""The tables agree with each other and with what clients expect."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from gateway.generation import SegmentKind
from gateway.output.lifecycle import (
    CLOSING_EVENTS,
    ENVELOPES,
    EVENT_FIELDS,
    ITEM_STATUSES,
    OPENING_EVENTS,
    RESPONSE_STATUSES,
    advance,
)
from gateway.protocol.events import TERMINAL_TYPES

if TYPE_CHECKING:
    from gateway.protocol.responses import ResponseStatus


def test_every_kind_of_segment_has_an_envelope() -> None:
    assert set(ENVELOPES) == set(SegmentKind)


def test_every_event_of_an_envelope_has_fields() -> None:
    used = {
        name
        for envelope in ENVELOPES.values()
        for name in (*envelope.opening, envelope.delta, *envelope.closing)
    }
    assert used == set(EVENT_FIELDS)


def test_every_terminal_status_has_exactly_one_terminal_event_and_it_is_last() -> None:
    terminal = {status for status, following in RESPONSE_STATUSES.items() if not following}
    assert terminal == set(CLOSING_EVENTS)
    for types in CLOSING_EVENTS.values():
        assert [name in TERMINAL_TYPES for name in types] == [False] * (len(types) - 1) + [True]


@pytest.mark.parametrize("background", [True, False])
def test_a_stream_opens_through_statuses_that_may_follow_each_other(background: bool) -> None:
    shown = [status for _, status in OPENING_EVENTS[background]]
    changes = [(now, to) for now, to in itertools.pairwise(shown) if now != to]
    assert all(to in RESPONSE_STATUSES[now] for now, to in changes)
    assert shown[-1] == "in_progress"


def test_a_terminal_status_is_never_left() -> None:
    statuses: list[ResponseStatus] = ["completed", "incomplete", "failed", "cancelled"]
    for status in statuses:
        with pytest.raises(ValueError, match=f"cannot follow {status}"):
            advance(RESPONSE_STATUSES, status, "in_progress")


def test_an_item_can_only_be_closed_once() -> None:
    assert advance(ITEM_STATUSES, "in_progress", "completed") == "completed"
    with pytest.raises(ValueError, match="incomplete cannot follow completed"):
        advance(ITEM_STATUSES, "completed", "incomplete")
