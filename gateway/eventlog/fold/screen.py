"""The screen between parser and builder: it shows of one turn what the request's rules allow.

* A *forbidden* segment is never shown: a call that may not be made, prose where a call is required,
  an answer that is neither in its format nor a refusal.
* A *checked* body streams, but does not end before the turn does, because it is checked first. The
  call of a shell or of the patcher and every checked body under a hold wait as a whole.
* Text after an answer in a format is dropped, and so is prose after the required call: joined with
  them it would be invalid.
* Prose in place of an answer in a format is reasoning if a call follows it, in a format that does
  not mark what is an answer.
* Whatever follows a call that the gateway answers is dropped, because the model wrote it without
  the result. So is such a call itself after one that the client answers, or after an answer in a
  format.
* Whatever follows something forbidden or waiting waits until the end of the turn. A turn that is
  broken off never shows it.
* A call for approval whose arguments are no JSON object is shown as one that the gateway answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from gateway.constraints.output_rules import WHOLE_KINDS
from gateway.eventlog.fold.call_inputs import CustomInput, PythonCode
from gateway.eventlog.fold.items import is_boundary
from gateway.eventlog.fold.lifecycle import GATEWAY_KINDS
from gateway.generation import CALL_KINDS, SegmentEnded, SegmentKind, SegmentStarted, SegmentText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.constraints.output_rules import AnswerFormat, OutputRules
    from gateway.generation import SegmentEvent


_PROSE: Final = frozenset({SegmentKind.COMMENTARY, SegmentKind.FINAL})
_CALLS: Final = CALL_KINDS | GATEWAY_KINDS
_UNWRAPPED: Final[Mapping[SegmentKind, Callable[[], CustomInput | PythonCode]]] = {
    SegmentKind.CUSTOM_CALL: CustomInput,
    SegmentKind.CODE_INTERPRETER_CALL: PythonCode,
}

Fault = Literal["call_not_allowed", "second_call", "prose_for_call", "not_json"]
BodyKind = Literal["answer", "refusal", "call"]


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """Violation of the rules by the open turn, which was not shown.

    `start` is the position of the message's first id, counted in prefill and output.
    """

    rule: Fault
    start: int


@dataclass(frozen=True, slots=True)
class Body:
    """Complete checked body of the open turn, whose end waits.

    `text` are the arguments of a call, for a custom tool the JSON of its input. `start` is as in
    `RuleViolation`. `seen`: some of it was shown.
    """

    kind: BodyKind
    name: str
    text: str
    start: int
    seen: bool


@dataclass(slots=True)
class _Open:
    kind: SegmentKind
    name: str
    form: int
    is_checked: bool
    beginning: Beginning | None = None
    unwrapped: CustomInput | PythonCode | None = None
    stops: Stops | None = None
    is_preamble: bool = False
    seen: bool = False
    checked: bytearray = field(default_factory=bytearray)
    """UTF-8."""
    held: list[SegmentText] = field(default_factory=list)
    """Until the kind of the answer is certain."""

    def body(self, start: int) -> Body:
        text = self.checked.decode()
        if self.kind is SegmentKind.CUSTOM_CALL:
            text = orjson.dumps({"input": text}).decode()
        kind: BodyKind = "call"
        if self.kind not in _CALLS:
            kind = "refusal" if self.kind is SegmentKind.REFUSAL else "answer"
        return Body(kind, self.name, text, start, self.seen)


class Screen:
    """Screen of one turn.

    `called`: an earlier turn has shown an unanswered call; `awaits_client`: one that the client
    answers. `marks_answers` is that of `Framing`. `spelled` returns the bytes of the id at a
    position. What is shown does not depend on how segments were cut into texts.
    """

    def __init__(
        self,
        rules: OutputRules,
        spelled: Callable[[int], bytes],
        *,
        called: bool,
        awaits_client: bool = False,
        marks_answers: bool = True,
    ) -> None:
        self.called = called
        self.stopped = False
        self.fault: Fault | None = None
        self.fault_start: int | None = None
        self.preamble_start: int | None = None
        """The turn must not end before a call follows the prose that begins there."""
        self.bodies: list[Body] = []
        self._awaits_client = awaits_client
        self._awaits_gateway = False
        self._rules = rules
        self._spelled = spelled
        self._is_held = False
        self._waits = False
        self._withheld: list[SegmentEvent] = []
        self._shown: list[SegmentEvent] = []
        self._open: _Open | None = None
        self._is_answered = False
        self._may_announce = not marks_answers and rules.calls == "auto" and bool(rules.allowed)
        self._preamble: list[SegmentEvent] = []

    def feed(self, segments: Iterable[SegmentEvent]) -> list[SegmentEvent]:
        for segment in segments:
            if isinstance(segment, SegmentText):
                self._screen_text(segment)
            elif isinstance(segment, SegmentStarted):
                self._start(segment)
            else:
                self._end(segment)
        shown, self._shown = self._shown, []
        return shown

    def hold(self) -> None:
        self._is_held = True
        if self._open is not None and self._open.is_checked:
            self._waits = True

    def release(self) -> list[SegmentEvent]:
        withheld, self._withheld = self._withheld, []
        self._waits = False
        return withheld

    def _start(self, segment: SegmentStarted) -> None:
        if self.stopped or self._awaits_gateway:
            return
        kind, name = self._kind(segment), segment.name
        is_over = self._awaits_client or self._is_answered
        if (kind in _PROSE and self._is_done()) or (kind in GATEWAY_KINDS and is_over):
            return
        fault = self._fault(kind, name)
        if fault is not None:
            self._note_violation(fault)
            return
        if self.preamble_start is not None:
            if kind not in _CALLS:
                self._note_violation("not_json", self.preamble_start)
                return
            (self._withheld if self._waits else self._shown).extend(self._preamble)
            self._preamble, self.preamble_start = [], None
        self.called = self.called or kind in _CALLS
        self._awaits_client = self._awaits_client or kind in CALL_KINDS
        self._open = _Open(kind, name, segment.form, self._is_checked(kind, name))
        if kind in _UNWRAPPED:
            self._open.unwrapped = _UNWRAPPED[kind]()
        if kind is SegmentKind.FINAL and self._rules.stop:
            self._open.stops = Stops(self._rules.stop, self._spelled)
        if self._open.is_checked and (self._is_held or kind in WHOLE_KINDS):
            self._waits = True
        if kind is SegmentKind.FINAL and self._rules.answer is not None:
            self._open.beginning = Beginning(self._rules.answer)
        else:
            self._show(self._open, SegmentStarted(kind, name, segment.form))

    def _is_done(self) -> bool:
        return self._is_answered or (self._rules.calls == "required" and self.called)

    def _kind(self, segment: SegmentStarted) -> SegmentKind:
        tool = self._rules.tools.get(segment.name)
        is_declared = tool is not None and segment.kind is SegmentKind.FUNCTION_CALL
        return tool.kind if tool is not None and is_declared else segment.kind

    def _fault(self, kind: SegmentKind, name: str) -> Fault | None:
        rules = self._rules
        if kind is SegmentKind.FINAL:
            is_owed = rules.calls == "required" and not self.called
            return "prose_for_call" if is_owed else None
        if kind not in _CALLS:
            return None
        is_allowed = name in rules.allowed if name in rules.tools else rules.open_calls
        if rules.calls == "none" or not is_allowed:
            return "call_not_allowed"
        return "second_call" if rules.one_call and self._awaits_client else None

    def _is_checked(self, kind: SegmentKind, name: str) -> bool:
        if kind is SegmentKind.FINAL:
            return self._rules.answer is not None
        tool = self._rules.tools.get(name) if kind in _CALLS else None
        return tool is not None and tool.is_checked

    def _note_violation(self, fault: Fault, start: int | None = None) -> None:
        self._waits = True
        if self.fault is None:
            self.fault, self.fault_start = fault, start

    def _screen_text(self, text: SegmentText) -> None:
        if self._open is None:
            return
        if self._open.beginning is not None:
            self._judge(self._open, self._open.beginning, text)
        else:
            self._write(self._open, text)

    def _judge(self, segment: _Open, beginning: Beginning, text: SegmentText) -> None:
        segment.held.append(text)
        verdict = beginning.read(text.text)
        if verdict is Verdict.UNKNOWN:
            return
        segment.beginning = None
        if verdict is not Verdict.PROSE:
            self._is_answered = True
        elif self._may_announce:
            segment.kind, segment.is_checked = SegmentKind.REASONING, False
            segment.is_preamble = True
        else:
            self._open = None
            self._note_violation("not_json")
            return
        if verdict is Verdict.REFUSAL:
            segment.kind = SegmentKind.REFUSAL
        self._show(segment, SegmentStarted(segment.kind, form=segment.form))
        for held in segment.held:
            self._write(segment, held)

    def _write(self, segment: _Open, text: SegmentText) -> None:
        if segment.unwrapped is not None:
            self._show_text(segment, segment.unwrapped.feed(text.text))
        elif segment.stops is not None:
            for part in segment.stops.feed(text):
                self._show_text(segment, part.text, part.tokens)
            self.stopped = self.stopped or segment.stops.is_reached
        else:
            self._show_text(segment, text.text, text.tokens)

    def _end(self, segment: SegmentEnded) -> None:
        open_segment, self._open = self._open, None
        if open_segment is None:
            if self.fault is not None and self.fault_start is None:
                self.fault_start = segment.start
            return
        if open_segment.beginning is not None:
            if segment.complete:
                self._note_violation("not_json", segment.start)
            return
        self._flush(open_segment, is_complete=segment.complete)
        if open_segment.is_preamble:
            self.preamble_start = segment.start
        if open_segment.is_checked and not self.stopped:
            self._waits = True
            if segment.complete:
                self.bodies.append(open_segment.body(segment.start))
                self._refuse_unreadable(open_segment)
        self._awaits_gateway = open_segment.kind in GATEWAY_KINDS and segment.complete
        # Its ids go on behind the stop string: the next prompt says what was shown.
        self._show(open_segment, replace(segment, verbatim=False) if self.stopped else segment)

    def _refuse_unreadable(self, segment: _Open) -> None:
        # Users cannot approve arguments that are no object. The request is still withheld here.
        is_approval = segment.kind is SegmentKind.MCP_APPROVAL_REQUEST
        if not is_approval or is_object(segment.checked.decode()):
            return
        withheld = self._withheld
        starts = (at for at, one in enumerate(withheld) if isinstance(one, SegmentStarted))
        *_, last = starts
        started = withheld[last]
        assert isinstance(started, SegmentStarted), "it was found as one"
        withheld[last] = replace(started, kind=SegmentKind.MCP_CALL)

    def _flush(self, segment: _Open, *, is_complete: bool) -> None:
        if segment.unwrapped is not None:
            self._show_text(segment, segment.unwrapped.finish(is_complete=is_complete))
        if segment.stops is not None:
            for part in segment.stops.finish():
                self._show_text(segment, part.text, part.tokens)

    def _show_text(self, segment: _Open, text: str, tokens: tuple[int, ...] = ()) -> None:
        if not text:
            return
        if segment.is_checked:
            segment.checked += text.encode()
        self._show(segment, SegmentText(text, tokens))

    def _show(self, segment: _Open, event: SegmentEvent) -> None:
        if segment.is_preamble:
            self._preamble.append(event)
        elif self._waits:
            self._withheld.append(event)
        else:
            segment.seen = True
            self._shown.append(event)


def is_object(arguments: str) -> bool:
    try:
        return not arguments.strip() or isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


REFUSALS: Final = (
    *("I'm sorry", "I am sorry", "Sorry,"),
    *("I can't", "I cannot", "I can not", "I won't", "I will not"),
    *("I'm unable", "I am unable", "I'm not able", "I am not able"),
)
"""How gpt-oss begins a refusal. None of them can begin JSON."""

_FIRST_BY_TYPE: Final = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}
_CURLY_APOSTROPHE: Final = "\u2019"


class Verdict(Enum):
    UNKNOWN = auto()  # more of it must come
    JSON = auto()
    REFUSAL = auto()
    PROSE = auto()


class Beginning:
    def __init__(self, answer: AnswerFormat) -> None:
        self._first = _first_characters(answer)
        self._words = ""

    def read(self, text: str) -> Verdict:
        self._words = (self._words + text).lstrip()
        words = self._words.replace(_CURLY_APOSTROPHE, "'")
        if not words:
            return Verdict.UNKNOWN
        if words[0] in self._first:
            return Verdict.JSON
        if words.startswith(REFUSALS):
            return Verdict.REFUSAL
        may_refuse = any(refusal.startswith(words) for refusal in REFUSALS)
        return Verdict.UNKNOWN if may_refuse else Verdict.PROSE


def _first_characters(answer: AnswerFormat) -> frozenset[str]:
    types: Any = "object" if answer.kind == "json_object" else answer.schema.get("type")
    named = types if isinstance(types, list) else [types]
    firsts = [_FIRST_BY_TYPE.get(name) for name in named]
    if None in firsts:
        firsts = list(_FIRST_BY_TYPE.values())
    return frozenset("".join(filter(None, firsts)))


class Stops:
    """Reader of one text up to a stop string.

    The first stop string to be complete counts; of two that end in the same place the longer one.
    Text with ids is cut between ids, except at the stop string: there the last id may spell more.
    """

    def __init__(self, stops: Sequence[str], spelled: Callable[[int], bytes]) -> None:
        self.is_reached = False
        self._stops = stops
        self._fronts = _fronts(stops)
        self._spelled = spelled
        self._text = ""
        self._tokens: tuple[int, ...] = ()
        self._is_traced = True

    def feed(self, text: SegmentText) -> list[SegmentText]:
        if self.is_reached:
            return []
        self._text += text.text
        self._tokens += text.tokens
        # Once there is text without ids nobody can tell which ids are whose.
        self._is_traced = self._is_traced and bool(text.tokens)
        begin = self._begin_of_stop()
        if begin is not None:
            self.is_reached = True
            return self._show(begin, is_last=True)
        return self._show(len(self._text) - self._length_of_front(), is_last=False)

    def finish(self) -> list[SegmentText]:
        return [] if self.is_reached else self._show(len(self._text), is_last=True)

    def _begin_of_stop(self) -> int | None:
        matches = ((self._text.find(stop), len(stop)) for stop in self._stops)
        ends = [(begin + length, begin) for begin, length in matches if begin >= 0]
        return min(ends)[1] if ends else None

    def _length_of_front(self) -> int:
        if not self._text.endswith(self._fronts):
            return 0
        return next(len(front) for front in self._fronts if self._text.endswith(front))

    def _show(self, length: int, *, is_last: bool) -> list[SegmentText]:
        tokens: tuple[int, ...] = ()
        if self._is_traced:
            count, length = self._count_tokens(length, is_last=is_last)
            tokens, self._tokens = self._tokens[:count], self._tokens[count:]
        text, self._text = self._text[:length], self._text[length:]
        return [SegmentText(text, tokens)] if text else []

    def _count_tokens(self, length: int, *, is_last: bool) -> tuple[int, int]:
        content = self._text.encode()
        wanted = len(self._text[:length].encode())
        count = spelled = whole_count = whole = 0
        while spelled < wanted:
            spelled += len(self._spelled(self._tokens[count]))
            count += 1
            if spelled <= wanted and is_boundary(content, spelled):
                whole_count, whole = count, spelled
        if is_last:
            return count, length
        return whole_count, len(content[:whole].decode())


def _fronts(stops: Sequence[str]) -> tuple[str, ...]:
    fronts = {stop[:length] for stop in stops for length in range(1, len(stop))}
    return tuple(sorted(fronts, key=len, reverse=True))
