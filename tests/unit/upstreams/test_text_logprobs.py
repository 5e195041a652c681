"""Tokens of a text are told where they begin, however it was cut."""

from __future__ import annotations

from itertools import chain
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import LOGPROB_MIN, UNTOLD, Sampling, TextLogprob, TextToken
from gateway.text_ids import ANSWER, END, THOUGHT, text_of
from gateway.upstreams.chat_endpoint import DUE_TOKENS_MAX, ChatReader, spelled, tokens_of


def frame(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(event)


def told(piece: bytes, logprob: float = -1.0, **fields: Any) -> dict[str, Any]:
    text = piece.decode("utf-8", "replace")
    return {"token": text, "bytes": list(piece), "logprob": logprob, **fields}


def test_an_entry_is_read_as_far_as_it_makes_sense() -> None:
    other = {"token": "b", "logprob": -2}
    entry = told(b"a", top_logprobs=[other, None, other])
    assert tokens_of({"content": [entry, None]}, 2) == [TextToken(b"a", -1.0, ((b"b", -2.0),))]
    assert tokens_of({"content": [{"token": "n\u00e9"}]}, 0) == [
        TextToken("n\u00e9".encode(), LOGPROB_MIN)
    ]
    odd = [{"bytes": [300], "token": "c"}, {"bytes": ["x"], "token": 1}]
    assert [one.piece for one in tokens_of({"content": odd}, 0) or ()] == [b"c", b""]
    untold: tuple[Any, ...] = (None, [], {"content": None}, {"tokens": []})
    for nothing in untold:
        assert tokens_of(nothing, 1) is None


@pytest.mark.slow
@given(st.text(max_size=30), st.lists(st.integers(1, 4), max_size=60))
def test_the_parts_are_the_text_and_have_all_tokens(text: str, sizes: list[int]) -> None:
    content, tokens = text.encode("utf-8", "replace"), []
    for size in [*sizes, max(1, len(content))]:
        piece, content = content[:size], content[size:]
        tokens.append(TextToken(piece, -1.0))
    parts = list(spelled(text, tokens))
    assert "".join(part for part, _ in parts) == text.encode("utf-8", "replace").decode()
    assert list(chain.from_iterable(begun for _, begun in parts)) == tokens


def test_tokens_that_are_not_the_text_belong_to_all_of_it() -> None:
    tokens = [TextToken(b"a", -1.0), TextToken(b"b", -1.0)]
    assert list(spelled("abc", tokens)) == [("abc", tokens)]


def reader(*, thought: tuple[str, str] | None = None) -> ChatReader:
    return ChatReader(
        "b0", Sampling(100, logprobs=0), thought=thought, stop_ids=(END,), frame_bytes_max=1 << 20
    )


def fed(made: ChatReader, *deltas: tuple[dict[str, Any], list[dict[str, Any]] | None]) -> Any:
    """What is told of each character of the answer, and that text."""
    ids: list[int] = []
    likelihoods: list[Any] = []
    for delta, content in deltas:
        likely = None if content is None else {"content": content}
        choice = {"index": 0, "delta": delta, "logprobs": likely}
        chunk = made.feed(frame({"choices": [choice]}))
        if chunk is not None:
            assert chunk.logprobs is not None
            assert len(chunk.logprobs) == len(chunk.ids)
            ids += chunk.ids
            likelihoods += chunk.logprobs
    begun = ids.index(ANSWER) + 1
    return text_of(ids[begun:]), likelihoods[begun:]


def pieces(likelihoods: list[TextLogprob]) -> list[list[bytes] | None]:
    return [
        None if one.tokens is None else [token.piece for token in one.tokens] for one in likelihoods
    ]


def test_halves_of_a_character_come_with_the_whole_one() -> None:
    smile = "\U0001f642".encode()
    text, likelihoods = fed(
        reader(),
        ({"content": ""}, [told(smile[:2])]),
        ({"content": "\U0001f642"}, [told(smile[2:])]),
        ({"content": " x"}, [told(b" x")]),
    )
    assert text == "\U0001f642 x"
    assert pieces(likelihoods) == [[smile[:2], smile[2:]], [b" x"], []]


def test_a_text_without_any_is_known_to_have_none() -> None:
    _, likelihoods = fed(reader(), ({"content": "ab"}, [told(b"ab")]), ({"content": "cd"}, None))
    assert pieces(likelihoods) == [[b"ab"], [], None, []]
    both = {"reasoning": "hm", "content": "ab"}
    assert fed(reader(), (both, [told(b"hm"), told(b"ab")]))[1][0] is UNTOLD


def test_those_of_a_thought_between_tags_are_not_those_of_the_answer() -> None:
    tagged = reader(thought=("<think>", "</think>"))
    parts = ["<think>", "hm", "</", "think", ">", "It", " is"]
    text, likelihoods = fed(tagged, *(({"content": part}, [told(part.encode())]) for part in parts))
    assert text == "It is"
    assert pieces(likelihoods) == [[b"It"], [], [b" is"], [], []]
    assert THOUGHT != ANSWER


def test_what_is_told_of_no_text_is_not_kept_for_ever() -> None:
    empty = [({"content": ""}, [told(b"x")])] * (DUE_TOKENS_MAX + 2)
    _, likelihoods = fed(reader(), *empty, ({"content": "ab"}, [told(b"ab")]))
    assert len(likelihoods[0].tokens or ()) <= DUE_TOKENS_MAX + 1


@pytest.mark.parametrize("asked", [None, 0])
def test_nothing_is_told_that_was_not_asked_for(asked: int | None) -> None:
    made = ChatReader("b0", Sampling(100, logprobs=asked), stop_ids=(END,), frame_bytes_max=1 << 20)
    choice = {"delta": {"content": "ab"}, "logprobs": {"content": [told(b"ab")]}}
    chunk = made.feed(frame({"choices": [choice]}))
    assert chunk is not None
    assert (chunk.logprobs is None) == (asked is None)
