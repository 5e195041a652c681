"""Time of a response by phase: its timeline, from the log, and the execution computed from it.

A timeline has no content, so operators who may not read content can see it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import orjson

from gateway.entries import (
    Finished,
    Hop,
    Mark,
    Queued,
    Repair,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.generation import SegmentKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.entries import Entry

Kind = Literal[
    "queued", "replica", "backend", "left", "token", "message", "commit", "turn", "turn_ended",
    "hop", "repair", "tool", "tool_ended", "finished",
]  # fmt: skip
Phase = Literal[
    "preparing", "queued", "slot", "prefill", "generating", "thinking", "answering", "calling",
    "tool", "interrupted", "storing",
]  # fmt: skip
PHASES: Final[Mapping[str, str]] = {
    "preparing": "preparing the request",
    "queued": "waiting in the queue of background responses",
    "slot": "waiting for a slot",
    "prefill": "waiting for the first token",
    "generating": "generating",
    "thinking": "thinking",
    "answering": "writing the answer",
    "calling": "writing tool calls",
    "tool": "running tools",
    "interrupted": "waiting until another replica went on",
    "storing": "checking and storing the output",
}
"""In the words that follow "were spent"."""
MOMENTS_MAX: Final = 512
"""A model may write any number of messages."""
COMMITS_MAX: Final = 64
"""With a slow database every commit is a long one."""
_AWAY: Final = frozenset({"left", "replica", "turn_ended"})
"""Steps after which no backend generates until a request is sent."""
MESSAGE_PHASES: Final[Mapping[str, Phase]] = {
    SegmentKind.REASONING.value: "thinking",
    SegmentKind.COMMENTARY.value: "answering",
    SegmentKind.FINAL.value: "answering",
}
"""By kind; all others are calls."""


class Moment(NamedTuple):
    """Step of a run, at `at_ms` (Unix milliseconds; 0: no clock was read yet).

    `tokens` include any taken back. `name` is that of the replica, backend, rule, reason, outcome
    or kind of message; `number` counts tokens, is the ordinal of a tool call, or the milliseconds
    of a commit.
    """

    kind: Kind
    at_ms: int
    tokens: int = 0
    name: str = ""
    number: int = 0


_NOTED: Final[Mapping[type, tuple[Kind, Callable[..., str] | None, Callable[..., int] | None]]] = {
    Queued: ("queued", None, None),
    TurnStarted: ("turn", None, attrgetter("input_tokens")),
    TurnEnded: ("turn_ended", attrgetter("finish.value"), attrgetter("cached_tokens")),
    Hop: ("hop", attrgetter("reason"), attrgetter("recomputed_tokens")),
    Repair: ("repair", attrgetter("rule"), attrgetter("voided")),
    ToolStarted: ("tool", None, attrgetter("ordinal")),
    ToolEnded: ("tool_ended", attrgetter("outcome"), attrgetter("ordinal")),
    Finished: ("finished", attrgetter("status"), None),
}
"""Kind, name and number of the moment."""
NOTED: Final = frozenset({Mark, *_NOTED})


class Timeline:
    __slots__ = ("_clock_ms", "_commits_left", "moments")

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._clock_ms = 0
        self._commits_left = COMMITS_MAX

    def note(self, entry: Entry, tokens: int) -> None:
        # Clocks of two replicas differ.
        kind: Kind
        if isinstance(entry, Mark):
            self._clock_ms = max(self._clock_ms, entry.at_ms)
            if entry.step == "clock":
                return
            kind, name, number = entry.step, entry.place, 0
            if kind == "commit":
                self._commits_left -= 1
                if self._commits_left < 0:
                    return
                name, number = "", int(entry.place)
        else:
            if isinstance(entry, Finished):
                self._clock_ms = max(self._clock_ms, entry.at * 1000)
            kind, name_of, number_of = _NOTED[type(entry)]
            name = name_of(entry) if name_of else ""
            number = number_of(entry) if number_of else 0
        if len(self.moments) < MOMENTS_MAX or isinstance(entry, Finished):
            self.moments.append(Moment(kind, self._clock_ms, tokens, name, number))

    def packed(self) -> bytes:
        return orjson.dumps(list(map(tuple, self.moments)))


def unpacked_timeline(packed: bytes) -> list[Moment]:
    return [Moment(*moment) for moment in orjson.loads(packed)]


def backend_of(moments: Sequence[Moment], *, is_current: bool = False) -> str:
    """Return the last backend used, or "".

    With `is_current` also "" once the response waits for another one or for a tool.
    """
    for moment in reversed(moments):
        if moment.kind == "backend":
            return moment.name
        if is_current and moment.kind in _AWAY:
            break
    return ""


class Span(NamedTuple):
    """Part of a lane, in milliseconds from the beginning of the response."""

    name: str
    begin_ms: int
    end_ms: int
    tokens: int = 0
    outcome: str = ""

    @property
    def duration_ms(self) -> int:
        return self.end_ms - self.begin_ms


class Point(NamedTuple):
    kind: Kind
    name: str
    at_ms: int
    number: int


@dataclass(frozen=True, slots=True)
class Execution:
    """Timeline of a response as lanes of spans that do not overlap within a lane.

    `phases` partition `duration_ms`.
    """

    duration_ms: int
    is_over: bool
    phases: Sequence[Span]
    replicas: Sequence[Span]
    attempts: Sequence[Span]
    messages: Sequence[Span]
    tools: Sequence[Span]
    commits: Sequence[Span]
    points: Sequence[Point]
    first_token_ms: int | None

    @property
    def totals(self) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for phase in self.phases:
            sums[phase.name] += phase.duration_ms
        return dict(sums.most_common())

    @property
    def sentence(self) -> str:
        totals = self.totals
        if not totals:
            return "No time has passed yet."
        phase, spent_ms = next(iter(totals.items()))
        words = PHASES[phase]
        whole, so_far = spoken(self.duration_ms), "" if self.is_over else " so far"
        if spoken(spent_ms) == whole:
            share = "All" if len(totals) == 1 else "Nearly all"
            return f"{share} of the {whole}{so_far} were spent {words}."
        return f"{spoken(spent_ms)} of {whole}{so_far} were spent {words}."


def spoken(ms: int) -> str:
    """Return a duration in words: `340 ms`, `3.1 s`, `2 min 5 s`."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes} min {seconds} s"


