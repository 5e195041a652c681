"""Values that are made for each token are like any other value."""

from __future__ import annotations

import pytest

from gateway.entries import Tokens
from gateway.generation import ParserPosition, SegmentText, TokenLogprob, Where
from gateway.protocol.stream_events import Event

VALUES = [
    (Tokens((1, 2)), Tokens((1, 2)), Tokens((1,))),
    (Event("a", 1, b"{}"), Event("a", 1, b"{}"), Event("a", 2, b"{}")),
    (SegmentText("a"), SegmentText("a", ()), SegmentText("b")),
    (ParserPosition(Where.BODY, 1), ParserPosition(Where.BODY, 1), ParserPosition(Where.BODY, 2)),
    (TokenLogprob(-0.5), TokenLogprob(-0.5), TokenLogprob(-1.0)),
]


@pytest.mark.parametrize(("one", "same", "other"), VALUES, ids=lambda v: type(v).__name__)
def test_values_are_equal_and_hashed_by_their_fields(
    one: object, same: object, other: object
) -> None:
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


@pytest.mark.parametrize("one", [one for one, _, _ in VALUES], ids=lambda v: type(v).__name__)
def test_values_have_room_for_nothing_but_their_fields(one: object) -> None:
    assert not hasattr(one, "__dict__")
