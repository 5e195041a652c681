"""Reads that are taken as they come must not be told from those that go the general way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.generation import Sampling, TokenChunk
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.completions import CompletionReader
from gateway.upstreams.exchange import Exchange, Overheard
from gateway.upstreams.http.connection import Connection, ConnectionLimits
from gateway.upstreams.http.transport import ResponseBody
from gateway.upstreams.response_reader import is_one_chunk
from tests.fakes.listening import Heard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.generation import HearText

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
STOP_IDS = (200002,)
TIMEOUTS = Timeouts()
BEHIND = b'","logprobs":null,"finish_reason":null,"token_ids":['


def frame(text: bytes, ids: bytes, behind: bytes = BEHIND) -> bytes:
    """An event as vLLM writes it; `text` and `ids` as they stand in JSON."""
    before = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"'
    return before + text + behind + ids + b"]}]}\n\n"


def chunk(body: bytes, size: str = "%x", end: bytes = b"\r\n") -> bytes:
    return (size % len(body)).encode() + b"\r\n" + body + end


STEADY = chunk(frame(b" a", b"7"))
MANY = [STEADY] * 5
OTHER = chunk(frame(b" a", b"7", BEHIND.replace(b"_ids", b"_idx")))
FINISH = frame(b"a", b"5", b'","finish_reason":"stop","token_ids":[')
SIZES = ["%x", "%X", "0%x", "%x;x=1", "%x ", "1%x", " %x", "0000%x"]
ODD_TEXTS = [
    b"", b" a", b"\\n", b'\\"', b"\\", b'"', b"\\u00e9", b"\t", b"\xff", "東京".encode(), b"\n\n",
    b"a" * 4000, BEHIND + b"8]}]}", b"]}]}\n\n\r\n64\r\ndata: ",
]  # fmt: skip
TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=6).map(lambda text: orjson.dumps(text)[1:-1])
IDS = st.sampled_from([b"1", b"01", b"", b"1,2", b"-1", b"2147483648", b"9" * 12, b"200002"]) | (
    st.integers(0, 300_000).map(lambda token: b"%d" % token)
)
EVENTS = st.builds(frame, TEXTS, IDS) | st.sampled_from([
    b": keep-alive\n\n", b"data: [DONE]\n\n", b"\n\n", b"data: {}\n\n", b"x",
    FINISH,
    frame(b"a", b"5", b'","finish_reason":"abort","token_ids":['),
    frame(b"a", b"6", b'","logprobs":null,"finish_reason":null,"token_idx":['),
    b'data: {"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":3}}}\n\n',
    b'data: {"error":{"message":"oops","code":500}}\n\n',
])  # fmt: skip
CHUNKS = (
    st.just(STEADY)
    | st.builds(
        chunk,
        EVENTS,
        st.just("%x") | st.sampled_from(SIZES),
        st.just(b"\r\n") | st.sampled_from([b"", b"\n"]),
    )
    | st.sampled_from([b"0\r\n\r\n", b"\r\n", STEADY + STEADY, STEADY[:-1], STEADY[1:]])
)


@dataclass
class Flowing(Heard):
    """Has a shorter way, as often as `says` says so; each id of it is a chunk."""

    says: Iterator[bool] = field(default_factory=lambda: cycle([True]))
    took: int = 0

    @override
    def flow(self) -> HearText | None:  # type: ignore[override]
        return self._hear_text if next(self.says) else None

    def _hear_text(self, token: int, now: float) -> bool:
        assert now <= asyncio.get_running_loop().time()
        if not next(self.says):
            return False
        self.took += 1
        return self.hear(TokenChunk([token], upstream="g"))


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


def _release(connection: Connection) -> None:
    connection.finish()


Told = tuple[list[TokenChunk], str, bool, bool, bool]


async def heard(listener: Heard, reads: list[bytes]) -> Told:
    """What of these reads, and of the end of the connection behind them, can be told."""
    connection = Connection(asyncio.get_running_loop(), ConnectionLimits(), lambda _: None)
    socket = Socket()
    connection.connection_made(socket)
    await connection.send(b"request", {})
    connection.data_received(HEAD)
    reader = CompletionReader(
        "g", Sampling(max_tokens=40), stop_ids=STOP_IDS, frame_bytes_max=10**5
    )
    through = Overheard(listener, first=lambda: None)
    exchange = Exchange(through, reader, TIMEOUTS)
    generation = asyncio.create_task(exchange.hear_out(ResponseBody(connection, {}, _release)))
    await asyncio.sleep(0)
    for read in reads:
        if socket.is_aborted:
            break
        began, count = asyncio.get_running_loop().time(), len(listener.chunks)
        connection.data_received(read)
        is_over = reader.finish is not None or reader.fault is not None or reader.ids_left <= 0
        if len(listener.chunks) > count and not is_over:
            assert exchange.heard_at >= began
            assert connection.deadline.at == exchange.heard_at + TIMEOUTS.stall_s
        await asyncio.sleep(0)
    connection.connection_lost(None)
    (fault,) = await asyncio.gather(generation, return_exceptions=True)
    return listener.chunks, repr(fault), socket.is_aborted, connection.usable, exchange.has_begun


@given(
    st.lists(CHUNKS, max_size=12),
    st.lists(st.integers(0, 4000), max_size=6) | st.none(),
    st.lists(st.booleans(), min_size=1, max_size=6),
)
@example([STEADY] * 9, None, [True])
@example([STEADY] * 9 + [chunk(frame(b" a", b"200002"))], None, [True])
@example([STEADY] * 45, None, [True])
@example([STEADY] * 9, [500, 1001], [True])
@example([*MANY, chunk(frame(b" a", b"7"), "1%x"), *MANY], None, [True])
@example([*MANY, OTHER, *MANY], None, [True])
@example([*MANY, chunk(FINISH), *MANY, STEADY], None, [True])
@example([*MANY, chunk(frame(b" a", b"07")), *MANY], None, [True])
@example(
    [STEADY] * 5 + [chunk(frame(b" a", b"7"), "%X"), chunk(frame(b"\xff", b"7"))], None, [True]
)
def test_what_is_heard_of_steady_reads_is_what_the_general_way_makes_of_them(
    chunks: list[bytes], cuts: list[int] | None, says: list[bool]
) -> None:
    """Whatever comes in one read: so many bytes, or (without cuts) one chunk."""
    reads = [STEADY, STEADY, *chunks]
    if cuts is not None:
        whole = b"".join(reads)
        edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
        reads = [whole[a:b] for a, b in pairwise(edges) if a < b]
    flowing = Flowing(says=cycle(says))
    assert asyncio.run(heard(flowing, reads)) == asyncio.run(heard(Heard(), reads))


def test_a_stream_at_its_usual_pace_takes_the_shorter_way() -> None:
    flowing = Flowing()
    asyncio.run(heard(flowing, [STEADY] * 30))
    assert (len(flowing.chunks), flowing.took > 20) == (30, True)


def test_who_never_flows_is_asked_less_and_less_often() -> None:
    asked = list[int]()

    class Never(Heard):
        @override
        def flow(self) -> None:
            asked.append(len(self.chunks))

    asyncio.run(heard(Never(), [STEADY] * 39))
    assert len(asked) < 8


@given(st.binary(max_size=6), st.binary(max_size=6), st.integers(0, 12), st.booleans())
def test_a_chunk_is_one_only_if_the_parser_says_so(
    before: bytes, behind: bytes, size: int, is_event: bool
) -> None:
    body = b"data: x\n\n" if is_event else b"x" * size
    read = before + body + behind
    is_one = is_one_chunk(read, body)
    assert is_one == (
        is_event and behind == b"\r\n" and before.endswith(b"\r\n") and _is_size(before[:-2], 9)
    )


def _is_size(digits: bytes, size: int) -> bool:
    return bool(digits) and digits.strip(b"0") == b"%d" % size
