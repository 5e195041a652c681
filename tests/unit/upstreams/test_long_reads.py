"""Runs of chunks that are taken as they come must not be told from those that are parsed."""

from __future__ import annotations

import asyncio
from itertools import chain, pairwise
from typing import Any

import httptools
import httpx2
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.generation import Sampling
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.completions import SLICE_BYTES, CompletionReader
from gateway.upstreams.exchange import Exchange
from gateway.upstreams.http.connection import Connection, ConnectionLimits
from gateway.upstreams.http.transport import ResponseBody
from gateway.upstreams.long_reads import LONG_READ_BYTES, LongReads, owed
from gateway.upstreams.response_reader import ResponseReader
from tests.fakes.listening import Heard

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
STOP_IDS = (200002,)
BEHIND = b'","logprobs":null,"finish_reason":null,"token_ids":['


def frame(text: bytes, ids: bytes, behind: bytes = BEHIND) -> bytes:
    """An event as vLLM writes it; `text` and `ids` as they stand in JSON."""
    before = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"'
    return before + text + behind + ids + b"]}]}\n\n"


def chunk(body: bytes, size: str = "%x", end: bytes = b"\r\n") -> bytes:
    return (size % len(body)).encode() + b"\r\n" + body + end


STEADY = [chunk(frame(b" a" * (at % 5), b"%d" % (at * at))) for at in range(60)]
MANY = b"".join(STEADY)
LAST = chunk(frame(b"a", b"5", b'","finish_reason":"stop","token_ids":['))
USAGE = chunk(b'data: {"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":3}}}\n\n')
END = b"0\r\n\r\n"
ODD_TEXTS = [
    b"\\n", b'\\"', b"\\", b'"', b"\\u00e9", b"\t", b"\xff", "東京".encode(), b"\n\n",
    b"a" * 150, b"a" * 4500, BEHIND + b"8]}]}", b"]}]}\n\n\r\n64\r\ndata: ",
]  # fmt: skip
TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=6).map(lambda text: orjson.dumps(text)[1:-1])
IDS = st.sampled_from([b"01", b"", b"1,2", b",", b"-1", b"2147483648", b"9" * 12, b"200002"])
ODD = (
    st.builds(chunk, st.builds(frame, TEXTS, IDS | st.just(b"9")))
    | st.builds(
        chunk,
        st.just(frame(b" a", b"7")),
        st.sampled_from(["%x", "%X", "0%x", "%x;x=1", "%x ", "1%x", "0000%x"]),
        st.sampled_from([b"\r\n", b"", b"\n"]),
    )
    | st.sampled_from([
        LAST, LAST + USAGE + END, USAGE, END, b"\r\n", STEADY[1][:-1], STEADY[1][1:],
        chunk(frame(b"a", b"1") * 2), chunk(frame(b"a", b"1")[:40]) + chunk(frame(b"a", b"1")[40:]),
        chunk(b": keep-alive\n\n"), chunk(b"data: [DONE]\n\n"), chunk(b"x"),
        chunk(frame(b" a", b"7", BEHIND.replace(b"_ids", b"_idx"))),
        chunk(b'data: {"error":{"message":"oops","code":500}}\n\n'),
    ])
)  # fmt: skip


class Socket(asyncio.Transport):
    """Takes what is written, and notes that it was aborted."""

    is_aborted = False

    @override
    def write(self, data: Any) -> None:
        pass

    @override
    def is_closing(self) -> bool:
        return self.is_aborted

    @override
    def abort(self) -> None:
        self.is_aborted = True

    @override
    def pause_reading(self) -> None:
        pass

    @override
    def resume_reading(self) -> None:
        pass


class Told:
    """What can be told of a stream that came in these reads, and whose connection then broke."""

    def __init__(
        self, listener: Heard, fault: object, connection: Connection, *, before_loss: int
    ) -> None:
        """`before_loss` is how many chunks had been heard when the connection broke."""
        chunks = listener.chunks
        self.before_loss = sum(len(chunk.ids) for chunk in chunks[:before_loss])
        self.ids = list(chain.from_iterable(chunk.ids for chunk in chunks))
        self.ends = [(chunk.finish, chunk.cached_tokens) for chunk in chunks if chunk.finish]
        self.rest = repr(fault), connection.usable

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _release(connection: Connection) -> None:
    connection.finish()


async def _told(listener: Heard, reads: list[bytes]) -> Told:
    connection = Connection(asyncio.get_running_loop(), ConnectionLimits(), lambda _: None)
    socket = Socket()
    connection.connection_made(socket)
    await connection.send(b"request", {})
    connection.data_received(HEAD)
    reader = CompletionReader(
        "g", Sampling(max_tokens=10**6), stop_ids=STOP_IDS, frame_bytes_max=10**5
    )
    exchange = Exchange(listener, reader, Timeouts())
    generation = asyncio.create_task(exchange.hear_out(ResponseBody(connection, {}, _release)))
    await asyncio.sleep(0)
    for read in reads:
        if socket.is_aborted:
            break
        connection.data_received(read)
        for _ in range(1 + len(read) // SLICE_BYTES):  # a long one is heard slice by slice
            await asyncio.sleep(0)
    before_loss = len(listener.chunks)
    connection.connection_lost(None)
    (fault,) = await asyncio.gather(generation, return_exceptions=True)
    return Told(listener, fault, connection, before_loss=before_loss)


def told(reads: list[bytes], listener: Heard | None = None) -> Told:
    return asyncio.run(_told(listener or Heard(), reads))


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges) if a < b]


