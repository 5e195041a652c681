"""Text that is shown first and folded later must not be told from text that is folded at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, repeat
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.api import sse
from gateway.api.writing import Later
from gateway.generation import FinishReason, TokenChunk, TokenLogprob
from gateway.log import Alive, Finished, Repair, Tokens, TurnEnded, TurnStarted
from gateway.runs.hearing import FLOW_IDS_MAX, Hearing
from gateway.runs.journal import MemoryJournal, Pen
from gateway.runs.live import LiveLog
from gateway.runs.steering import Course, Steering
from tests.fakes.harmony_script import script_ids, vocabulary
from tests.fakes.staged_run import RecordingJournal, folds, specification

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from gateway.generation import HearText
    from gateway.protocol.events import Event
    from gateway.protocol.showing import DeltaPattern, ShowDelta

FINAL = script_ids("<|channel|>final<|message|>")
NEXT = script_ids("<|end|><|start|>assistant")
EVENTS_MAX = 20
POLICY = Steering(repeated_tokens_max=16)
TEXT = script_ids('the sea, "and" so on\n') * 3
LOOP = script_ids("a") * 30
HALVES = [*script_ids("\N{FAMILY}é🫠東京 a"), 4103, *script_ids("and so on")]
CALL = script_ids('<|channel|>commentary to=functions.f<|message|>{"a": 1} {"a": 1} and so on')
PROSE = [*NEXT, *script_ids("<|channel|>analysis I think<|message|> so")]
PIECES = [
    TEXT,
    LOOP,
    HALVES,
    [*NEXT, *CALL],
    [*NEXT, *script_ids("<|channel|>analysis<|message|>")],
    PROSE,
    [*NEXT, *FINAL],
    script_ids("<|return|>"),
    [250_000],
]


@dataclass
class Reader:
    """Shown events as a client is; it `takes` a write at once, or after a turn of the loop."""

    encode: sse.Encode
    takes: Iterator[bool]
    may_flow: bool
    keeps_up: bool = True
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Something was shown."""
    frames: list[bytes] = field(default_factory=list)
    flowed: int = 0

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        self.came.set()
        self.frames += map(self.encode, events)
        return None if next(self.takes) else Later(partial(asyncio.sleep, 0))

    def deltas(self, pattern: DeltaPattern) -> ShowDelta | None:
        return sse.delta_writer(self.encode, pattern, self._write) if self.may_flow else None

    def _write(self, frame: bytes) -> bool:
        if not next(self.takes):
            return False
        self.flowed += 1
        self.frames.append(frame)
        return True


class Held(RecordingJournal):
    """A log that is shown when `commit` says so; `puts` tells whether there is room for an id."""

    def __init__(self, live: LiveLog, puts: Iterator[bool]) -> None:
        super().__init__(live)
        self._puts = puts

    @override
    def flow(self, ids_max: int) -> HearText | None:  # type: ignore[override]
        return self.live.flow(ids_max, self._put)

    def _put(self, token: int) -> bool:
        if not next(self._puts):
            return False
        self.entries.append(Tokens((token,)))
        return True


