"""Text up to its stop string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.eventlog.fold.stops import Stops
from gateway.generation import SegmentText

laws = settings(deadline=None)


def shown(stops: list[str], texts: list[str]) -> tuple[str, bool]:
    matcher = Stops(stops, lambda _: b"")
    parts = [part for text in texts for part in matcher.feed(SegmentText(text))]
    parts += matcher.finish()
    return "".join(part.text for part in parts), matcher.is_reached


@pytest.mark.parametrize(
    ("stops", "texts", "expected"),
    [
        pytest.param(["stop"], ["a st", "op b"], ("a ", True), id="across texts"),
        pytest.param(["stop"], ["a st", "ar"], ("a star", False), id="a front that was none"),
        pytest.param(["stop"], ["a st"], ("a st", False), id="a front at the end"),
        pytest.param(["abcd", "bc"], ["abcd"], ("a", True), id="the first to be complete"),
        pytest.param(["bc", "abc"], ["abc"], ("", True), id="the longer of two"),
        pytest.param(["x"], ["x", "y"], ("", True), id="nothing after it"),
    ],
)
def test_text_ends_before_the_stop_string(
    stops: list[str], texts: list[str], expected: tuple[str, bool]
) -> None:
    assert shown(stops, texts) == expected


def test_only_what_may_be_the_front_of_a_stop_string_waits() -> None:
    matcher = Stops(["stop"], lambda _: b"")
    assert matcher.feed(SegmentText("a st")) == [SegmentText("a ")]
    assert matcher.feed(SegmentText("y")) == [SegmentText("sty")]
    assert matcher.finish() == []


_text = st.lists(st.sampled_from("abé"), max_size=12).map("".join)
_stops = st.lists(
    st.lists(st.sampled_from("abé"), min_size=1, max_size=3).map("".join), min_size=1, max_size=3
)


@laws
@given(_text, _stops)
def test_the_cut_of_the_text_changes_nothing(text: str, stops: list[str]) -> None:
    whole = shown(stops, [text])
    assert shown(stops, list(text)) == whole
    assert whole == ((text, False) if not any(stop in text for stop in stops) else whole)
    assert not any(stop in whole[0] for stop in stops)


_pieces = st.sampled_from([b"a", b"b", b"ab", "é".encode(), b"\xc3", b"\xa9", b"a\xc3", b"\xa9b"])


@laws
@given(st.lists(_pieces, max_size=8), _stops, st.data())
def test_shown_text_comes_with_the_ids_that_spell_it(
    pieces: list[bytes], stops: list[str], data: st.DataObject
) -> None:
    texts = _traced(pieces, data)
    matcher = Stops(stops, lambda at: pieces[at])
    parts = [part for text in texts for part in matcher.feed(text)] + matcher.finish()
    for number, part in enumerate(parts, 1):
        spelled = b"".join(pieces[at] for at in part.tokens)
        is_last = number == len(parts) and matcher.is_reached
        assert spelled.startswith(part.text.encode())
        assert is_last or spelled == part.text.encode()
    positions = [at for part in parts for at in part.tokens]
    assert positions == list(range(len(positions)))


def test_text_without_ids_stays_without() -> None:
    matcher = Stops(["stop"], lambda _: b"s")
    assert matcher.feed(SegmentText("s", (0,))) == []
    assert matcher.feed(SegmentText("x")) == [SegmentText("sx")]
    assert matcher.feed(SegmentText("s", (2,))) == []
    assert matcher.finish() == [SegmentText("s")]


def _traced(pieces: list[bytes], data: st.DataObject) -> list[SegmentText]:
    """The texts of these pieces, cut anywhere that an id and a character end together."""
    texts: list[SegmentText] = []
    spelled, tokens = b"", []
    for at, piece in enumerate(pieces):
        spelled += piece
        tokens.append(at)
        try:
            text = spelled.decode()
        except UnicodeDecodeError:
            continue
        if data.draw(st.booleans()):
            texts.append(SegmentText(text, tuple(tokens)))
            spelled, tokens = b"", []
    return texts