@given(
    st.lists(ODD | st.just(MANY), max_size=6),
    st.lists(st.integers(0, 60_000), max_size=8),
)
@example([MANY], [])
@example([MANY, MANY, LAST + USAGE + END], [18_000, 27_000])
@example([MANY, chunk(frame(b"\xff", b"7")), MANY], [])
@example([MANY, chunk(frame(b" a", b"7"), "%X"), MANY, LAST], [])
@example([MANY, chunk(frame(b"a" * 4500, b"7")), MANY], [])
@example([b"ff\r\n" + frame(b"a" * 4500, b"7") + b"\r\n", MANY], [])
@example([chunk(b"x\r" * 3000), MANY, MANY], [])
def test_what_is_heard_of_long_reads_is_what_each_chunk_alone_says(
    odd: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join([MANY, MANY, *odd, MANY])
    reads = cut(stream, [len(MANY), 2 * len(MANY), *cuts])
    assert told(reads) == told(cut(stream, list(range(0, len(stream), LONG_READ_BYTES // 2))))


@given(
    st.lists(ODD | st.just(MANY), max_size=6),
    st.lists(st.integers(0, 60_000), max_size=3),
)
@example([], [])
@example([LAST + USAGE + END], [])
@example([END], [8300])
def test_a_read_that_begins_a_stream_may_be_long(odd: list[bytes], cuts: list[int]) -> None:
    stream = b"".join([STEADY[0], *odd, MANY, MANY, MANY])
    assert told(cut(stream, cuts)) == told(
        cut(stream, list(range(0, len(stream), LONG_READ_BYTES // 2)))
    )


@pytest.mark.parametrize("shift", [*range(-12, 3), 40, 150])
def test_runs_are_taken_wherever_the_reads_before_them_ended(
    shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()
    heard = LongReads.cut

    def noting(self: LongReads, read: bytes) -> tuple[int, list[int], int]:
        found = heard(self, read)
        taken.append(len(found[1]))
        return found

    monkeypatch.setattr(LongReads, "cut", noting)
    stream = MANY * 6
    reads = cut(stream, [len(MANY) * at + shift * at * at for at in range(1, 6)])
    assert told(reads).ids == [at * at for at in range(60)] * 6
    assert max(taken) >= 58


@given(st.integers(0, 500))
def test_no_id_waits_for_the_read_behind_the_one_that_brought_it(size: int) -> None:
    reads = [MANY, MANY, MANY + MANY[:size]]
    stream = b"".join(reads)
    said = told(reads)
    assert said == told(cut(stream, list(range(0, len(stream), LONG_READ_BYTES // 2))))
    assert said.before_loss == len(said.ids) == stream.count(b"\n\n")


def test_a_listener_that_is_full_gets_the_rest_once_it_has_room() -> None:
    class Full(Heard):
        """Full after each chunk."""

        @override
        async def room(self) -> bool:
            await asyncio.sleep(0)
            return True

    assert told([MANY] * 6, Full(is_full=True)).ids == told([MANY] * 6).ids


def test_a_listener_that_has_heard_enough_hears_no_more() -> None:
    class Enough(Heard):
        """Has enough after so many."""

        @override
        def hear(self, chunk: Any) -> bool:
            super().hear(chunk)
            return len(self.chunks) < 3

    assert len(told([MANY] * 6, Enough()).ids) == 180


@given(st.binary(max_size=8), st.lists(ODD | st.sampled_from(STEADY), max_size=3), st.integers())
def test_the_parser_is_between_two_chunks_where_it_is_said_to_be(
    junk: bytes, chunks: list[bytes], at: int
) -> None:
    stream = b"".join([STEADY[3], *chunks, STEADY[4]]) + junk
    (read, *_) = cut(stream, [at])
    reader = ResponseReader(65536)
    reader.feed(HEAD)
    try:
        reader.feed(read)
    except httpx2.RemoteProtocolError:
        return
    left = owed(read, reader.last_piece)
    if left is None or reader.complete:
        return
    body = reader.take()
    rest = stream[len(read) : len(read) + left]
    if len(rest) < left:
        return
    try:
        reader.feed(rest)
        body += reader.take()
        reader.feed(STEADY[5])
    except (httpx2.RemoteProtocolError, httptools.HttpParserError):
        assert not rest.endswith(b"\r\n")
        return
    assert reader.take() == frame(b"", b"25")