@dataclass
class Scene:
    """A generation that is heard, and its readers."""

    flows: bool
    puts: Iterator[bool] | None = None
    now: float = 0.0

    def __post_init__(self) -> None:
        spec = specification()
        held, self.committed, self._is_late = self.puts is not None, 0, False
        self.live = LiveLog(folds(spec.head, spec.rules), reader_events_max=EVENTS_MAX, held=held)
        self.journal = Held(self.live, self.puts or repeat(True))
        self.pen = Pen(self.journal if held else MemoryJournal(self.live, None))
        self.pen.append(TurnStarted(10))
        (self.turn,) = self.live.fold.turns
        course = Course(spec.rules, POLICY, vocabulary(), reasoning_budget=None)
        self.hearing = Hearing(self.pen, course, meet=lambda _: None, first_token=lambda: None)
        self.readers: list[Reader] = []
        self.following: list[asyncio.Task[None]] = []
        self._flow: HearText | None = None
        self.seen: list[object] = []

    def join(self, reader: Reader, after: int = -1) -> None:
        self._is_late = self._is_late or bool(self.readers) or self.now > 0
        self.readers.append(reader)
        self.following.append(asyncio.create_task(self.live.play(reader, after)))

    def hear(self, chunk: TokenChunk) -> bool:
        """As `upstreams.exchange` has it heard."""
        is_one = len(chunk.ids) == 1 and not chunk.logprobs
        self.now += 1
        if self._flow is not None and is_one and self._flow(chunk.ids[0], self.now):
            return True
        goes_on = self.hearing.hear(chunk)
        self._flow = self.hearing.flow() if self.flows and is_one else None
        return goes_on

    def commit(self, count: int) -> None:
        """So many entries more; all, if that is above their number."""
        self.committed = min(len(self.journal.entries), self.committed + count)
        self.live.show(self.committed)

    def look(self, what: int) -> None:
        """Whoever looks finds all of it folded."""
        fold = self.live.fold
        views: list[Callable[[], object]] = [
            fold.encoded_response,
            lambda: fold.usage,
            lambda: fold.place,
            lambda: fold.seen,
            lambda: list(self.turn.said),
            lambda: self.live.last_repair,
            lambda: self.live.is_holding,
        ]
        self.seen.append(views[what % len(views)]())

    def note_progress(self) -> None:
        """How far each reader is: the same at every step, where all keep up, and no log is folded
        again, which takes its time: nobody came late, and no events were forgotten.
        """
        behind = len(self.journal.entries) - self.committed
        self._is_late = self._is_late or behind > EVENTS_MAX
        if not self._is_late:
            self.seen.append([len(b"".join(reader.frames)) for reader in self.readers])

    async def end(self) -> tuple[object, ...]:
        self.pen.append(TurnEnded(FinishReason.STOP))
        finished = Finished("completed", 7)
        self.live.close(finished, self.live.fold.apply(finished))
        await asyncio.gather(*self.following, return_exceptions=True)
        frames = [b"".join(reader.frames) for reader in self.readers]
        return frames, self.live.fold.encoded_response(), self.live.fold.usage, self.seen


Step = TokenChunk | str | int


async def played(
    steps: list[Step], readers: list[Reader], commits: list[int], puts: list[bool], *, flows: bool
) -> tuple[object, ...]:
    """Chunks are heard, readers `join`, somebody looks (a number), the loop turns.

    After each chunk some entries are committed, if `commits` tell how many.
    """
    scene, waiting = Scene(flows, cycle(puts) if commits else None), list(readers)
    committing = cycle(commits or [0])
    for step in steps:
        if isinstance(step, TokenChunk):
            goes_on = scene.hear(step)
            scene.commit(next(committing))
            if not goes_on:
                break
        elif isinstance(step, int):
            scene.look(step)
        elif step == "join" and waiting:
            scene.join(waiting.pop(0), after=len(scene.readers) * 5 - 1)
        elif step == "leave" and scene.following:
            scene.following[0].cancel()
            await asyncio.sleep(0)
        elif step == "alive":
            scene.pen.append(Alive())
        elif step == "repair":
            scene.pen.append(Repair(0, "none"))
        else:
            await asyncio.sleep(0)
        if all(reader.keeps_up for reader in readers):
            scene.note_progress()
    return await scene.end()


def chunks(ids: list[int], sizes: list[int], told_from: int) -> list[TokenChunk]:
    """`sizes` of them over and over; those from number `told_from` on have no logprobs."""
    told, at = list[TokenChunk](), 0
    while at < len(ids):
        part = ids[at : at + sizes[len(told) % len(sizes)]]
        logprobs = [TokenLogprob(-1.0) for _ in part] if len(told) < told_from else None
        told.append(TokenChunk(part, logprobs=logprobs))
        at += len(part)
    return told


