from __future__ import annotations

import pytest

from gateway.harmony.detokenizing import Detokenizer
from tests.fakes.harmony_script import vocabulary


@pytest.mark.parametrize("text", ["💖", "⌈m/2⌉", "👩‍👩‍👧", "नमस्ते", "naïve 中文 \N{NULL} text"])
def test_characters_come_whole_when_tokens_split_them(text: str) -> None:
    detokenizer = Detokenizer(vocabulary())

    pieces = [detokenizer.feed([token]) for token in vocabulary().encode(text)]

    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


def test_half_a_character_waits_and_becomes_a_replacement_at_the_end() -> None:
    detokenizer = Detokenizer(vocabulary())
    first, second = vocabulary().encode("💖")

    assert detokenizer.feed([first]) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"
    # The next message starts afresh.
    assert detokenizer.feed([first, second]) == "💖"
