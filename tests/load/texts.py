"""What clients of the benchmark say: words of the tape, each of which is one token."""

from __future__ import annotations

import re
import struct
from random import Random
from typing import TYPE_CHECKING, Final

from tests.load.tape import WORD_LENGTH, WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DELTA: Final = re.compile(rb'"delta":"([^"]*)"')


def words_of(tape: Path) -> list[bytes]:
    """The words of a tape, by the numbers that the native programs know them by."""
    data = tape.read_bytes()
    (length,) = struct.unpack_from("<I", data)
    words = data[4 : 4 + length]
    return [words[at : at + WORD_LENGTH] for at in range(0, length, WORD_LENGTH)]


def text(words: Sequence[bytes], count: int, *, seed: int = 0) -> str:
    """A text of as many words, another one with another seed."""
    return b"".join(Random(seed).choices(words, k=count)).decode()


def slot_of(words: Sequence[bytes], stream: bytes) -> int:
    """Which slot of the backend said what is in a stream of Responses events: its first two words
    tell. Raises `ValueError` where they are none of it."""
    said = b"".join(_DELTA.findall(stream))
    first, second = said[:WORD_LENGTH], said[WORD_LENGTH : 2 * WORD_LENGTH]
    return words.index(first) * WORDS + words.index(second)


def message(words: Sequence[bytes], count: int, *, number: int) -> dict[str, object]:
    """A message as input: those with even numbers are the user's, the others the model's."""
    said = text(words, count, seed=number)
    if number % 2:
        part = {"type": "output_text", "text": said}
        return {"type": "message", "role": "assistant", "content": [part]}
    return {"type": "message", "role": "user", "content": said}
