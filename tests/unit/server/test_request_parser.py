"""The head of a request: bounded to the byte, and never read in two ways."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.refusals import NO_REQUEST, Refused
from gateway.server.request_parser import (
    ENCODED,
    NO_HOST,
    OLD_CHUNKS,
    OTHER_VERSION,
    HeadBounds,
    IncomingRequest,
)
from tests.fakes.cases import each

BOUNDS = HeadBounds(bytes_max=400, fields_max=8)
NEXT = b"behind it"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
LENGTH = b"Content-Length: 3\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
HEADS = [
    b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n\r\nGET / HTTP/1.1\r\nhost: [::1]:80\r\nconnection: close\r\n\r\n",
    b"POST http://x/%61 HTTP/1.1\r\nHost: x\r\ncontent-length: 7\r\nexpect: 100-Continue\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET / RTSP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * 500,
    b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * 368 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * 369 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 8 + b"\r\n",
    b"\r\n" * 300,
]


def outcome(pieces: list[bytes]) -> object:
    """All that can be seen of a head that comes in these pieces."""
    head = IncomingRequest(BOUNDS)
    rest: bytes | None = None
    try:
        for piece in pieces:
            rest = head.feed_head(piece) if rest is None else rest + piece
        if rest is None:
            return "goes on"
        target = head.path, head.query
        said = head.method, target, head.headers, head.keeps_alive, head.expects_continue
    except Refused as refused:
        return refused.status, refused.message
    return rest, head.version, head.is_complete, said


@pytest.mark.slow
@given(st.sampled_from(HEADS), st.lists(st.integers(0, 600), max_size=12), st.booleans())
def test_it_is_the_same_whatever_reads_it_comes_in(
    head: bytes, cuts: list[int], byte_by_byte: bool
) -> None:
    data = head + NEXT
    ends = range(len(data) + 1) if byte_by_byte else sorted({0, len(data), *cuts})
    pieces = [data[start:end] for start, end in pairwise(ends)]
    assert outcome([piece for piece in pieces if piece]) == outcome([data])


def test_a_head_has_as_many_bytes_as_it_may_and_no_more() -> None:
    most, more = HEADS[-4], HEADS[-3]
    assert (len(most), len(more)) == (BOUNDS.bytes_max, BOUNDS.bytes_max + 1)
    assert isinstance(outcome([most]), tuple)
    assert refused(more).message.startswith("The request line and headers have more than 400 bytes")


def refused(head: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        read(head)
    return caught.value


def read(head: bytes) -> None:
    assert IncomingRequest(BOUNDS).feed_head(head) == b""


@each(
    ("head", "status", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, NO_HOST),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, NO_HOST),
        (b"GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400, NO_HOST),
        (b"GET / HTTP/1.1\r\nHost: x, y\r\n\r\n", 400, NO_HOST),
        (b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400, NO_HOST),
        (b"GET /healthz\r\n\r\n", 400, OTHER_VERSION),
        (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 400, OTHER_VERSION),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400, OTHER_VERSION),
        (b"GET / RTSP/1.0\r\nHost: x\r\n\r\n", 400, OTHER_VERSION),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 400, NO_REQUEST),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400, ENCODED),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, None),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400, None),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, OLD_CHUNKS),
        (POST + LENGTH + CHUNKED + b"\r\n", 400, NO_REQUEST),
        (POST + CHUNKED + LENGTH + b"\r\n", 400, NO_REQUEST),
        (POST + LENGTH + LENGTH + b"\r\n", 400, NO_REQUEST),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n", 400, NO_REQUEST),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400, NO_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400, NO_REQUEST),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, NO_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\ry\r\n\r\n", 400, NO_REQUEST),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, NO_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 8 + b"\r\n", 431, None),
        (b"\r\n" * 300, 431, None),
    ],
)
def test_what_may_be_read_in_two_ways_is_not_read(
    head: bytes, status: int, message: str | None
) -> None:
    found = refused(head)
    assert found.status == status
    assert message is None or found.message == message


@pytest.mark.parametrize("host", [b"", b"x", b"api.example.com:8000", b"[::1]:80", b"a_b"])
def test_one_host_is_needed_by_http_1_1_only(host: bytes) -> None:
    read(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    read(b"GET / HTTP/1.0\r\n\r\n")


def test_a_target_is_a_path_and_a_query() -> None:
    targets = {
        b"/a%20b?c=d": (b"/a%20b", b"c=d"),
        b"http://x/a": (b"/a", b""),
        b"http://x": (b"/", b""),
        b"*": (b"*", b""),
    }
    for target, expected in targets.items():
        head = IncomingRequest(BOUNDS)
        head.feed_head(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (head.path, head.query) == expected


@each(
    "line",
    [
        *(b"GET /healthz", b"GET", b"/healthz", b"GET /a b HTTP/1.1"),
        *(b"GET / HTTP/1.1 ", b" GET / HTTP/1.1", b"GET / HTTP/0.9", b"GET / HTTP/2.0"),
        *(b"GET / RTSP/1.0", b"GET / HTTP/1", b"GET / http/1.1", b"GET /\0 HTTP/1.1", b"hello"),
        *(b"get / HTTP/1.1", b"GET HTTP/1.1", b"CONNECT x:1 HTTP/1.1", b"GET \xff HTTP/1.1"),
    ],
)
def test_a_line_that_is_no_request_line_is_refused_without_waiting_for_more(line: bytes) -> None:
    with pytest.raises(Refused) as caught:
        IncomingRequest(BOUNDS).feed_head(line + b"\r\n")
    assert caught.value.status == 400
