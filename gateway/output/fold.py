"""The fold: (request, log) to events, items, usage and the Response object. The only way to them.

It knows no clock, no chance and no settings, and the cut of ids into entries shows nowhere but in
the cut of text into deltas. So a live stream, a replay on another replica and the body of a `GET`
are the same function, applied again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gateway.generation import RenderedItem, TokenUsage
from gateway.log import Alive, Finished, Hop, Queued, Tokens, TurnEnded, TurnStarted
from gateway.output.builder import Builder
from gateway.protocol.responses import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.generation import FinishReason, SegmentEnded, SegmentEvent, TokenParser
    from gateway.log import Entry
    from gateway.protocol.events import Event
    from gateway.protocol.responses import ResponseHead


@dataclass(frozen=True, slots=True)
class Framing:
    """The ids around the messages of a turn, as the next prompt needs them.

    `opening` ends every prompt, so the first message of a turn comes without it. `turn_end` is
    what the model ends its last message with; in history that message ends with `message_end`.
    """

    opening: tuple[int, ...]
    turn_end: int
    message_end: int


@dataclass(slots=True)
class Turn:
    """One model call as far as the log tells: what it takes to go on with it elsewhere.

    `said` are the ids of the model, without the prefill; `finish` is None while the turn is open,
    and for good where it was broken off. `hops` counts who went on with it, backends and replicas.
    """

    input_tokens: int
    prefill: tuple[int, ...]
    said: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    hops: int = 0


@dataclass(slots=True)
class _Reading:
    """The open turn and who reads it."""

    turn: Turn
    parser: TokenParser
    prefilled_reasoning_tokens: int

    @property
    def reasoning_tokens(self) -> int:
        """Those that the model said; what was prefilled is input."""
        return self.parser.reasoning_tokens - self.prefilled_reasoning_tokens


class Fold:
    """One response, folded entry by entry.

    The first entry also brings the events that open the stream, whatever entry it is; after
    `Queued` the next one but `Alive` says that it is in progress. Applying an entry that cannot
    stand where it stands (anything after `Finished`, `Queued` after anything, `Tokens`,
    `TurnEnded` or a `Hop` to another backend outside of a turn, `TurnStarted` inside of one)
    raises `ValueError` and changes nothing.
    """

    def __init__(
        self, head: ResponseHead, new_parser: Callable[[], TokenParser], framing: Framing
    ) -> None:
        self._builder = Builder(head)
        self._new_parser = new_parser
        self._framing = framing
        self._reading: _Reading | None = None
        self._usage = TokenUsage()
        self._recoveries: dict[str, int] = {}
        self._ids: dict[int, tuple[int, ...] | None] = {}
        self.turns: list[Turn] = []
        """Every model call so far; only the last one may be open."""
        self.hops = 0
        """How often another backend went on."""
        self.takeovers = 0
        """How often another replica went on."""

    @property
    def open_turn(self) -> Turn | None:
        """The model call that has not ended; None between two, and after the last."""
        return self._reading.turn if self._reading else None

    @property
    def last_finish(self) -> FinishReason | None:
        """Why the last turn that ended did; None while none has."""
        return next((turn.finish for turn in reversed(self.turns) if turn.finish), None)

    @property
    def is_finished(self) -> bool:
        """The terminal event is out."""
        return self._builder.is_finished

    @property
    def visible(self) -> bool:
        """A call, or a message with text, came out: the user has more than reasoning."""
        return self._builder.is_visible

    @property
    def usage(self) -> TokenUsage:
        """Token counts so far.

        The output is every id of the log. Cached tokens count only as far as a turn's input does,
        so that a turn which the gateway continued by itself cannot make them exceed the input.
        """
        reading = self._reading
        return replace(
            self._usage,
            reasoning_tokens=self._usage.reasoning_tokens
            + (reading.reasoning_tokens if reading else 0),
        )

    @property
    def recoveries(self) -> dict[str, int]:
        """How often each recovery rule of the parser fired, over all turns."""
        running = self._reading.parser.recoveries if self._reading else {}
        return _sum(self._recoveries, running)

    def apply(self, entry: Entry) -> list[Event]:
        """The events of one more entry."""
        if self._builder.is_finished:
            raise ValueError("the log goes on after its end")
        match entry:
            case Tokens():
                return self._hear(entry)
            case TurnStarted():
                return self._begin_turn(entry)
            case TurnEnded():
                return self._end_turn(entry)
            case Hop():
                return self._hop(entry)
            case Alive() | Queued():
                return self._pass_time(entry)
            case _:
                return self._finish(entry)

    def items(self) -> list[RenderedItem]:
        """The items that are done, with the ids that repeat them in the next prompt.

        Ids are known once the turn has ended. They are None where a recovery rule had a part in
        the message, and where it was cut off.
        """
        return [
            RenderedItem(item, self._ids.get(index))
            for index, item in enumerate(self._builder.output)
        ]

    def response(self) -> dict[str, Any]:
        """The Response object as it is now; at the end, the one inside the terminal event."""
        return self._builder.response()

    def _open_stream(self) -> list[Event]:
        return self._builder.start() if self._builder.is_waiting else []

    def _pass_time(self, entry: Alive | Queued) -> list[Event]:
        if isinstance(entry, Queued):
            return self._builder.queue()
        return self._builder.alive() if self._builder.is_started else self._builder.start()

    def _hear(self, entry: Tokens) -> list[Event]:
        reading = self._open_reading()
        reading.turn.said.extend(entry.ids)
        self._usage.output_tokens += len(entry.ids)
        return self._builder.feed(reading.parser.feed(entry.ids))

    def _begin_turn(self, entry: TurnStarted) -> list[Event]:
        if self._reading is not None:
            raise ValueError("a turn started inside of another")
        parser = self._new_parser()
        segments = parser.feed(entry.prefill) if entry.prefill else []
        turn = Turn(entry.input_tokens, entry.prefill)
        self._reading = _Reading(turn, parser, parser.reasoning_tokens)
        self.turns.append(turn)
        self._usage.input_tokens += entry.input_tokens
        return self._open_stream() + self._builder.feed(segments)

    def _end_turn(self, entry: TurnEnded) -> list[Event]:
        reading = self._open_reading()
        reading.turn.finish = entry.finish
        self._usage.cached_tokens += min(entry.cached_tokens, reading.turn.input_tokens)
        return self._settle(reading, reading.parser.finish(entry.finish))

    def _hop(self, entry: Hop) -> list[Event]:
        turn = self._open_reading().turn if entry.reason == "backend" else self.open_turn
        if turn is not None:
            turn.hops += 1
        if entry.reason == "backend":
            self.hops += 1
        else:
            self.takeovers += 1
        self._usage.recomputed_tokens += entry.recomputed_tokens
        return self._open_stream()

    def _finish(self, entry: Finished) -> list[Event]:
        outcome = _outcome(entry, self.usage)
        events = [] if self._builder.may_finish(outcome) else self._open_stream()
        if self._reading is not None:
            events += self._settle(self._reading, self._reading.parser.finish(None))
        return events + self._builder.finish(outcome)

    def _settle(self, reading: _Reading, segments: list[SegmentEvent]) -> list[Event]:
        """Book a turn whose parser has finished."""
        events = self._builder.feed(segments)
        heard = [*reading.turn.prefill, *reading.turn.said]
        for index, ending in self._builder.endings.items():
            if index not in self._ids:
                self._ids[index] = self._exact_ids(heard, ending)
        self._usage.reasoning_tokens += reading.reasoning_tokens
        self._recoveries = _sum(self._recoveries, reading.parser.recoveries)
        self._reading = None
        return events

    def _exact_ids(self, heard: list[int], ending: SegmentEnded) -> tuple[int, ...] | None:
        if not (ending.verbatim and ending.complete):
            return None
        message = heard[ending.start : ending.end]
        if message[-1:] == [self._framing.turn_end]:
            message[-1] = self._framing.message_end
        opening = self._framing.opening if ending.start == 0 else ()
        return (*opening, *message)

    def _open_reading(self) -> _Reading:
        if self._reading is None:
            raise ValueError("an entry of a turn outside of any")
        return self._reading


def _sum(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + more.get(name, 0) for name in {**counts, **more}}


def _outcome(entry: Finished, usage: TokenUsage) -> Outcome:
    return Outcome(
        status=entry.status,
        completed_at=entry.at if entry.status == "completed" else None,
        error={"code": entry.code, "message": entry.message} if entry.status == "failed" else None,
        incomplete_details={"reason": entry.reason} if entry.status == "incomplete" else None,
        usage=usage,
    )
