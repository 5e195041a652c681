"""Token ids to text while they stream: a character is never handed out by halves."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.models.harmony.vocabulary import Vocabulary

# What the standard library's incremental decoder calls; its own Python around that costs more.
_decode = codecs.utf_8_decode
_SEPARATOR: Final = b"\x7f"


class Detokenizer:
    """The text of one message's ids. Tokens may end in the middle of a UTF-8 sequence."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.piece: Callable[[int], bytes] = vocabulary.pieces.__getitem__
        """The bytes of an id; none if it is no text."""
        self._rest = b""
        self._text = ""
        self._spelling = b""
        self._tokens: tuple[int, ...] = ()

    def feed(self, ids: Sequence[int]) -> str:
        """What has become readable; bytes of an unfinished character wait for the next call."""
        return self._readable(b"".join(map(self.piece, ids)))

    def read(self, ids: Sequence[int]) -> str | None:
        """The same; None, and nothing was read, where an id is no text or there is none at all."""
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
        """What `read` says to each of the first ids that are text."""
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
        """The same, and the positions of the ids that spell it; the first id is at `position`.

        Text waits until an id ends where a character does, so that ids and text can be told apart
        there. No positions are told where the ids are not the UTF-8 of the text.
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
        """The message is over: an unfinished character becomes one U+FFFD. Ready for the next."""
        text = self._text + self._rest.decode("utf-8", "replace")
        self._text, self._spelling, self._tokens, self._rest = "", b"", (), b""
        return text

    def _readable_each(self, pieces: list[bytes]) -> list[str]:
        """The same for one after the other, in a third of the time."""
        texts, rest = [], self._rest
        for piece in pieces:
            spelling = rest + piece if rest else piece
            text, size = _decode(spelling, "replace")
            rest = spelling[size:]
            texts.append(text)
        self._rest = rest
        return texts

    def _readable(self, spelling: bytes) -> str:
        """The whole characters of what waits and these bytes; the rest of them waits."""
        spelling = self._rest + spelling
        text, size = _decode(spelling, "replace")
        self._rest = spelling[size:]
        return text
