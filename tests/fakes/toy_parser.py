"""A `TokenParser` of a language in which every id is at most two segment events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.generation import (
    FinishReason,
    ParserPosition,
    SegmentEnded,
    SegmentEvent,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Where,
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
TOOLS: Final = (
    *("strict", "custom", "local_shell", "shell", "apply_patch", "barred", "unknown"),
    *("builtin:browser.search", "builtin:browser.open", "builtin:python", "srv.add", "srv.ask"),
    "tool_search",
)
TOOL_CALL: Final = 100
"""From here on an id opens the call of a tool: `TOOL_CALL + i` that of `TOOLS[i]`."""
SAYING: Final = 200
"""From here on an id is more text: `SAYING + i` is `SAYINGS[i]`."""
SAYINGS: Final = (
    *('{"input":"', '"}', '{"', "{", "}", "\\\\u", "00e9"),
    *("I'm", " sorry", "st", "op", "stop", "\n\n", "é "),
    *('{"commands":["ls","pwd"]}', '{"command":["ls"]}'),
    '{"operation":{"type":"delete_file","path":"a"}}',
    *("【", "†", "】", "1", "2", "【1†L2-L3】", "【0†", "x【2†a】y"),
    *("sandbox:", "/mnt/da", "ta/a", ".csv", "/mnt/data/a.csv", ".gz "),
    *('{"code', '": "', 'p()"', '{"code": "1\\n"}'),
    '{"query":"x"}',
)
_KINDS: Final = (
    SegmentKind.REASONING,
    SegmentKind.COMMENTARY,
    SegmentKind.FINAL,
    SegmentKind.FUNCTION_CALL,
)


def call(tool: str) -> int:
    """The id that opens the call of a tool."""
    return TOOL_CALL + TOOLS.index(tool)


def say(text: str) -> int:
    """The id of one of the sayings."""
    return SAYING + SAYINGS.index(text)


def piece(token: int) -> bytes:
    """What an id spells."""
    if TEXT <= token < TEXT + len(PIECES):
        return PIECES[token - TEXT].encode()
    return SAYINGS[token - SAYING].encode() if token >= SAYING else b""


class ToyParser:
    """Total, and independent of how ids are cut: one id, at most two events."""

    def __init__(self, trace: bool = False) -> None:
        self.recoveries: dict[str, int] = {}
        self.reasoning_tokens = 0
        self._trace = trace
        self._fed = 0
        self._start = 0
        self._open = SegmentStarted(SegmentKind.REASONING)
        self._is_open = False

    @property
    def place(self) -> ParserPosition:
        """In the open body, or between two."""
        if self._is_open:
            return ParserPosition(Where.BODY, self._start, self._open.kind, self._open.name)
        return ParserPosition(Where.BETWEEN, self._fed)

    def piece(self, token: int) -> bytes:
        """What an id spells."""
        return piece(token)

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        """One id after the other."""
        events: list[SegmentEvent] = []
        for token in ids:
            self._fed += 1
            events += self._step(token)
        return events

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        """The first of them that are text of an open body."""
        texts: list[str] = []
        for token in ids:
            if self._trace or token < TEXT or TOOL_CALL <= token < SAYING or not self._is_open:
                break
            (text,) = self.feed((token,))
            assert isinstance(text, SegmentText)
            texts.append(text.text)
        return texts

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        """What is open was cut off, unless the model stopped by itself."""
        return self._close(complete=reason is FinishReason.STOP, verbatim=False)

    def _step(self, token: int) -> list[SegmentEvent]:
        if token <= CALL or TOOL_CALL <= token < SAYING:
            closed = self._close(complete=True, verbatim=False)
            self._open = _opened(token)
            self._is_open = True
            self._start = self._fed - 1
            return [*closed, self._open]
        if token < TEXT:
            if token == BROKEN:
                self.recoveries["broken"] = self.recoveries.get("broken", 0) + 1
            return self._close(complete=True, verbatim=token != BROKEN)
        if not self._is_open:
            return []
        self.reasoning_tokens += self._open.kind is SegmentKind.REASONING
        tokens = (self._fed - 1,) if self._trace else ()
        return [SegmentText(piece(token).decode(), tokens)]

    def _close(self, *, complete: bool, verbatim: bool) -> list[SegmentEvent]:
        if not self._is_open:
            return []
        self._is_open = False
        return [SegmentEnded(self._start, self._fed, complete, verbatim)]


def _opened(token: int) -> SegmentStarted:
    if token >= TOOL_CALL:
        return SegmentStarted(SegmentKind.FUNCTION_CALL, TOOLS[token - TOOL_CALL])
    return SegmentStarted(_KINDS[token], "f" if token == CALL else "")
