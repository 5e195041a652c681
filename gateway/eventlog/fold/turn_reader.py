from __future__ import annotations

from array import array
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.eventlog.fold.items import CERTAIN
from gateway.eventlog.fold.screen import RuleViolation
from gateway.generation import FinishReason, SegmentEnded, Where
from gateway.text_ids import estimated_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.entries import Tokens
    from gateway.eventlog.fold.screen import Body, Screen
    from gateway.generation import Likelihood, SegmentEvent, TokenParser


@dataclass(slots=True)
class Turn:
    """State of a model call in the log, as needed to continue it elsewhere.

    `output_ids` lack the prefill and ids that were taken back. `logprobs` is empty, or has one or
    None for each. `finish` stays None if the turn was broken off. The last of the `hops` to another
    backend or replica was at position `hopped_at`, counted in prefill and output. `result` is that
    of the hosted call, and follows the turn in the next prompt. `is_text`: its ids are characters
    (`gateway.text_ids`).
    """

    input_tokens: int
    prefill: tuple[int, ...]
    output_ids: array[int] = field(default_factory=partial(array, "I"))
    logprobs: list[Likelihood | None] = field(default_factory=list)
    finish: FinishReason | None = None
    hops: int = 0
    hopped_at: int = 0
    taken_back: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    result: tuple[int, ...] = ()
    is_text: bool = False

    def tokens(self, ids: int) -> int:
        # An estimate for text.
        return estimated_tokens(ids) if self.is_text else ids


