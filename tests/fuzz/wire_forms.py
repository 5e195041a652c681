"""Bytes that no client should send: what may be read in two ways, and what never ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

HOST: Final = b"host: gateway\r\n"
HEALTH: Final = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
_POST: Final = b"POST /healthz HTTP/1.1\r\n" + HOST
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_ZERO: Final = b"\r\n0\r\n\r\n"

SMUGGLING: Final[tuple[bytes, ...]] = (
    _POST + b"content-length: 5\r\n" + _CHUNKED + _ZERO,
    _POST + _CHUNKED + b"content-length: 5\r\n" + _ZERO,
    _POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    _POST + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    _POST + b"content-length: 5, 5\r\n\r\nhello",
    _POST + b"content-length: +5\r\n\r\nhello",
    _POST + b"content-length: 0x5\r\n\r\nhello",
    _POST + b"content-length: -1\r\n\r\n",
    _POST + b"content-length: " + b"9" * 40 + b"\r\n\r\n",
    _POST + b"content-length : 5\r\n\r\nhello",
    _POST + b" content-length: 5\r\n\r\nhello",
    _POST + b"transfer-encoding: gzip, chunked\r\n" + _ZERO,
    _POST + b"transfer-encoding: chunked, identity\r\n" + _ZERO,
    _POST + b"transfer-encoding: xchunked\r\n" + _ZERO,
    _POST + b"transfer-encoding:\x0bchunked\r\n" + _ZERO,
    _POST + _CHUNKED + _CHUNKED + _ZERO,
    _POST + b"x: y\r\n transfer-encoding: chunked\r\n" + _ZERO,
    _POST + b"x: y\rtransfer-encoding: chunked\r\n" + _ZERO,
    _POST + b"x: y\ntransfer-encoding: chunked\r\n" + _ZERO,
    _POST + b"x: y\x00z\r\n\r\n",
    b"POST /healthz HTTP/1.0\r\n" + _CHUNKED + _ZERO,
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: a, b\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET /healthz\r\n",
    b"GET /healthz HTTP/0.9\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
    b"GET /healthz RTSP/1.0\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/1.1 \r\n" + HOST + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /healthz HTTP/1.1\n" + HOST.replace(b"\r", b"") + b"\n",
)
"""Each is to be refused, and what comes behind it is not to be answered."""

BROKEN_CHUNKS: Final[tuple[bytes, ...]] = (
    b"zz\r\n",
    b"-1\r\n",
    b"0x1\r\na\r\n",
    b"1\na\n0\n\n",
    b"1\r\nab\r\n",
    b"f" * 17 + b"\r\n",
    b"1;\x00\r\na\r\n",
    b"0\r\n a: b\r\n\r\n",
    b"0\r\nno trailer\r\n\r\n",
)


def endless(dice: random.Random) -> tuple[bytes, bytes]:
    """What begins a request that does not end, and what it then goes on with for ever."""
    return dice.choice(
        (
            (b"GET /healthz HTTP/1.1\r\n" + HOST, b"x: y\r\n"),
            (b"GET /healthz HTTP/1.1\r\n" + HOST + b"x: ", b"y"),
            (b"GET /", b"y"),
            (b"", b"\r\n"),
            (_POST + _CHUNKED + b"\r\n0\r\n", b"a: b\r\n"),
            (_POST + _CHUNKED + b"\r\n0\r\na: ", b"b"),
            (_POST + _CHUNKED + b"\r\n0\r\n", b"a"),
            (_POST + _CHUNKED + b"\r\n1;", b"a"),
            (_POST + _CHUNKED + b"\r\n", b"0"),
            (_POST + _CHUNKED + b"\r\n", b"1\r\na\r\n"),
            (_POST + _CHUNKED + b"\r\n", b"1;" + b"a" * 40 + b"\r\na\r\n"),
            (_POST + b"content-length: 1000000000\r\n\r\n", b"a"),
        )
    )


def damaged(dice: random.Random, request: bytes) -> bytes:
    """With some of its bytes changed, doubled or left out."""
    data = bytearray(request)
    for _ in range(dice.randrange(1, 6)):
        place = dice.randrange(len(data))
        piece = dice.choice(
            (b"", b"\r", b"\n", b"\0", b" ", b":", b"\r\n", b"\xff", b"0", data[-9:])
        )
        data[place : place + dice.randrange(3)] = piece
    return bytes(data)
