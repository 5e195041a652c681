"""A response's log, token by token, for operators.

Tokens that a repair took back stay in their place, with its rule. Reading takes linear time.
"""

from __future__ import annotations

from array import array
from codecs import getincrementaldecoder
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.entries import Hop, Repair, Singles, Tokens, TurnEnded, TurnStarted
from gateway.generation import TokenLogprob
from gateway.protocol.stream_events import Deltas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.entries import Entry, Portion
    from gateway.eventlog.fold.fold import Fold
    from gateway.generation import Likelihood
    from gateway.models.format import ModelFormat, TokenPart, TokenPiece
    from gateway.protocol.stream_events import Event

UNKNOWN: Final = -1


class _Shared(NamedTuple):
    """Properties that neighbouring tokens mostly share.

    `item` is the index of the output item that they are in, or would have been in.
    """

    turn: int
    item: int
    is_prefill: bool = False
    seam: str = ""
    """Reason of the hop after which another backend generated them."""


class Branch(NamedTuple):
    """Position from which the model may go on in another way.

    `kept` are the ids of its turn before it, prefill included; `rest` are the positions after it,
    until a repair or the end of the turn. `voided` counts tokens taken back before.
    """

    at: int
    turn: int
    kept: list[int]
    rest: range
    part: TokenPart
    voided: int = 0


class TokenView:
    """Tokens in the order in which they were generated."""

    def __init__(self, format_: ModelFormat) -> None:
        self.format = format_
        self.ids = array("I")
        self.entries = array("q")
        """By token; `UNKNOWN`: the log is gone."""
        self.events = array("q")
        """By token; `UNKNOWN`: no event has followed."""
        self.logprobs: dict[int, Likelihood] = {}
        self.rules: dict[int, str] = {}
        """Rules that took tokens back, by position."""
        self._voided_at: dict[int, int] = {}
        """Number of tokens at the time when a token was taken back, by position."""
        self.pieces: list[TokenPiece] = []
        self._shared: list[_Shared] = []
        self._part: TokenPart = "between"
        self._opening_part: TokenPart = "role"
        """Part of a message in which a turn begins."""

    def __len__(self) -> int:
        return len(self.ids)

    def add_item(self, index: int, ids: Sequence[int]) -> None:
        """Add the ids by which the next prompt repeats an item: all that is left without a log."""
        self._part = "between"
        self._keep(ids, _Shared(0, index), UNKNOWN)

    def _keep(self, ids: Sequence[int], shared: _Shared, entry: int) -> None:
        made = self.format.anatomy(ids, self._part)
        self._part = made[-1].behind if made else self._part
        self.pieces += made
        self.ids.extend(ids)
        self.entries.extend([entry] * len(ids))
        self.events.extend([UNKNOWN] * len(ids))
        first = [shared, *[shared._replace(seam="")] * (len(ids) - 1)]
        self._shared += first[: len(ids)]

    def page(self, after: int, limit: int) -> list[dict[str, Any]]:
        return self.runs(range(after + 1, min(after + 1 + limit, len(self.ids))))

    def runs(self, positions: range) -> list[dict[str, Any]]:
        """Group tokens that differ only in id, text, entry and event."""
        runs = groupby(
            positions, lambda at: (self._run_of(at), at if self._shared[at].seam else -1)
        )
        return [self._run(list(places)) for _, places in runs]

    def branch(self, at: int) -> Branch:
        """Return the branch at a position, or after the prefill that stands there.

        Raises `IndexError` if no token is there; without any tokens it is at position 0.
        """
        size = len(self.ids)
        while at < size and self._shared[at].is_prefill:
            at += 1
        if at > size or (at == size and size and not self._shared[-1].is_prefill):
            raise IndexError(at)
        turn = self._shared[min(at, size - 1)].turn if size else 0
        begin = end = at
        while begin and self._shared[begin - 1].turn == turn:
            begin -= 1
        while end < size and self._shared[end].turn == turn:
            size = min(size, self._voided_at.get(end, size))
            end += 1
        kept = [one for one in range(begin, at) if self._voided_at.get(one, at + 1) > at]
        part = self.pieces[kept[-1]].behind if kept else self._opening_part
        voided = sum(count <= at for count in self._voided_at.values())
        return Branch(at, turn, [self.ids[one] for one in kept], range(at, end), part, voided)

    @property
    def first_item(self) -> list[int]:
        number = len(list(takewhile(lambda one: one.item == self._shared[0].item, self._shared)))
        return self.ids[:number].tolist()

    def taken_back(self, turn: int) -> list[dict[str, Any]]:
        voided = [at for at in sorted(self.rules) if self._shared[at].turn == turn]
        runs = groupby(voided, lambda at: (self.rules[at], self._voided_at[at]))
        return [
            {"rule": rule, "tokens": [self.ids[at] for at in places]} for (rule, _), places in runs
        ]

    def grown(self, branch: Branch, forced: Sequence[int], ids: Sequence[int]) -> TokenView:
        """Return a view of a branch's continuation: `forced` ids, then those of a model, whose
        messages are its items.
        """
        view = TokenView(self.format)
        view._part = branch.part
        view._keep(forced, _Shared(branch.turn, 0, is_prefill=True), UNKNOWN)
        ends = {self.format.framing.message_end, *self.format.stop_ids}
        begin = item = 0
        for end, token in enumerate(ids, 1):
            if token in ends or end == len(ids):
                view._keep(ids[begin:end], _Shared(branch.turn, item), UNKNOWN)
                begin, item = end, item + 1
        return view

    def _run_of(self, at: int) -> tuple[_Shared, str, str | None]:
        return self._shared[at], self.pieces[at].part, self.rules.get(at)

    def _run(self, places: list[int]) -> dict[str, Any]:
        shared, part, rule = self._run_of(places[0])
        run: dict[str, Any] = {
            "first": places[0],
            "turn": shared.turn,
            "item": shared.item,
            "part": part,
            "tokens": [self._token(at) for at in places],
        }
        optional = {"rule": rule, "prefill": shared.is_prefill, "seam": shared.seam}
        return run | {name: value for name, value in optional.items() if value}

    def _token(self, at: int) -> list[Any]:
        spelling = _spelled(self.pieces[at].spelling)
        numbers = (None if one == UNKNOWN else one for one in (self.entries[at], self.events[at]))
        token: list[Any] = [self.ids[at], spelling, *numbers]
        logprob = self.logprobs.get(at)
        return [*token, round(logprob.logprob, 4)] if isinstance(logprob, TokenLogprob) else token


