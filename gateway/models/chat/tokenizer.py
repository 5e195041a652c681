"""A model's files from Hugging Face: its vocabulary, the markers in it, and the size of its head.

In a `tokenizer.json` (source: the `tokenizers` library, 0.23) bytes are written in one of two ways:

* byte level: each byte is a printable character, as GPT-2 began it;
* SentencePiece: pieces are text in which `▁` stands for a space, and `<0x0A>` for the byte 10.

Added tokens that the file calls special are no text. Any other one is, unless the syntax of a model
makes it a marker (`Lexicon`).
"""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from gateway.errors import InvalidRequest, VocabularyError, installation
from gateway.models.chat.call_syntax import Mark
from gateway.models.chat.syntax.deepseek import full_width
from gateway.models.format import INVALID_UNICODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenizers import Tokenizer

    from gateway.models.chat.call_syntax import Syntax, Written


CONFIG_BYTES_MAX: Final = 1024 * 1024
ENDS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Number of ids of a model (0: unknown), and the ids with which it ends a turn."""

    size: int = 0
    end_ids: tuple[int, ...] = ()

    @classmethod
    def beside(cls, tokenizer: str) -> Self:
        """Read the files in the folder of the tokenizer; missing or damaged ones are ignored."""
        path = Path(tokenizer)
        folder = path if path.is_dir() else path.parent
        config = _read_config(folder / "config.json")
        text = config.get("text_config")
        sizes = [one.get("vocab_size") for one in (config, text if isinstance(text, dict) else {})]
        ends = [*_ends(_read_config(folder / "generation_config.json")), *_ends(config)]
        size = next((one for one in sizes if type(one) is int and one > 0), 0)
        return cls(size, tuple(dict.fromkeys(ends))[:ENDS_MAX])


def _ends(config: dict[str, Any]) -> Iterator[int]:
    ids = config.get("eos_token_id")
    for token in ids if isinstance(ids, list) else [ids]:
        if type(token) is int and token >= 0:
            yield token


def _read_config(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > CONFIG_BYTES_MAX:
            return {}
        document = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return document if isinstance(document, dict) else {}


TOKENIZER_FILE: Final = "tokenizer.json"
TOKENIZER_BYTES_MAX: Final = 256 * 1024 * 1024
"""The largest in use have 35 MB."""
IDS_MAX: Final = 4_000_000
_PARTS: Final = ("normalizers", "pretokenizers")
_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_PIECE: Final = "\u2581"
_REMEDY: Final = "Set the model's tokenizer to the tokenizer.json of its server, or to its folder."
_EXTRA: Final = f"Install it, in a checkout: {installation('chat')}."


def _byte_characters() -> dict[str, int]:
    # A printable byte stands for itself, any other for a character from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(0x100 + at): byte for at, byte in enumerate(others)}


BYTE_CHARACTERS: Final = _byte_characters()


class Pieces(dict[int, bytes]):
    """Cache of the bytes of each id; those of all ids are in one block of memory."""

    __slots__ = ("_block", "_ends")

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self._block = b"".join(pieces)
        self._ends = array("I", [0])
        for piece in pieces:
            self._ends.append(self._ends[-1] + len(piece))

    def __missing__(self, token: int) -> bytes:
        """Look the id up. Numbers that are no id are not cached: there is no end of them."""
        if not 0 <= token < len(self._ends) - 1:
            return b""
        piece = self[token] = self._block[self._ends[token] : self._ends[token + 1]]
        return piece


class Vocabulary:
    def __init__(self, tokenizer: Tokenizer, pieces: list[bytes], added: Mapping[int, str]) -> None:
        """Take a `tokenizer` that makes no ids that are in `added`, the markers."""
        self._tokenizer = tokenizer
        self._texts = dict(added)
        self._ids = {text: token for token, text in added.items()}
        self.pieces = Pieces(pieces)
        """Empty for specials and unused ids."""
        self.size = len(pieces)
        spelled = {piece: token for token, piece in enumerate(pieces) if len(piece) == 1}
        self.byte_ids: tuple[int, ...] = ()
        """Byte → the id that spells it alone; empty if some byte has none."""
        if len(spelled) == 256:
            self.byte_ids = tuple(spelled[bytes((byte,))] for byte in range(256))

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a `tokenizer.json`, or that of a folder. Takes a second for a large one.

        Raises `VocabularyError`.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise VocabularyError("the package tokenizers is missing", remedy=_EXTRA) from error
        file, data = _read_tokenizer(Path(path))
        try:
            pieces, added = _pieces(data), _added(data)
            words = json.dumps(_plain(data), ensure_ascii=False)
            tokenizer = Tokenizer.from_str(words)
        except Exception as error:
            raise VocabularyError(f"{file} is no tokenizer: {error}", remedy=_REMEDY) from error
        return cls(tokenizer, pieces, added)

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def special(self, text: str) -> int | None:
        # Added tokens count even if the file does not call them special.
        return self._ids.get(text)

    def added(self) -> tuple[str, ...]:
        return tuple(self._ids)

    def special_text(self, token: int) -> str | None:
        return self._texts.get(token)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text: nothing in it ever becomes an added token.

        Raises `InvalidRequest` for text that is not valid Unicode.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(INVALID_UNICODE, code="invalid_value", param="input") from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        # Special ids are left out; bytes that are not UTF-8 become U+FFFD.
        return b"".join(map(self.pieces.__getitem__, ids)).decode("utf-8", "replace")


def _read_tokenizer(path: Path) -> tuple[Path, dict[str, Any]]:
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        if file.stat().st_size > TOKENIZER_BYTES_MAX:
            raise VocabularyError(f"{file} is too large for a tokenizer", remedy=_REMEDY)
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise VocabularyError(f"cannot read {file}: {error}", remedy=_REMEDY) from error
    except ValueError as error:
        raise VocabularyError(f"{file} is not JSON: {error}", remedy=_REMEDY) from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise VocabularyError(f"{file} is no tokenizer", remedy=_REMEDY)
    return file, data


def _added(data: Mapping[str, Any]) -> dict[int, str]:
    # Added tokens of white space are left out: models spell text with them.
    added = {int(one["id"]): str(one["content"]) for one in data.get("added_tokens") or ()}
    return {token: text for token, text in added.items() if text.strip()}


def _pieces(data: Mapping[str, Any]) -> list[bytes]:
    # Raises `ValueError` for an unknown model or an unknown way to write bytes.
    vocab: Any = data["model"].get("vocab")
    if not isinstance(vocab, dict):
        raise ValueError("its model has no vocabulary of pieces (only BPE is known)")  # noqa: TRY004
    bytes_of = _spelling_of(data)
    added = list(data.get("added_tokens") or ())
    size = 1 + max((*vocab.values(), *(int(one["id"]) for one in added)), default=-1)
    if size > IDS_MAX:
        raise ValueError(f"it has ids up to {size - 1}")
    pieces = [b""] * size
    for text, token in vocab.items():
        pieces[token] = bytes_of(text)
    for one in added:
        pieces[int(one["id"])] = b"" if one.get("special") else str(one["content"]).encode()
    return pieces


def _spelling_of(data: Mapping[str, Any]) -> Any:
    kinds = {step.get("type"): step for step in _steps(data.get("decoder"))}
    if "ByteLevel" in kinds:
        return _of_byte_level
    if "Metaspace" in kinds or "ByteFallback" in kinds:
        return _of_sentence_piece
    raise ValueError(f"its decoder is {sorted(map(str, kinds)) or 'missing'}")


def _steps(decoder: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(decoder, dict):
        if decoder.get("type") == "Sequence":
            for step in decoder.get("decoders") or ():
                yield from _steps(step)
        else:
            yield decoder


def _of_byte_level(text: str) -> bytes:
    try:
        return bytes(BYTE_CHARACTERS[character] for character in text)
    except KeyError:
        return text.encode()


def _of_sentence_piece(text: str) -> bytes:
    if (byte := _BYTE_PIECE.fullmatch(text)) is not None:
        return bytes.fromhex(byte[1])
    return text.replace(_SPACE_PIECE, " ").encode()


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    added = {one["content"] for one in data.get("added_tokens") or ()}
    spaces = [one for one in data.get("added_tokens") or () if not one["content"].strip()]
    vocab = dict(data["model"]["vocab"])
    if data["model"].get("ignore_merges"):
        # A word that is in the vocabulary is that id there, however it would be put together.
        vocab = {text: token for text, token in vocab.items() if text not in added}
    # The library gives an added token the id that its text has in the vocabulary, else the next.
    vocab |= {one["content"]: int(one["id"]) for one in spaces}
    return data | {
        "added_tokens": spaces,
        "normalizer": _unprefixed(data.get("normalizer")),
        "pre_tokenizer": _unprefixed(data.get("pre_tokenizer")),
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": data["model"] | {"vocab": vocab},
    }


def _unprefixed(step: Any) -> Any:
    # No space in front of a text: it continues what stands before it.
    if not isinstance(step, dict) or step.get("type") == "Prepend":
        return None
    parts = {key: list(filter(None, map(_unprefixed, step[key]))) for key in _PARTS if key in step}
    scheme = {"prepend_scheme": "never"} if "prepend_scheme" in step else {}
    prefix = {"add_prefix_space": False} if "add_prefix_space" in step else {}
    return step | parts | scheme | prefix


TURN_ENDS: Final = (
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|start_header_id|>", "<|begin_of_text|>"),
    *("<|eot|>", "<|eom|>", "<|header_start|>"),
    *("</s>", "<s>", "[INST]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[SYSTEM_PROMPT]"),
    *map(full_width, ("end_of_sentence", "begin_of_sentence", "User", "Assistant")),
    *map(full_width, ("tool_outputs_begin", "tool_output_begin")),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "[gMASK]", "<sop>"),
)  # fmt: skip
"""Added tokens that end a turn, or begin another role's."""
LEXICONS_KEPT: Final = 64


