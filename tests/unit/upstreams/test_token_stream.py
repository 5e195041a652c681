"""A generation that is pushed: whatever the network does, the sink is given what was said."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.fair_queue import ReadTurns
from gateway.generation import FinishReason, Sampling, TokenChunk
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.http.client import ResponseBody
from gateway.upstreams.http.connection import Connection, ConnectionLimits, ResponseReader
from gateway.upstreams.inference_server import TokenStream
from gateway.upstreams.token_readers import SLICE_BYTES, CompletionReader
from tests.fakes.completion_stream import COMMENT, DONE, failed, said, turn, usage
from tests.fakes.raw_server import STREAM_END, STREAM_HEAD
from tests.fakes.token_sinks import Heard, Led

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

STOP_IDS = (200002,)
ANSWERS = [
    b"".join(turn([5, 200002])),
    b"".join([STREAM_HEAD, *(said([i, i]) for i in range(9)), said([9], "length"), usage(4), DONE]),
    b"".join([STREAM_HEAD, said([1]), COMMENT, said([2]), said([3]), said([4]), failed(500)]),
    b"".join([STREAM_HEAD, said([1]), said([2]), said([3]), said([200002])]),
    b"".join([STREAM_HEAD, said([1]), said([2]), said([3]), STREAM_END]),
    STREAM_HEAD + failed(400, "no"),
    STREAM_HEAD + said([1]) + said([2]) + b"nonsense\r\n",
]  # fmt: skip


class Later(ReadTurns):
    """Each read has to wait for its turn."""

    @override
    def begin(self, tenant: Hashable, size: int) -> bool:
        return False


@dataclass
class Wire(asyncio.Transport):
    """The socket's side: what is not read stays in the kernel.

    Unless it `leaks`, as TLS does: what was decrypted already comes in spite of a pause.
    """

    pieces: list[bytes]
    error: Exception | None
    connection: Connection
    stays: bool = False
    leaks: bool = False
    is_paused: bool = False
    is_closed: bool = False
    aborted: int = 0
    written: list[bytes] = field(default_factory=list)

    @override
    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    @override
    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    @override
    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    @override
    def is_closing(self) -> bool:
        return bool(self.is_closed or self.aborted)

    @override
    def abort(self) -> None:
        self.aborted += 1

    def step(self) -> bool:
        """One turn of the loop; False when nothing can happen any more until something is asked."""
        if self.is_closed or (self.is_paused and not self.leaks and not self.aborted):
            return False
        if self.stays and not self.pieces and not self.aborted:
            return False
        if self.aborted or not self.pieces:
            self.is_closed = True
            self.connection.connection_lost(None if self.aborted else self.error)
            return False
        self.connection.data_received(self.pieces.pop(0))
        return True


@dataclass
class Played:
    """How a generation went."""

    chunks: list[TokenChunk]
    fault: BaseException | None
    wire: Wire
    released: list[Connection]

    @property
    def told(self) -> tuple[list[int], object, object, object]:
        last = self.chunks[-1] if self.chunks else TokenChunk([])
        ids = [i for chunk in self.chunks for i in chunk.ids]
        return ids, last.finish, last.cached_tokens, type(self.fault)


def reader_of(ids_max: int = 50) -> CompletionReader:
    return CompletionReader(
        "g", Sampling(max_tokens=ids_max), stop_ids=STOP_IDS, frame_bytes_max=10**5
    )


async def play(
    pieces: Sequence[bytes],
    sink: Heard,
    *,
    error: Exception | None = None,
    stays: bool = False,
    leaks: bool = False,
    timing: Sequence[int] = (),
    on_first: Callable[[], None] | None = None,
    on_finish: Callable[[], None] | None = None,
    waits: bool = False,
    ids_max: int = 50,
    turns: ReadTurns | None = None,
) -> Played:
    """Send a request, and let `pieces` be the answer, after which the server goes, or `stays`.

    `timing` is for how many turns of the loop a sink that is full stays so. Whoever `waits` for
    the answer to begin has it poured from the read on that brings its head.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(loop, ConnectionLimits(), lambda _: None)
    wire = Wire(list(pieces), error, connection, stays, leaks)
    connection.connection_made(wire)
    await connection.send(b"request", {})
    while not (waits or connection._reader.status):  # type: ignore[union-attr]
        wire.step()
    released: list[Connection] = []

    def release(connection: Connection) -> None:
        connection.finish()
        released.append(connection)

    stream = TokenStream(
        sink,
        reader_of(ids_max),
        Timeouts(),
        turns or ReadTurns(),
        on_first=on_first,
        on_finish=on_finish,
    )
    body = ResponseBody(connection, {}, release)

    async def complete() -> None:
        if waits:
            stream.attach(body)
            assert (await connection.head({}, stream))[0] == 200
        await stream.complete(body)

    task = loop.create_task(complete())
    pauses = iter(timing)
    while not task.done():
        await asyncio.sleep(0)
        if isinstance(sink, Led) and sink.held.is_set():
            for _ in range(next(pauses, 0)):
                assert not wire.step() or leaks or sink.chunks[-1].finish
                await asyncio.sleep(0)
            sink.make_room()
        else:
            wire.step()
    while wire.step():
        pass
    return Played(sink.chunks, task.exception(), wire, released)


