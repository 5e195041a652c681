"""A `TokenParser` of a language in which every id is one segment event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.generation import (
    FinishReason,
    SegmentEnded,
    SegmentEvent,
    SegmentKind,
    SegmentStarted,
    SegmentText,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

REASONING, COMMENTARY, FINAL, CALL = range(4)
"""Open a segment, and close the open one as if it had ended."""
END, RETURN, BROKEN = range(4, 7)
"""Close the open segment; `BROKEN` as one that a recovery rule repaired."""
TEXT: Final = 7
"""From here on an id is a piece of text: `TEXT + i` is `PIECES[i]`."""
PIECES: Final = ("a", "b", '"', "\\", "\n", "\u2028", "\x00", "\U0001f600", "two words")
_KINDS: Final = (
    SegmentKind.REASONING,
    SegmentKind.COMMENTARY,
    SegmentKind.FINAL,
    SegmentKind.FUNCTION_CALL,
)


class ToyParser:
    """Total, and independent of how ids are cut: one id, at most two events."""

    def __init__(self) -> None:
        self.recoveries: dict[str, int] = {}
        self.reasoning_tokens = 0
        self._fed = 0
        self._start = 0
        self._open: SegmentKind | None = None

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        """One id after the other."""
        events: list[SegmentEvent] = []
        for token in ids:
            self._fed += 1
            events += self._step(token)
        return events

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        """What is open was cut off, unless the model stopped by itself."""
        return self._close(complete=reason is FinishReason.STOP, verbatim=False)

    def _step(self, token: int) -> list[SegmentEvent]:
        if token <= CALL:
            closed = self._close(complete=True, verbatim=False)
            self._open = _KINDS[token]
            self._start = self._fed - 1
            return [*closed, SegmentStarted(self._open, "f" if token == CALL else "")]
        if token < TEXT:
            if token == BROKEN:
                self.recoveries["broken"] = self.recoveries.get("broken", 0) + 1
            return self._close(complete=True, verbatim=token != BROKEN)
        if self._open is None:
            return []
        self.reasoning_tokens += self._open is SegmentKind.REASONING
        return [SegmentText(PIECES[token - TEXT])]

    def _close(self, *, complete: bool, verbatim: bool) -> list[SegmentEvent]:
        if self._open is None:
            return []
        self._open = None
        return [SegmentEnded(self._start, self._fed, complete, verbatim)]