SIZES = st.lists(st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=1, max_size=6)
TAKES = st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=6)
NO_COMMITS: list[int] = []
COMMITS = st.just(NO_COMMITS) | st.lists(st.integers(0, 9), max_size=6)
"""None: what is said is shown at once."""
OTHERS = st.integers(0, 6) | st.sampled_from(["join", "leave", "alive", "repair", "turn", "turn"])


EAGER = [([True], True)] * 3
SLOW = [([True] * 30 + [False] * 30, True)] * 3
LATE: list[tuple[int, Step]] = [
    (19, "join"),
    (20, "turn"),
    (20, "turn"),
    (21, "join"),
    (22, "turn"),
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=8),
    SIZES,
    st.lists(st.tuples(st.integers(0, 60), OTHERS), max_size=12),
    st.lists(st.tuples(TAKES, st.booleans()), min_size=3, max_size=3),
    st.sampled_from([sse.plain, sse.obfuscated]),
    st.sampled_from([0, 0, 0, 0, 9]),
    COMMITS,
    TAKES,
    st.sampled_from([True, True, False]),
)
@example([TEXT], [1], [], EAGER, sse.plain, 0, [], [True], True)
@example([TEXT], [1], LATE, EAGER, sse.obfuscated, 0, [], [True], True)
@example([TEXT], [1], [(15, "turn"), (15, "leave")], EAGER, sse.obfuscated, 0, [], [True], True)
@example([TEXT] * 2, [1], [], SLOW, sse.obfuscated, 0, [], [True], True)
@example([LOOP] * 5, [1], [], EAGER, sse.plain, 0, [], [True], True)
@example([TEXT], [1], [], EAGER, sse.plain, 9, [], [True], True)
@example([HALVES] * 2, [1], [], EAGER, sse.plain, 0, [], [True], True)
@example([[*NEXT, *CALL]], [1], [], EAGER, sse.plain, 0, [], [True], True)
@example([PROSE], [1], [], EAGER, sse.plain, 0, [], [True], True)
@example([TEXT], [1], [], EAGER, sse.obfuscated, 0, [1], [True], True)
@example([TEXT], [1], LATE, EAGER, sse.obfuscated, 0, [0, 0, 3], [True], True)
@example([TEXT] * 2, [1], [(30, "leave")], EAGER, sse.obfuscated, 0, [0, 0, 3], [True], True)
@example(
    [TEXT] * 2, [1], [(30, 0), (35, "alive")], EAGER, sse.obfuscated, 0, [0, 0, 3], [True], True
)
@example([TEXT] * 2, [1], [], SLOW, sse.plain, 0, [1], [True], True)
@example([HALVES] * 2, [1], [], EAGER, sse.plain, 0, [1], [True, True, True, False], True)
@example([TEXT] * 2, [1], [(30, 6), (50, "join")], EAGER, sse.plain, 0, [0, 0, 3], [True], False)
@example(
    [TEXT] * 2, [1], [(9, "leave"), (40, "join")], EAGER, sse.plain, 0, [0, 0, 3], [True], True
)
@example([TEXT] * 4, [1], [], EAGER, sse.plain, 0, [1] * 30 + [0] * 40 + [99], [True], True)
@example([TEXT, [250_000], TEXT], [1], [], EAGER, sse.plain, 0, [1, 0], [True], True)
def test_what_flows_is_shown_and_kept_as_if_it_had_been_folded_at_once(
    pieces: list[list[int]],
    sizes: list[int],
    others: list[tuple[int, Step]],
    takes: list[tuple[list[bool], bool]],
    encode: sse.Encode,
    told_from: int,
    commits: list[int],
    puts: list[bool],
    followed: bool,
) -> None:
    """However its readers come and go, wherever somebody looks, whatever else is written."""
    ids = [*FINAL, *(token for piece in pieces for token in piece)]
    # Whoever leaves while it is waited for has what it took by then, which is a matter of pace.
    others = [(at, other) for at, other in others if other != "leave" or all(takes[0][0])]
    steps: list[Step] = ["join" if followed else 0, "turn", "turn", *chunks(ids, sizes, told_from)]
    for at, other in others:
        steps.insert(3 + at, other)

    def readers() -> list[Reader]:
        return [Reader(encode, cycle(each), may_flow, all(each)) for each, may_flow in takes]

    flowing = asyncio.run(played(steps, readers(), commits, puts, flows=True))
    assert flowing == asyncio.run(played(steps, readers(), commits, puts, flows=False))