def _spelled(spelling: bytes) -> str | dict[str, str]:
    # A token may be a part of a character.
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return {"hex": spelling.hex()}


class LogView(TokenView):
    def __init__(self, format_: ModelFormat, fold: Fold) -> None:
        super().__init__(format_)
        self.fold = fold
        self.next_entry = 0
        self.damage = ""
        self.cached_tokens: int | None = None
        """Tokens of the first prompt that the backend had cached; None: its turn has not ended."""
        self._seam = ""
        self._begun: TokenPart = "role"
        """Part of a message in which the open turn continues after its prefill."""
        self._turn_tokens: list[int] = []
        """Positions in the open turn, without prefill and tokens taken back."""

    def add(self, portion: Portion) -> None:
        """Read a portion; raises `ValueError` if it cannot stand here."""
        if isinstance(portion, Singles):
            self._add_singles(portion.ids)
            return
        if isinstance(portion, Tokens):
            self._add_ids(portion.ids, self.fold.apply, portion)
            for at, logprob in enumerate(portion.logprobs, len(self.ids) - len(portion.ids)):
                self.logprobs[at] = logprob
        else:
            self._link(self.fold.apply(portion))
            self._note(portion)
        self.next_entry += 1

    def _note(self, entry: Entry) -> None:
        if isinstance(entry, TurnStarted):
            self._part, self._turn_tokens = "role", []
            self._keep_more(entry.prefill, len(self.fold.shown.output), is_prefill=True)
            self._begun = self._part
        elif isinstance(entry, TurnEnded) and self.cached_tokens is None:
            reported = entry.usage
            self.cached_tokens = reported.cached_tokens if reported else entry.cached_tokens
        elif isinstance(entry, Hop):
            self._seam = entry.reason
        elif isinstance(entry, Repair) and entry.voided:
            for at in self._turn_tokens[-entry.voided :]:
                self.rules[at] = entry.rule
                self._voided_at[at] = len(self.ids)
            del self._turn_tokens[-entry.voided :]
            self._part = (
                self.pieces[self._turn_tokens[-1]].behind if self._turn_tokens else self._begun
            )

    def _add_singles(self, ids: Sequence[int]) -> None:
        # Text tokens after the first of each run are most of a log, and are read at once.
        text_ids = self.format.text_ids
        for is_text, group in groupby(ids, text_ids.__contains__):
            run = list(group)
            head = run[:1] if is_text else run
            for token in head:
                self._add_ids((token,), self.fold.apply, Tokens((token,)))
                self.next_entry += 1
            if rest := tuple(run[len(head) :]):
                self._add_ids(rest, self.fold.replay, Singles(rest))
                self.next_entry += len(rest)

    def _add_ids(self, ids: Sequence[int], apply: Any, portion: Portion) -> None:
        item, begin = len(self.fold.shown.output), len(self.ids)
        events = apply(portion)
        self._keep_more(ids, item)
        self._turn_tokens.extend(range(begin, len(self.ids)))
        if isinstance(portion, Singles):
            first = self.next_entry
            self.entries[begin:] = array("q", range(first, first + len(ids)))
            if isinstance(events, Deltas) and len(events) == len(ids):
                self._link_before(begin, events.sequence_number)
                first = events.sequence_number
                self.events[begin:] = array("q", range(first, first + len(ids)))
                return
            if isinstance(events, Deltas) and self._link_each(begin, events):
                return
        self._link(events)

    def _keep_more(self, ids: Sequence[int], item: int, *, is_prefill: bool = False) -> None:
        seam = "" if is_prefill else self._seam
        shared = _Shared(len(self.fold.turns) - 1, item, is_prefill, seam)
        self._keep(ids, shared, self.next_entry)
        if ids and not is_prefill:
            self._seam = ""

    def _link(self, events: Sequence[Event]) -> None:
        # The last of these events has all the tokens before it.
        if events:
            self._link_before(len(self.ids), events[-1].sequence_number)

    def _link_before(self, end: int, number: int) -> None:
        at = end - 1
        while at >= 0 and self.events[at] == UNKNOWN:
            self.events[at] = number
            at -= 1

    def _link_each(self, begin: int, deltas: Deltas) -> bool:
        # A token that ends within a character goes into the event of the one that ends it.
        while begin and self.events[begin - 1] == UNKNOWN and self.pieces[begin - 1].part == "body":
            begin -= 1
        read = getincrementaldecoder("utf-8")("replace").decode
        ends = [at for at in range(begin, len(self.ids)) if read(self.pieces[at].spelling)]
        if len(ends) != len(deltas):
            return False
        for number, at in enumerate(ends, deltas.sequence_number):
            self.events[at] = number
            self._link_before(at, number)
        return True
