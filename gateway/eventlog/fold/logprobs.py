"""Logprobs as the API shows them: one entry for each id that spells the text of a message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.generation import TokenLogprob

if TYPE_CHECKING:
    from gateway.generation import SegmentText

CERTAIN: Final = TokenLogprob(0.0)
"""Of an id that the gateway wrote itself, and the model only read."""
_SINGLE: Final = struct.Struct("<f")


class Spelling(Protocol):
    """Tells what an id of the open turn spells, and how likely it was."""

    def piece(self, token: int) -> bytes: ...

    def heard(self, position: int) -> tuple[int, TokenLogprob | None]:
        """The id at a position, and what the backend told of it."""
        ...


def entries(text: SegmentText, spelling: Spelling) -> list[dict[str, Any]] | None:
    """One for each id of a text; None where they are not known.

    Their `bytes`, joined, are the text: of an id that says more than it the rest is left out.
    """
    left = len(text.text.encode())
    told: list[dict[str, Any]] = []
    for position in text.tokens:
        token, logprob = spelling.heard(position)
        if logprob is None:
            return None
        piece = spelling.piece(token)[:left]
        left -= len(piece)
        told.append({**_entry(piece, logprob.logprob), "top_logprobs": _top(logprob, spelling)})
    return told or None


def _top(told: TokenLogprob, spelling: Spelling) -> list[dict[str, Any]]:
    """The alternatives that are text: a marker is none, and ends or divides a message."""
    pieces = [(spelling.piece(token), logprob) for token, logprob in told.top]
    return [_entry(piece, logprob) for piece, logprob in pieces if piece]


def _entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": _single(logprob),
        "bytes": list(piece),
    }


def _single(logprob: float) -> float:
    """As exact as the packed log is, so that a replay shows the same digits."""
    return float(_SINGLE.unpack(_SINGLE.pack(logprob))[0])
