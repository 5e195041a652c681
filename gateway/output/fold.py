"""The fold: (request, log) to events, items, usage and the Response object. The only way to them.

It knows no clock, no chance and no settings, and the cut of ids into entries shows nowhere but in
the cut of text into deltas. So a live stream, a replay on another replica and the body of a `GET`
are the same function, applied again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.generation import RenderedItem, TokenUsage
from gateway.log import Alive, Finished, Tokens, TurnEnded, TurnStarted
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
class _Turn:
    """A model call that runs: `said` holds the prefill and then every id since."""

    parser: TokenParser
    said: list[int]
    input_tokens: int
    prefilled_reasoning_tokens: int


class Fold:
    """One response, folded entry by entry.

    The first entry also brings the events that open the stream, whatever entry it is. Applying an
    entry that cannot stand where it stands (anything after `Finished`, `Tokens` or `TurnEnded`
    outside of a turn, `TurnStarted` inside of one) raises `ValueError` and changes nothing.
    """

    def __init__(
        self, head: ResponseHead, new_parser: Callable[[], TokenParser], framing: Framing
    ) -> None:
        self._builder = Builder(head)
        self._new_parser = new_parser
        self._framing = framing
        self._turn: _Turn | None = None
        self._usage = TokenUsage()
        self._recoveries: dict[str, int] = {}
        self._ids: dict[int, tuple[int, ...] | None] = {}
        self.last_finish: FinishReason | None = None
        """Why the last turn ended; None while none has."""

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
        total, turn = self._usage, self._turn
        return TokenUsage(
            input_tokens=total.input_tokens,
            cached_tokens=total.cached_tokens,
            output_tokens=total.output_tokens,
            reasoning_tokens=total.reasoning_tokens + (_reasoning_tokens(turn) if turn else 0),
        )

    @property
    def recoveries(self) -> dict[str, int]:
        """How often each recovery rule of the parser fired, over all turns."""
        running = self._turn.parser.recoveries if self._turn else {}
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
            case Alive():
                return self._open_stream() or self._builder.alive()
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
        return [] if self._builder.is_started else self._builder.start()

    def _hear(self, entry: Tokens) -> list[Event]:
        turn = self._running_turn()
        turn.said.extend(entry.ids)
        self._usage.output_tokens += len(entry.ids)
        return self._builder.feed(turn.parser.feed(entry.ids))

    def _begin_turn(self, entry: TurnStarted) -> list[Event]:
        if self._turn is not None:
            raise ValueError("a turn started inside of another")
        parser = self._new_parser()
        segments = parser.feed(entry.prefill) if entry.prefill else []
        self._turn = _Turn(parser, list(entry.prefill), entry.input_tokens, parser.reasoning_tokens)
        self._usage.input_tokens += entry.input_tokens
        return self._open_stream() + self._builder.feed(segments)

    def _end_turn(self, entry: TurnEnded) -> list[Event]:
        turn = self._running_turn()
        self._usage.cached_tokens += min(entry.cached_tokens, turn.input_tokens)
        self.last_finish = entry.finish
        return self._settle(turn, turn.parser.finish(entry.finish))

    def _finish(self, entry: Finished) -> list[Event]:
        events = self._open_stream()
        if self._turn is not None:
            events += self._settle(self._turn, self._turn.parser.finish(None))
        return events + self._builder.finish(_outcome(entry, self.usage))

    def _settle(self, turn: _Turn, segments: list[SegmentEvent]) -> list[Event]:
        """Book a turn whose parser has finished."""
        events = self._builder.feed(segments)
        for index, ending in self._builder.endings.items():
            if index not in self._ids:
                self._ids[index] = self._exact_ids(turn.said, ending)
        self._usage.reasoning_tokens += _reasoning_tokens(turn)
        self._recoveries = _sum(self._recoveries, turn.parser.recoveries)
        self._turn = None
        return events

    def _exact_ids(self, said: list[int], ending: SegmentEnded) -> tuple[int, ...] | None:
        if not (ending.verbatim and ending.complete):
            return None
        message = said[ending.start : ending.end]
        if message[-1:] == [self._framing.turn_end]:
            message[-1] = self._framing.message_end
        opening = self._framing.opening if ending.start == 0 else ()
        return (*opening, *message)

    def _running_turn(self) -> _Turn:
        if self._turn is None:
            raise ValueError("an entry of a turn outside of any")
        return self._turn


def _reasoning_tokens(turn: _Turn) -> int:
    """Those that the model said; what was prefilled is input."""
    return turn.parser.reasoning_tokens - turn.prefilled_reasoning_tokens


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
