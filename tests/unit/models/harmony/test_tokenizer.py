from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, VocabularyError
from gateway.models.harmony.tokenizer import FIRST_SPECIAL, NAMED_SPECIALS, Vocabulary
from tests.fakes.cases import each
from tests.fakes.harmony_oracle import encoding, vocabulary

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE = 1_000_000
SHAPES = {
    "a": "a",
    "space": " ",
    "newline": "\n",
    "CJK": "中",
    "emoji": "😀",
    "combining mark": "\u0301",
    "dash": "—",
    "equals": "=",
    "digit": "7",
    "ab": "ab",
    "Arabic": "ع",
    "zero width": "\u200b",
}


@pytest.mark.parametrize("text", ["", "Hello, world!", "naïve — 中文 😀\r\n\t x", "a\0b", "٣٤٥"])
def test_text_has_the_ids_of_openai_harmony_and_comes_back(text: str) -> None:
    ids = vocabulary().encode(text)
    assert ids == encoding().encode(text, disallowed_special=())
    assert vocabulary().decode(ids) == text


@each("marker", [*NAMED_SPECIALS, "<|reserved_200013|>"])
def test_a_marker_in_text_stays_text(marker: str) -> None:
    ids = vocabulary().encode(f"x{marker}y")
    assert max(ids) < FIRST_SPECIAL
    assert vocabulary().decode(ids) == f"x{marker}y"


def test_specials_and_ids_outside_of_the_vocabulary_have_no_text() -> None:
    assert vocabulary().decode([200006, 300_000, -1, *vocabulary().encode("x")]) == "x"


def test_bytes_that_are_no_character_become_the_replacement_character() -> None:
    ids = vocabulary().encode("\U0001f6f8")
    assert vocabulary().decode(ids[:1]) == "\ufffd"


@given(st.text() | st.sampled_from(sorted(NAMED_SPECIALS)))
def test_packed_ids_are_the_same_ids(text: str) -> None:
    assert vocabulary().encode_packed(text).tolist() == vocabulary().encode(text)


@pytest.mark.parametrize("text", ["\ud83d", " " * 1_000_000])
def test_what_has_no_ids_has_no_packed_ones(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        vocabulary().encode(text)
    with pytest.raises(InvalidRequest) as again:
        vocabulary().encode_packed(text)
    assert again.value.message == caught.value.message


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_half_of_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate") as caught:
        vocabulary().encode(text)
    assert caught.value.param == "input"


@pytest.mark.slow
@each("name", sorted(SHAPES.keys() - {"space"}))
def test_a_megabyte_of_one_character_is_encoded(name: str) -> None:
    text = SHAPES[name] * (MEGABYTE // len(SHAPES[name].encode()))
    assert vocabulary().decode(vocabulary().encode(text)) == text


@pytest.mark.parametrize("blank", [" ", "\t", " \t"])
def test_a_megabyte_of_blanks_is_refused(blank: str) -> None:
    with pytest.raises(InvalidRequest, match="extremely long run"):
        vocabulary().encode(blank * (MEGABYTE // len(blank)))


@each("shape", SHAPES.values())
def test_a_long_run_has_the_ids_of_openai_harmony(shape: str) -> None:
    text = f"x {shape * 3_000} y"
    assert vocabulary().encode(text) == encoding().encode(text)


def test_a_missing_rank_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="cannot read") as caught:
        Vocabulary.load(tmp_path / "absent")
    assert "Reinstall" in caught.value.remedy


def test_a_damaged_rank_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "o200k_base.tiktoken"
    path.write_bytes(b"IQ== 0\n")
    with pytest.raises(VocabularyError, match="is damaged"):
        Vocabulary.load(path)
