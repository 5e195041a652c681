"""From message bodies to segment events: order, holding back, and what a segment finally is.

Segments come one after the other, each started, filled and ended. A body whose kind is known flows
at once. The kind of a body without a known channel depends on what comes after it: reasoning if
another message does, the answer if it was the last. Such a body waits, and at most one waits at a
time, since the next one already is the other message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.generation import SegmentEnded, SegmentKind, SegmentStarted, SegmentText
from gateway.harmony.arguments import Arguments
from gateway.harmony.recovery import Rule, count, doubts
from gateway.harmony.vocabulary import CALL, END, RETURN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.generation import SegmentEvent

_REASONING: Final = SegmentKind.REASONING
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
    guessed what it is.
    """

    start: int
    kind: SegmentKind | None
    name: str = ""
    form: int = 0
    verbatim: bool = True
    faint: bool = False
    tool_role: str = ""
    glue: str = ""
    """Goes before the first text."""
    held: list[str] = field(default_factory=list)
    text_ids: int = 0
    started: bool = False
    arguments: Arguments | None = None
    doubts: tuple[str, ...] = ()

    @property
    def flows(self) -> bool:
        """Its segment has begun, and text goes into it as it is read."""
        return self.started and not self.glue


@dataclass(frozen=True, slots=True)
class Closing:
    """How a message ended: before position `end`, by a stop id or (None) without one.

    `cut`: there are no more ids, and the model did not mean to stop.
    """

    end: int
    terminator: int | None = None
    cut: bool = False


class SegmentWriter:
    """Collects the events of one turn. `recoveries` is shared with the parser."""

    def __init__(self, recoveries: dict[str, int]) -> None:
        self.visible = False
        self.reasoning_tokens = 0
        self._recoveries = recoveries
        self._events: list[SegmentEvent] = []
        self._texts: list[SegmentText] = []
        self._waiting: tuple[Draft, Closing] | None = None

    @property
    def waiting_ids(self) -> int:
        """Ids of the text that is reasoning or the answer, as what comes after it will tell."""
        return 0 if self._waiting is None else self._waiting[0].text_ids

    def take(self) -> list[SegmentEvent]:
        """The events since the last call; at most one text for each stay in a segment."""
        if self._texts:
            self._join_texts()
        events, self._events = self._events, []
        return events

    def touch(self, draft: Draft, rules: Iterable[Rule]) -> None:
        """Count rules that had a part in this message."""
        rules = tuple(rules)
        draft.verbatim = draft.verbatim and not rules
        draft.doubts += tuple(rule.value for rule in doubts(rules))
        count(self._recoveries, rules)

    def begin(self, draft: Draft) -> None:
        """A call is announced before its first argument, unless its header had to be guessed;
        anything else when it has text.
        """
        if draft.kind is SegmentKind.FUNCTION_CALL:
            draft.arguments = Arguments()
            if not draft.doubts:
                self._start(draft)

    def write(
        self, draft: Draft, text: str, text_ids: int = 0, tokens: tuple[int, ...] = ()
    ) -> None:
        """More body: readable text, and how many ids were read for it (0: they are counted).

        `tokens` are the positions of the ids that spell it, if they are known.
        """
        if text and draft.glue:
            text, draft.glue, tokens = draft.glue + text, "", ()
        draft.text_ids += text_ids
        if draft.kind is None:
            draft.held.append(text)
            return
        if draft.kind is SegmentKind.REASONING:
            self.reasoning_tokens += text_ids
        if draft.arguments is not None:
            text, tokens = draft.arguments.feed(text), ()
        self._emit(draft, text, tokens)

    def flow(self, draft: Draft, text: str, text_ids: int) -> list[SegmentEvent]:
        """`write` and `take`, for a read that brought nothing but text."""
        if not draft.flows:
            self.write(draft, text, text_ids)
            return self.take()
        draft.text_ids += text_ids
        if draft.kind is _REASONING:
            self.reasoning_tokens += text_ids
        if draft.arguments is not None:
            text = draft.arguments.feed(text)
        return [SegmentText(text)] if text else []

    def flow_each(self, draft: Draft, texts: list[str]) -> list[str]:
        """`flow` for ids that were read one by one, into a draft that flows; the text of each."""
        draft.text_ids += len(texts)
        if draft.kind is _REASONING:
            self.reasoning_tokens += len(texts)
        return texts if draft.arguments is None else list(map(draft.arguments.feed, texts))

    def decide(self, draft: Draft, kind: SegmentKind, name: str = "") -> None:
        """A waiting draft learns what it is; what it held flows."""
        draft.kind, draft.name = kind, name
        held, text_ids = "".join(draft.held), draft.text_ids
        draft.held, draft.text_ids = [], 0
        self.begin(draft)
        self.write(draft, held, text_ids)

    def close(self, draft: Draft, closing: Closing) -> None:
        """The message is over."""
        if draft.kind is None:
            if any(draft.held):
                self._settle(SegmentKind.REASONING)
                self._waiting = draft, closing
            return
        complete = not closing.cut
        if draft.arguments is not None:
            conclusion = draft.arguments.finish()
            if not closing.cut:
                self._emit(draft, conclusion.text)
                self.touch(draft, conclusion.rules)
            elif Rule.EMPTY_ARGUMENTS not in conclusion.rules:
                # None at all may have been about to come.
                self._emit(draft, conclusion.text)
                complete = conclusion.is_json
        if not draft.started:
            return
        trained = closing.terminator in _TERMINATORS[draft.kind]
        if closing.terminator is not None and not trained:
            self.touch(draft, (Rule.WRONG_TERMINATOR,))
        self._join_texts()
        verbatim = draft.verbatim and trained
        self._events.append(SegmentEnded(draft.start, closing.end, complete, verbatim))

    def conclude(self, *, is_cut: bool = False) -> None:
        """Nothing more comes: what waited is the answer, unless the turn was cut to go on."""
        self._settle(SegmentKind.REASONING if is_cut else SegmentKind.FINAL)

    def _settle(self, kind: SegmentKind) -> None:
        if self._waiting is None:
            return
        (draft, closing), self._waiting = self._waiting, None
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
        self._settle(SegmentKind.REASONING)
        draft.started = True
        kind = draft.kind or SegmentKind.REASONING
        self.visible = self.visible or kind is not SegmentKind.REASONING
        self._events.append(SegmentStarted(kind, draft.name, draft.form))

    def _join_texts(self) -> None:
        texts, self._texts = self._texts, []
        if len(texts) < 2:
            self._events += texts
            return
        is_traced = all(text.tokens for text in texts)
        tokens = tuple(at for text in texts for at in text.tokens) if is_traced else ()
        self._events.append(SegmentText("".join(text.text for text in texts), tokens))
