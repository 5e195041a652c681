"""Harmony output to segments, one turn at a time.

A turn is a sequence of messages. The prompt ends with `<|start|>assistant`, so the first id of the
output is inside of a header. As trained, it goes on like this:

    HEADER --<|message|>--> BODY --<|end|>, <|return|> or <|call|>--> BETWEEN --<|start|>--> HEADER

In a few per cent of its turns the model forgets `<|message|>`, so that the body is trapped in the
header; begins a message inside of another, or without `<|start|>`; speaks between messages, or for
somebody else. Hence `Parser.STEPS` has an entry for every state and every class of id, and three
laws:

1. It is total. No sequence of ids raises.
2. It never looks ahead. The events depend on the ids, not on how they were cut into calls.
3. No id of 199998 or above ever becomes text.

An action overrules the state of its entry in three cases only: the turn ends with a message that is
not the assistant's, or with a hosted call, whose result must come next (OVER); a header with too
many ids is a body (BODY).

The body of a known channel or recipient streams. A trapped body waits for the end of its header,
text between messages for the next special id, and the body of a message whose role is a tool's name
for the `<|call|>` that makes it a call. A body without a known channel is reasoning if another
message follows, else the answer. A body that is a call if `<|call|>` closes it is held while it
looks like JSON. The end of a call that breaks off is held until the next segment begins: until then
the call can be generated again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from typing import TYPE_CHECKING, ClassVar, Final

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
from gateway.models.format import count_recoveries
from gateway.models.harmony.call_arguments import Arguments, is_object
from gateway.models.harmony.message_headers import (
    ASSISTANT,
    NO_MARKER,
    Part,
    adopt_spoken,
    is_code,
    is_spoken_header,
    read_header,
    route,
    tool_of_role,
    whole_header,
    with_callee,
)
from gateway.models.harmony.recovery import Rule, doubts, unreadable
from gateway.models.harmony.tokenizer import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    END_OF_TEXT,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    START,
    Detokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.generation import SegmentEvent
    from gateway.models.harmony.message_headers import Header, MessageRoute
    from gateway.models.harmony.tokenizer import Vocabulary

    _Step = tuple[Callable[["Parser", Sequence[int]], None], Where]

_REASONING: Final = SegmentKind.REASONING
_UNSETTLED: Final = frozenset({SegmentKind.REASONING, SegmentKind.COMMENTARY})
"""After these alone the client has neither a call nor an answer."""
_TERMINATORS: Final = {
    SegmentKind.REASONING: frozenset({END}),
    SegmentKind.COMMENTARY: frozenset({END}),
    SegmentKind.FINAL: frozenset({END, RETURN}),
    SegmentKind.FUNCTION_CALL: frozenset({CALL}),
}
"""Terminators as trained."""


@dataclass(slots=True)
class Draft:
    """Body of a message on its way to becoming a segment. Without a kind it waits.

    `start` is the position of its message's first id. A `faint` draft (no letter in it) becomes the
    answer only when there is no other, and otherwise nothing. `doubts` make it unreadable. `lead`
    are words of the header of reasoning. `callee` is the function that it calls if it is JSON
    (`braced`: it seems so) and `<|call|>` closes it. `is_preamble`: its header says so, even where
    preambles are reasoning.
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
    """End of a message, before position `end`. `cut`: there are no more ids, and the model did not
    mean to stop.
    """

    end: int
    terminator: int | None = None
    cut: bool = False