async def test_nearly_all_of_a_paced_text_flows() -> None:
    scene, reader = Scene(flows=True), Reader(sse.obfuscated, repeat(True), may_flow=True)
    scene.join(reader)
    await asyncio.sleep(0)
    text = script_ids("The sea is a very large body of water, and so on. ") * 60
    for token in [*FINAL, *text]:
        scene.hear(TokenChunk([token]))
        await asyncio.sleep(0)
    assert reader.flowed > len(text) * 0.9 > FLOW_IDS_MAX
    shown_at = scene.live.shown_at
    assert len(scene.turn.said) < len(text) + len(FINAL)
    scene.look(0)
    assert len(scene.turn.said) == len(text) + len(FINAL)
    assert scene.live.shown_at == shown_at == scene.now
    await scene.end()


async def test_what_nobody_follows_flows_to_who_comes_late() -> None:
    text = script_ids("The sea is a very large body of water, and so on. ") * 2

    async def follow(*, flows: bool) -> tuple[object, ...]:
        scene = Scene(flows, puts=repeat(True))
        for token in [*FINAL, *text]:
            scene.hear(TokenChunk([token]))
            scene.commit(1)
        for _ in range(2):
            scene.commit(99)
            assert not scene.live.is_holding
            scene.hear(TokenChunk([text[0]]))
            scene.hear(TokenChunk([text[1]]))
            assert scene.live.is_holding
        scene.join(Reader(sse.plain, repeat(True), may_flow=flows))
        await scene.readers[0].came.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        for token in text:
            scene.hear(TokenChunk([token]))
            scene.commit(3)
            await asyncio.sleep(0)
        scene.look(0)
        return await scene.end()

    assert await follow(flows=True) == await follow(flows=False)


@pytest.mark.parametrize("held", [False, True])
async def test_who_has_more_than_was_said_is_shown_what_is_behind_that(*, held: bool) -> None:
    text = script_ids("The sea is a very large body of water, and so on. ") * 2

    async def follow(*, flows: bool) -> tuple[object, ...]:
        scene = Scene(flows, puts=repeat(True) if held else None)
        for token in [*FINAL, *text[:5]]:
            scene.hear(TokenChunk([token]))
        scene.commit(99)
        scene.join(Reader(sse.plain, repeat(True), may_flow=flows), after=len(text))
        await asyncio.sleep(0)
        for token in text:
            scene.hear(TokenChunk([token]))
            scene.commit(1)
            await asyncio.sleep(0)
        return await scene.end()

    assert await follow(flows=True) == await follow(flows=False)


async def test_a_pen_that_is_put_down_flows_no_more() -> None:
    scene, reader = Scene(flows=True), Reader(sse.plain, repeat(True), may_flow=True)
    scene.join(reader)
    await asyncio.sleep(0)
    for token in [*FINAL, *script_ids("and so on")]:
        scene.hear(TokenChunk([token]))
    flow = scene.hearing.flow()
    assert flow is not None
    scene.pen.put_down()
    assert (flow(script_ids(" on")[0], 1.0), scene.hearing.flow()) == (False, None)
    scene.live.hand_over()
    await asyncio.gather(*scene.following)
