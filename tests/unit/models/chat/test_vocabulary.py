"""The vocabulary of a tokenizer.json: exact bytes, and text that never becomes a marker."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, VocabularyError
from gateway.models.chat import tokenizer
from gateway.models.chat.tokenizer import BYTE_CHARACTERS, Vocabulary
from tests.fakes.chat_vocabulary import tokenizer_json, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = Path(__file__).parents[3] / "data" / "tokenizers" / "tiny_qwen3.json"
ADDED = ("<think>", "<|im_end|>", "  ", "<tool_call>")


@pytest.fixture(scope="module")
def tiny() -> Vocabulary:
    return Vocabulary.load(TINY)


def test_a_real_tokenizer_is_read(tiny: Vocabulary) -> None:
    assert tiny.size == 2004
    assert tiny.special("<think>") == 2000
    assert tiny.special_text(2000) == "<think>"
    assert tiny.special("no such marker") is None
    assert tiny.special_text(5) is None
    assert set(tiny.added()) >= {"<|im_end|>", "</tool_call>"}
    assert tiny.piece(2000) == b"<think>"
    assert [tiny.piece(token) for token in (2, -1, 2004, 10**9)] == [b""] * 4
    assert tiny.encode("Hello") == tiny.encode("Hello")
    assert [tiny.piece(token) for token in tiny.byte_ids] == [bytes((at,)) for at in range(256)]


@pytest.mark.slow
@given(st.text())
def test_every_text_is_spelled_by_its_ids(text: str) -> None:
    for known in (Vocabulary.load(TINY), vocabulary(ADDED, ("<|im_end|>",))):
        ids = known.encode(text)
        assert b"".join(map(known.piece, ids)) == text.encode()
        assert known.decode(ids) == text


@pytest.mark.slow
@given(st.lists(st.sampled_from([*ADDED, "<|im_start|>", "</tool_call>", "a", " "])))
def test_no_text_becomes_a_marker(parts: list[str]) -> None:
    for known in (Vocabulary.load(TINY), vocabulary(ADDED, ("<|im_end|>",))):
        ids = known.encode("".join(parts))
        texts = {known.special_text(token) for token in ids} - {None}
        assert not texts
        assert known.decode(ids) == "".join(parts)


def test_white_space_that_was_added_is_text() -> None:
    known = vocabulary(ADDED, ("<|im_end|>",))
    assert known.special("  ") is None
    [token] = known.encode("  ")
    assert known.piece(token) == b"  "


def test_a_word_that_is_a_marker_is_spelled_where_words_are_looked_up(tmp_path: Path) -> None:
    data = tokenizer_json(("<think>",))
    data["model"]["ignore_merges"] = True
    data["model"]["vocab"]["<think>"] = data["added_tokens"][0]["id"]
    data["pre_tokenizer"]["use_regex"] = False
    known = load(tmp_path, data)
    assert known.special("<think>") not in known.encode("<think>")
    assert known.decode(known.encode("<think>")) == "<think>"


def test_half_a_surrogate_pair_is_refused(tiny: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        tiny.encode("\ud83d")


def sentence_piece(**decoder: Any) -> dict[str, Any]:
    data = tokenizer_json(("</s>", "[INST]"), ("</s>", "[INST]"))
    bytes_ = {f"<0x{byte:02X}>": byte for byte in range(256)}
    data["model"] |= {
        "vocab": bytes_ | {"\u2581": 256, "H": 257, "i": 258, "\u2581Hi": 259, "Hi": 260},
        "merges": [["H", "i"], ["\u2581", "Hi"]],
        "byte_fallback": True,
    }
    data["added_tokens"] = [one | {"id": 261 + at} for at, one in enumerate(data["added_tokens"])]
    data["pre_tokenizer"] = None
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    data["decoder"] = decoder or {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    return data


def load(folder: Path, data: object) -> Vocabulary:
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return Vocabulary.load(folder)


def test_sentence_piece_writes_spaces_and_bytes_in_its_own_way(tmp_path: Path) -> None:
    known = load(tmp_path, sentence_piece())
    assert known.size == 263
    ids = known.encode("Hi Hi\n\u00e9")
    assert b"".join(map(known.piece, ids)) == "Hi Hi\n\u00e9".encode()
    assert 259 in ids
    assert known.piece(259) == b" Hi"
    assert known.piece(261) == b""
    assert known.byte_ids[10] == 10


@pytest.mark.parametrize(
    "steps",
    [
        {"normalizer": {"type": "Prepend", "prepend": "\u2581"}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "\u2581"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                ],
            }
        },
        {
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Metaspace",
                        "replacement": "\u2581",
                        "prepend_scheme": "always",
                        "split": False,
                    }
                ],
            },
        },
    ],
)
def test_no_space_is_put_in_front_of_a_text(tmp_path: Path, steps: dict[str, Any]) -> None:
    known = load(tmp_path, sentence_piece() | steps)
    assert known.decode(known.encode("Hi")) == "Hi"


def test_a_vocabulary_without_all_bytes_spells_none(tmp_path: Path) -> None:
    data = sentence_piece()
    del data["model"]["vocab"]["<0x0A>"]
    assert load(tmp_path, data).byte_ids == ()


def test_pieces_that_are_no_bytes_are_text(tmp_path: Path) -> None:
    data = tokenizer_json(())
    data["model"]["vocab"]["\u4e2d"] = len(data["model"]["vocab"])
    known = load(tmp_path, data)
    assert known.piece(known.size - 1) == "\u4e2d".encode()
    assert BYTE_CHARACTERS["\u0120"] == 0x20


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = tokenizer_json(("<think>",))
    change(data)
    return data


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ([], "is no tokenizer"),
        ({"model": []}, "is no tokenizer"),
        (broken(lambda data: data.update(decoder=None)), "its decoder is missing"),
        (broken(lambda data: data.update(decoder={"type": "WordPiece"})), "WordPiece"),
        (broken(lambda data: data.update(decoder={"type": "Sequence"})), "decoder is missing"),
        (broken(lambda data: data["model"].update(vocab=[["a", 0.5]])), "only BPE is known"),
        (broken(lambda data: data["model"].update(vocab={})), "is no tokenizer"),
        (broken(lambda data: data["model"]["vocab"].update(a=10**9)), "it has ids up to"),
        (broken(lambda data: data["added_tokens"].append({"id": "x"})), "is no tokenizer"),
    ],
)
def test_what_is_no_such_tokenizer_is_refused(tmp_path: Path, data: object, fault: str) -> None:
    with pytest.raises(VocabularyError, match=fault) as refused:
        load(tmp_path, data)
    assert "tokenizer.json" in refused.value.remedy


def test_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VocabularyError, match="cannot read"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff{")
    with pytest.raises(VocabularyError, match="is not JSON"):
        Vocabulary.load(tmp_path)
    monkeypatch.setattr(tokenizer, "TOKENIZER_BYTES_MAX", 1)
    with pytest.raises(VocabularyError, match="too large"):
        Vocabulary.load(tmp_path)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(VocabularyError, match="tokenizers is missing") as refused:
        Vocabulary.load(TINY)
    assert "./[chat]" in refused.value.remedy
