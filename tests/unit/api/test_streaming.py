"""One stream to one client: its frame, its silence, its end, and a client that does not read.

What can be written at once is, and the rest is written in a task.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from types import SimpleNamespace
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Scope

from gateway.api import sse
from gateway.api.client_connection import EXTENSION, ClientDisconnected
from gateway.api.streaming import DELTA_FRAME_BYTES, EventStream, Later, StreamLimits, begin
from gateway.entries import Alive, Finished, Tokens, TurnStarted
from gateway.eventlog.live_log import LiveLog
from gateway.protocol.stream_events import DeltaPattern, Deltas, Event
from tests.fakes.toy_logs import new_fold
from tests.fakes.toy_parser import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.protocol.stream_events import EventSink

LIMITS = StreamLimits(write_timeout_s=60, write_bytes_max=65_536, comment_after_s=60)
IMPATIENT = StreamLimits(write_timeout_s=0.001, write_bytes_max=65_536, comment_after_s=0.001)
CREATED = Event("response.created", 0, b"{}")
COMPLETED = Event("response.completed", 1, b"{}")
END = {"type": "http.response.body", "body": b""}


@dataclass
class Client:
    """Keeps what it is sent, and tells who waits for it; stops reading after `reads` messages."""

    reads: int = 1_000
    messages: list[Message] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def send(self, message: Message) -> None:
        if len(self.messages) >= self.reads:
            await asyncio.Event().wait()
        async with self.came:
            self.messages.append(message)
            self.came.notify_all()

    async def has(self, chunk: bytes) -> None:
        async with self.came:
            await self.came.wait_for(lambda: chunk in self.body)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


@dataclass
class Source:
    """Sends lists of events, waits before the last of them, and says that it was finalised."""

    batches: list[list[Event]]
    more: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    async def stream(self, sink: EventSink) -> None:
        try:
            for batch in self.batches[:-1]:
                await self._send(sink, batch)
            await self.more.wait()
            for batch in self.batches[-1:]:
                await self._send(sink, batch)
        finally:
            self.closed = True

    async def _send(self, sink: EventSink, batch: list[Event]) -> None:
        if (rest := sink(batch)) is not None:
            await rest


def ready(*batches: list[Event]) -> Source:
    source = Source(list(batches))
    source.more.set()
    return source


@pytest.mark.parametrize("comments", [True, False])
async def test_events_are_written_as_they_come(comments: bool) -> None:
    client, source = Client(), ready([CREATED], [COMPLETED])
    stream = EventStream({}, client.send, sse.PLAIN, LIMITS)
    await stream.write(source.stream, headers=[(b"x-more", b"1")], comments=comments)
    start, *written, end = client.messages
    assert start["status"] == 200
    assert start["headers"] == [*sse.HEADERS, (b"x-more", b"1")]
    (message,) = written
    assert message["body"] == sse.plain(CREATED)
    assert message["more_body"]
    assert end == END | {"body": sse.plain(COMPLETED) + sse.DONE}
    assert source.closed


async def test_a_stream_that_is_over_before_it_begins_has_its_end_mark() -> None:
    client = Client()
    stream = EventStream({}, client.send, sse.OBFUSCATED, LIMITS)
    await stream.write(ready([]).stream, comments=True)
    assert client.body == sse.DONE


async def test_a_stream_that_is_cut_off_has_no_end_mark() -> None:
    client = Client()
    stream = EventStream({}, client.send, sse.OBFUSCATED, LIMITS)
    await stream.write(ready([CREATED]).stream, comments=True)
    assert client.body == sse.obfuscated(CREATED)
    assert client.messages[-1] == END


async def test_padding_is_as_asked_for() -> None:
    delta = Event("response.output_text.delta", 1, b'{"delta":"hi"}', delta_length=2)
    for obfuscate in (True, False):
        client = Client()
        await EventStream(
            {}, client.send, sse.OBFUSCATED if obfuscate else sse.PLAIN, LIMITS
        ).write(ready([delta]).stream, comments=False)
        data = orjson.loads(client.body.split(b"data: ")[1])
        assert ("obfuscation" in data) is obfuscate


@pytest.mark.requirement("stream.comments")
async def test_silence_is_filled_with_comments_only() -> None:
    client, source = Client(), Source([[CREATED], [COMPLETED]])
    limits = StreamLimits(write_timeout_s=60, write_bytes_max=65_536, comment_after_s=0.001)
    stream = EventStream({}, client.send, sse.PLAIN, limits)
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.write(source.stream, comments=True))
        await client.has(sse.COMMENT * 2)
        source.more.set()
    frames = [sse.plain(CREATED), sse.plain(COMPLETED)]
    assert client.body.replace(sse.COMMENT, b"") == b"".join([*frames, sse.DONE])
    assert client.messages[-1] == END | {"body": frames[-1] + sse.DONE}


@pytest.mark.parametrize("comments", [True, False])
async def test_a_client_that_does_not_read_counts_as_gone(comments: bool) -> None:
    client, source = Client(reads=2), ready([CREATED], [COMPLETED])
    stream = EventStream({}, client.send, sse.PLAIN, IMPATIENT)
    with pytest.raises(ClientDisconnected):
        await stream.write(source.stream, comments=comments)
    assert source.closed


def offering(write_part: Callable[[bytes], bool]) -> Scope:
    """The scope of a server that has this extension."""
    return {"extensions": {EXTENSION: {"connection": SimpleNamespace(write_part=write_part)}}}


async def test_a_client_that_takes_no_comment_counts_as_gone() -> None:
    client, source = Client(), Source([[CREATED], [COMPLETED]])
    scope = offering(lambda part: part != sse.COMMENT)
    stream = EventStream(scope, client.send, sse.PLAIN, IMPATIENT)
    with pytest.raises(ClientDisconnected):
        await stream.write(source.stream, comments=True)
    assert source.closed


async def test_a_client_that_takes_a_comment_again_is_still_there() -> None:
    client, source, refused = Client(), Source([[CREATED], [COMPLETED]]), list[bytes]()

    def write_part(part: bytes) -> bool:
        if part == sse.COMMENT and len(refused) < 2:
            refused.append(part)
            return False
        client.messages.append({"body": part})
        if client.body.count(sse.COMMENT) == 2:
            source.more.set()
        return True

    limits = StreamLimits(write_timeout_s=60, write_bytes_max=65_536, comment_after_s=0.001)
    stream = EventStream(offering(write_part), client.send, sse.PLAIN, limits)
    await stream.write(source.stream, comments=True)
    assert client.body.endswith(sse.DONE)


async def test_a_server_that_waits_with_a_comment_says_nothing_of_its_client() -> None:
    client, source, waits = Client(), Source([[CREATED], [COMPLETED]]), list[bytes]()

    async def send(message: Message) -> None:
        if message.get("body") == sse.COMMENT:
            waits.append(sse.COMMENT)
            if len(waits) == 3:
                source.more.set()
            await asyncio.Event().wait()
        await client.send(message)

    stream = EventStream({}, send, sse.PLAIN, IMPATIENT)
    await stream.write(source.stream, comments=True)
    assert client.body == sse.plain(CREATED) + sse.plain(COMPLETED) + sse.DONE


@pytest.mark.parametrize("comments", [True, False])
async def test_a_stream_whose_client_is_gone_is_finalised_at_once(comments: bool) -> None:
    client, source = Client(), Source([[CREATED], [COMPLETED]])
    stream = EventStream({}, client.send, sse.PLAIN, LIMITS)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(stream.write(source.stream, comments=comments))
        await client.has(b"created")
        writing.cancel()
    assert source.closed


@pytest.mark.parametrize("comments", [True, False])
async def test_what_makes_the_events_fail_is_raised_as_it_is(comments: bool) -> None:
    async def broken(sink: EventSink) -> None:
        sink([CREATED])
        raise ValueError("a defect")

    stream = EventStream({}, Client().send, sse.PLAIN, LIMITS)
    with pytest.raises(ValueError, match="a defect"):
        await stream.write(broken, comments=comments)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), max_size=6),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.integers(1, 200),
    st.booleans(),
    st.lists(st.booleans(), min_size=1, max_size=6) | st.none(),
)
def test_a_client_of_any_pace_gets_every_frame_once_in_order(
    sizes: list[list[int]],
    pace: list[int],
    write_bytes_max: int,
    comments: bool,
    takes: list[bool] | None,
) -> None:
    """Also from a server that (without None) takes parts at one time, and not at another."""
    numbers = count()
    batches = [
        [Event("response.output_text.delta", next(numbers), b"x" * size, 1) for size in batch]
        for batch in sizes
    ]
    batches.append([Event("response.completed", next(numbers), b"{}")])
    turns, writes = cycle(pace), list[bytes]()

    async def send(message: Message) -> None:
        for _ in range(next(turns)):
            await asyncio.sleep(0)
        writes.append(message.get("body", b""))

    taken = cycle(takes or [False])

    def write_part(part: bytes) -> bool:
        takes_it = next(taken)
        if takes_it:
            writes.append(part)
        return takes_it

    async def played() -> None:
        limits = StreamLimits(60, write_bytes_max, 60)
        scope = {} if takes is None else offering(write_part)
        stream = EventStream(scope, send, sse.PLAIN, limits)
        await stream.write(ready(*batches).stream, comments=comments)

    asyncio.run(played())
    frames = [sse.plain(event) for batch in batches for event in batch]
    assert b"".join(writes) == b"".join([*frames, sse.DONE])
    assert all(write.endswith(b"\n\n") for write in writes if write)


@pytest.mark.slow
@given(
    st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=40),
    st.integers(1, 5) | st.just(65_536),
)
async def test_a_run_of_deltas_is_written_as_its_events_are(
    texts: list[str], frames_a_write: int
) -> None:
    pattern = DeltaPattern("response.output_text.delta", b'{"sequence_number":', b',"delta":', b"}")
    deltas = Deltas(pattern, 990, texts)
    client = Client()
    limits = StreamLimits(60, frames_a_write * DELTA_FRAME_BYTES, 60)
    rest = EventStream({}, client.send, sse.OBFUSCATED, limits)(deltas)
    assert rest is None
    writes = [message["body"] for message in client.messages]
    assert b"".join(writes) == b"".join(map(sse.obfuscated, deltas))
    assert all(write.endswith(b"\n\n") for write in writes)
    assert len(writes) == -(-len(texts) // frames_a_write)


async def test_a_run_of_which_a_client_is_shown_nothing_is_not_written() -> None:
    pattern = DeltaPattern("response.output_text.delta", b'{"sequence_number":', b',"delta":', b"}")
    client, nothing = Client(), sse.Encoder(lambda _: b"", lambda _: b"")
    assert EventStream({}, client.send, nothing, LIMITS)(Deltas(pattern, 1, ["a"])) is None
    assert not client.messages


async def test_what_a_client_keeps_up_with_is_written_where_it_is_shown() -> None:
    client, live = Client(), LiveLog(new_fold, reader_events_max=10)
    stream = EventStream({}, client.send, sse.PLAIN, LIMITS)
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.write(live.stream, comments=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not client.messages
        for written in range(1, 5):
            live.append(Alive())
            # Of the first entry come two events, in one write, and the status before them.
            assert len(client.messages) == 1 + written
        finished = Finished("completed", 1)
        live.close(finished, live.fold.apply(finished))
    assert client.body.endswith(sse.DONE)
    assert len(client.messages) == 1 + 4 + 1


async def test_the_status_is_written_in_the_call_that_brings_the_first_output() -> None:
    client, live = Client(), LiveLog(new_fold, reader_events_max=10)
    stream = EventStream({}, client.send, sse.PLAIN, LIMITS)
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.write(partial(live.stream, grace_s=60), comments=False))
        await asyncio.sleep(0)
        live.append(TurnStarted(1))
        await asyncio.sleep(0)
        assert not client.messages
        live.append(Tokens((TEXT,)))
        start, events = client.messages
        assert start["status"] == 200
        shown = [b"response.created", b"response.in_progress"]
        assert all(b"event: %b\n" % type_ in events["body"] for type_ in shown)
        finished = Finished("completed", 1)
        live.close(finished, live.fold.apply(finished))


async def test_what_fails_before_the_first_output_leaves_the_status_to_others() -> None:
    client, live = Client(), LiveLog(new_fold, reader_events_max=10)
    stream = EventStream({}, client.send, sse.PLAIN, LIMITS)
    writing = asyncio.ensure_future(stream.write(partial(live.stream, grace_s=60), comments=False))
    await asyncio.sleep(0)
    live.append(TurnStarted(1))
    live.failure = ValueError("a backend failed")
    failed = Finished("failed", 1, code="server_error", message="It failed.")
    live.close(failed, live.fold.apply(failed))
    with pytest.raises(ValueError, match="a backend failed"):
        await writing
    assert not client.messages


async def test_a_status_that_has_to_wait_comes_before_the_events() -> None:
    is_ready, messages = asyncio.Event(), list[Message]()

    async def send(message: Message) -> None:
        await is_ready.wait()
        messages.append(message)

    stream = EventStream({}, send, sse.PLAIN, LIMITS)
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.write(ready([CREATED], [COMPLETED]).stream, comments=False))
        await asyncio.sleep(0)
        assert not messages
        is_ready.set()
    assert [message["type"] for message in messages] == ["http.response.start", *2 * [END["type"]]]


async def test_what_has_nothing_to_wait_for_is_done_at_once() -> None:
    done: list[int] = []

    async def send() -> None:
        done.append(1)

    assert begin(send()) is None
    assert done == [1]


async def test_what_has_to_wait_goes_on_where_it_is_awaited() -> None:
    room, done = asyncio.Event(), []

    async def send() -> None:
        done.append("begun")
        await room.wait()
        await asyncio.sleep(0)
        done.append("sent")

    rest = begin(send())
    assert rest is not None
    assert done == ["begun"]
    room.set()
    await rest
    assert done == ["begun", "sent"]


async def test_what_was_waited_for_may_have_come_before_anybody_waits() -> None:
    room = asyncio.Event()
    rest = begin(_until(room))
    room.set()
    await asyncio.sleep(0)
    assert rest is not None
    await rest


async def test_what_it_raises_is_raised_where_it_is_done() -> None:
    async def broken(room: asyncio.Event | None = None) -> None:
        if room is not None:
            await room.wait()
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        begin(broken())
    room = asyncio.Event()
    rest = begin(broken(room))
    assert rest is not None
    room.set()
    with pytest.raises(ValueError, match="a defect"):
        await rest


@pytest.mark.parametrize("waits", [1, 2])
async def test_a_task_that_waits_for_the_rest_may_be_cancelled(waits: int) -> None:
    left: list[int] = []
    rooms = [asyncio.Event() for _ in range(2)]
    reached = asyncio.Event()

    async def send() -> None:
        try:
            await rooms[0].wait()
            reached.set()
            await rooms[1].wait()
        finally:
            left.append(1)

    rest = begin(send())
    assert rest is not None
    waiting = asyncio.ensure_future(_await(rest))
    if waits == 2:
        rooms[0].set()
        await reached.wait()
    else:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert left == [1]
    assert not rooms[waits - 1]._waiters


async def test_work_for_later_is_done_when_it_is_awaited_and_may_be_left_undone() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    later = Later(work)
    assert not done
    await later
    assert done == [1]
    Later(work)


async def _until(room: asyncio.Event) -> None:
    await room.wait()


async def _await(rest: object) -> None:
    await rest  # type: ignore[misc]