class SegmentWriter:
    """Collector of the events of one turn."""

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
        """Reasoning or the answer, depending on what follows."""
        self._waiting_closed = Closing(0)
        self.broken: BrokenCall | None = None
        """The call that broke off, whose end was not reported yet."""
        self._broken_end: list[SegmentEvent] = []

    def take(self) -> list[SegmentEvent]:
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
        rules = tuple(rules)
        draft.verbatim = draft.verbatim and not rules
        draft.doubts += tuple(rule.value for rule in unreadable(rules))
        count_recoveries(self._recoveries, rules)

    def begin(self, draft: Draft) -> None:
        """Announce a call before its first argument, unless its header had to be guessed.

        Anything else is announced when it has text.
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
        """Write more body that `text_ids` ids (0: counted already) at `tokens` spell."""
        if draft.callee and not draft.braced and (front := text.lstrip()):
            # A body that begins with a brace is read as a call; any other is what its header says.
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
        """Do `write_text` for ids that were read one by one, while text flows."""
        draft.text_ids += len(texts)
        if draft.kind is _REASONING:
            self.reasoning_tokens += len(texts)
        return texts if draft.arguments is None else list(map(draft.arguments.feed, texts))

    def decide(self, draft: Draft, kind: SegmentKind, name: str = "") -> None:
        """Set the kind of a waiting draft, and let its held text flow."""
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
                # A hosted tool reports errors of its arguments to the model itself.
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


class TokenClass(IntEnum):
    TEXT = auto()  # a run of ordinary ids
    START = auto()
    CHANNEL = auto()
    CONSTRAIN = auto()
    MESSAGE = auto()
    STOP = auto()  # <|end|>, <|return|>, <|call|>: ends a message
    END_OF_TEXT = auto()  # ends a message and the turn
    VOID = auto()  # reserved, or outside of the vocabulary


CLASSES: Final = {
    START: TokenClass.START,
    CHANNEL: TokenClass.CHANNEL,
    CONSTRAIN: TokenClass.CONSTRAIN,
    MESSAGE: TokenClass.MESSAGE,
    END: TokenClass.STOP,
    RETURN: TokenClass.STOP,
    CALL: TokenClass.STOP,
    END_OF_TEXT: TokenClass.END_OF_TEXT,
}
_CODE_TYPE: Final = re.compile(r"\A\s*code\s+")
"""In front of code that is trapped in its header."""
HEADER_IDS_MAX: Final = 256
"""A tool's name of 128 characters, a content type, and some repetition."""
_BODY: Final = Where.BODY
"""Looked up for every token."""
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class _Opening:
    """Header while it grows: its parts, each a marker and the ids of the text behind it.

    `spoken` is a first part that was read as text between two messages. `size` counts ids.
    """

    start: int
    parts: list[tuple[int, list[int]]]
    spoken: Part | None = None
    size: int = 0
    verbatim: bool = True


@dataclass(slots=True)
class _Orphan:
    """Text between two messages. `after_call`: `<|call|>` closed the first of these."""

    start: int
    after_call: bool
    ids: list[int] = field(default_factory=list)


