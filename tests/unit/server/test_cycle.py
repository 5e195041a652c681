"""A response is what uvicorn makes of it, and what is added for streams and old clients."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.server.http_protocol import PARTS_TOGETHER, BoundedFlowControl, Cycle, PartWrites
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

LOG = logging.getLogger("gateway.server.http_protocol")
DATE = (b"date", b"Sat, 21 Nov 2026 17:00:00 GMT")
START: Any = {"type": "http.response.start", "status": 200, "headers": []}
END: Any = {"type": "http.response.body", "body": b""}


class Wire(asyncio.Transport):
    """Keeps each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.is_read = True

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    @override
    def is_closing(self) -> bool:
        return self.closed

    @override
    def close(self) -> None:
        self.closed = True

    @override
    def pause_reading(self) -> None:
        self.is_read = False

    @override
    def resume_reading(self) -> None:
        self.is_read = True


def ours(
    wire: Wire,
    method: str = "GET",
    *,
    keep_alive: bool = True,
    expects: bool = False,
    on_response: Callable[[], None] = lambda: None,
    version: str = "1.1",
    part_writes: PartWrites | None = None,
) -> Cycle:
    protocol: Any = SimpleNamespace(
        transport=wire,
        part_writes=part_writes or PartWrites(),
        flow=FlowControl(wire),
        logger=LOG,
        access_logger=LOG,
        server_state=SimpleNamespace(default_headers=[DATE]),
        on_response_complete=on_response,
    )
    head: Any = SimpleNamespace(version=version, expects_continue=expects, keeps_alive=keep_alive)
    return Cycle(protocol, {"type": "http", "method": method}, head)


def theirs(
    wire: Wire,
    method: str = "GET",
    *,
    keep_alive: bool = True,
    expects: bool = False,
    on_response: Callable[[], None] = lambda: None,
) -> RequestResponseCycle:
    scope: Any = {"type": "http", "method": method}
    return RequestResponseCycle(
        scope,
        wire,
        FlowControl(wire),
        LOG,
        LOG,
        False,
        [DATE],
        asyncio.Event(),
        expects,
        keep_alive,
        on_response,
    )


HEADERS = st.lists(
    st.sampled_from(
        [
            (b"Content-Type", b"text/plain"),
            (b"content-length", b"2"),
            (b"content-length", b"0"),
            (b"transfer-encoding", b"Chunked"),
            (b"Connection", b"keep-alive, CLOSE"),
            (b"connection", b"keep-alive"),
            (b"x bad", b"1"),
            (b"x-bad", b"1\r\nx: 2"),
            (b"x-tab", b"a\tb"),
        ]
    ),
    max_size=4,
)
STARTS = st.builds(
    lambda status, headers: {"type": "http.response.start", "status": status, "headers": headers},
    st.sampled_from([200, 204, 304, 404, 599]),
    HEADERS,
)
BODIES = st.builds(
    lambda body, more: {"type": "http.response.body", "body": body, "more_body": more},
    st.sampled_from([b"", b"a", b"ok", b"x" * 40]),
    st.booleans(),
)
MESSAGES = st.lists(STARTS | BODIES, max_size=5).flatmap(
    lambda rest: st.sampled_from([rest, [START, *rest]])
)


async def outcome(
    kind: Callable[..., Any], method: str, messages: list[dict[str, Any]], *, keep_alive: bool
) -> tuple[object, ...]:
    """All that can be seen of an answer by an application that sends these messages."""
    wire, ended = Wire(), list[bool]()
    answer = kind(wire, method, keep_alive=keep_alive, on_response=lambda: ended.append(True))
    answer.more_body = False
    refused: list[str] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            try:
                await send(message)
            except RuntimeError as error:
                # Of two bad headers either may be told of.
                refused.append(str(error).removesuffix(" name.").removesuffix(" value."))
                raise

    await answer.run_asgi(app)
    await asyncio.sleep(0)
    return b"".join(wire.writes), wire.closed, ended, refused, answer.response_complete


def compare(method: str, messages: list[dict[str, Any]], *, keep_alive: bool) -> None:
    async def compared() -> None:
        mine = await outcome(ours, method, messages, keep_alive=keep_alive)
        assert mine == await outcome(theirs, method, messages, keep_alive=keep_alive)

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(compared())
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.slow
@given(st.sampled_from(["GET", "HEAD", "POST"]), MESSAGES, st.booleans())
def test_an_answer_is_that_of_uvicorn(
    method: str, messages: list[dict[str, Any]], keep_alive: bool
) -> None:
    compare(method, messages, keep_alive=keep_alive)


