"""The fold: (request, log) to events, items, usage and the Response object. The only way to them.

It depends on no clock, chance or setting, and how ids were cut into entries shows only in how text
is cut into deltas. So a live stream, a replay on another replica and the body of a `GET` are the
same function.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import orjson

from gateway.entries import (
    Alive,
    Compacted,
    Finished,
    Hold,
    Hop,
    Mark,
    Queued,
    Repair,
    Singles,
    Text,
    Tokens,
    ToolEnded,
    ToolHandle,
    ToolsListed,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.eventlog.fold.event_builder import ANSWERS, Builder
from gateway.eventlog.fold.execution import NOTED, Timeline
from gateway.eventlog.fold.hosted_calls import NO_CALLS, HostedCalls, UnansweredCall, UnapprovedCall
from gateway.eventlog.fold.screen import Body, RuleViolation, Screen
from gateway.eventlog.fold.turn_reader import Turn, TurnReader
from gateway.generation import (
    AnsweredCall,
    FinishReason,
    Framing,
    ParserPosition,
    RenderedItem,
    SegmentKind,
    TokenUsage,
    Where,
)
from gateway.protocol.responses.response_object import Outcome
from gateway.sealing import Unsealed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.entries import Entry, Portion
    from gateway.eventlog.fold.event_builder import CompleteCall
    from gateway.generation import SegmentEnded, TokenParser
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.responses.response_object import HarmonyMessages, ResponseHead
    from gateway.protocol.stream_events import Event


_NO_SUMMARY: Final = Compacted((), "")
UNRESOLVED_CITATION: Final = "citation_unresolved"
_ANSWERED: Final = (FinishReason.STOP, FinishReason.CUT)
"""Finish reasons after which another turn may follow."""

__all__ = ["Body", "Fold", "Framing", "RuleViolation", "Turn", "UnansweredCall", "UnapprovedCall"]


class TurnFormat(Protocol):
    """Format of a model, as far as turns are read by it and their items are stored in it."""

    @property
    def name(self) -> str: ...

    @property
    def framing(self) -> Framing: ...

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> TokenParser: ...

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,
    ) -> list[dict[str, Any]]: ...

    def render_item(self, item: ContextItem) -> Sequence[int]: ...

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]: ...


class Fold:
    """Fold of the log of one response, entry by entry.

    The first entry also brings the events that open the stream; after `Queued` the next one but
    `Alive` says that it is in progress. An entry that is invalid at its position raises
    `ValueError` and changes nothing.
    """

    __slots__ = (
        "_answered", "_approved", "_call_ids", "_final_usage", "_framing", "_ids",
        "_is_screened", "_is_stopped", "_is_traced", "_listed", "_messages", "_new_parser",
        "_reader", "_recoveries", "_seal", "_usage", "approved_result", "compacted", "format",
        "hops", "hosted", "is_repaired", "open_turn", "rules", "shown", "takeovers", "timeline",
        "turns",
    )  # fmt: skip

    def __init__(
        self,
        head: ResponseHead,
        format_: TurnFormat,
        rules: OutputRules,
        seal: Callable[[bytes], str | None] | None = None,
    ) -> None:
        self.hosted = HostedCalls(rules, head.grants) if head.grants else NO_CALLS
        self.rules = self.hosted.rules if head.grants else rules
        """Rules after the last result."""
        self.shown = Builder(
            head, rules, self._seal_item if seal else None, self.hosted.pages, self.hosted.files
        )
        self._approved = head.grants.approved if head.grants else None
        self._call_ids: tuple[int, ...] | None = ()
        self._answered: dict[int, AnsweredCall] = {}
        self._listed: set[str] = set()
        self._seal = seal
        self._messages = head.messages
        self.format = format_
        self._framing = format_.framing
        self._new_parser = partial(format_.new_parser, rules)
        # Also where fewer tools are allowed later: those that are not are still known.
        self._is_screened = rules.is_screened
        self._reader: TurnReader | None = None
        self._is_traced = False
        self._is_stopped = False
        self._usage = TokenUsage()
        self._final_usage: TokenUsage | None = None
        self._recoveries: Counter[str] = Counter()
        self._ids: dict[int, tuple[int, ...] | None] = {}
        self.turns: list[Turn] = []
        self.open_turn: Turn | None = None
        self.hops = 0
        self.takeovers = 0
        """Times that another replica continued after a turn had begun."""
        self.approved_result: tuple[int, ...] = ()
        """Result ids of the call that the user approved; they follow the prompt."""
        self.is_repaired = False
        self.timeline = Timeline()
        self.compacted: Compacted | None = None

    @property
    def place(self) -> ParserPosition:
        return self._reader.parser.place if self._reader else ParserPosition(Where.OVER, 0)

    @property
    def violation(self) -> RuleViolation | None:
        return self._reader.violation if self._reader else None

    @property
    def bodies(self) -> tuple[Body, ...]:
        screen = self._screen
        return tuple(screen.bodies) if screen else ()

    def bodies_after(self, finish: FinishReason) -> tuple[Body, ...]:
        """Return the bodies to check if the open turn ended with this reason.

        Reads the turn again, unless it lacks nothing but its end.
        """
        place = self.place
        is_between = place.where is Where.BETWEEN and not place.waiting and place.broken is None
        if self._reader is None or is_between:
            return self.bodies
        return tuple(self._reader.bodies_after(finish))

    @property
    def called(self) -> bool:
        """Return True if there is an unanswered call that may be shown."""
        screen = self._screen
        return self.shown.is_called or (screen is not None and screen.called)

    @property
    def seen(self) -> int:
        # Ids, prefill included, that shown output depends on. Reads the turn again, which is slow.
        return self._reader.seen if self._reader else 0

    def is_seen_behind(self, position: int) -> bool:
        return self._reader is not None and self._reader.is_seen_behind(position)

    def is_text(self, token: int) -> bool:
        # Markers that can be text of a body are.
        return self._reader is not None and bool(self._reader.piece(token))

    @property
    def stopped(self) -> bool:
        screen = self._screen
        return self._is_stopped or (screen is not None and screen.stopped)

    @property
    def is_held(self) -> bool:
        return self._reader is not None and self._reader.is_held

    @property
    def listed(self) -> int:
        # MCP servers whose tools were listed.
        return len(self._listed)

    @property
    def approval_request(self) -> UnapprovedCall | None:
        return self.shown.pending_approval if self._reader is None else None

    @property
    def last_finish(self) -> FinishReason | None:
        for turn in reversed(self.turns):
            if turn.finish is not None:
                return turn.finish
        return None

    @property
    def output_tokens(self) -> int:
        turn, counted = self.open_turn, self._usage.output_tokens
        return counted if turn is None else counted + turn.tokens(len(turn.output_ids))

    @property
    def has_generated(self) -> bool:
        # True even if all output was taken back.
        return bool(self.output_tokens or self._usage.voided_tokens or self.compacted is not None)

    @property
    def reasoning_tokens(self) -> int:
        reader = self._reader
        return self._usage.reasoning_tokens + (reader.reasoning_tokens if reader else 0)

    @property
    def has_thought(self) -> bool:
        return self._reader is not None and self._reader.reasoning_tokens > 0

    @property
    def usage(self) -> TokenUsage:
        """Return the token counts so far, including those of a compaction.

        Output is every id of the log, or the server's count for text turns. A turn's cached tokens
        are at most its counted input, so turns that the gateway continued cannot make them exceed
        the input.
        """
        if self._final_usage is not None:
            return self._final_usage
        counted, summary = self._usage, self.compacted or _NO_SUMMARY
        # Not `replace`, which takes three times as long; it is read several times a response.
        return TokenUsage(
            input_tokens=counted.input_tokens + summary.input_tokens,
            cached_tokens=counted.cached_tokens + summary.cached_tokens,
            output_tokens=self.output_tokens + summary.output_tokens,
            reasoning_tokens=self.reasoning_tokens + summary.reasoning_tokens,
            recomputed_tokens=counted.recomputed_tokens,
            voided_tokens=counted.voided_tokens,
            analysis_tokens=counted.analysis_tokens,
            commentary_tokens=counted.commentary_tokens,
            final_tokens=counted.final_tokens,
            arguments_tokens=counted.arguments_tokens,
            tool_output_tokens=self.hosted.result_ids,
            tool_calls=self.hosted.results,
            web_searches=self.hosted.searches,
            estimated=counted.estimated,
        )

    @property
    def recoveries(self) -> Mapping[str, int]:
        unresolved = self.shown.unresolved
        fired = self._reader.parser.recoveries if self._reader else None
        if not (unresolved or fired):
            return self._recoveries
        # `+` leaves out what there is none of.
        return self._recoveries + Counter({UNRESOLVED_CITATION: unresolved}) + Counter(fired)

    def apply(self, entry: Entry) -> list[Event]:
        if type(entry) is Tokens:  # nearly every entry is
            reader = self._reader or self._open_reader()
            shown = reader.feed(entry)
            return self.shown.feed(shown, reader if reader.is_traced else None)
        if self.shown.is_finished:
            raise ValueError("the log goes on after its end")
        # Nothing but the timeline has a mark, wherever it stands.
        events = [] if type(entry) is Mark else self._HANDLERS[type(entry)](self, entry)
        if type(entry) in NOTED:
            self.timeline.note(entry, self.output_tokens + self._usage.voided_tokens)
        return events

    def replay(self, portion: Portion, after: int = -1) -> Sequence[Event]:
        """Apply one more portion of a stored log and return its events.

        Events up to number `after` may be missing. If it raises, entries before the faulty one stay
        applied.
        """
        if not isinstance(portion, Singles):
            return self.apply(portion)
        ids = portion.ids
        count, deltas = self._feed_each(ids, after)
        if count == len(ids):
            return deltas
        events = list(deltas)
        while ids := ids[count:]:
            events += self.apply(Tokens(ids[:1]))
            count, deltas = self._feed_each(ids[1:], after)
            events += deltas
            count += 1
        return events

    def items(self) -> list[RenderedItem]:
        """Return the finished items, with the ids that repeat them in the next prompt.

        Ids are None before the end of the turn, and for a message that a recovery rule changed or
        that was cut off; the result of a hosted call is then kept beside its item.
        """
        includable = self.shown.includable
        if not self._framing.stores_ids:
            return [
                RenderedItem(item, includable=includable.get(index))
                for index, item in enumerate(self.shown.output)
            ]
        return [
            RenderedItem(
                item, self._ids.get(index), self._answered.get(index), includable.get(index)
            )
            for index, item in enumerate(self.shown.output)
        ]

    def new_parser(self) -> TokenParser:
        return self._new_parser(trace=self._is_traced)

    def response(self) -> dict[str, Any]:
        # At the end, the one of the terminal event.
        return self.shown.response()

    def _open_stream(self) -> list[Event]:
        return self.shown.start() if self.shown.is_waiting else []

    def _queue(self, _entry: Queued) -> list[Event]:
        return self.shown.queue()

    def _alive(self, _entry: Alive) -> list[Event]:
        return self.shown.alive() if self.shown.is_started else self.shown.start()

    def _compact(self, entry: Compacted) -> list[Event]:
        if self._is_begun or len(self.shown.output):
            raise ValueError("a compaction that is not the first that happened")
        self.compacted = entry
        self._ids[0] = entry.ids
        return self._open_stream() + self.shown.compact(entry.seal)

    @property
    def _screen(self) -> Screen | None:
        return self._reader.screen if self._reader else None

    def _feed_each(self, ids: tuple[int, ...], after: int) -> tuple[int, Sequence[Event]]:
        reader = self._reader
        if reader is None or self.shown.flowing is None:
            return 0, ()
        texts = reader.feed_each(ids)
        shown = texts if all(texts) else [text for text in texts if text]
        return len(texts), self.shown.feed_each(shown, after) if shown else ()

    def _begin_turn(self, entry: TurnStarted) -> list[Event]:
        if self._reader is not None:
            raise ValueError("a turn started inside of another")
        if self.hosted.call is not None or self.shown.pending_approval is not None:
            raise ValueError("a turn started behind a call without its result")
        turn = Turn(entry.input_tokens, entry.prefill, is_text=self._framing.is_text)
        new_screen = self._new_screen() if self._is_screened else None
        self._reader = TurnReader(turn, self._new_parser, new_screen, is_traced=self._is_traced)
        self.turns.append(turn)
        self.open_turn = turn
        self._usage.input_tokens += entry.input_tokens
        return self._open_stream()

    def _new_screen(self) -> Callable[[Callable[[int], bytes]], Screen]:
        return partial(
            Screen,
            self.rules,
            called=self.called,
            awaits_client=self.shown.awaits_client,
            marks_answers=self._framing.marks_answers,
        )

    @property
    def _is_begun(self) -> bool:
        return bool(self.turns or self.hosted.attempts or self.hosted.results)

    def _list_tools(self, entry: ToolsListed) -> list[Event]:
        if self._is_begun or entry.label in self._listed:
            raise ValueError("tools were listed too late, or twice")
        tools, error = orjson.loads(entry.tools), orjson.loads(entry.error or b"null")
        self._listed.add(entry.label)
        self._ids[len(self.shown.output)] = ()
        return self._open_stream() + self.shown.list_tools(entry.label, tools, error)

    def _start_tool(self, entry: ToolStarted) -> list[Event]:
        call, shown = self.hosted.start(entry)
        approval = self._approval
        return self._open_stream() + self.shown.run_call(call, shown, approval=approval)

    def _hold_tool(self, entry: ToolHandle) -> list[Event]:
        self.hosted.hold(entry)
        return self._open_stream()

    def _end_tool(self, entry: ToolEnded) -> list[Event]:
        call, shown = self.hosted.end(entry)
        self.rules = self.hosted.rules
        approval = self._approval
        if self.turns:
            self.turns[-1].result = entry.ids
        else:
            self.approved_result = entry.ids
        events = self._open_stream()
        events += self.shown.end_call(call, entry.outcome, shown, approval=approval)
        call_ids = self._call_ids
        self._ids[len(self.shown.output) - 1] = (
            None if call_ids is None else (*call_ids, *entry.ids)
        )
        if call_ids is None:
            answered = AnsweredCall(call.name, call.arguments, entry.ids)
            self._answered[len(self.shown.output) - 1] = answered
        return events

    @property
    def _approval(self) -> str | None:
        return self._approved.request_id if self._approved and not self.turns else None

    def _hold(self, _entry: Hold) -> list[Event]:
        self._open_reader().hold()
        return self._open_stream()

    def _repair(self, entry: Repair) -> list[Event]:
        if entry.voided:
            reader = self._open_reader()
            voided = tuple(reader.turn.output_ids[-entry.voided :])
            reader.take_back(entry.voided)
            if self._messages is not None:
                reader.turn.taken_back.append((entry.rule, voided))
            self._usage.voided_tokens += reader.turn.tokens(entry.voided)
        self.is_repaired = True
        self._recoveries[entry.rule] += 1
        return self._open_stream()

    def _take_text(self, entry: Text) -> list[Event]:
        reader = self._open_reader()
        reader.turn.is_text = True
        return self.shown.feed(reader.feed(entry), reader if reader.is_traced else None)

    def _end_turn(self, entry: TurnEnded) -> list[Event]:
        reader = self._open_reader()
        turn, usage = reader.turn, self._usage
        turn.finish = entry.finish
        if entry.finish is FinishReason.LOST:
            # Another turn says it all again: nobody pays for both.
            usage.input_tokens -= turn.input_tokens
            usage.voided_tokens += turn.tokens(len(turn.output_ids))
            counts = usage.output_tokens, usage.reasoning_tokens
            events = self._close_turn(reader, None)
            usage.output_tokens, usage.reasoning_tokens = counts
            return events + self.shown.break_off()
        usage.cached_tokens += min(entry.cached_tokens, turn.input_tokens)
        output, reasoning = usage.output_tokens, usage.reasoning_tokens
        events = self._close_turn(reader, entry.finish)
        if (reported := entry.usage) is not None:
            if turn.input_tokens:
                usage.input_tokens += reported.input_tokens - turn.input_tokens
                usage.cached_tokens += min(reported.cached_tokens, reported.input_tokens)
            usage.output_tokens = output + reported.output_tokens
            usage.reasoning_tokens = reasoning + min(
                reported.reasoning_tokens, reported.output_tokens
            )
        else:
            usage.estimated |= turn.is_text
        return events

    def _hop(self, entry: Hop) -> list[Event]:
        turn = self._open_reader().turn if entry.reason == "backend" else self.open_turn
        if turn is not None:
            turn.hops += 1
            turn.hopped_at = len(turn.prefill) + len(turn.output_ids)
        if entry.reason == "backend":
            self.hops += 1
        else:
            self.takeovers += 1
        self._usage.recomputed_tokens += entry.recomputed_tokens
        return self._open_stream()

    def _finish(self, entry: Finished) -> list[Event]:
        messages = None if self._messages is None else self._transcribe(self._messages)
        shown = self.shown
        must_start = shown.is_waiting and not shown.may_finish(entry.status)
        events = shown.start() if must_start else []
        if (reader := self._reader) is not None:
            self._usage.estimated |= reader.turn.is_text
            events += self._close_turn(reader, None)
        self._final_usage = self.usage  # only now all ids are in the channels
        outcome = Outcome(
            status=entry.status,
            completed_at=entry.at if entry.status == "completed" else None,
            error=(
                {"code": entry.code, "message": entry.message} if entry.status == "failed" else None
            ),
            incomplete_details={"reason": entry.reason} if entry.status == "incomplete" else None,
            usage=self._final_usage,
            web_searches=self.hosted.searches if self.hosted.results else None,
            messages=messages,
        )
        return events + shown.finish(outcome)

    def _transcribe(self, shown: HarmonyMessages) -> dict[str, Any]:
        messages_of_turn = partial(self.format.messages_of_turn, with_ids=shown.with_output_ids)
        output = [
            message
            for turn in self.turns
            for message in messages_of_turn((*turn.prefill, *turn.output_ids), turn.taken_back)
        ]
        return {"input_messages": shown.input, "output_messages": output}

    def _close_turn(self, reader: TurnReader, finish: FinishReason | None) -> list[Event]:
        turn = reader.turn
        events = self.shown.feed(reader.end(finish), reader if reader.is_traced else None)
        for index, ending in self.shown.endings.items():
            if index not in self._ids:
                self._ids[index] = self._exact_ids(reader, ending)
        if self.shown.pending_call is not None:
            self._expect_result(reader, self.shown.pending_call, finish)
        self._count_channels(reader)
        self._usage.output_tokens += turn.tokens(len(turn.output_ids))
        self._usage.reasoning_tokens += reader.reasoning_tokens
        self._recoveries.update(reader.parser.recoveries)
        screen = reader.screen
        self._is_stopped = self._is_stopped or (screen is not None and screen.stopped)
        self._is_traced = reader.is_traced
        self._reader = self.open_turn = None
        return events

    def _count_channels(self, reader: TurnReader) -> None:
        # A text turn has no ids. The first ids of any other turn may be prefilled, which is input.
        usage, closed = self._usage, self.shown.closed
        prefilled = len(reader.turn.prefill)
        for kind, start, end in () if reader.turn.is_text else closed:
            count = max(0, end - max(start, prefilled))
            if kind is SegmentKind.REASONING:
                usage.analysis_tokens += count
            elif kind is SegmentKind.COMMENTARY:
                usage.commentary_tokens += count
            elif kind in ANSWERS:
                usage.final_tokens += count
            else:
                usage.arguments_tokens += count
        closed.clear()

    def _expect_result(
        self, reader: TurnReader, call: CompleteCall, finish: FinishReason | None
    ) -> None:
        self.shown.pending_call = None
        if finish in _ANSWERED:
            self._call_ids = self._exact_ids(reader, call.ending)
            if self.hosted is NO_CALLS:
                self.hosted = HostedCalls(self.rules)
            self.hosted.expect(call.name, call.arguments)

    def _exact_ids(self, reader: TurnReader, ending: SegmentEnded) -> tuple[int, ...] | None:
        if not (ending.verbatim and ending.complete):
            return None
        prefill, output_ids = reader.turn.prefill, reader.turn.output_ids
        begin, end = max(0, ending.start - len(prefill)), max(0, ending.end - len(prefill))
        message = [*prefill[ending.start : ending.end], *output_ids[begin:end]]
        if message[-1:] == [self._framing.turn_end]:
            message[-1] = self._framing.message_end
        opening = self._framing.opening if ending.start == 0 else ()
        return (*opening, *message)

    def _seal_item(self, text: str, ending: SegmentEnded | None) -> str | None:
        # An item that was cut off has no ids; its text is sealed instead.
        ids = None
        if self._reader is not None and ending is not None and self._framing.stores_ids:
            ids = self._exact_ids(self._reader, ending)
        return self._seal(Unsealed(ids, text).content) if self._seal else None

    def _open_reader(self) -> TurnReader:
        if self._reader is None:
            raise ValueError("an entry of a turn outside of any")
        return self._reader

    _HANDLERS: ClassVar[Mapping[type[Entry], Callable[[Fold, Any], list[Event]]]] = {
        TurnStarted: _begin_turn,
        Text: _take_text,
        Compacted: _compact,
        TurnEnded: _end_turn,
        ToolsListed: _list_tools,
        ToolStarted: _start_tool,
        ToolHandle: _hold_tool,
        ToolEnded: _end_tool,
        Hop: _hop,
        Hold: _hold,
        Repair: _repair,
        Alive: _alive,
        Queued: _queue,
        Finished: _finish,
    }
    """For all entries but `Tokens` and `Mark`. A handler that raises changes nothing."""
