"""A turn of text (`gateway.text_ids`) to segments.

The server has told thoughts, answer and calls apart already, so there is a mark where each begins:

    THOUGHT text  |  ANSWER text  |  CALL name ARGUMENTS text  |  END

The laws are those of the other parsers: it is total, and no cut of the ids leads anywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.generation import (
    FinishReason,
    ParserPosition,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Where,
)
from gateway.models.chat.callee import called_tool
from gateway.models.chat.prose import Prose, Unit
from gateway.models.chat.recovery import Rule, count
from gateway.text_ids import ANSWER, ARGUMENTS, CALL, END, TEXT_IDS, THOUGHT, is_text, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.constraints.rules import OutputRules
    from gateway.generation import SegmentEvent, TokenParser

_MARKS: Final = frozenset({THOUGHT, ANSWER, CALL, ARGUMENTS, END})
NO_ARGUMENTS: Final = "{}"
"""What a call is given that says nothing of it."""


class TextParser:
    """Parser of the ids of one turn to segments (`gateway.generation.TokenParser`)."""

    __slots__ = (
        "_call", "_ended_by", "_events", "_has_arguments", "_has_called", "_is_finished",
        "_is_over", "_name", "_position", "_prose", "_rules", "_start", "_trace", "_visible",
        "reasoning_tokens", "recoveries",
    )  # fmt: skip

    def __init__(self, rules: OutputRules, *, trace: bool = False) -> None:
        self._trace = trace
        self.recoveries: dict[str, int] = {}
        self.reasoning_tokens = 0
        self._rules = rules
        self._events: list[SegmentEvent] = []
        self._position = 0
        self._start = 0  # of the message that is open
        self._prose: Prose | None = None
        self._name: str | None = None  # of a call whose arguments have not begun
        self._call: SegmentStarted | None = None
        self._has_arguments = self._has_called = self._visible = False
        self._ended_by = ""  # the hosted tool that was called
        self._is_over = self._is_finished = False

    @property
    def place(self) -> ParserPosition:
        """Return the position of the next id."""
        start, called = self._start, self._has_called
        if self._is_over:
            kind = SegmentKind.FUNCTION_CALL if self._ended_by else None
            return ParserPosition(Where.OVER, self._position, kind, self._ended_by)
        if self._call is not None:
            return ParserPosition(Where.BODY, start, self._call.kind, self._call.name)
        if self._prose is not None:
            return ParserPosition(Where.BODY, start, self._prose.kind, called=called)
        return ParserPosition(Where.HEADER, start, called=called)

    def piece(self, token: int) -> bytes:
        return text_of((token,)).encode("utf-8", "replace")

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        """Take the next ids, any number of them."""
        for begin, end in _runs(ids):
            if self._is_over:
                self._note(Rule.AFTER_TURN_END, times=end - begin)
            elif ids[begin] in _MARKS:
                self._mark(ids[begin])
            elif ids[begin] in TEXT_IDS:
                self._write(text_of(ids[begin:end]), end - begin)
            else:
                self._note(Rule.RESERVED_ID, times=end - begin)
            self._position += end - begin
        return self._take()

    def feed_each(self, ids: Sequence[int]) -> list[str]:  # noqa: ARG002 - logs of text have no single ids
        # The text of a log is fed as it came.
        return []

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        """End the turn (`reason` None: it was broken off). Ids fed after this are ignored."""
        if not self._is_over:
            self._close(self._position, complete=reason is FinishReason.STOP, at_mark=False)
        is_whole = reason not in {None, FinishReason.CUT}
        if is_whole and not self._visible and not self._is_finished:
            self._note(Rule.NO_VISIBLE_OUTPUT)
        self._is_over = self._is_finished = True
        return self._take()

    def _take(self) -> list[SegmentEvent]:
        events = list(self._events)
        self._events.clear()  # which what is open has, too
        return events

    def _note(self, *rules: Rule, times: int = 1) -> None:
        count(self.recoveries, rules, times)

    def _write(self, text: str, size: int) -> None:
        prose = self._prose
        if self._name is not None:
            self._name += text
        elif self._call is not None:
            self._has_arguments = True
            self._events.append(SegmentText(text))
        else:
            if prose is None:  # without a mark it is an answer
                prose = self._begin(self._said, self._position)
            if prose.kind is SegmentKind.REASONING:
                self.reasoning_tokens += size
            end = self._position + size
            prose.write(Unit(text, self._position, end, is_exact=self._trace))
            is_shown = prose.is_started and prose.kind is not SegmentKind.REASONING
            self._visible = self._visible or is_shown

    @property
    def _said(self) -> SegmentKind:
        # Text before a call that is demanded is no answer.
        is_owed = self._rules.calls == "required"
        return SegmentKind.COMMENTARY if is_owed else SegmentKind.FINAL

    def _begin(self, kind: SegmentKind, start: int) -> Prose:
        self._start = start
        # A token that is told of may begin with white space, which is told as a part of it.
        trace = self._trace
        self._prose = Prose(kind, start, self._events, keeps_front=trace, trace=trace)
        return self._prose

    def _mark(self, mark: int) -> None:
        if mark == ARGUMENTS:
            self._begin_arguments()
            return
        self._close(self._position, complete=True, at_mark=mark != END)
        if self._is_over:
            return
        self._start = self._position
        if mark == END:
            self._is_over = True
        elif mark == CALL:
            self._name = ""
        else:
            self._begin(SegmentKind.REASONING if mark == THOUGHT else self._said, self._position)

    def _begin_arguments(self) -> None:
        if self._name is None:
            self._note(Rule.MARKER_IN_BODY)
            return
        tool, rules = called_tool(self._name, self._rules.tools)
        self._note(*rules)
        self._name, self._has_arguments = None, False
        self._call = SegmentStarted(SegmentKind.FUNCTION_CALL, tool)
        self._visible = True
        self._events.append(self._call)

    def _close(self, end: int, *, complete: bool, at_mark: bool) -> None:
        prose, call, self._prose, self._call = self._prose, self._call, None, None
        if self._name is not None:
            self._name = None
            self._note(Rule.ABANDONED_CALL)
        if prose is not None:
            prose.close(end, complete=complete, at_marker=at_mark)
        if call is None:
            return
        if complete and not self._has_arguments:
            self._note(Rule.EMPTY_ARGUMENTS)
            self._events.append(SegmentText(NO_ARGUMENTS))
        self._has_called = True
        self._events.append(SegmentEnded(self._start, end, complete))
        if complete and call.name in self._rules.hosted:
            self._ended_by, self._is_over = call.name, True


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(ids):
        end = at
        while end < len(ids) and ids[end] in TEXT_IDS:
            end += 1
        if end > at:
            yield at, end
        if end < len(ids):
            yield end, end + 1
        at = end + 1


class EitherParser:
    """Parser for a model whose turns are ids or text: the first id of a turn decides which."""

    __slots__ = ("_parser", "_text_parser", "recoveries")

    def __init__(self, parser: TokenParser, text_parser: TokenParser) -> None:
        """`parser` reads turns of ids."""
        self.recoveries = parser.recoveries
        self._parser = parser
        self._text_parser: TokenParser | None = text_parser

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def place(self) -> ParserPosition:
        return self._parser.place

    def piece(self, token: int) -> bytes:
        return self._parser.piece(token)

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        """Take the next ids, any number of them, all of one kind."""
        self._decide(ids)
        return self._parser.feed(ids)

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        self._decide(ids)
        return self._parser.feed_each(ids)

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        return self._parser.finish(reason)

    def _decide(self, ids: Sequence[int]) -> None:
        if ids and self._text_parser is not None:
            self._parser = self._text_parser if is_text(ids) else self._parser
            self._text_parser = None
            self.recoveries = self._parser.recoveries
