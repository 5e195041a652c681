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

    def feed(self, ids: Sequence[int]) -> str:
        """What has become readable; bytes of an unfinished character wait for the next call."""
        return self._decoder.decode(b"".join(map(self._piece, ids)))

    def flush(self) -> str:
        """The message is over: an unfinished character becomes one U+FFFD. Ready for the next."""
        return self._decoder.decode(b"", final=True)
