"""The o200k_harmony vocabulary: text to token ids, and ids to text while they stream.

Source of the ids: OpenAI's published o200k_base rank file (package data) and openai-harmony.
"""

from __future__ import annotations

import codecs
import hashlib
from array import array
from binascii import a2b_base64
from functools import cache
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Final

import tiktoken

from gateway.errors import InvalidRequest, VocabularyError
from gateway.models.format import INVALID_UNICODE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.resources.abc import Traversable


RANKS_SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
PATTERN: Final = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
START_OF_TEXT: Final = 199998
END_OF_TEXT: Final = 199999
RETURN: Final = 200002
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007
MESSAGE: Final = 200008
CALL: Final = 200012
FIRST_SPECIAL: Final = 199998
"""From here on no id is text."""
VOCABULARY_SIZE: Final = 201088
STOP_IDS: Final = (RETURN, CALL, END_OF_TEXT)
NAMED_SPECIALS: Final = {
    "<|startoftext|>": START_OF_TEXT,
    "<|endoftext|>": END_OF_TEXT,
    "<|return|>": RETURN,
    "<|constrain|>": CONSTRAIN,
    "<|channel|>": CHANNEL,
    "<|start|>": START,
    "<|end|>": END,
    "<|message|>": MESSAGE,
    "<|call|>": CALL,
}
# Called directly, because the Python code of the incremental decoder around it costs more.
_decode = codecs.utf_8_decode
_SEPARATOR: Final = b"\x7f"


class Pieces(dict[int, bytes]):
    def __init__(self, encoding: tiktoken.Encoding) -> None:
        super().__init__()
        self._bytes_of = encoding.decode_single_token_bytes

    def __missing__(self, token: int) -> bytes:
        """Look the id up. Ids that are no text are not cached: there is no end of them."""
        if not 0 <= token < FIRST_SPECIAL:
            return b""
        piece = self[token] = self._bytes_of(token)
        return piece