class Matcher:
    __slots__ = ("_pattern", "_texts", "firsts")

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self.firsts = tuple(sorted({text[0] for text in texts}))

    def may_be_in(self, text: str) -> bool:
        return any(first in text for first in self.firsts)

    def find(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text) if self._texts else None

    def held(self, text: str) -> int:
        """Count the characters at the end that may begin a marker."""
        longest = 0
        for marker in self._texts:
            for size in range(min(len(marker) - 1, len(text)), longest, -1):
                if text.endswith(marker[:size]):
                    longest = size
                    break
        return longest


class PlainTexts(dict[int, str]):
    """Texts of ids that are whole characters, nothing of a marker, and no white space at the
    end.
    """

    __slots__ = ("_markers", "_spelled", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, markers: frozenset[int], spelled: Matcher) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._markers = markers
        self._spelled = spelled

    def __missing__(self, token: int) -> str:
        """Look the id up; numbers that are no id are not cached."""
        piece = b"" if token in self._markers else self._vocabulary.pieces[token]
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            text = ""
        if text[-1:].isspace() or self._spelled.may_be_in(text):
            text = ""
        if 0 <= token < self._vocabulary.size:
            self[token] = text
        return text


class Lexicon:
    def __init__(self, vocabulary: Vocabulary, syntax: Syntax) -> None:
        self._vocabulary = vocabulary
        named = {text: vocabulary.special(text) for text in dict.fromkeys(syntax.markers)}
        self.ids = {text: token for text, token in named.items() if token is not None}
        """Ids of markers that are one id."""
        self.texts = {token: text for text, token in self.ids.items()}
        ends = (vocabulary.special(text) for text in TURN_ENDS if text not in named)
        self.ends = frozenset(token for token in ends if token is not None)
        """No turn goes on behind these."""
        self.markers = frozenset({*self.texts, *self.ends})
        added = (vocabulary.special(text) for text in vocabulary.added())
        silent = {token for token in added if token is not None and not vocabulary.piece(token)}
        self.no_text = tuple(sorted(self.markers | silent))
        """Markers, and added tokens that have no text."""
        self._matchers: dict[tuple[str, ...], Matcher] = {}
        self.plain = PlainTexts(vocabulary, self.markers, self.matcher(syntax.markers))

    def encode(self, written: Written) -> tuple[int, ...]:
        ids: list[int] = []
        for part in written:
            token = self.ids.get(part.text) if isinstance(part, Mark) else None
            text = part.text if isinstance(part, Mark) else part
            ids += self._vocabulary.encode(text) if token is None else [token]
        return tuple(ids)

    def matcher(self, markers: tuple[str, ...]) -> Matcher:
        """Return a matcher of those of the markers that are spelled in letters."""
        if markers not in self._matchers:
            self._matchers[markers] = Matcher(tuple(m for m in markers if m not in self.ids))
        return self._matchers[markers]


@lru_cache(maxsize=LEXICONS_KEPT)
def lexicon_of(vocabulary: Vocabulary, syntax: Syntax) -> Lexicon:
    return Lexicon(vocabulary, syntax)
