from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.harmony.tokenizer import Detokenizer
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


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from([*range(100, 356), 40, 5000, 12194]), max_size=4)))
def test_any_bytes_are_read_as_the_standard_library_reads_them(reads: list[list[int]]) -> None:
    detokenizer = Detokenizer(vocabulary())
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for ids in reads:
        expected = decoder.decode(b"".join(map(vocabulary().piece, ids)))
        assert (detokenizer.read(ids) if ids else detokenizer.feed(ids)) == expected
    assert detokenizer.flush() == decoder.decode(b"", final=True)


@pytest.mark.parametrize("ids", [[], [200007], [40, 200007], [-1], [40, 2**40]])
def test_what_is_not_all_text_is_not_read(ids: list[int]) -> None:
    detokenizer = Detokenizer(vocabulary())
    assert detokenizer.read(ids) is None
    assert detokenizer.flush() == ""


@given(st.lists(st.sampled_from([*range(100, 356), 40, 5000]), min_size=1, max_size=6))
def test_each_of_several_ids_shows_what_it_would_show_alone(ids: list[int]) -> None:
    one, other = Detokenizer(vocabulary()), Detokenizer(vocabulary())
    half, _ = vocabulary().encode("💖")
    assert one.feed([half]) == other.feed([half]) == ""
    assert one.read_each([*ids, 200007, 40]) == [other.feed([token]) for token in ids]
    assert one.flush() == other.flush()


def test_ids_that_split_a_character_show_it_with_the_last_of_them() -> None:
    one = Detokenizer(vocabulary())
    half, rest = vocabulary().encode("💖")
    assert one.read_each([40, half, rest]) == ["I", "", "💖"]
