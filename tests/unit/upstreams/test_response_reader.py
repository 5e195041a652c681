from __future__ import annotations

import httpx2
import pytest

from gateway.upstreams.http.connection import ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\n"


def read(*pieces: bytes, head_bytes_max: int = 1000) -> ResponseReader:
    reader = ResponseReader(head_bytes_max)
    for piece in pieces:
        reader.feed(piece)
    return reader


def test_a_body_with_a_length_ends_at_its_length() -> None:
    reader = read(HEAD + b"content-length: 5\r\n\r\nhel", b"lo")
    assert (reader.status, reader.take(), reader.complete, reader.reusable) == (
        200,
        b"hello",
        True,
        True,
    )


def test_a_chunked_body_ends_with_its_last_chunk() -> None:
    reader = read(HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n", b"0\r\n\r\n")
    assert (reader.take(), reader.complete, reader.reusable) == (b"abcde", True, True)


def test_trailers_are_no_headers() -> None:
    reader = read(HEAD + b"Transfer-Encoding: Chunked\r\n\r\n0\r\nx-late: 1\r\n\r\n")
    assert reader.complete
    assert reader.headers == [(b"Transfer-Encoding", b"Chunked")]


def test_without_framing_the_body_ends_with_the_connection() -> None:
    reader = read(HEAD + b"\r\nabc")
    assert not reader.complete
    reader.feed_eof()
    assert (reader.take(), reader.complete, reader.reusable) == (b"abc", True, False)


def test_an_end_after_the_end_is_no_news() -> None:
    reader = read(HEAD + b"content-length: 0\r\n\r\n")
    reader.feed_eof()
    assert reader.complete


def test_no_content_has_no_body() -> None:
    assert read(b"HTTP/1.1 204 No Content\r\n\r\n").complete


def test_connection_close_forbids_another_request() -> None:
    assert not read(HEAD + b"connection: close\r\ncontent-length: 0\r\n\r\n").reusable


def test_http_1_0_is_not_kept_alive() -> None:
    assert not read(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n").reusable


def test_interim_answers_are_skipped() -> None:
    reader = read(
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", HEAD + b"content-length: 1\r\n\r\nx"
    )
    assert (reader.status, reader.headers, reader.take()) == (
        200,
        [(b"content-length", b"1")],
        b"x",
    )


def test_bytes_after_the_end_are_dropped_and_spoil_the_connection() -> None:
    reader = read(HEAD + b"content-length: 1\r\n\r\nxHTTP/1.1 500 No\r\ncontent-length: 1\r\n\r\ny")
    assert (reader.status, reader.take(), reader.reusable) == (200, b"x", False)


def test_bytes_in_a_later_read_spoil_the_connection_too() -> None:
    assert not read(HEAD + b"content-length: 1\r\n\r\nx", b"y").reusable


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD,
        HEAD + b"content-length: 3\r\n\r\nab",
        HEAD + b"transfer-encoding: chunked\r\n\r\n",
    ],
)
def test_an_end_too_early_is_an_error(sent: bytes) -> None:
    reader = read(sent) if sent else ResponseReader(1000)
    with pytest.raises(httpx2.RemoteProtocolError, match="disconnected"):
        reader.feed_eof()


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nnot-a-size\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ],
)
def test_what_is_not_http_is_an_error(sent: bytes) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        read(sent)


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"x: " + b"y" * 200],
        [HEAD, b"x: ", *[b"y" * 10] * 20],
        [HEAD + b"x: " + b"y" * 200 + b"\r\n\r\n"],
        [HEAD + b"".join(b"x%d: y\r\n" % i for i in range(40))],
    ],
)
def test_headers_are_bounded_whether_they_end_or_not(pieces: list[bytes]) -> None:
    with pytest.raises(httpx2.RemoteProtocolError, match="100 bytes of headers"):
        read(*pieces, head_bytes_max=100)


def test_headers_that_come_one_by_one_count_once() -> None:
    headers = [b"x-%d: %s\r\n" % (i, b"y" * 8) for i in range(4)]
    reader = read(HEAD, *headers, b"\r\n", head_bytes_max=100)
    assert (reader.status, len(reader.headers)) == (200, 4)