@each("method", ["GET", "HEAD"])
@each("keep_alive", [True, False])
@each(
    "headers",
    [
        [],
        [(b"Content-Length", b"2")],
        [(b"content-length", b"1")],
        [(b"content-length", b"3")],
        [(b"content-length", b"2"), (b"transfer-encoding", b"Chunked")],
        [(b"transfer-encoding", b"gzip")],
        [(b"Connection", b"keep-alive, CLOSE")],
        [(b"connection", b"keep-alive")],
        [(b"x bad", b"1")],
        [(b"x", b"1\r\ny: 2")],
    ],
)
def test_its_headers_frame_it_as_uvicorn_s_do(
    method: str, keep_alive: bool, headers: list[tuple[bytes, bytes]]
) -> None:
    start = {**START, "headers": headers}
    body = {"type": "http.response.body", "body": b"ok"}
    compare(method, [start, body], keep_alive=keep_alive)
    compare(method, [start, {**body, "more_body": True}, END], keep_alive=keep_alive)


async def received(kind: Callable[..., Any], chunks: list[bytes], *, expects: bool) -> object:
    wire = Wire()
    answer = kind(wire, "POST", expects=expects)
    messages = []
    for number, chunk in enumerate(chunks, 1):
        answer.body += chunk
        answer.more_body = number < len(chunks)
        answer.message_event.set()
        messages.append(await answer.receive())
    answer.disconnected = True
    messages.append(await answer.receive())
    return messages, wire.writes


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=4), st.booleans())
def test_a_body_comes_as_from_uvicorn(chunks: list[bytes], expects: bool) -> None:
    async def compared() -> None:
        mine = await received(ours, chunks, expects=expects)
        assert mine == await received(theirs, chunks, expects=expects)

    asyncio.run(compared())


@pytest.mark.slow
@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=8))
def test_what_is_written_as_a_part_is_what_would_be_sent(parts: list[tuple[bytes, bool]]) -> None:
    async def written(*, as_parts: bool) -> bytes:
        wire = Wire()
        answer = ours(wire)
        await answer.send(START)
        for part, is_one in parts:
            if not (as_parts and is_one and answer.write_part(part)):
                message: Any = {"type": "http.response.body", "body": part, "more_body": True}
                await answer.send(message)
        await answer.send(END)
        return b"".join(wire.writes)

    assert asyncio.run(written(as_parts=True)) == asyncio.run(written(as_parts=False))


async def test_a_part_is_written_only_in_the_middle_of_a_body_of_unknown_length() -> None:
    wire = Wire()
    answer = ours(wire)
    refused = [not answer.write_part(b"before the head")]
    await answer.send(START)
    await asyncio.sleep(0)
    refused += [not answer.write_part(b"")]
    answer.flow.pause_writing()
    refused += [not answer.write_part(b"to a client that does not read")]
    answer.flow.resume_writing()
    assert answer.write_part(b"part")
    answer.disconnected = True
    refused += [not answer.write_part(b"to a client that is gone")]
    answer.disconnected = False
    await answer.send(END)
    refused += [not answer.write_part(b"behind the end")]
    assert all(refused)
    assert wire.writes[1:] == [b"4\r\npart\r\n0\r\n\r\n"]


@pytest.mark.parametrize("length", [[(b"content-length", b"2")], []])
async def test_a_head_is_written_with_what_follows_in_the_same_turn(
    length: list[tuple[bytes, bytes]],
) -> None:
    wires, part_writes = [Wire(), Wire()], PartWrites()
    answers = [ours(wire, part_writes=part_writes) for wire in wires]
    start: Any = {**START, "headers": length}
    for answer in answers:
        await answer.send(start)
    assert [wire.writes for wire in wires] == [[], []]
    await answers[0].send({"type": "http.response.body", "body": b"ok"})
    assert (len(wires[0].writes), wires[1].writes) == (1, [])
    await asyncio.sleep(0)
    assert [len(wire.writes) for wire in wires] == [1, 1]
    assert wires[0].writes[0].startswith(wires[1].writes[0])


async def test_parts_of_several_answers_are_written_at_the_end_of_the_turn() -> None:
    part_writes = PartWrites()
    wires = [Wire() for _ in range(3)]
    answers = [ours(wire, part_writes=part_writes) for wire in wires]
    for answer in answers:
        await answer.send(START)
    await asyncio.sleep(0)
    assert all(answer.write_part(b"part") for answer in answers)
    assert not any(wire.writes[1:] for wire in wires)
    wires[1].close()
    await asyncio.sleep(0)
    assert [wire.writes[1:] for wire in wires] == [[b"4\r\npart\r\n"], [], [b"4\r\npart\r\n"]]


async def test_an_application_that_fails_loses_nothing_of_what_it_wrote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire = Wire()
    answer = ours(wire)
    answer.more_body = False

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(START)
        assert answer.write_part(b"part")
        raise ValueError

    await answer.run_asgi(app)  # type: ignore[arg-type]
    assert b"".join(wire.writes).endswith(b"\r\n\r\n4\r\npart\r\n")
    assert wire.closed
    assert "ValueError" in caplog.text


