"""Small vocabularies for chat formats: every byte is an id, some words are, and so are markers."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.models.chat.call_syntax import Mark
from gateway.models.chat.tokenizer import BYTE_CHARACTERS, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.models.chat.call_syntax import Written

CHARACTERS = {byte: character for character, byte in BYTE_CHARACTERS.items()}
WORDS = (
    *(" the", "He", "llo", '{"', '":', '": "', '"}', "}}", '"name', "arguments", "parameters"),
    *(
        "\n\n",
        "></",
        "</",
        ">\n",
        "<tool",
        "_call",
        "think",
        "functi",
        "on=",
        " \n",
        "[TOOL",
        *("\u00e9", "}[TOOL_CALLS]"),
    ),
)
"""Texts of several bytes that are one id, some of them across what is written around markers."""


def tokenizer_json(added: Sequence[str], special: Iterable[str] = ()) -> dict[str, Any]:
    """A tokenizer of byte-level BPE with these added tokens."""
    vocab = {CHARACTERS[byte]: byte for byte in range(256)}
    merges: list[list[str]] = []
    for word in WORDS:
        spelled = [CHARACTERS[byte] for byte in word.encode()]
        left = spelled[0]
        for right in spelled[1:]:
            merges.append([left, right])
            left += right
            vocab.setdefault(left, len(vocab))
    specials = set(special)
    tokens = [
        {
            "id": len(vocab) + at,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": text in specials,
        }
        for at, text in enumerate(added)
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [pair for at, pair in enumerate(merges) if pair not in merges[:at]],
        },
    }


@cache
def vocabulary(added: tuple[str, ...] = (), special: tuple[str, ...] = ()) -> Vocabulary:
    """A vocabulary in which these texts are one id each; `special` ones are no text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        file.write_text(json.dumps(tokenizer_json(added, special)))
        return Vocabulary.load(file)


def ids_of(known: Vocabulary, written: Written) -> list[int]:
    """What is written, in ids: a marker that has one is that one."""
    ids: list[int] = []
    for part in written:
        token = known.special(part.text) if isinstance(part, Mark) else None
        text = part.text if isinstance(part, Mark) else part
        ids += known.encode(text) if token is None else [token]
    return ids


def parts_of(known: Vocabulary, text: str) -> list[int]:
    """A text in ids, with every added token in it as that."""
    ids: list[int] = []
    begin = at = 0
    names = sorted(known.added(), key=len, reverse=True)
    while at < len(text):
        name = next((one for one in names if text.startswith(one, at)), None)
        if name is None:
            at += 1
            continue
        ids += known.encode(text[begin:at]) if begin < at else []
        ids.append(known.special(name) or 0)
        begin = at = at + len(name)
    return ids + (known.encode(text[begin:]) if begin < at else [])
