"""Summaries of reasoning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.eventlog.fold.summaries import CHARACTERS_MAX, Concise, Summarizer, summarizer

laws = settings(deadline=None)


def summary(reader: Summarizer, texts: list[str]) -> str:
    return "".join([*map(reader.feed, texts), reader.finish()])


def test_no_summary_is_made_unless_it_was_asked_for() -> None:
    assert summarizer("off") is None


def test_a_detailed_summary_is_the_text() -> None:
    reader = summarizer("detailed")
    assert reader is not None
    assert summary(reader, ["One.\n\n", "Two."]) == "One.\n\nTwo."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\nStill one.\n \nTwo.", "One.\nStill one."),
        ("\n\n  One.", "One."),
        ("", ""),
        ("word " * 100, ("word " * 60).rstrip()),
        ("x" * 299 + " yz", "x" * 299),
        ("x" * 400, "x" * CHARACTERS_MAX),
        ("x" * 300 + " y", "x" * 300),
    ],
)
def test_a_concise_summary_is_the_first_paragraph_cut_at_a_word(text: str, expected: str) -> None:
    reader = summarizer("concise")
    assert reader is not None
    assert summary(reader, [text]) == expected
    assert summary(Concise(), list(text)) == expected


@laws
@given(st.text(alphabet="ab \n", max_size=20), st.integers(280, 310), st.data())
def test_the_cut_of_the_text_changes_nothing(text: str, size: int, data: st.DataObject) -> None:
    text = "c" * size + text
    cut = data.draw(st.integers(0, len(text)))
    assert summary(Concise(), [text[:cut], text[cut:]]) == summary(Concise(), [text])
    assert len(summary(Concise(), [text])) <= CHARACTERS_MAX
