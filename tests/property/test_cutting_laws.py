"""Laws of cut texts: nobody can tell from the tokens that a text was cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.models.harmony import rendering
from gateway.models.harmony.rendering import PIECE_CHARS, Renderer, pieces
from tests.fakes.contexts import user
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import vocabulary

_MARKS = " \n\t\r.,'\u2019/s字\u3002\uff0c漢é\u0301²٣1a B\u00a0\u2028\u3000\x1c\u0085_-{}\U0001f600"
texts = st.text(st.sampled_from(_MARKS) | st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "PIECE_CHARS", 1)
    monkeypatch.setattr(rendering, "_WINDOW_CHARS", 2)


def encoded(text: str) -> list[int]:
    """By tiktoken, in one piece."""
    return vocabulary().encode(text)


@pytest.mark.slow
@settings(max_examples=examples(1000))
@given(texts)
@example("it 's  a   test . 'S\n\n x\r\n y.'s,.\n")
@example("a" * 50)
def test_tokens_of_the_pieces_are_those_of_the_whole(text: str) -> None:
    assert len(text) <= PIECE_CHARS
    found = [token for piece in pieces(text) for token in encoded(piece)]
    assert found == encoded(text)


@given(texts)
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_a_text_is_cut_between_its_words() -> None:
    cut = list(pieces("the sea, the\n sea."))
    assert cut == ["the", " sea", ",", " the", "\n sea", "."]


def test_a_long_message_is_rendered_in_pieces_to_the_same_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    text = "The sea, it's 12,345 miles wide.\n\n  \u6f22\u5b57\u3002" * (3 * PIECE_CHARS // 40)
    assert len(list(pieces(text))) > 2
    assert list(Renderer(vocabulary()).render_item(user(text)))[3:-1] == encoded(text)
