"""Output in a chat format to segments, one turn at a time.

    REASONING --</think>--> CONTENT --<tool_call>--> CALLS --</tool_call>--> CONTENT --end--> OVER

A turn begins in CONTENT: a tag of a thought that ends its prompt is part of it. Three laws, as for
Harmony:

1. It is total. No sequence of ids raises: a marker in the wrong place is dropped and counted,
   invalid calls become text for the user, and a call that breaks off is passed on up to its end.
2. It never looks ahead.
3. No text becomes a marker that is an id. Such a marker becomes text only where it means nothing,
   as in an answer about it, and unless its vocabulary calls it special.

Text streams, except for half a character, the possible beginning of a marker that is spelled in
letters, and white space, which belongs to the marker that may follow it. A call waits until its
function is named. A marker of calls within prose waits until a call or none comes of it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.generation import (
    BrokenCall,
    FinishReason,
    ParserPosition,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Where,
)
from gateway.models.chat.call_syntax import (
    Argued,
    Called,
    Ended,
    Left,
    Noted,
    PlainText,
    Rule,
    Unnamed,
    called_tool,
)
from gateway.models.chat.syntax.hermes import HERMES
from gateway.models.chat.tokenizer import lexicon_of
from gateway.models.format import count_recoveries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import SegmentEvent
    from gateway.models.chat.call_syntax import CallReader, CallStep, Syntax
    from gateway.models.chat.tokenizer import Vocabulary


class Unit(NamedTuple):
    """Text, and the positions `start:end` of the ids that spell it. `is_exact`: these ids are the
    UTF-8 of this text, and of nothing else.
    """

    text: str
    start: int
    end: int
    is_exact: bool = False

    def cut(self, size: int) -> tuple[Unit, Unit]:
        front = Unit(self.text[:size], self.start, self.end)
        return front, Unit(self.text[size:], self.start, self.end)


class Prose:
    """Segment of prose, from the first text on that is more than white space.

    With `keeps_front`, white space before it is part of it. With `trace`, text comes with the
    positions of its ids, and the text of an id stays whole.
    """

    __slots__ = ("_events", "_keeps_front", "_trace", "is_started", "kind", "spaces", "start")

    def __init__(
        self,
        kind: SegmentKind,
        start: int,
        events: list[SegmentEvent],
        *,
        keeps_front: bool = False,
        trace: bool = False,
    ) -> None:
        self.kind = kind
        self.start = start
        self.is_started = False
        self._events = events
        self._keeps_front = keeps_front
        self._trace = trace
        self.spaces: list[Unit] = []

    @property
    def is_flowing(self) -> bool:
        return self.is_started and not self.spaces

    @property
    def is_at_line(self) -> bool:
        # Only white space stands on its last line so far.
        behind = "".join(unit.text for unit in self.spaces)
        return not self.is_started or "\n" in behind[len(behind.rstrip()) :]

    def write(self, unit: Unit) -> None:
        size = len(unit.text.rstrip())
        if not size:
            self.spaces.append(unit)
            return
        units, self.spaces = [*self.spaces, unit], []
        if not self.is_started:
            self.is_started = True
            self._events.append(SegmentStarted(self.kind))
            if not self._keeps_front:
                units = [_without_front(unit)]
        last = units[-1]
        if (behind := len(last.text) - len(last.text.rstrip())) and not self._trace:
            units[-1], space = last.cut(len(last.text) - behind)
            self.spaces.append(space)
        elif behind:
            self.spaces.append(units.pop())
        self._tell(units)

    def close(self, end: int, *, complete: bool, at_marker: bool) -> None:
        """End before position `end`; at a marker, without the white space before that."""
        units, self.spaces = self.spaces, []
        if not self.is_started:
            return
        if at_marker:
            units = [_without_end(unit) for unit in units]
        self._tell([unit for unit in units if unit.text])
        self._events.append(SegmentEnded(self.start, end, complete))

    def _tell(self, units: list[Unit]) -> None:
        if not self._trace:
            if text := "".join(unit.text for unit in units):
                self._events.append(SegmentText(text))
            return
        for text, start, end, is_exact in units:
            tokens = tuple(range(start, end)) if is_exact else ()
            self._events.append(SegmentText(text, tokens))


def _without_front(unit: Unit) -> Unit:
    text = unit.text.lstrip()
    return unit if len(text) == len(unit.text) else Unit(text, unit.start, unit.end)


def _without_end(unit: Unit) -> Unit:
    text = unit.text.rstrip()
    return unit if len(text) == len(unit.text) else Unit(text, unit.start, unit.end)


def text_kind(rules: OutputRules) -> SegmentKind:
    """Return the kind of text for the user: before a required call it is no answer."""
    return SegmentKind.COMMENTARY if rules.calls == "required" else SegmentKind.FINAL


_REASONING: Final = SegmentKind.REASONING
"""Looked up for every id."""


class _State(Enum):
    REASONING = auto()
    CONTENT = auto()
    CALLS = auto()
    OVER = auto()


class ChatParser:
    """Parser of the ids of one turn (`gateway.generation.TokenParser`).

    `reasoning_tokens` counts the ids of text between the markers of thoughts, white space included.
    """

    __slots__ = (
        "_aside", "_broken", "_broken_end", "_call", "_counted", "_ended_by", "_events",
        "_gap", "_has_called", "_has_quoted", "_held", "_is_bare", "_is_finished", "_is_front",
        "_is_unnamed", "_lexicon", "_matcher", "_may_be_json", "_openers", "_pending",
        "_pending_start", "_position", "_prose", "_reader", "_region", "_rules", "_start", "_state",
        "_syntax", "_trace", "_visible", "_vocabulary", "reasoning_tokens", "recoveries",
    )  # fmt: skip

    def __init__(
        self, vocabulary: Vocabulary, syntax: Syntax, rules: OutputRules, *, trace: bool = False
    ) -> None:
        self.recoveries: dict[str, int] = {}
        self.reasoning_tokens = 0
        self._vocabulary = vocabulary
        self._syntax = syntax
        self._rules = rules
        self._trace = trace
        calls = syntax.calls if rules.tools else None
        self._openers = () if calls is None else calls.openers
        self._lexicon = lexicon_of(vocabulary, syntax)
        self._events: list[SegmentEvent] = []
        self._position = 0
        self._start = 0  # of the message that is open, or to come
        self._counted = 0  # ids up to here are reasoning tokens, or none
        self._pending = b""  # of a character that is not complete
        self._pending_start = 0
        self._held: list[Unit] = []  # may be the beginning of a marker
        self._is_front = True  # no marker came yet
        self._is_bare = self._may_call_bare  # text may begin a call
        self._region: list[Unit] | None = None  # text that may be no call
        self._gap: list[Unit] = []  # white space in front of it
        self._aside: Prose | None = None  # goes on with that text if it is none
        self._call: SegmentStarted | None = None
        self._is_unnamed = False  # arguments come of a function that is named behind them
        self._broken: BrokenCall | None = None
        self._broken_end: list[SegmentEvent] = []
        self._has_called = self._has_quoted = False
        self._ended_by = ""  # the hosted tool that was called
        self._visible = self._is_finished = False
        self._reader: CallReader | None = None
        self._may_be_json = False
        self._prose: Prose | None = None
        self._begin_content(0)

    @property
    def _may_call_bare(self) -> bool:
        calls, rules = self._syntax.calls, self._rules
        if calls is None or not rules.tools or rules.calls == "none":
            return False
        return calls.is_bare or (bool(calls.begins) and rules.answer is None)

    @property
    def place(self) -> ParserPosition:
        start, prose, broken = self._start, self._prose, self._broken
        if self._state is _State.OVER:
            kind = SegmentKind.FUNCTION_CALL if self._ended_by else None
            return ParserPosition(Where.OVER, self._position, kind, self._ended_by)
        if self._call is not None or self._is_unnamed:
            name = "" if self._call is None else self._call.name
            return ParserPosition(Where.BODY, start, SegmentKind.FUNCTION_CALL, name)
        called = self._has_called
        if prose is None:
            return ParserPosition(Where.HEADER, start, broken=broken, called=called)
        if self._state is _State.REASONING:
            return ParserPosition(Where.BODY, start, prose.kind, waiting=self._waiting)
        if prose.is_started:
            return ParserPosition(Where.BODY, start, prose.kind, called=called)
        where = Where.BETWEEN if start else Where.HEADER
        return ParserPosition(where, start, broken=broken, called=called)

    @property
    def _waiting(self) -> int:
        return self._position - max(self._counted, self._start) if self._held else 0

    def piece(self, token: int) -> bytes:
        return self._vocabulary.piece(token)

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        prose = self._prose
        if prose is not None and prose.is_started and not (self._trace or self._held):
            # Nearly every read is text and nothing else: it takes a few calls however long it is.
            if len(ids) == 1 and prose.is_flowing and not self._pending:
                plain = self._lexicon.plain[ids[0]]
                if plain:
                    return self._flow(prose, plain)
            text = self._plain_text(ids)
            if text:
                end = self._position + len(ids)
                self._write_prose(prose, Unit(text, self._position, end))
                self._position = end
                return self._take()
        for token in ids:
            self._step(token)
            self._position += 1
        return self._take()

    def _flow(self, prose: Prose, text: str) -> list[SegmentEvent]:
        self._position += 1
        self._counted = self._position
        if prose.kind is _REASONING:
            self.reasoning_tokens += 1
        return [SegmentText(text)]

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        texts: list[str] = []
        prose = self._prose
        if prose is None or not prose.is_started or self._trace or self._held or self._broken_end:
            return texts
        for token in ids:
            if prose.is_flowing and not self._pending and (plain := self._lexicon.plain[token]):
                self._flow(prose, plain)
                texts.append(plain)
                continue
            text = self._plain_text((token,))
            if not text:
                break
            self._write_prose(prose, Unit(text, self._position, self._position + 1))
            self._position += 1
            texts.append("".join(one.text for one in self._take() if isinstance(one, SegmentText)))
        return texts

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        if self._state is not _State.OVER:
            self._close_turn(cut=reason is not FinishReason.STOP, end=self._position)
        is_whole = reason is not None and reason is not FinishReason.CUT
        if is_whole and not self._visible and not self._is_finished:
            self._note(Rule.NO_VISIBLE_OUTPUT)
        self._is_finished = True
        return self._take()

    def _take(self) -> list[SegmentEvent]:
        made: list[SegmentEvent] = []
        for event in self._events:
            last = made[-1] if made else None
            if (
                isinstance(event, SegmentText)
                and isinstance(last, SegmentText)
                and bool(last.tokens) is bool(event.tokens)
            ):
                made[-1] = SegmentText(last.text + event.text, last.tokens + event.tokens)
            else:
                made.append(event)
        self._events.clear()  # which its segments have, too
        return made

    def _has_ended(self) -> bool:
        return self._state is _State.OVER

    def _note(self, *rules: Rule) -> None:
        count_recoveries(self.recoveries, rules)

    # Ids.

    def _plain_text(self, ids: Sequence[int]) -> str | None:
        # None where the ids are more than plain text.
        if self._pending or not self._lexicon.markers.isdisjoint(ids):
            return None
        pieces = list(map(self._vocabulary.pieces.__getitem__, ids))
        if not all(pieces):
            return None
        try:
            text = b"".join(pieces).decode()
        except UnicodeDecodeError:
            return None
        return None if self._matcher.may_be_in(text) else text

    def _step(self, token: int) -> None:
        if self._state is _State.OVER:
            self._note(Rule.AFTER_TURN_END)
            return
        position, lexicon = self._position, self._lexicon
        if token in lexicon.markers:
            self._release()
            if token in lexicon.ends:
                self._close_turn(cut=False, end=position + 1)
            else:
                marker, is_text = lexicon.texts[token], bool(self._vocabulary.pieces[token])
                self._mark(marker, [Unit(marker, position, position + 1, is_text)])
        elif piece := self._vocabulary.pieces[token]:
            self._spell(piece)
        else:
            self._note(Rule.RESERVED_ID)

    def _spell(self, piece: bytes) -> None:
        # A character is passed on when its last byte arrives.
        start = self._pending_start if self._pending else self._position
        is_whole = not self._pending or start < self._position
        spelled, end = self._pending + piece, self._position + 1
        try:
            text, self._pending = spelled.decode(), b""
        except UnicodeDecodeError:
            text, size = utf_8_decode(spelled, "replace", False)  # noqa: FBT003
            self._pending, is_whole = spelled[size:], False
        self._pending_start = self._position if text else start
        if text:
            self._read(Unit(text, start, end, is_whole))

    def _release(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, b""
            text = pending.decode("utf-8", "replace")
            self._read(Unit(text, self._pending_start, self._position))
        units, self._held = self._held, []
        while units:
            units = self._write(units) or []

    # Text, and the markers that are spelled in it.

    def _read(self, unit: Unit) -> None:
        if not self._held and not self._matcher.may_be_in(unit.text):
            units = self._write_unit(unit) or []
        else:
            units, self._held = [*self._held, unit], []
        while units and not self._has_ended():
            matcher, text = self._matcher, "".join(one.text for one in units)
            match = matcher.find(text)
            size = len(text) - matcher.held(text) if match is None else match.start()
            front, behind = _split(units, size)
            left = self._write(front)
            if self._has_ended():
                return
            if left is not None:
                units = [*left, *behind]
            elif match is None:
                self._held = behind
                return
            else:
                marked, units = _split(behind, len(match.group()))
                self._mark(match.group(), marked)

    def _write(self, units: list[Unit]) -> list[Unit] | None:
        for at, unit in enumerate(units):
            left = self._write_unit(unit)
            if left is not None:
                return [*left, *units[at + 1 :]]
        return None

    def _write_unit(self, unit: Unit) -> list[Unit] | None:
        prose = self._prose
        if prose is None:
            return self._write_calls(unit)
        calls = self._syntax.calls
        if self._is_bare and calls is not None and (text := unit.text.lstrip()):
            self._is_bare = False
            if text[0] in calls.begins:
                front, behind = unit.cut(len(unit.text) - len(text))
                self._region, self._gap = [], [*prose.spaces, front]
                self._begin_calls("", self._start)
                return [behind]
        self._write_prose(prose, unit)
        return None

    def _write_prose(self, prose: Prose, unit: Unit) -> None:
        if prose.kind is SegmentKind.REASONING:
            self.reasoning_tokens += unit.end - max(unit.start, self._counted)
        self._counted = unit.end
        was_started, at = prose.is_started, len(self._events)
        prose.write(unit)
        if prose.is_started and not was_started:
            self._visible = self._visible or prose.kind is not SegmentKind.REASONING
            self._events[at:at] = self._broken_end
            self._broken, self._broken_end = None, []

    def _write_calls(self, unit: Unit) -> list[Unit] | None:
        if self._may_be_json and (text := unit.text.lstrip()):
            self._may_be_json = False
            if text[0] == "{":  # as all models that write such tags may do
                self._note(Rule.ODD_FRAME)
                self._reader = HERMES.reader(HERMES.openers[0], self._schema_of)
        reader = self._reader
        assert reader is not None, "in a region of calls"
        if self._region is not None:
            self._region.append(unit)
        for event in reader.text(unit.text):
            if isinstance(event, Left):
                return self._leave(self._region or [unit], event.rest)
            self._apply(event, unit.end, unit.end)
            if self._has_ended():
                break
        if self._aside is not None and reader.is_junk:
            self._note(Rule.NOT_A_CALL)
            self._resume(self._aside)
        return None

    def _leave(self, units: list[Unit], rest: str) -> list[Unit]:
        size = sum(len(one.text) for one in units)
        front, left = _split(units, size - len(rest))
        if self._aside is not None:
            self._region = front
            self._resume(self._aside)
        elif front or self._region is None:
            self._is_bare = self._may_call_bare
            self._begin_content(left[0].start)
        else:  # there was no call
            self._begin_content(self._start)
            left = [*self._gap, *left]
        return left

    # Markers.

    def _mark(self, marker: str, units: list[Unit]) -> None:
        # `units` are its letters, or its id.
        self._is_front = False
        if self._state is _State.CALLS:
            self._mark_in_calls(marker, units)
        else:
            self._mark_in_prose(marker, units)

    def _is_text(self, marker: str) -> bool:
        token = self._lexicon.ids.get(marker)
        return token is None or bool(self._vocabulary.pieces[token])

    def _mark_in_prose(self, marker: str, units: list[Unit]) -> None:
        prose, thought = self._prose, self._syntax.reasoning
        assert prose is not None, "outside of calls"
        start, end, thinks = units[0].start, units[-1].end, self._state is _State.REASONING
        is_shut = not self._start and not prose.is_started  # as prompts end that ask for no thought
        # A thought does not begin inside an answer: there its marker is text.
        is_late = prose.is_started and self._is_text(marker)
        closing = thought is not None and (thinks or is_shut) and marker == thought.closing
        opening = thought is not None and not (thinks or is_late) and marker == thought.opening
        if marker in self._openers:
            if prose.is_started or thinks:
                self._aside, self._region = prose, units if self._is_text(marker) else []
            self._begin_calls(marker, start)
        elif closing:
            prose.close(end, complete=True, at_marker=True)
            self._begin_content(end)
            self._is_bare = self._may_call_bare
        elif opening:
            prose.close(start, complete=True, at_marker=True)
            self._begin_reasoning(start)
        elif is_late and not self._is_stray(marker, prose):
            self._write(units)
        else:
            self._note(Rule.MARKER_IN_BODY)

    def _is_stray(self, marker: str, prose: Prose) -> bool:
        # Models write a tag of a thought on a line of its own; an answer that speaks of thoughts
        # may do so, too, but begins with the opening one.
        thought = self._syntax.reasoning
        if thought is None or marker not in {thought.opening, thought.closing}:
            return False
        if prose.kind is not _REASONING and marker == thought.opening:
            self._has_quoted = True
        return prose.is_at_line and not self._has_quoted

    def _mark_in_calls(self, marker: str, units: list[Unit]) -> None:
        calls, reader, aside = self._syntax.calls, self._reader, self._aside
        assert calls is not None, "in a region of calls"
        assert reader is not None, "in a region of calls"
        start, end = units[0].start, units[-1].end
        if self._is_text(marker) and reader.quotes(marker):
            self._write([Unit(marker, start, end)])
        elif marker in calls.markers:
            self._mark_call(reader, marker, units)
        elif aside is not None and self._is_closing(marker, aside):
            self._note(Rule.NOT_A_CALL)
            self._resume(aside)
            self._mark_in_prose(marker, units)
        else:
            self._note(Rule.MARKER_IN_BODY)

    def _is_closing(self, marker: str, prose: Prose) -> bool:
        thought = self._syntax.reasoning
        return prose.kind is _REASONING and thought is not None and marker == thought.closing

    def _mark_call(self, reader: CallReader, marker: str, units: list[Unit]) -> None:
        start, end = units[0].start, units[-1].end
        next_start = start if marker in self._openers else end
        text = units if self._is_text(marker) else []
        for event in reader.mark(marker):
            if isinstance(event, Left):
                if self._aside is None:
                    self._begin_content(end)
                else:
                    self._resume(self._aside, text)
                return
            if isinstance(event, PlainText) and self._aside is not None:
                self._note(*event.rules)
                self._write_aside(self._aside)
                self._start = next_start
            else:
                self._apply(event, start, next_start)
            if self._has_ended():
                return
        if self._region is not None:
            self._region += text

    # Prose that may go on: its marker of calls begins none.

    def _write_aside(self, aside: Prose, more: Sequence[Unit] = ()) -> None:
        units, self._region = [*(self._region or ()), *more], []
        for unit in units:
            self._write_prose(aside, unit)

    def _close_aside(self) -> None:
        # A call has begun, after all.
        aside, self._aside = self._aside, None
        if aside is not None:
            self._note(*((Rule.UNCLOSED_REASONING,) if aside.kind is _REASONING else ()))
            aside.close(self._start, complete=True, at_marker=True)

    def _resume(self, aside: Prose, more: Sequence[Unit] = ()) -> None:
        self._write_aside(aside, more)
        begin = self._begin_reasoning if aside.kind is _REASONING else self._begin_content
        begin(aside.start)
        self._prose, self._aside, self._region = aside, None, None

    def _begin_reasoning(self, start: int) -> None:
        thought = self._syntax.reasoning
        assert thought is not None, "it has a marker"
        self._state, self._start, self._is_bare = _State.REASONING, start, False
        self._prose = Prose(SegmentKind.REASONING, start, self._events, trace=self._trace)
        self._matcher = self._lexicon.matcher((thought.closing, thought.opening))

    def _begin_content(self, start: int) -> Prose:
        thought = self._syntax.reasoning
        self._state, self._start = _State.CONTENT, start
        self._reader, self._region, self._is_unnamed = None, None, False
        front, trace = self._is_front, self._trace
        self._prose = Prose(
            text_kind(self._rules), start, self._events, keeps_front=front, trace=trace
        )
        opening = (thought.opening,) if thought else ()
        self._matcher = self._lexicon.matcher((*self._openers, *opening))
        return self._prose

    def _begin_calls(self, opener: str, start: int) -> None:
        calls = self._syntax.calls
        assert calls is not None, "it has a marker"
        self._state, self._start = _State.CALLS, start
        self._prose, self._is_bare = None, False
        self._reader = calls.reader(opener, self._schema_of)
        self._may_be_json = opener in HERMES.openers and calls is not HERMES
        thought, thinks = self._syntax.reasoning, self._aside is not None
        closing = (thought.closing,) if thought is not None and thinks else ()
        self._matcher = self._lexicon.matcher((*calls.markers, *closing))

    # Calls.

    def _schema_of(self, function: str) -> Mapping[str, Any] | None:
        tool = self._rules.tools.get(called_tool(function, self._rules.tools)[0])
        return None if tool is None else tool.declared or tool.arguments

    def _apply(self, event: CallStep, start: int, end: int, *, cut: bool = False) -> None:
        self._is_unnamed = isinstance(event, Unnamed)
        match event:
            case Called(name):
                self._close_aside()
                tool, rules = called_tool(name, self._rules.tools)
                self._note(*rules)
                self._call = SegmentStarted(SegmentKind.FUNCTION_CALL, tool)
                self._events += (*self._broken_end, self._call)
                self._broken, self._broken_end = None, []
                self._visible, self._region, self._is_front = True, None, False
            case Argued(text):
                self._events.append(SegmentText(text))
            case Ended():
                self._end_call(event, start, end, cut=cut)
            case PlainText(text, rules):
                self._close_aside()
                self._note(*rules)
                prose = Prose(text_kind(self._rules), self._start, self._events, trace=self._trace)
                if text:
                    self._write_prose(prose, Unit(text, self._start, end))
                prose.close(end, complete=True, at_marker=True)
                self._start = end
            case Noted(rule):
                self._note(rule)
            case _:
                pass  # it only changes the place

    def _end_call(self, event: Ended, start: int, end: int, *, cut: bool) -> None:
        call, self._call, self._has_called = self._call, None, True
        assert call is not None, "it began"
        is_hosted = call.name in self._rules.hosted
        broken = event.broken and not cut and not is_hosted
        complete = not (event.broken and cut)
        broken_off = (Rule.INVALID_ARGUMENTS,) if event.broken and not cut else ()
        self._note(*dict.fromkeys((*event.rules, *broken_off)))
        verbatim = not (event.rules or event.broken)
        ended = SegmentEnded(self._start, end, complete, verbatim, broken)
        self._start = end
        if broken:
            self._broken, self._broken_end = BrokenCall(call.name, start), [ended]
        else:
            self._events.append(ended)
        if is_hosted and complete:
            self._ended_by = call.name
            self._state = _State.OVER

    # The end.

    def _close_turn(self, *, cut: bool, end: int) -> None:
        if self._held or self._pending:
            if cut and self._state is _State.CALLS:
                self._held, self._pending = [], b""
            self._release()
        if self._prose is not None:
            thinks = self._state is _State.REASONING
            self._note(*((Rule.UNCLOSED_REASONING,) if thinks and not cut else ()))
            self._prose.close(end, complete=not cut, at_marker=thinks)
        else:
            assert self._reader is not None, "in a region of calls"
            self._close_calls(self._reader, cut=cut, end=end)
        self._events += self._broken_end
        self._broken, self._broken_end = None, []
        self._state, self._prose = _State.OVER, None

    def _close_calls(self, reader: CallReader, *, cut: bool, end: int) -> None:
        for event in reader.close(cut=cut):
            if isinstance(event, Left):
                # Without a marker, text is an answer.
                region = [*self._gap, *(self._region or ())]
                prose = self._begin_content(self._start)
                self._write(region)
                prose.close(end, complete=not cut, at_marker=False)
            elif isinstance(event, PlainText) and self._aside is not None and not cut:
                self._note(*event.rules)
            else:
                self._apply(event, self._position, end, cut=cut)
        if self._aside is not None and not cut:
            self._write_aside(self._aside)
            self._start = end
        self._close_aside()


def _split(units: list[Unit], size: int) -> tuple[list[Unit], list[Unit]]:
    for at, unit in enumerate(units):
        if size < len(unit.text):
            if not size:
                return units[:at], units[at:]
            front, behind = unit.cut(size)
            return [*units[:at], front], [behind, *units[at + 1 :]]
        size -= len(unit.text)
    return units, []