class Parser:
    """Parser of the ids of one turn (`gateway.generation.TokenParser`).

    `tools` may be called (None: calls are not allowed), and no message is guessed to be a call of
    those that are `hosted`. A header of more than `header_ids_max` ids is taken for a body. With
    `trace`, text comes with the positions of its ids, up to the last id that ends with a character.
    Without `preambles` text on the way to an answer is reasoning.

    `reasoning_tokens` counts the text ids in bodies; of a trapped body, the ids that spell it.
    """

    __slots__ = (
        "_detokenizer", "_draft", "_ended_by", "_finished", "_guessed", "_header_ids_max",
        "_hosted", "_opening", "_orphan", "_position", "_preambles", "_state", "_tools", "_trace",
        "_vocabulary", "_writer", "recoveries",
    )  # fmt: skip

    def __init__(
        self,
        vocabulary: Vocabulary,
        tools: frozenset[str] | None,
        *,
        header_ids_max: int = HEADER_IDS_MAX,
        trace: bool = False,
        preambles: bool = True,
        hosted: frozenset[str] = _NONE,
    ) -> None:
        self.recoveries: dict[str, int] = {}
        self._vocabulary = vocabulary
        self._trace = trace
        self._tools = tools
        self._hosted = hosted
        self._guessed = tools - hosted if tools and hosted else tools
        self._ended_by = ""  # the hosted tool that was called
        self._preambles = preambles
        self._header_ids_max = header_ids_max
        self._detokenizer = Detokenizer(vocabulary)
        self._writer = SegmentWriter(self.recoveries)
        self._state = Where.HEADER
        self._position = 0
        self._opening = _Opening(start=0, parts=[(NO_MARKER, [])])
        self._draft = Draft(start=0, kind=None)
        self._orphan = _Orphan(start=0, after_call=False)
        self._finished = False

    @property
    def reasoning_tokens(self) -> int:
        return self._writer.reasoning_tokens

    @property
    def place(self) -> ParserPosition:
        where, writer = self._state, self._writer
        waiting, answered = writer.waiting.text_ids if writer.waiting else 0, writer.answered
        if where is Where.BODY:
            draft = self._draft
            if draft.callee and draft.kind is SegmentKind.REASONING:
                waiting += draft.text_ids
            return ParserPosition(
                where, draft.start, draft.kind, draft.name, draft.doubts, waiting, answered
            )
        if self._ended_by:
            kind = SegmentKind.FUNCTION_CALL
            return ParserPosition(where, self._position, kind, self._ended_by, answered=answered)
        start = self._opening.start
        if where is not Where.HEADER:  # text between two messages so far begins the next one
            is_spoken = where is Where.BETWEEN and self._orphan.ids
            start = self._orphan.start if is_spoken else self._position
        return ParserPosition(
            where, start, waiting=waiting, answered=answered, broken=writer.broken
        )

    def piece(self, token: int) -> bytes:
        return self._vocabulary.piece(token)

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        if self._state is _BODY and not self._trace:
            # Nearly every read is text and nothing else: it takes a few calls however long it is.
            text = self._detokenizer.read(ids)
            if text is not None:
                self._position += len(ids)
                return self._writer.write_text(self._draft, text, len(ids))
        begin = 0  # of a run of text: one step for it, and one for each special id
        for at, token in enumerate(ids):
            if 0 <= token < FIRST_SPECIAL:
                continue
            if begin < at:
                self._step(TokenClass.TEXT, ids[begin:at])
            self._step(CLASSES.get(token, TokenClass.VOID), ids[at : at + 1])
            begin = at + 1
        if begin < len(ids):
            self._step(TokenClass.TEXT, ids[begin:] if begin else ids)
        return self._writer.take()

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        draft = self._draft
        is_flowing = self._state is _BODY and draft.started and not draft.glue
        if not is_flowing or self._trace:
            return []
        texts = self._detokenizer.read_each(ids)
        self._position += len(texts)
        return self._writer.write_each(draft, texts)

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        if self._finished:
            return []
        self._finished = True
        closing = Closing(self._position, cut=reason is not FinishReason.STOP)
        if self._state is Where.HEADER:
            self._release(self._opening, closing)
        elif self._state is Where.BODY:
            self._close_body(closing)
        elif self._state is Where.BETWEEN and self._orphan.ids:
            self._settle_orphan(closing)
        self._state = Where.OVER
        is_cut = reason is FinishReason.CUT
        self._writer.conclude(is_cut=is_cut)
        writer = self._writer
        if reason is not None and not is_cut and not writer.visible:
            count_recoveries(self.recoveries, (Rule.NO_VISIBLE_OUTPUT,))
        is_announcement = writer.announced and not writer.settled
        if reason is FinishReason.STOP and self._tools and is_announcement:
            count_recoveries(self.recoveries, (Rule.PREAMBLE_ONLY,))
        return self._writer.take()

    def _step(self, token: TokenClass, run: Sequence[int]) -> None:
        # `run` is one special id, or text ids one after the other.
        end = self._position + len(run)
        act, self._state = self.STEPS[self._state][token]
        act(self, run)
        self._position = end
        if self._state is Where.OVER:
            self._writer.conclude()

    # Headers.

    def _extend_header(self, run: Sequence[int]) -> None:
        opening = self._opening
        room = self._header_ids_max - opening.size
        opening.parts[-1][1].extend(run[:room])
        opening.size += min(room, len(run))
        if len(run) > room:
            self._position += room
            self._overflow_header(TokenClass.TEXT, run[room:])

    def _mark_header(self, run: Sequence[int]) -> None:
        opening = self._opening
        if opening.size == self._header_ids_max:
            self._overflow_header(CLASSES[run[0]], run)
            return
        opening.parts.append((run[0], []))
        opening.size += 1

    def _overflow_header(self, token: TokenClass, run: Sequence[int]) -> None:
        # No header is that long: it is a trapped body.
        opening = self._opening
        *whole, (marker, ids) = opening.parts
        parts = (
            *self._read_parts(whole, opening.spoken),
            Part(marker, self._detokenizer.feed(ids)),
        )
        header = read_header(parts, trapped=True)
        if header.role == ASSISTANT:
            self._state = Where.BODY
            self._draft = self._draft_trapped(header, opening, None)
            self._writer.touch(self._draft, (Rule.HEADER_TOO_LONG,))
        else:
            self._end_turn()
        self._step(token, run)

    def _restart_header(self, _run: Sequence[int]) -> None:
        opening = self._opening
        if opening.size:
            self._abandon(Closing(self._position))
            self._opening = _Opening(start=self._position, parts=[(START, [])])
        else:
            count_recoveries(self.recoveries, (Rule.DOUBLED_START,))
            self._opening = _Opening(start=opening.start, parts=[(START, [])], verbatim=False)

    def _trap(self, run: Sequence[int]) -> None:
        self._abandon(Closing(self._position + 1, run[0]))
        self._orphan = _Orphan(self._position + 1, after_call=run[0] == CALL)

    def _abandon(self, closing: Closing) -> None:
        if not self._release(self._opening, closing):
            count_recoveries(self.recoveries, (Rule.ABANDONED_HEADER,))

    def _release(self, opening: _Opening, closing: Closing) -> bool:
        header = read_header(self._read_parts(opening.parts, opening.spoken), trapped=True)
        if header.role != ASSISTANT:
            self._end_turn()
            return True
        if closing.terminator == CALL and not self._writer.answered:
            header = with_callee(header, self._tools, self._guessed)
        called = (
            closing.terminator == CALL and self._route(header).kind is SegmentKind.FUNCTION_CALL
        )
        if not called and (not header.prose or (closing.cut and header.is_fragment)):
            if not closing.cut:
                count_recoveries(self.recoveries, header.rules)
            return False
        draft = self._draft_trapped(header, opening, closing.terminator)
        self._end_message(draft, closing)
        return True

    def _draft_trapped(self, header: Header, opening: _Opening, terminator: int | None) -> Draft:
        target = self._route(header)
        kind, name = target.kind, target.name
        arguments = terminator == CALL or header.prose.startswith("{")
        if kind is SegmentKind.FUNCTION_CALL and not arguments:
            kind, name = SegmentKind.REASONING, ""
        draft = Draft(opening.start, kind, name, is_hosted=name in self._hosted)
        self._note_rules(draft, (*header.rules_of(target), Rule.NO_MESSAGE_TOKEN))
        self._writer.begin(draft)
        body = header.prose
        if is_code(name):
            body = _CODE_TYPE.sub("", body)
        self._writer.write(draft, body, self._count_ids(opening, body))
        return draft

    def _count_ids(self, opening: _Opening, prose: str) -> int:
        missing, counted = len(prose.encode()), 0
        for token in (token for _, ids in reversed(opening.parts) for token in reversed(ids)):
            if missing <= 0:
                break
            missing -= len(self._vocabulary.piece(token))
            counted += 1
        return counted

    def _route(self, header: Header) -> MessageRoute:
        target = route(header, self._tools)
        return replace(target, kind=self._allowed_kind(target.kind))

    def _allowed_kind(self, kind: SegmentKind | None) -> SegmentKind | None:
        is_preamble = kind is SegmentKind.COMMENTARY and not self._preambles
        return SegmentKind.REASONING if is_preamble else kind

    def _read_parts(
        self, parts: Sequence[tuple[int, list[int]]], spoken: Part | None = None
    ) -> tuple[Part, ...]:
        texts = [Part(marker, self._vocabulary.decode(ids)) for marker, ids in parts]
        return tuple(texts) if spoken is None else (spoken, *texts)

    # Bodies.

    def _begin_body(self, _run: Sequence[int]) -> None:
        opening = self._opening
        parts = self._read_parts(opening.parts, opening.spoken)
        header = whole_header(parts, self._tools, self._guessed)
        if header.role == ASSISTANT:
            kind = self._allowed_kind(header.kind)
            draft = Draft(opening.start, kind, header.name, lead=header.lead)
            draft.is_hosted = header.name in self._hosted
            draft.is_preamble = header.kind is SegmentKind.COMMENTARY
            draft.verbatim = opening.verbatim and header.form is not None
            is_noted = kind is not SegmentKind.REASONING and not draft.is_hosted
            draft.form = header.form or 0 if is_noted else 0
            if header.rules:
                self._note_rules(draft, header.rules)
            if not self._writer.answered:
                draft.callee = header.callee
            if not draft.waits:
                self._writer.begin(draft)
            self._draft = draft
        elif Rule.ADDRESSED_TO_ASSISTANT not in header.rules and (
            name := tool_of_role(header.role, self._guessed)
        ):
            self._draft = Draft(opening.start, None, tool_role=name)
        else:
            self._end_turn()

    def _note_rules(self, draft: Draft, rules: Sequence[Rule]) -> None:
        # Behind an answer nothing is guessed any more.
        if self._writer.answered and doubts(rules):
            draft.kind, draft.name, draft.dropped = None, "", True
            rules = (*rules, Rule.AFTER_ANSWER)
        self._writer.touch(draft, rules)

    def _write(self, run: Sequence[int]) -> None:
        if self._trace:
            text, tokens = self._detokenizer.trace(run, self._position)
            self._writer.write(self._draft, text, len(run), tokens)
        else:
            self._writer.write(self._draft, self._detokenizer.feed(run), len(run))

    def _drop_marker(self, _run: Sequence[int]) -> None:
        self._writer.touch(self._draft, (Rule.MARKER_IN_BODY,))

    def _close(self, run: Sequence[int]) -> None:
        self._close_body(Closing(self._position + 1, run[0]))
        self._orphan = _Orphan(self._position + 1, after_call=run[0] == CALL)

    def _close_and_open(self, run: Sequence[int]) -> None:
        self._writer.touch(self._draft, (Rule.UNCLOSED_MESSAGE,))
        self._close_body(Closing(self._position))
        if self._state is Where.OVER:
            return
        self._opening = _Opening(start=self._position, parts=[(run[0], [])])
        if run[0] != START:
            self._opening.size = 1
            self._mark_missing_start()

    def _close_body(self, closing: Closing) -> None:
        draft = self._draft
        if rest := self._detokenizer.flush():
            self._writer.write(draft, rest)
        if draft.tool_role:
            if closing.terminator != CALL:
                self._end_turn()
                return
            self._writer.touch(draft, (Rule.ROLE_IS_TOOL_NAME,))
            self._writer.decide(draft, SegmentKind.FUNCTION_CALL, draft.tool_role)
        self._end_message(draft, closing)

    def _end_message(self, draft: Draft, closing: Closing) -> None:
        # A call that the gateway runs itself ends the turn, however it was closed.
        self._writer.close(draft, closing)
        if draft.is_hosted and draft.started and not closing.cut:
            self._ended_by = draft.name
            self._state = Where.OVER

    # Between messages.

    def _hold(self, run: Sequence[int]) -> None:
        if not self._orphan.ids:
            self._orphan.start = self._position
        self._orphan.ids.extend(run)

    def _settle(self, run: Sequence[int]) -> None:
        self._settle_orphan(Closing(self._position + 1, run[0]))

    def _open(self, _run: Sequence[int]) -> None:
        if self._orphan.ids:
            self._settle_orphan(Closing(self._position))
        self._opening = _Opening(start=self._position, parts=[(START, [])])

    def _imply_header(self, run: Sequence[int]) -> None:
        self._imply(run[0])
        self._opening.parts.append((run[0], []))
        self._opening.size = 1

    def _imply_body(self, run: Sequence[int]) -> None:
        self._imply(run[0])
        if self._state is not Where.OVER:
            self._begin_body(run)

    def _imply(self, following: int) -> None:
        orphan = self._orphan
        text = self._vocabulary.decode(orphan.ids)
        spoken = adopt_spoken(text, following) if len(orphan.ids) <= self._header_ids_max else None
        if spoken is None:
            self._settle_orphan(Closing(self._position))
            self._opening = _Opening(start=self._position, parts=[])
            self._mark_missing_start()
            return
        part, rule = spoken
        start = orphan.start if orphan.ids else self._position
        self._opening = _Opening(start=start, parts=[], spoken=part, verbatim=False)
        heard = (Rule.ORPHAN_TEXT,) if rule is Rule.MISSING_START and text.strip() else ()
        count_recoveries(self.recoveries, (rule, *heard))

    def _mark_missing_start(self) -> None:
        self._opening.verbatim = False
        count_recoveries(self.recoveries, (Rule.MISSING_START,))

    def _settle_orphan(self, closing: Closing) -> None:
        orphan = self._orphan
        self._orphan = _Orphan(closing.end, orphan.after_call)
        text = self._vocabulary.decode(orphan.ids)
        if not text.strip():
            return
        if orphan.after_call:
            count_recoveries(self.recoveries, (Rule.TEXT_AFTER_CALL,))
            return
        count_recoveries(self.recoveries, (Rule.ORPHAN_TEXT,))
        if is_spoken_header(text):
            self._release(_Opening(orphan.start, parts=[(START, orphan.ids)]), closing)
        elif self._writer.answered:
            count_recoveries(self.recoveries, (Rule.AFTER_ANSWER,))
        elif any(map(str.isalnum, text)):
            faint = not any(map(str.isalpha, text))
            draft = Draft(orphan.start, None, verbatim=False, faint=faint)
            self._writer.write(draft, text, len(orphan.ids))
            self._writer.close(draft, closing)

    # Anywhere.

    def _drop_void(self, _run: Sequence[int]) -> None:
        # The id must not come back in a prompt either.
        self._opening.verbatim = False
        self._draft.verbatim = False
        count_recoveries(self.recoveries, (Rule.RESERVED_ID,))

    def _end_turn(self) -> None:
        # The model speaks for somebody else; everything from here on is made up.
        count_recoveries(self.recoveries, (Rule.FOREIGN_ROLE,))
        self._state = Where.OVER

    def _ignore(self, run: Sequence[int]) -> None:
        count_recoveries(self.recoveries, (Rule.AFTER_TURN_END,), len(run))

    STEPS: ClassVar[Mapping[Where, Mapping[TokenClass, _Step]]] = {
        Where.HEADER: {
            TokenClass.TEXT: (_extend_header, Where.HEADER),
            TokenClass.START: (_restart_header, Where.HEADER),
            TokenClass.CHANNEL: (_mark_header, Where.HEADER),
            TokenClass.CONSTRAIN: (_mark_header, Where.HEADER),
            TokenClass.MESSAGE: (_begin_body, Where.BODY),
            TokenClass.STOP: (_trap, Where.BETWEEN),
            TokenClass.END_OF_TEXT: (_trap, Where.OVER),
            TokenClass.VOID: (_drop_void, Where.HEADER),
        },
        Where.BODY: {
            TokenClass.TEXT: (_write, Where.BODY),
            TokenClass.START: (_close_and_open, Where.HEADER),
            TokenClass.CHANNEL: (_close_and_open, Where.HEADER),
            TokenClass.CONSTRAIN: (_drop_marker, Where.BODY),
            TokenClass.MESSAGE: (_drop_marker, Where.BODY),
            TokenClass.STOP: (_close, Where.BETWEEN),
            TokenClass.END_OF_TEXT: (_close, Where.OVER),
            TokenClass.VOID: (_drop_void, Where.BODY),
        },
        Where.BETWEEN: {
            TokenClass.TEXT: (_hold, Where.BETWEEN),
            TokenClass.START: (_open, Where.HEADER),
            TokenClass.CHANNEL: (_imply_header, Where.HEADER),
            TokenClass.CONSTRAIN: (_imply_header, Where.HEADER),
            TokenClass.MESSAGE: (_imply_body, Where.BODY),
            TokenClass.STOP: (_settle, Where.BETWEEN),
            TokenClass.END_OF_TEXT: (_settle, Where.OVER),
            TokenClass.VOID: (_drop_void, Where.BETWEEN),
        },
        Where.OVER: dict.fromkeys(TokenClass, (_ignore, Where.OVER)),
    }
