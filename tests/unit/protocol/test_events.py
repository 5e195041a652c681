"""A run of deltas is the events that it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.stream_events import DeltaPattern, Deltas, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

PATTERN = DeltaPattern("response.output_text.delta", b'{"sequence_number":', b',"delta":', b"}")
TEXTS = ("a", "ä", '"')
EVENTS = [
    Event(PATTERN.type, 7, b'{"sequence_number":7,"delta":"a"}', 1, b'"a"'),
    Event(PATTERN.type, 8, '{"sequence_number":8,"delta":"ä"}'.encode(), 1, '"ä"'.encode()),
    Event(PATTERN.type, 9, rb'{"sequence_number":9,"delta":"\""}', 1, rb'"\""'),
]

_places = st.none() | st.integers(-5, 5)


def texts_of(events: Sequence[Event]) -> list[bytes]:
    return [event.text for event in events]


def test_each_event_is_made_when_it_is_asked_for() -> None:
    deltas = Deltas(PATTERN, 7, TEXTS)
    assert len(deltas) == 3
    assert deltas.last_number == 9
    assert list(deltas) == EVENTS
    assert texts_of(deltas) == texts_of(EVENTS)
    assert [deltas[at] for at in range(-3, 3)] == EVENTS + EVENTS
    assert list(reversed(deltas)) == EVENTS[::-1]


@given(_places, _places, st.integers(-3, 3).filter(bool) | st.none())
def test_a_slice_is_the_events_in_it(start: int | None, stop: int | None, step: int | None) -> None:
    assert Deltas(PATTERN, 7, TEXTS)[start:stop:step] == EVENTS[start:stop:step]


@given(st.integers(0, 4), st.integers(0, 4))
def test_a_part_is_a_run_of_its_own(start: int, stop: int) -> None:
    part = Deltas(PATTERN, 7, TEXTS).part(start, stop)
    assert isinstance(part, Deltas)
    assert list(part) == EVENTS[start:stop]


def test_a_run_of_none_is_empty() -> None:
    none = Deltas(PATTERN, 7, ())
    assert not none
    assert none.last_number == 6