async def test_parts_wait_for_a_bounded_number_of_others() -> None:
    wire = Wire()
    answer = ours(wire)
    await answer.send(START)
    await asyncio.sleep(0)
    for _ in range(PARTS_TOGETHER + 1):
        assert answer.write_part(b"part")
    assert wire.writes[1:] == [b"4\r\npart\r\n" * PARTS_TOGETHER]
    await asyncio.sleep(0)
    assert wire.writes[2:] == [b"4\r\npart\r\n"]


@pytest.mark.parametrize(
    ("method", "headers"), [("GET", [(b"content-length", b"2")]), ("HEAD", [])]
)
async def test_a_body_that_is_not_chunked_has_no_parts(
    method: str, headers: list[tuple[bytes, bytes]]
) -> None:
    answer = ours(Wire(), method)
    start: Any = {**START, "headers": headers}
    await answer.send(start)
    assert not answer.write_part(b"ok")


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    wire = Wire()
    answer = ours(wire)
    await answer.send(START)
    answer.flow.pause_writing()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(answer.send(END))
        await asyncio.sleep(0)
        assert not sending.done()
        answer.flow.resume_writing()
    assert answer.response_complete


async def test_a_client_that_is_gone_is_sent_nothing() -> None:
    wire = Wire()
    answer = ours(wire)
    answer.disconnected = True
    await answer.send(START)
    await answer.send(END)
    assert wire.writes == []


async def test_an_answer_is_over_once() -> None:
    answer = ours(Wire())
    await answer.send(START)
    await answer.send(END)
    with pytest.raises(RuntimeError, match="after response already completed"):
        await answer.send(END)


async def test_an_answer_to_a_request_that_is_not_complete_leaves_the_connection_open() -> None:
    wire, ended = Wire(), list[bool]()
    answer = ours(wire, "POST", on_response=lambda: ended.append(wire.closed))
    await answer.send(START)
    await answer.send(END)
    assert b"connection: close\r\n" in wire.writes[0]
    assert (ended, wire.closed) == ([False], False)


async def test_a_request_that_is_complete_before_the_end_of_its_answer_closes_it() -> None:
    wire = Wire()
    answer = ours(wire, "POST")
    await answer.send(START)
    answer.more_body = False
    await answer.send(END)
    assert wire.closed


async def test_who_watches_is_told_once_that_the_client_has_gone() -> None:
    told: list[str] = []
    answer = ours(Wire())
    answer.watch(lambda: told.append("first"))
    answer.watch(lambda: told.append("second"))
    answer.disconnect()
    answer.disconnect()
    answer.watch(lambda: told.append("late"))
    assert told == ["second", "late"]
    assert not answer.is_watched


async def run(app: ASGIApp) -> Wire:
    wire = Wire()
    answer = ours(wire)
    answer.more_body = False
    await answer.run_asgi(app)  # type: ignore[arg-type]
    return wire


async def test_an_application_that_fails_or_forgets_to_answer_is_answered_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def failing(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ValueError

    async def silent(_scope: Scope, _receive: Receive, _send: Send) -> None:
        pass

    for app in (failing, silent):
        wire = await run(app)
        assert wire.writes[0].startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert wire.closed
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_an_answer_without_an_end_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def forgetful(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(START)

    wire = await run(forgetful)
    assert wire.closed
    assert "without completing response" in caplog.text


@pytest.mark.parametrize("length", [None, 5])
async def test_a_client_that_knows_no_chunks_gets_none(length: int | None) -> None:
    headers = [(b"content-length", b"%d" % length)] if length else []
    wire = Wire()
    answer = ours(wire, keep_alive=False, version="1.0")
    answer.more_body = False
    await answer.send({"type": "http.response.start", "status": 200, "headers": headers})
    assert not answer.write_part(b"hello")
    await answer.send({"type": "http.response.body", "body": b"hello", "more_body": True})
    if length:
        with pytest.raises(RuntimeError, match="longer"):
            await answer.send({"type": "http.response.body", "body": b"!"})
    await answer.send({"type": "http.response.body", "body": b""})
    head, _, body = b"".join(wire.writes).partition(b"\r\n\r\n")
    assert (b"transfer-encoding" in head, body, wire.closed) == (False, b"hello", True)


async def test_who_writes_waits_for_as_long_as_the_client_does_not_read() -> None:
    flow = BoundedFlowControl(Wire())
    await flow.drain()
    flow.pause_writing()
    flow.pause_writing()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(flow.drain())
        await asyncio.sleep(0)
        assert (flow.write_paused, waiting.done()) == (True, False)
        flow.resume_writing()
    assert not flow.write_paused
    await flow.drain()


def test_a_connection_is_not_read_while_its_reading_is_paused() -> None:
    wire = Wire()
    flow = BoundedFlowControl(wire)
    flow.pause_reading()
    assert (flow.read_paused, wire.is_read) == (True, False)
    flow.resume_reading()
    assert (flow.read_paused, wire.is_read) == (False, True)