def plainly(answer: bytes, error: Exception | None) -> tuple[list[int], object, object, object]:
    """The same answer read in one piece, with nothing to hold it up."""
    response, reader, chunks = ResponseReader(10_000), reader_of(), []
    why = "connection lost" if error else "disconnected"
    try:
        response.feed(answer)
    except Exception as broken:  # noqa: BLE001  the reader is told of it
        why = str(broken)
    chunks = [reader.feed(response.take())]
    if reader.fault is None and not reader.finished:
        chunks.append(reader.end(why))
    present = [chunk for chunk in chunks if chunk is not None]
    last = present[-1] if present else TokenChunk([])
    ids = [i for chunk in present for i in chunk.ids]
    return ids, last.finish, last.cached_tokens, type(reader.fault)


@pytest.mark.slow
@example(ANSWERS[1], 3000, [*range(0, 1000, 40)], None, 1, [3] * 20, True, True, False)
@example(ANSWERS[1], 3000, [*range(0, 1000, 40)], None, 1, [3] * 20, True, False, True)
@given(
    st.sampled_from(ANSWERS),
    st.integers(0, 3000),
    st.lists(st.integers(0, 3000), max_size=12),
    st.sampled_from([None, ConnectionResetError()]),
    st.sampled_from([None, 1, 2]),
    st.lists(st.integers(0, 3), max_size=20),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_however_it_is_cut_held_up_and_broken_off_the_same_is_heard(
    answer: bytes,
    end: int,
    cuts: list[int],
    error: Exception | None,
    width: int | None,
    timing: list[int],
    leaks: bool,
    waits: bool,
    is_deferred: bool,
) -> None:
    size = 0 if waits else len(STREAM_HEAD)
    answer = answer[: max(end, len(STREAM_HEAD))]
    edges = sorted({size, *(min(max(cut, size), len(answer)) for cut in cuts), len(answer)})
    pieces = [answer[a:b] for a, b in zip([0, *edges], edges, strict=False)]
    sink = Led(width=width)
    options: dict[str, Any] = {"error": error, "timing": timing, "leaks": leaks, "waits": waits}
    turns = Later() if is_deferred else ReadTurns()
    played = asyncio.run(play(pieces, sink, turns=turns, **options))
    assert played.told == plainly(answer, error)
    assert all(chunk.finish is None for chunk in played.chunks[:-1])
    assert len(played.released) == 1
    assert played.wire.is_closed or played.released[0].usable
    assert played.wire.is_closed or not played.wire.is_paused


@pytest.mark.parametrize("enough", [1, 2])
def test_nothing_is_heard_after_enough(enough: int) -> None:
    pieces = [STREAM_HEAD, said([1]), said([2]), said([3]), said([4])]
    played = asyncio.run(play(pieces, Led(stop_after=enough)))
    assert [chunk.ids for chunk in played.chunks] == [[1], [2]][:enough]
    assert (played.fault, played.wire.aborted) == (None, 1)


def test_a_finish_that_is_enough_leaves_the_connection_alive() -> None:
    played = asyncio.run(play(list(turn([1])), Led(stop_after=2), stays=True))
    assert [chunk.finish for chunk in played.chunks] == [None, FinishReason.STOP]
    assert played.released[0].usable


def test_the_end_of_the_body_is_not_waited_for_but_the_connection_is_used_again() -> None:
    async def finish_first() -> None:
        head, *events, end = turn([1])
        played = await play([head, b"".join(events)], Heard(), stays=True)
        assert (played.fault, played.chunks[-1].finish) == (None, FinishReason.STOP)
        (connection,) = (played.wire.connection,)
        assert (played.released, connection.usable) == ([], False)
        connection.data_received(end)
        assert (len(played.released), connection.usable) == (1, True)

    asyncio.run(finish_first())


def test_a_whole_answer_that_is_looked_at_in_slices_leaves_a_connection_that_is_read_from() -> None:
    head, *others = turn([2])
    silence = COMMENT * (2 * SLICE_BYTES // len(b": keep-alive\n\n"))
    read = b"".join([said([1]), silence, *others])
    played = asyncio.run(play([head, read], Heard(), stays=True, waits=True))
    assert [chunk.ids for chunk in played.chunks][:2] == [[1], [2]]
    assert played.chunks[-1].finish is FinishReason.STOP
    assert played.released[0].usable
    assert not played.wire.is_paused


def test_a_sink_is_given_tokens_in_the_context_of_who_asked() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    class Asked(Heard):
        @override
        def on_tokens(self, chunk: TokenChunk) -> bool:
            names.append(who.get())
            return super().on_tokens(chunk)

    async def ask() -> None:
        who.set("caller")
        await play(list(turn([1])), Asked())

    names: list[str] = []
    asyncio.run(ask())
    assert set(names) == {"caller"}


async def begun(
    sink: Heard,
    timeouts: Timeouts,
    *,
    ids_max: int = 50,
    on_first: Callable[[], None] | None = None,
    on_finish: Callable[[], None] | None = None,
) -> tuple[Connection, asyncio.Task[None]]:
    """A connection whose answer has begun, and the task that waits for the rest."""
    loop = asyncio.get_running_loop()
    connection = Connection(loop, ConnectionLimits(), lambda _: None)
    connection.connection_made(Wire([], None, connection))
    await connection.send(b"request", {})
    connection.data_received(STREAM_HEAD)
    stream = TokenStream(
        sink, reader_of(ids_max), timeouts, ReadTurns(), on_first=on_first, on_finish=on_finish
    )
    body = ResponseBody(connection, {}, lambda one: cast("None", one.finish()))
    task = loop.create_task(stream.complete(body))
    await asyncio.sleep(0)
    return connection, task


def test_who_asked_is_told_in_its_own_context_whoever_opened_the_connection() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    names: list[str] = []

    def note() -> None:
        names.append(who.get())

    async def ask() -> None:
        who.set("caller")
        connection, task = await begun(Heard(), Timeouts(), on_first=note, on_finish=note)
        Context().run(connection.data_received, b"".join(turn([1])[1:]))
        await task

    asyncio.run(ask())
    assert names == ["caller", "caller"]


def test_after_the_last_id_a_finish_is_not_waited_for_although_there_was_no_room() -> None:
    async def fill_up() -> None:
        led = Led(width=1)
        connection, task = await begun(led, Timeouts(stall_s=3600, tail_s=0.01), ids_max=1)
        connection.data_received(said([1]))
        await led.held.wait()
        led.width = None
        led.make_room()
        await task
        assert (led.chunks[0].ids, led.chunks[-1].finish) == ([1], FinishReason.LENGTH)

    asyncio.run(fill_up())


def test_a_held_sink_is_left_at_once_when_nobody_wants_it_any_more() -> None:
    async def cancel() -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(loop, ConnectionLimits(), lambda _: None)
        wire = Wire([], None, connection)
        connection.connection_made(wire)
        await connection.send(b"request", {})
        connection.data_received(STREAM_HEAD + said([1]))
        led = Led(width=1)
        stream = TokenStream(led, reader_of(), Timeouts(), ReadTurns())
        body = ResponseBody(connection, {}, lambda one: cast("None", one.finish()))
        task = loop.create_task(stream.complete(body))
        await led.held.wait()
        assert wire.is_paused
        task.cancel()
        await asyncio.wait([task])
        assert (wire.aborted, task.cancelled()) == (1, True)

    asyncio.run(cancel())


@pytest.mark.slow
@given(
    st.sampled_from(ANSWERS),
    st.lists(st.integers(0, 3000), max_size=12),
    st.sampled_from([None, 1, 2]),
)
def test_who_asked_is_told_of_the_first_chunk_and_of_the_last_before_the_sink_has_them(
    answer: bytes, cuts: list[int], width: int | None
) -> None:
    size = len(STREAM_HEAD)
    edges = sorted({size, *(min(max(cut, size), len(answer)) for cut in cuts), len(answer)})
    pieces = [answer[a:b] for a, b in zip([0, *edges], edges, strict=False)]
    led = Led(width=width)
    told: list[tuple[str, int]] = []
    played = asyncio.run(
        play(
            pieces,
            led,
            on_first=lambda: told.append(("first", len(led.chunks))),
            on_finish=lambda: told.append(("finish", len(led.chunks))),
        )
    )
    assert played.told == plainly(answer, None)
    wanted = [("first", 0)] if led.chunks else []
    if led.chunks and led.chunks[-1].finish is not None:
        wanted.append(("finish", len(led.chunks) - 1))
    assert told == wanted


def test_a_connection_whose_whole_answer_came_at_once_is_read_when_it_is_used_again() -> None:
    """Nothing is read while it is looked at, in several turns of the loop."""

    async def ask_again() -> None:
        head, *end = turn([200002])
        long = (said([5]) + COMMENT) * (4 * SLICE_BYTES // len(said([5])))
        sink = Led(stop_after=2)
        played = await play([head + long + b"".join(end)], sink, stays=True, ids_max=10**4)
        (connection,) = played.released
        assert len(played.chunks) == 2
        assert connection.usable
        await connection.send(b"again", {})
        played.wire.pieces += turn([3])
        assert played.wire.step(), "the socket is not read"
        assert (await connection.head({}))[0] == 200

    asyncio.run(ask_again())


async def test_a_connection_that_is_given_back_serves_others_before_its_first_user_wakes() -> None:
    loop = asyncio.get_running_loop()
    connection = Connection(loop, ConnectionLimits(), lambda _: None)
    connection.connection_made(Wire([], None, connection, stays=True))
    released = loop.create_future()

    async def first() -> None:
        await connection.send(b"first", {})
        stream = TokenStream(Heard(), reader_of(), Timeouts(), ReadTurns())
        body = ResponseBody(connection, {}, lambda one: released.set_result(one.finish()))
        stream.attach(body)
        await connection.head({"read": 60.0}, stream)
        await stream.complete(body)

    async def second() -> int:
        assert await released, "it is fit for another request"
        await connection.send(b"second", {})
        return (await connection.head({"read": 60.0}))[0]

    users = [loop.create_task(second()), loop.create_task(first())]
    await asyncio.sleep(0)
    connection.data_received(b"".join(turn([1])))
    await users[1]
    assert not users[0].done()
    connection.data_received(STREAM_HEAD)
    assert await users[0] == 200
    connection.abort()