class TurnReader:
    """Reader of one turn.

    The prefill is shown with the first id of the model, because a turn without ids shows nothing.
    When ids are taken back, the remaining ids are read again. That changes nothing that was shown,
    because what may be shown after some ids depends on them alone.
    """

    __slots__ = (
        "_held_at", "_is_plain", "_new_parser", "_new_screen", "_prefilled",
        "_prefilled_reasoning_tokens", "_shown_from", "_shown_to", "is_traced", "parser", "screen",
        "turn",
    )  # fmt: skip

    def __init__(
        self,
        turn: Turn,
        new_parser: Callable[..., TokenParser],
        new_screen: Callable[[Callable[[int], bytes]], Screen] | None,
        *,
        is_traced: bool,
    ) -> None:
        self.turn = turn
        self.is_traced = is_traced
        self._new_parser = new_parser
        self._new_screen = new_screen
        # These count ids of the model.
        self._held_at: int | None = None
        self._shown_from = self._shown_to = 0  # of the ids that showed something last
        self.begin(())
        self._prefilled_reasoning_tokens = self.parser.reasoning_tokens

    def begin(self, output_ids: Sequence[int]) -> None:
        """Read the turn from its first id on, up to the end of these ids of the model."""
        self.parser = self._new_parser(trace=self.is_traced)
        prefill, new_screen = self.turn.prefill, self._new_screen
        self._prefilled = self.parser.feed(prefill) if prefill else []
        """Segments of the prefill, until they are shown."""
        self.screen = None if new_screen is None else new_screen(self._piece_at)
        self._is_plain = self.screen is None and not self._prefilled
        """Segments of the parser are shown as they are."""
        held_at = self._held_at
        if self.screen is not None and held_at is not None and held_at <= len(output_ids):
            self.read(output_ids[:held_at])
            self.screen.hold()
            output_ids = output_ids[held_at:]
        if output_ids:
            self.read(output_ids)

    def read(self, ids: Sequence[int]) -> list[SegmentEvent]:
        segments, screen = self.parser.feed(ids), self.screen
        if self._prefilled and ids:
            segments, self._prefilled = [*self._prefilled, *segments], []
            self._is_plain = screen is None
        return segments if screen is None else screen.feed(segments)

    @property
    def reasoning_tokens(self) -> int:
        # Without the prefill, which is input.
        return self.turn.tokens(self.parser.reasoning_tokens - self._prefilled_reasoning_tokens)

    @property
    def is_held(self) -> bool:
        return self._held_at is not None

    @property
    def violation(self) -> RuleViolation | None:
        screen = self.screen
        if screen is None or (screen.fault is None and screen.preamble_start is None):
            return None
        if screen.fault is not None:
            start = screen.fault_start
            return RuleViolation(screen.fault, self.parser.place.start if start is None else start)
        if self.parser.place.where is Where.OVER and screen.preamble_start is not None:
            return RuleViolation("not_json", screen.preamble_start)
        return None

    @property
    def seen(self) -> int:
        """Count the ids that shown output depends on: up to the one that showed the last of it.

        Costs as much as the first reading.
        """
        begin, end = self._shown_from, self._shown_to
        if not end:
            return 0
        again, output_ids = self._reread(self.turn.output_ids[:begin]), self.turn.output_ids
        shown = [at for at in range(begin, end) if again.read(output_ids[at : at + 1])]
        return len(self.turn.prefill) + shown[-1] + 1

    def is_seen_behind(self, position: int) -> bool:
        """Return True if `seen` is above `position`, mostly without reading the turn again."""
        begin, end = self._shown_from, self._shown_to
        size = len(self.turn.prefill)
        if not end or size + end <= position:
            return False
        return size + begin >= position or self.seen > position

    def feed(self, entry: Tokens) -> list[SegmentEvent]:
        ids, output_ids = entry.ids, self.turn.output_ids
        begin = len(output_ids)
        if entry.logprobs or self.turn.logprobs:
            self._note(entry)
        if len(ids) == 1:
            output_ids.append(ids[0])
        else:
            output_ids.extend(ids)
        shown = self.parser.feed(ids) if self._is_plain else self.read(ids)
        if shown:
            self._shown_from, self._shown_to = begin, begin + len(ids)
        return shown

    def feed_each(self, ids: tuple[int, ...]) -> list[str]:
        """Feed the first of these ids one by one, as long as they only add text; return the text of
        each.
        """
        turn = self.turn
        if not self._is_plain or self.is_traced or turn.logprobs:
            return []
        texts = self.parser.feed_each(ids)
        last = next((at for at in reversed(range(len(texts))) if texts[at]), None)
        if last is not None:
            self._shown_from = len(turn.output_ids) + last
            self._shown_to = self._shown_from + 1
        turn.output_ids.extend(ids[: len(texts)])
        return texts

    def _note(self, entry: Tokens) -> None:
        # A turn is traced if its first entry has likelihoods.
        if entry.logprobs and len(entry.logprobs) != len(entry.ids):
            raise ValueError("not one logprob for each id")
        turn = self.turn
        if not turn.output_ids and not self.is_traced:
            self.is_traced = True
            self.begin(())
        turn.logprobs += [None] * (len(turn.output_ids) - len(turn.logprobs))
        turn.logprobs += entry.logprobs or [None] * len(entry.ids)

    def hold(self) -> None:
        # From here on a checked body is shown only when the turn ends.
        if self._held_at is None:
            self._held_at = len(self.turn.output_ids)
            if self.screen is not None:
                self.screen.hold()

    def take_back(self, voided: int) -> None:
        """Remove the last `voided` ids. Raises `ValueError` if some were seen or never
        generated.
        """
        turn = self.turn
        kept = len(turn.output_ids) - voided
        if not 0 <= voided <= len(turn.output_ids) or len(turn.prefill) + kept < self.seen:
            raise ValueError("ids were taken back that nobody said, or that somebody saw")
        del turn.output_ids[kept:], turn.logprobs[kept:]
        if self._held_at is not None:
            self._held_at = min(self._held_at, kept)
        self.begin(turn.output_ids)

    def end(self, finish: FinishReason | None) -> list[SegmentEvent]:
        segments, screen = self.parser.finish(finish), self.screen
        if not self.turn.output_ids:
            return []
        if screen is None:
            return segments
        shown = screen.feed(segments)
        return shown if finish is None else shown + screen.release()

    def bodies_after(self, finish: FinishReason) -> list[Body]:
        """Return the checked bodies if the turn ended with this reason. Reads the turn again.

        A cut closes an open body as if it were complete.
        """
        again = self._reread(self.turn.output_ids)
        screen = again.screen
        if screen is None or not self.turn.output_ids:
            return []
        for segment in again.parser.finish(finish):
            if isinstance(segment, SegmentEnded) and finish is FinishReason.CUT:
                screen.feed([replace(segment, complete=True)])
            else:
                screen.feed([segment])
        return screen.bodies

    def piece(self, token: int) -> bytes:
        return self.parser.piece(token)

    def token_at(self, position: int) -> tuple[int, Likelihood | None]:
        turn = self.turn
        at = position - len(turn.prefill)
        if at < 0:
            return turn.prefill[position], CERTAIN
        return turn.output_ids[at], turn.logprobs[at] if at < len(turn.logprobs) else None

    def _piece_at(self, position: int) -> bytes:
        return self.piece(self.token_at(position)[0])

    def _reread(self, output_ids: Sequence[int]) -> TurnReader:
        again = copy(self)
        again.begin(output_ids)
        return again
