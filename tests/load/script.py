"""What the backend of the benchmark says: one turn of a gpt-oss model, of any length.

A quarter of the words is reasoning. The words are English prose over and over, so ids and pieces
are as long as they usually are; frames have vLLM's form, one id in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.harmony.vocabulary import CHANNEL, END, MESSAGE, NAMED_SPECIALS, RETURN, START

if TYPE_CHECKING:
    from gateway.harmony.vocabulary import Vocabulary

LENGTH_MIN: Final = 16
"""Ids in the shortest turn."""
LEAD: Final = 4
"""Ids up to the first word: they come at once, as the model's first word is what is timed."""
PROSE: Final = (
    " The lighthouse keeper counts the ships that pass before dawn, writes their names into a"
    " narrow book, and wonders which of them will come back when the autumn storms are over."
)
DONE: Final = b"data: [DONE]\n\n"
_MARKERS: Final = {token: name for name, token in NAMED_SPECIALS.items()}
_HEAD: Final = {
    "id": "cmpl-6f1d0c5b9a7e4c0f8a3b2d1e0f9c8b7a",
    "object": "text_completion",
    "created": 1_795_216_000,
    "model": "gpt-oss-20b",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """`ids` with the stop id at the end; `answer` is the text of its visible message."""

    ids: tuple[int, ...]
    answer: str


def turn(vocabulary: Vocabulary, length: int) -> Turn:
    """A complete turn of exactly `length` ids. Raises `ValueError` for one that is too short."""
    if length < LENGTH_MIN:
        raise ValueError(f"a turn has at least {LENGTH_MIN} ids")
    opening = [CHANNEL, *vocabulary.encode("analysis"), MESSAGE]
    between = [END, START, *vocabulary.encode("assistant"), CHANNEL]
    between += [*vocabulary.encode("final"), MESSAGE]
    words = length - len(opening) - len(between) - 1
    thought = max(words // 4, 1)
    said = list(islice(cycle(vocabulary.encode(PROSE)), words))
    ids = (*opening, *said[:thought], *between, *said[thought:], RETURN)
    return Turn(ids, vocabulary.decode(said[thought:]))


def frame(vocabulary: Vocabulary, token: int, prompt: list[int] | None = None) -> bytes:
    """The event with one id; the first one of a stream repeats the prompt."""
    text = _MARKERS.get(token) or vocabulary.piece(token).decode()
    choice = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": "stop" if token == RETURN else None,
        "stop_reason": token if token == RETURN else None,
        "prompt_token_ids": prompt,
        "token_ids": [token],
    }
    return _event({**_HEAD, "choices": [choice]})


def usage_frame(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The event with the token counts."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return _event({**_HEAD, "choices": [], "usage": usage})


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