@dataclass(slots=True)
class _Lane:
    spans: list[Span] = field(default_factory=list)
    _name: str | None = None
    _begin_ms: int = 0
    _tokens: int = 0

    def open(self, name: str, at_ms: int, tokens: int, *, before: str = "") -> None:
        # `before`: how the span ended that was open.
        self.close(at_ms, tokens, before)
        self._name, self._begin_ms, self._tokens = name, at_ms, tokens

    def close(self, at_ms: int, tokens: int, outcome: str = "") -> None:
        if self._name is not None:
            generated = max(0, tokens - self._tokens)
            self.spans.append(Span(self._name, self._begin_ms, at_ms, generated, outcome))
            self._name = None

    @property
    def is_open(self) -> bool:
        return self._name is not None


class _Reading:
    def __init__(self) -> None:
        self.phases: list[Span] = []
        self.replicas, self.attempts, self.messages, self.tools = (_Lane() for _ in range(4))
        self.commits: list[Span] = []
        self.points: list[Point] = []
        self.first_token_ms: int | None = None
        self._phase: Phase = "preparing"
        self._since_ms = 0

    def turn_to(self, phase: Phase, at_ms: int) -> None:
        if at_ms > self._since_ms:
            last = self.phases[-1] if self.phases else None
            if last is not None and last.name == self._phase:
                self.phases[-1] = last._replace(end_ms=at_ms)
            else:
                self.phases.append(Span(self._phase, self._since_ms, at_ms))
        self._phase, self._since_ms = phase, at_ms

    def read(self, moment: Moment, at_ms: int) -> None:
        step = self._STEPS.get(moment.kind)
        if step is None:
            self.points.append(Point(moment.kind, moment.name, at_ms, moment.number))
        else:
            step(self, moment, at_ms)

    def end(self, moment: Moment, at_ms: int) -> None:
        self._end_attempt(moment.tokens, at_ms, moment.name)
        self.tools.close(at_ms, moment.tokens, moment.name)
        self.replicas.close(at_ms, moment.tokens, moment.name)
        self.turn_to(self._phase, at_ms)

    def _queue(self, _moment: Moment, at_ms: int) -> None:
        self.turn_to("queued", at_ms)

    def _take_over(self, moment: Moment, at_ms: int) -> None:
        tokens = moment.tokens
        if self.replicas.is_open:
            # When the one before stopped nobody wrote down.
            self._phase = "interrupted"
            self._end_attempt(tokens, at_ms, "taken over")
            self.tools.close(at_ms, tokens, "interrupted")
        self.replicas.open(moment.name, at_ms, tokens, before="taken over")
        self.turn_to("slot", at_ms)

    def _begin_turn(self, _moment: Moment, at_ms: int) -> None:
        # The request may have been sent before its turn was written.
        if self._phase != "prefill":
            self.turn_to("slot", at_ms)

    def _send(self, moment: Moment, at_ms: int) -> None:
        self.attempts.open(moment.name, at_ms, moment.tokens, before="no answer")
        self.turn_to("prefill", at_ms)

    def _leave(self, moment: Moment, at_ms: int) -> None:
        self._end_attempt(moment.tokens, at_ms, "left")
        self.turn_to("slot", at_ms)

    def _hear(self, _moment: Moment, at_ms: int) -> None:
        if self.first_token_ms is None:
            self.first_token_ms = at_ms
        self.turn_to("generating", at_ms)

    def _begin_message(self, moment: Moment, at_ms: int) -> None:
        self.messages.open(moment.name, at_ms, moment.tokens)
        self.turn_to(MESSAGE_PHASES.get(moment.name, "calling"), at_ms)

    def _commit(self, moment: Moment, at_ms: int) -> None:
        free_ms = self.commits[-1].end_ms if self.commits else 0
        begin_ms = max(free_ms, at_ms - moment.number)
        self.commits.append(Span("long commit", begin_ms, at_ms))

    def _end_turn(self, moment: Moment, at_ms: int) -> None:
        self._end_attempt(moment.tokens, at_ms, moment.name)
        self.turn_to("storing", at_ms)

    def _begin_call(self, moment: Moment, at_ms: int) -> None:
        self.tools.open(str(moment.number), at_ms, moment.tokens, before="interrupted")
        self.turn_to("tool", at_ms)

    def _end_call(self, moment: Moment, at_ms: int) -> None:
        self.tools.close(at_ms, moment.tokens, moment.name)
        self.turn_to("storing", at_ms)

    def _end_attempt(self, tokens: int, at_ms: int, outcome: str) -> None:
        self.messages.close(at_ms, tokens)
        self.attempts.close(at_ms, tokens, outcome)

    _STEPS: ClassVar[Mapping[Kind, Callable[[_Reading, Moment, int], None]]] = {
        "queued": _queue,
        "replica": _take_over,
        "turn": _begin_turn,
        "backend": _send,
        "left": _leave,
        "token": _hear,
        "message": _begin_message,
        "commit": _commit,
        "turn_ended": _end_turn,
        "tool": _begin_call,
        "tool_ended": _end_call,
        "finished": end,
    }
    """Other kinds are points."""


def execution_of(
    moments: Iterable[Moment], *, begin_ms: int, now_ms: int | None = None
) -> Execution:
    """Compute the execution of a response that was requested at `begin_ms`.

    `now_ms` ends what has not ended. Times out of order, from clocks of several machines, are moved
    to the latest one before.
    """
    reading, at_ms, tokens, is_over = _Reading(), 0, 0, False
    for moment in moments:
        at_ms = max(at_ms, moment.at_ms - begin_ms)
        tokens = moment.tokens
        is_over = moment.kind == "finished"
        reading.read(moment, at_ms)
    if not is_over:
        at_ms = max(at_ms, 0 if now_ms is None else now_ms - begin_ms)
        reading.end(Moment("finished", at_ms, tokens), at_ms)
    return Execution(
        duration_ms=at_ms,
        is_over=is_over,
        phases=reading.phases,
        replicas=reading.replicas.spans,
        attempts=reading.attempts.spans,
        messages=reading.messages.spans,
        tools=reading.tools.spans,
        commits=reading.commits,
        points=reading.points,
        first_token_ms=reading.first_token_ms,
    )
