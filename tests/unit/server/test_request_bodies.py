"""Bodies in chunks, as another reader of HTTP reads them, and bounded in what is no body."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.refusals import Refused
from gateway.server.request_parser import (
    CHUNK_FREE_BYTES,
    CHUNKED_BYTES_MAX,
    HeadBounds,
    IncomingRequest,
)
from tests.fakes.cases import each

BYTES_MAX = 60
SURPLUS = BYTES_MAX + 2 * CHUNK_FREE_BYTES
"""More than extensions and trailers may have, whatever is free."""
FIELDS_MAX = 3
NEXT = b"GET / HTTP/1.1\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(bytes_max: int = BYTES_MAX, fields_max: int = FIELDS_MAX) -> IncomingRequest:
    return behind(HEAD, bytes_max, fields_max)


def behind(head: bytes, bytes_max: int, fields_max: int) -> IncomingRequest:
    request = IncomingRequest(HeadBounds(bytes_max, fields_max))
    assert request.feed_head(head) == b""
    return request


def read(framing: IncomingRequest, pieces: list[bytes]) -> tuple[object, ...]:
    """The body, what is behind it, and whether it was complete; or the refusal."""
    body, rest = b"", b""
    try:
        for piece in pieces:
            rest += piece
            before = None
            while rest != before and not framing.is_complete:
                before = rest
                part, rest = framing.feed_body(rest)
                body += part
    except Refused as refused:
        return refused.status, refused.message
    return body, rest, framing.is_complete


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *cuts})
    return [data[start:end] for start, end in pairwise(ends)]


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
EXTENSIONS = st.sampled_from([b"", b";a", b';a="b c"', b";a=b;c"])
TRAILERS = st.lists(st.sampled_from([b"a: b\r\n", b"x-y:\r\n"]), max_size=FIELDS_MAX)
BODIES = st.builds(
    lambda chunks, extension, trailers: b"".join(
        [
            *(b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks),
            b"0%b\r\n" % extension,
            *trailers,
            b"\r\n",
        ]
    ),
    CHUNKS,
    EXTENSIONS,
    TRAILERS,
)
DAMAGE = st.tuples(
    st.integers(0, 300), st.sampled_from([b"", b"\n", b"\r", b" ", b"-", b"0", b";"])
)


@pytest.mark.slow
@given(BODIES, st.none() | DAMAGE, st.lists(st.integers(0, 400), max_size=9))
def test_it_is_the_same_whatever_reads_it_comes_in(
    body: bytes, damage: tuple[int, bytes] | None, cuts: list[int]
) -> None:
    if damage is not None:
        place, other = damage
        body = body[:place] + other + body[place + 1 :]
    data = body + NEXT
    assert read(chunked(), pieces_of(data, cuts)) == read(chunked(), [data])


@pytest.mark.slow
@given(BODIES)
def test_a_body_is_what_another_reader_takes_it_for(body: bytes) -> None:
    theirs = h11.Connection(h11.SERVER)
    theirs.receive_data(HEAD + body)
    found = bytearray()
    while not isinstance(event := theirs.next_event(), h11.EndOfMessage):
        found += event.data if isinstance(event, h11.Data) else b""
    assert read(chunked(1000, 9), [body + NEXT]) == (found, NEXT, True)


@each(
    "body",
    [
        b"-1\r\n",
        b"0x1\r\na\r\n",
        b"zz\r\n",
        b"\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"1\t\r\na\r\n",
        b"1\r\na\r\n0 \r\n\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1;\x00\r\n",
        b"1;a\rb\r\n",
        b"f" * 17 + b"\r\n",
        b"0\r\nno trailer\r\n",
        b"0\r\na: b\r\n c\r\n",
        b"0\r\na : b\r\n",
        b"0\r\n\n",
    ],
)
def test_what_is_no_chunk_is_refused(body: bytes) -> None:
    assert read(chunked(), [body])[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        b"0\r\n" + b"a: b\r\n" * (FIELDS_MAX + 2),
        b"0\r\n" + b"a: " + b"b" * SURPLUS,
        b"0\r\n" + b"a" * SURPLUS,
        b"1;" + b"a" * SURPLUS,
        b"0" * SURPLUS,
        b"1;a123456789012345678\r\na\r\n" * BYTES_MAX,
    ],
)
def test_what_is_no_body_is_bounded(body: bytes) -> None:
    assert read(chunked(), [body])[0] == 431
    assert read(chunked(), [bytes([byte]) for byte in body])[0] == 431


def test_chunks_of_one_byte_save_up_nothing_for_long_trailers() -> None:
    chunks = b"1\r\na\r\n" * 2 * CHUNKED_BYTES_MAX
    trailer = b"0\r\na: " + b"b" * (CHUNKED_BYTES_MAX + SURPLUS)
    assert read(chunked(), [chunks + trailer])[0] == 431


def test_chunks_of_one_byte_are_no_extensions() -> None:
    count = 20_000
    assert read(chunked(), [b"1\r\na\r\n" * count + b"0\r\n\r\n"]) == (b"a" * count, b"", True)


def test_so_much_is_read_in_one_turn() -> None:
    body, rest = chunked().feed_body(b"1\r\na\r\n" * CHUNKED_BYTES_MAX)
    assert len(body) == -(-CHUNKED_BYTES_MAX // 6)
    assert len(rest) == 5 * CHUNKED_BYTES_MAX


@given(st.binary(max_size=30), st.integers(0, 20), st.lists(st.integers(0, 30), max_size=4))
def test_a_body_with_a_length_ends_there(data: bytes, length: int, cuts: list[int]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length
    found = read(behind(head, 99, 9), pieces_of(data, cuts))
    assert found == (data[:length], data[length:], len(data) >= length)
