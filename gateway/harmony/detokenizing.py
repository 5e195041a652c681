"""Token ids to text while they stream: a character is never handed out by halves."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.harmony.vocabulary import Vocabulary

_Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one message's ids. Tokens may end in the middle of a UTF-8 sequence."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._piece = vocabulary.piece
        self._decoder = _Decoder("replace")
        self._text = ""
        self._spelling = b""
        self._tokens: tuple[int, ...] = ()

    def feed(self, ids: Sequence[int]) -> str:
        """What has become readable; bytes of an unfinished character wait for the next call."""
        return self._decoder.decode(b"".join(map(self._piece, ids)))

    def trace(self, ids: Sequence[int], position: int) -> tuple[str, tuple[int, ...]]:
        """The same, and the positions of the ids that spell it; the first id is at `position`.

        Text waits until an id ends where a character does, so that ids and text can be told apart
        there. No positions are told where the ids are not the UTF-8 of the text.
        """
        texts: list[str] = []
        tokens: list[int] = []
        is_exact = True
        for at, token in enumerate(ids, position):
            piece = self._piece(token)
            self._text += self._decoder.decode(piece)
            self._spelling += piece
            self._tokens += (at,)
            if not self._decoder.getstate()[0]:
                is_exact = is_exact and self._text.encode() == self._spelling
                texts.append(self._text)
                tokens += self._tokens
                self._text, self._spelling, self._tokens = "", b"", ()
        return "".join(texts), tuple(tokens) if is_exact else ()

    def flush(self) -> str:
        """The message is over: an unfinished character becomes one U+FFFD. Ready for the next."""
        text = self._text + self._decoder.decode(b"", final=True)
        self._text, self._spelling, self._tokens = "", b"", ()
        return text
