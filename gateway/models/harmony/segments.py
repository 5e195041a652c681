"""Turn message bodies into segment events: their order, what is held back, and final kinds.

Segments come one after the other, each started, filled and ended. A body whose kind is known flows
at once. The kind of a body without a known channel depends on what comes after it: reasoning if
another message does, the answer if it was the last. Such a body waits, and at most one waits at a
time, since the next one already is the other message.

The body of a call is JSON, which is read as such (`arguments`), but for that of Python: code is
passed on letter for letter.

A body that is a call if `<|call|>` closes it is held while it looks like JSON. The end of a call
that breaks off is told with what comes behind it: until then it can be said again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.generation import BrokenCall, SegmentEnded, SegmentKind, SegmentStarted, SegmentText
from gateway.models.harmony.arguments import Arguments, is_object
from gateway.models.harmony.builtins import is_code
from gateway.models.harmony.recovery import Rule, count, unreadable
from gateway.models.harmony.vocabulary import CALL, END, RETURN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.generation import SegmentEvent


_REASONING: Final = SegmentKind.REASONING
_UNSETTLED: Final = frozenset({SegmentKind.REASONING, SegmentKind.COMMENTARY})
"""After these alone the client has neither a call nor an answer."""
_TERMINATORS: Final = {
    SegmentKind.REASONING: frozenset({END}),
    SegmentKind.COMMENTARY: frozenset({END}),
    SegmentKind.FINAL: frozenset({END, RETURN}),
    SegmentKind.FUNCTION_CALL: frozenset({CALL}),
}
"""What closes a message of each kind as it was trained to be closed."""


@dataclass(slots=True)
class Draft:
    """One message's body on its way to becoming a segment. No kind: it waits for the turn's end.

    `start` is the position of its message's first id. A `faint` draft (no letter in it) becomes
    the answer only when there is no other, and otherwise nothing. `tool_role` is the tool's name
    that the message has as its role. `form` is that of its header. `doubts` are the rules that
    make it unreadable. `lead` are words of its header, the first of it if it is reasoning. `callee`
    is the function that it calls if it is JSON (`braced`: so it seems) and `<|call|>` closes it. A
    `dropped` one says nothing. `is_hosted`: it calls what the gateway runs itself. `is_preamble`:
    its header says so, also where preambles are reasoning.
    """

    start: int
    kind: SegmentKind | None
    name: str = ""
    form: int = 0
    verbatim: bool = True
    faint: bool = False
    tool_role: str = ""
    lead: str = ""
    callee: str = ""
    braced: bool = False
    dropped: bool = False
    is_hosted: bool = False
    is_preamble: bool = False
    glue: str = ""
    """Goes before the first text."""
    held: list[str] = field(default_factory=list)
    text_ids: int = 0
    started: bool = False
    arguments: Arguments | None = None
    doubts: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        return self.kind is None or bool(self.callee)


@dataclass(frozen=True, slots=True)
class Closing:
    """End of a message: before position `end`, by a stop id or (None) without one.

    `cut`: there are no more ids, and the model did not mean to stop.
    """

    end: int
    terminator: int | None = None
    cut: bool = False


class SegmentWriter:
    """Collector of the events of one turn. `recoveries` is shared with the parser."""

    __slots__ = (
        "_broken_end", "_events", "_recoveries", "_texts", "_waiting_closed", "announced",
        "answered", "broken", "reasoning_tokens", "settled", "visible", "waiting",
    )  # fmt: skip

    def __init__(self, recoveries: dict[str, int]) -> None:
        self.visible = False
        self.announced = False
        """A preamble has begun, shown as one or as reasoning."""
        self.settled = False
        """A call or an answer has begun."""
        self.answered = False
        """An answer was closed."""
        self.reasoning_tokens = 0
        self._recoveries = recoveries
        self._events: list[SegmentEvent] = []
        self._texts: list[SegmentText] = []
        self.waiting: Draft | None = None
        """Its text is reasoning or the answer, as what comes after it will tell."""
        self._waiting_closed = Closing(0)
        self.broken: BrokenCall | None = None
        """The call that broke off: its end was not told yet."""
        self._broken_end: list[SegmentEvent] = []

    def take(self) -> list[SegmentEvent]:
        """Return the events since the last call; at most one text for each stay in a segment."""
        events, texts = self._events, self._texts
        self._events, self._texts = [], []
        if len(texts) > 1:
            is_traced = all(text.tokens for text in texts)
            tokens = tuple(at for text in texts for at in text.tokens) if is_traced else ()
            events.append(SegmentText("".join(text.text for text in texts), tokens))
        else:
            events += texts
        return events

    def touch(self, draft: Draft, rules: Iterable[Rule]) -> None:
        """Count rules that had a part in this message."""
        rules = tuple(rules)
        draft.verbatim = draft.verbatim and not rules
        draft.doubts += tuple(rule.value for rule in unreadable(rules))
        count(self._recoveries, rules)

    def begin(self, draft: Draft) -> None:
        """Announce a call before its first argument; anything else when it has text.

        A call whose header had to be guessed is not announced yet.
        """
        if draft.kind is SegmentKind.FUNCTION_CALL:
            draft.arguments = None if is_code(draft.name) else Arguments()
            if not draft.doubts:
                self._start(draft)
        elif draft.kind is _REASONING and draft.lead:
            self.write(draft, draft.lead)
            draft.glue = " "

    def write(
        self, draft: Draft, text: str, text_ids: int = 0, tokens: tuple[int, ...] = ()
    ) -> None:
        """Write more body: readable text, and how many ids were read for it (0: they are counted).

        `tokens` are the positions of the ids that spell it, if they are known.
        """
        if draft.callee and not draft.braced and (front := text.lstrip()):
            # What may be a call begins like one, or is what its header says.
            draft.braced = front.startswith("{")
            if not draft.braced:
                self._follow_header(draft)
        if text and draft.glue:
            text, draft.glue, tokens = draft.glue + text, "", ()
        draft.text_ids += text_ids
        if draft.waits:
            if not draft.dropped:
                draft.held.append(text)
            return
        if draft.kind is SegmentKind.REASONING:
            self.reasoning_tokens += text_ids
        if draft.arguments is not None:
            text, tokens = draft.arguments.feed(text), ()
        self._emit(draft, text, tokens)

    def write_text(self, draft: Draft, text: str, text_ids: int) -> list[SegmentEvent]:
        """Do `write` and `take`, for a read that brought nothing but text."""
        if not draft.started or draft.glue:
            self.write(draft, text, text_ids)
            return self.take()
        draft.text_ids += text_ids
        if draft.kind is _REASONING:
            self.reasoning_tokens += text_ids
        if draft.arguments is not None:
            text = draft.arguments.feed(text)
        return [SegmentText(text)] if text else []

    def write_each(self, draft: Draft, texts: list[str]) -> list[str]:
        """Do `write_text` for ids that were read one by one, while text flows; return each text."""
        draft.text_ids += len(texts)
        if draft.kind is _REASONING:
            self.reasoning_tokens += len(texts)
        return texts if draft.arguments is None else list(map(draft.arguments.feed, texts))

    def decide(self, draft: Draft, kind: SegmentKind, name: str = "") -> None:
        """Set what a waiting draft is, and let its held text flow."""
        draft.kind, draft.name, draft.callee = kind, name, ""
        held, text_ids = "".join(draft.held), draft.text_ids
        draft.held, draft.text_ids = [], 0
        self.begin(draft)
        self.write(draft, held, text_ids)

    def close(self, draft: Draft, closing: Closing) -> None:
        """Write the end of a segment, or keep it waiting if its kind depends on what follows."""
        if draft.callee:
            self._decide_call(draft, closing)
        if draft.kind is None:
            if any(draft.held):
                self._settle(SegmentKind.REASONING)
                self.waiting, self._waiting_closed = draft, closing
            return
        complete, broken = not closing.cut, False
        if draft.arguments is not None:
            conclusion = draft.arguments.finish()
            if not closing.cut:
                self._emit(draft, conclusion.text)
                self.touch(draft, conclusion.rules)
                # Of one that the gateway runs the tool tells the model what is wrong.
                broken = conclusion.is_broken and not draft.is_hosted
            elif Rule.EMPTY_ARGUMENTS not in conclusion.rules:
                # None at all may have been about to come.
                self._emit(draft, conclusion.text)
                complete = conclusion.is_json
        if not draft.started:
            return
        trained = closing.terminator in _TERMINATORS[draft.kind]
        if closing.terminator is not None and not trained:
            self.touch(draft, (Rule.WRONG_TERMINATOR,))
        self._events = self.take()
        verbatim = draft.verbatim and trained
        self.answered = self.answered or draft.kind is SegmentKind.FINAL
        ended = SegmentEnded(draft.start, closing.end, complete, verbatim, broken)
        if broken:
            end = closing.end - (closing.terminator is not None)
            self.broken, self._broken_end = BrokenCall(draft.name, end), [ended]
        else:
            self._events.append(ended)

    def conclude(self, *, is_cut: bool = False) -> None:
        """End the turn: a waiting draft is the answer, unless the turn was cut to go on."""
        self._settle(SegmentKind.REASONING if is_cut else SegmentKind.FINAL)
        self._events += self._broken_end
        self.broken, self._broken_end = None, []

    def _decide_call(self, draft: Draft, closing: Closing) -> None:
        if closing.terminator == CALL and is_object("".join(draft.held)):
            self.touch(draft, (Rule.CALL_BY_TERMINATOR,))
            self.decide(draft, SegmentKind.FUNCTION_CALL, draft.callee)
        else:
            self._follow_header(draft)

    def _follow_header(self, draft: Draft) -> None:
        draft.callee = ""
        if draft.kind is not None:
            self.decide(draft, draft.kind)

    def _settle(self, kind: SegmentKind) -> None:
        if (draft := self.waiting) is None:
            return
        closing, self.waiting = self._waiting_closed, None
        if draft.faint and (kind is SegmentKind.REASONING or self.visible):
            return
        self.decide(draft, kind)
        self.close(draft, closing)

    def _emit(self, draft: Draft, text: str, tokens: tuple[int, ...] = ()) -> None:
        if text:
            if not draft.started:
                self._start(draft)
            self._texts.append(SegmentText(text, tokens))

    def _start(self, draft: Draft) -> None:
        self._events += self._broken_end
        self.broken, self._broken_end = None, []
        self._settle(SegmentKind.REASONING)
        draft.started = True
        kind = draft.kind or SegmentKind.REASONING
        self.visible = self.visible or kind is not SegmentKind.REASONING
        self.announced = self.announced or draft.is_preamble or kind is SegmentKind.COMMENTARY
        self.settled = self.settled or kind not in _UNSETTLED
        self._events.append(SegmentStarted(kind, draft.name, draft.form))