class Vocabulary:
    """Vocabulary, one per process, for all threads."""

    def __init__(self, ranks: dict[bytes, int]) -> None:
        """Take the ranks over: they are gone afterwards."""
        self._encoding = tiktoken.Encoding(
            "o200k_harmony", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=NAMED_SPECIALS
        )
        ranks.clear()  # The encoding has made tables of its own, and would keep these 30 MiB, too.
        self.pieces = Pieces(self._encoding)
        """Empty for specials and for ids outside of the vocabulary."""
        self.byte_ids = tuple(sorted(range(256), key=self.pieces.__getitem__))
        """Byte → the id that spells it alone."""

    @classmethod
    def load(cls, source: Traversable | None = None) -> Vocabulary:
        """Read and verify the ranks. Raises `VocabularyError` for a missing or changed file."""
        return _load_packaged() if source is None else cls._read(source)

    @classmethod
    def _read(cls, path: Traversable) -> Vocabulary:
        remedy = "Reinstall the package: its file o200k_base.tiktoken is not the published one."
        try:
            content = path.read_bytes()
        except OSError as error:
            raise VocabularyError(f"cannot read {path}: {error}", remedy=remedy) from error
        if hashlib.sha256(content).hexdigest() != RANKS_SHA256:
            raise VocabularyError(f"{path} is damaged (sha256 differs)", remedy=remedy)
        # Each line has a piece and its rank, which is the number of the line: the digest is right.
        pieces = map(a2b_base64, content.split()[::2])
        return cls(dict(zip(pieces, count(), strict=False)))

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text: no marker in it ever becomes a special id.

        Frees the GIL. Raises `InvalidRequest` for text that the tokeniser cannot split within its
        bounds (a run of hundreds of thousands of spaces) or that is not valid Unicode.
        """
        try:
            text.encode()  # tiktoken itself would put U+FFFD for a lone surrogate
            return self._encoding.encode(text, disallowed_special=())
        except ValueError as error:
            raise _refusal(error) from error

    def encode_packed(self, text: str) -> array[int]:
        """Return the ids of `encode` in an array.

        Making Python numbers of a hundred thousand ids takes milliseconds in which nothing else
        runs.
        """
        try:
            text.encode()
            # The library's own way to these needs numpy.
            made = self._encoding._core_bpe.encode_to_tiktoken_buffer(text, set())  # noqa: SLF001
        except ValueError as error:
            raise _refusal(error) from error
        ids = array("I")
        ids.frombytes(memoryview(made).cast("B"))
        return ids

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def decode(self, ids: list[int]) -> str:
        # Markers are left out; bytes that are not UTF-8 become U+FFFD.
        return b"".join(map(self.pieces.__getitem__, ids)).decode("utf-8", "replace")


def _refusal(error: ValueError) -> InvalidRequest:
    if isinstance(error, UnicodeEncodeError):
        fault = INVALID_UNICODE
    else:
        fault = (
            "The input holds text that cannot be tokenised: an extremely long run of one kind "
            "of character. Please shorten it."
        )
    return InvalidRequest(fault, code="invalid_value", param="input")


@cache
def _load_packaged() -> Vocabulary:
    # Immutable, large, and half a second's work.
    return Vocabulary._read(files("gateway.models.harmony") / "data" / "o200k_base.tiktoken")  # noqa: SLF001


class Detokenizer:
    """Text of one message's ids while they stream, never half a character."""

    __slots__ = ("_rest", "_spelling", "_text", "_tokens", "piece")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.piece: Callable[[int], bytes] = vocabulary.pieces.__getitem__
        self._rest = b""
        self._text = ""
        self._spelling = b""
        self._tokens: tuple[int, ...] = ()

    def feed(self, ids: Sequence[int]) -> str:
        # Bytes of an unfinished character wait for the next call.
        return self._readable(b"".join(map(self.piece, ids)))

    def read(self, ids: Sequence[int]) -> str | None:
        """Do `feed`; return None, with nothing read, if an id is no text, or without ids."""
        if len(ids) == 1:
            spelling = self.piece(ids[0])
        else:
            pieces = list(map(self.piece, ids))
            spelling = b"".join(pieces) if all(pieces) else b""
        if not spelling:
            return None
        if not self._rest:
            try:
                return spelling.decode()
            except UnicodeDecodeError:
                pass
        return self._readable(spelling)

    def read_each(self, ids: Sequence[int]) -> list[str]:
        """Do `read` for each of the first ids that are text."""
        pieces = list(map(self.piece, ids))
        if not all(pieces):
            del pieces[pieces.index(b"") :]
        if not self._rest:
            # All at once, which takes half the time: what stands between them is in hardly any.
            try:
                texts = _SEPARATOR.join(pieces).decode().split(_SEPARATOR.decode())
            except UnicodeDecodeError:
                pass
            else:
                if len(texts) == len(pieces):
                    return texts
        return self._readable_each(pieces)

    def trace(self, ids: Sequence[int], position: int) -> tuple[str, tuple[int, ...]]:
        """Do `feed`, and return the positions of the ids, from `position` on.

        Text waits until an id ends where a character does. No positions are returned where the ids
        are not the UTF-8 of the text.
        """
        texts: list[str] = []
        tokens: list[int] = []
        is_exact = True
        for at, token in enumerate(ids, position):
            piece = self.piece(token)
            self._text += self._readable(piece)
            self._spelling += piece
            self._tokens += (at,)
            if not self._rest:
                is_exact = is_exact and self._text.encode() == self._spelling
                texts.append(self._text)
                tokens += self._tokens
                self._text, self._spelling, self._tokens = "", b"", ()
        return "".join(texts), tuple(tokens) if is_exact else ()

    def flush(self) -> str:
        """End the message: an unfinished character becomes one U+FFFD."""
        text = self._text + self._rest.decode("utf-8", "replace")
        self._text, self._spelling, self._tokens, self._rest = "", b"", (), b""
        return text

    def _readable_each(self, pieces: list[bytes]) -> list[str]:
        # `_readable` in a loop, in a third of the time.
        texts, rest = [], self._rest
        for piece in pieces:
            spelling = rest + piece if rest else piece
            text, size = _decode(spelling, "replace")
            rest = spelling[size:]
            texts.append(text)
        self._rest = rest
        return texts

    def _readable(self, spelling: bytes) -> str:
        spelling = self._rest + spelling
        text, size = _decode(spelling, "replace")
        self._rest = spelling[size:]
        return text


ASSISTANT: Final = 173781
FINAL: Final = 17196
OPENING: Final = (START, ASSISTANT)
"""Ends a prompt, and begins a stored message."""
FINAL_HEADER: Final = (CHANNEL, FINAL, MESSAGE)
RECIPIENT_PREFIX: Final = (316, 28)
"""` to=`"""
CALL_PREFIX: Final = (*RECIPIENT_PREFIX, 44580, 13)
"""` to=functions.`"""
