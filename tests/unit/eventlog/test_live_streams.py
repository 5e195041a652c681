"""Whatever a generation says, its streams carry the fold of the log, whoever reads how and when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api import sse
from gateway.api.streaming import Later
from gateway.engine.output_guard import GuardLimits, OutputGuard
from gateway.engine.turn import TurnSink
from gateway.entries import Alive, Finished, Repair, TurnEnded, TurnStarted
from gateway.eventlog.live_log import LiveLog
from gateway.generation import FinishReason, TokenChunk, TokenLogprob
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.staged_run import RecordingJournal, folds, run_spec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from gateway.protocol.stream_events import Event

FINAL = script_ids("<|channel|>final<|message|>")
NEXT = script_ids("<|end|><|start|>assistant")
EVENTS_MAX = 20
POLICY = GuardLimits(repeated_tokens_max=16)
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
    """Is sent events as a client is; it `takes` a write at once, or after a turn of the loop."""

    encode: Callable[[Event], bytes]
    takes: Iterator[bool]
    after: int = -1
    frames: list[bytes] = field(default_factory=list)

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        self.frames += map(self.encode, events)
        return None if next(self.takes) else Later(partial(asyncio.sleep, 0))


class Scene:
    """A generation, its log, which is held until it is committed or not at all, and its readers."""

    def __init__(self, *, held: bool) -> None:
        spec = run_spec()
        self.new_fold = folds(spec.head, spec.rules)
        self.live = LiveLog(self.new_fold, reader_events_max=EVENTS_MAX, held=held)
        self.journal = RecordingJournal(self.live)
        self.journal.append(TurnStarted(10))
        guard = OutputGuard(spec.rules, POLICY, harmony(), reasoning_budget=None)
        self.sink = TurnSink(
            self.journal, guard, on_first_chunk=lambda _: None, on_first_token=lambda: None
        )
        self.readers: list[Reader] = []
        self._committed = 0
        self._streams: list[asyncio.Task[None]] = []

    def join(self, reader: Reader) -> None:
        self.readers.append(reader)
        self._streams.append(asyncio.create_task(self.live.stream(reader, reader.after)))

    def leave(self) -> None:
        """The first reader goes."""
        if self._streams:
            self._streams.pop(0).cancel()
            del self.readers[0]

    def commit(self, count: int) -> None:
        """So many entries more; all, if that is above their number."""
        self._committed = min(len(self.journal.entries), self._committed + count)
        self.live.show(self._committed)

    async def end(self) -> list[Event]:
        """All events of the log, once every reader has its own."""
        self.journal.append(TurnEnded(FinishReason.STOP))
        await self.journal.finish(Finished("completed", 7), None)
        await asyncio.gather(*self._streams)
        fold = self.new_fold()
        return [event for entry in self.journal.entries for event in fold.apply(entry)]


Step = TokenChunk | str


async def played(steps: list[Step], readers: list[Reader], commits: list[int]) -> None:
    """Chunks come, readers `join` and `leave`, other entries are written, the loop turns.

    After each chunk some entries are committed, if `commits` tell how many.
    """
    scene, waiting, committing = Scene(held=bool(commits)), list(readers), cycle(commits or [0])
    for step in steps:
        if isinstance(step, TokenChunk):
            has_room = scene.sink.on_tokens(step)
            scene.commit(next(committing))
            if not has_room and not await scene.sink.room():
                break
        elif step == "join" and waiting:
            scene.join(waiting.pop(0))
        elif step == "leave":
            scene.leave()
        elif step == "alive":
            scene.journal.append(Alive())
        elif step == "repair":
            scene.journal.append(Repair(0, "none"))
        else:
            await asyncio.sleep(0)
    events = await scene.end()
    for reader in scene.readers:
        wanted = [event for event in events if event.sequence_number > reader.after]
        assert b"".join(reader.frames) == b"".join(map(reader.encode, wanted))


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
OTHERS = st.sampled_from(["join", "leave", "alive", "repair", "turn", "turn"])


EAGER = [([True], -1)] * 3
SLOW = [([True] * 30 + [False] * 30, -1)] * 3
LATE: list[tuple[int, Step]] = [
    (19, "join"),
    (20, "turn"),
    (20, "turn"),
    (21, "join"),
    (22, "turn"),
]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES), max_size=8),
    SIZES,
    st.lists(st.tuples(st.integers(0, 60), OTHERS), max_size=12),
    st.lists(st.tuples(TAKES, st.integers(-1, 40)), min_size=3, max_size=3),
    st.sampled_from([sse.plain, sse.obfuscated]),
    st.sampled_from([0, 0, 0, 0, 9]),
    COMMITS,
)
@example([TEXT], [1], LATE, EAGER, sse.obfuscated, 0, [])
@example([TEXT], [1], [(15, "turn"), (15, "leave")], EAGER, sse.obfuscated, 0, [])
@example([TEXT] * 2, [1], [], SLOW, sse.obfuscated, 0, [])
@example([LOOP] * 5, [1], [], EAGER, sse.plain, 0, [])
@example([TEXT], [1], [], EAGER, sse.plain, 9, [])
@example([HALVES] * 2, [1], [], EAGER, sse.plain, 0, [])
@example([[*NEXT, *CALL]], [1], [], EAGER, sse.plain, 0, [])
@example([PROSE], [1], [], EAGER, sse.plain, 0, [])
@example([TEXT], [1], LATE, EAGER, sse.obfuscated, 0, [0, 0, 3])
@example([TEXT] * 2, [1], [(30, "leave")], EAGER, sse.obfuscated, 0, [0, 0, 3])
@example([TEXT] * 2, [1], [(35, "alive")], EAGER, sse.obfuscated, 0, [0, 0, 3])
@example([TEXT] * 2, [1], [(9, "leave"), (40, "join")], EAGER, sse.plain, 0, [0, 0, 3])
@example([TEXT] * 4, [1], [], EAGER, sse.plain, 0, [1] * 30 + [0] * 40 + [99])
@example([TEXT, [250_000], TEXT], [1], [], EAGER, sse.plain, 0, [1, 0])
def test_every_stream_carries_the_fold_of_the_log(
    pieces: list[list[int]],
    sizes: list[int],
    others: list[tuple[int, Step]],
    takes: list[tuple[list[bool], int]],
    encode: Callable[[Event], bytes],
    told_from: int,
    commits: list[int],
) -> None:
    """However its readers come and go, whatever else is written, whenever it is committed."""
    ids = [*FINAL, *(token for piece in pieces for token in piece)]
    steps: list[Step] = ["join", "turn", "turn", *chunks(ids, sizes, told_from)]
    for at, other in others:
        steps.insert(3 + at, other)
    readers = [Reader(encode, cycle(each), after) for each, after in takes]
    asyncio.run(played(steps, readers, commits))
