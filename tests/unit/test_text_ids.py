"""Text as ids: what is packed comes back, and no bytes do harm."""

from __future__ import annotations

from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import Text, pack, unpack
from gateway.text_ids import (
    ANSWER,
    END,
    IMAGE_TOKENS,
    TEXT_BASE,
    THOUGHT,
    ids_of,
    is_text,
    packed_lines,
    packed_text,
    prompt_tokens,
    surplus_ids,
    text_of,
    unpacked_lines,
    unpacked_text,
)

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TURNS = st.lists(WORDS.map(ids_of) | st.integers(THOUGHT, END).map(lambda mark: [mark])).map(
    lambda parts: tuple(one for part in parts for one in part)
)


@pytest.mark.slow
@given(TURNS)
def test_a_turn_comes_back_from_its_bytes(ids: tuple[int, ...]) -> None:
    assert unpacked_text(packed_text(ids)) == ids
    assert unpack(pack([Text(ids)])) == [Text(ids)]


@given(st.binary(max_size=40))
def test_damage_is_a_value_error(packed: bytes) -> None:
    with suppress(ValueError):
        assert packed_text(unpacked_text(packed)) == packed


@pytest.mark.slow
@given(WORDS)
def test_words_are_their_characters(words: str) -> None:
    assert text_of([ANSWER, *ids_of(words), END]) == words
    assert len(ids_of(words)) == len(words)


def test_half_a_pair_is_replaced() -> None:
    assert text_of(ids_of("a\ud83d")) == "a\ufffd"
    assert text_of(ids_of("\ud83d\ude00")) == "😀"


@pytest.mark.parametrize("ids", [(5,), (END + 1,), (TEXT_BASE + 0xD800,)])
def test_other_ids_have_no_packed_form(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"id of text|surrogates"):
        packed_text(ids)


@pytest.mark.slow
@given(st.lists(st.dictionaries(WORDS, WORDS, max_size=3), max_size=5))
def test_lines_come_back_and_may_stand_behind_others(messages: list[dict[str, str]]) -> None:
    lines = [orjson.dumps(one) for one in messages]
    ids = packed_lines(lines)
    more = [*ids, *packed_lines([b'{"role":"user"}'])]
    assert [orjson.loads(line) for line in unpacked_lines(ids)] == messages
    assert [orjson.loads(line) for line in unpacked_lines(more)] == [*messages, {"role": "user"}]
    assert prompt_tokens(ids) == len(ids)


def test_an_image_is_no_text() -> None:
    url = "data:image/png;base64," + "A" * 100_000
    part = {"type": "image_url", "image_url": {"url": url}}
    message = orjson.dumps({"role": "user", "content": [part]})
    ids = packed_lines([message])
    assert IMAGE_TOKENS <= prompt_tokens(ids) <= IMAGE_TOKENS + 30
    assert prompt_tokens(ids) + surplus_ids(ids) == len(ids)
    # What users wrote is text, whatever it looks like.
    for text in (url, f'x "{url}" y', orjson.dumps(part).decode()):
        for said in (text, [{"type": "text", "text": text}]):
            assert surplus_ids(packed_lines([orjson.dumps({"role": "user", "content": said})])) == 0
    for line in ({"tools": [part]}, {"role": "assistant", "content": "", "tool_calls": [part]}):
        assert surplus_ids(packed_lines([orjson.dumps(line)])) == 0


def test_the_first_id_tells_of_which_kind_a_turn_is() -> None:
    assert is_text((ANSWER,))
    assert not is_text((5,))
    assert not is_text(())
