"""One request as it comes from a client: its head, bounded, and where its body ends.

A head is a request line and headers. A body has a length, or comes in chunks (RFC 9112, section
7.1), each behind a line with its size and perhaps extensions; behind the last there may be
trailers. Extensions and trailers are read over: nothing here has a use for them. What is not
exactly as the RFC has it is refused and never guessed at, because a proxy in front may have guessed
otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httptools

from gateway.server.refusals import Refused, too_large, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNKED_BYTES_MAX: Final = 32_768
"""Bytes of a chunked body that are read in one turn: its chunks may be tiny."""
SIZE_LINE_BYTES_MAX: Final = 18
"""The longest line that has a size only."""

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")

NO_HOST: Final = (
    "A request of HTTP/1.1 has exactly one Host header, which is a name or an address and perhaps "
    "a port. Send it once; HTTP clients do so by themselves."
)
OTHER_VERSION: Final = (
    "This server speaks HTTP/1.1 and HTTP/1.0 only, and the request line must end with the version."
)
ENCODED: Final = (
    "The only transfer encoding that this server knows is `chunked`. Send the body with that or "
    "with a Content-Length."
)
OLD_CHUNKS: Final = "HTTP/1.0 has no Transfer-Encoding. Send the body with a Content-Length."

_END: Final = b"\r\n\r\n"
_BLANK: Final = b"\r\n"
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%:\[\]-]*")
_VERSIONS: Final = {b"HTTP/1.1": "1.1", b"HTTP/1.0": "1.0"}


@dataclass(frozen=True, slots=True)
class HeadBounds:
    """What a head may have; the chunk extensions and the trailers of a body may have as much."""

    bytes_max: int
    fields_max: int


class RequestHead:
    """The head of one request, which `httptools` parses: it calls `on_…`.

    The bytes of a head are counted, whichever reads they come in, from the first to the empty line.
    """

    method: str
    path: bytes
    """Percent-encoded, as it was sent."""
    query: bytes
    version: str
    """Of HTTP, `1.1` or `1.0`: a client of 1.0 gets no chunks."""
    keeps_alive: bool
    """Whether its client may send another request behind it."""
    is_upgrade: bool
    """Whether it asks for another protocol."""

    def __init__(self, bounds: HeadBounds) -> None:
        self._bounds = bounds
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._is_parsed = False
        self._last = b""
        self._line = b""
        self._size = 0
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.expects_continue = False

    def feed(self, data: bytes) -> bytes | None:
        """What stands behind the head in `data`; None: all of it belongs to the head, and there is
        more to come. Raises `Refused`.
        """
        if not self._line:
            given, data = len(data), data.lstrip(_BLANK)
            self._size += given - len(data)
        end = (self._last + data).find(_END)
        length = len(data) if end < 0 else end + len(_END) - len(self._last)
        self._parse(data[:length])
        if end < 0:
            self._last = (self._last + data)[-len(_END) + 1 :]
            return None
        if not self._is_parsed:
            raise unreadable()
        self._parser = None
        return data[length:]

    def close(self) -> None:
        """Nothing more is fed: the parser is let go, which refers to this."""
        self._parser = None

    def _parse(self, data: bytes) -> None:
        """Parse more of the head, as much of it as there is room for: so what is found wrong first
        does not depend on the reads that it comes in. Raises `Refused`.
        """
        room = max(0, self._bounds.bytes_max - self._size)
        self._size += len(data)
        data = data[:room]
        parser = self._parser
        assert parser is not None, "nothing is fed after the end"
        try:
            if not self._line.endswith(b"\n"):
                # The request line by itself: one that is wrong is refused without waiting for more.
                line, newline, data = data.partition(b"\n")
                self._line += line + newline
                parser.feed_data(line + newline)
                if newline:
                    version = _VERSIONS.get(self._line.rstrip(_BLANK).rpartition(b" ")[2])
                    if version is None:
                        raise unreadable(OTHER_VERSION)
                    url = httptools.parse_url(self.url)
                    self.version, self.path = version, url.path or b"/"
                    self.query = url.query or b""
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            raise unreadable() from error
        if self._size > self._bounds.bytes_max:
            raise too_large(
                f"The request line and headers have more than {self._bounds.bytes_max} bytes. Send "
                "fewer or shorter headers."
            )
        if len(self.headers) > self._bounds.fields_max:
            raise too_large(
                f"The request has more than {self._bounds.fields_max} headers. Send fewer."
            )

    def on_url(self, url: bytes) -> None:
        """httptools: more of the request target, which may come in several parts."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a whole header field. Names are kept in lower case, as ASGI has them."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expects_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """There was the empty line. The parser forgets what it knows when it has read on."""
        parser = self._parser
        assert parser is not None, "it calls this"
        self._is_parsed = True
        self.method = parser.get_method().decode("ascii")
        self.keeps_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self.is_upgrade = parser.should_upgrade()

    def framing(self) -> SizedBody | ChunkedBody:
        """How its body is framed. Raises `Refused` where that, or for whom it is, is uncertain."""
        hosts: list[bytes] = []
        lengths: list[bytes] = []
        encodings: list[bytes] = []
        known = {b"host": hosts, b"content-length": lengths, b"transfer-encoding": encodings}
        for name, value in self.headers:
            if name in known:
                known[name].append(value.strip())
        is_1_1 = self.version == "1.1"
        if len(hosts) > 1 or (is_1_1 and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            raise unreadable(NO_HOST)
        if not encodings:
            # There is at most one length, of digits only: `httptools` refuses all else.
            return SizedBody(int(lengths[0]) if lengths else 0)
        if not is_1_1:
            raise unreadable(OLD_CHUNKS)
        if [encoding.lower() for encoding in encodings] != [b"chunked"]:
            raise unreadable(ENCODED)
        return ChunkedBody(bytes_max=self._bounds.bytes_max, fields_max=self._bounds.fields_max)


class SizedBody:
    """A body of as many bytes as were announced."""

    __slots__ = ("_left", "is_complete")

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_complete = not length
        """Whether what comes next is another request."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The part of `data` that is body, and what belongs to the next request."""
        body, rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.is_complete = not self._left
        return body, rest


class ChunkedBody:
    """A body in chunks. What extensions and trailers have together is bounded as a head is."""

    __slots__ = (
        *("_expected", "_fields_max", "_left", "_limit", "_line", "_room", "_trailers"),
        "is_complete",
    )

    def __init__(self, *, bytes_max: int, fields_max: int) -> None:
        self._limit = self._room = bytes_max
        self._fields_max = fields_max
        self._trailers = 0
        self._left = 0
        self._line = bytearray()
        # Functions and no methods: what refers to itself stays until garbage is collected.
        self._expected: Callable[[ChunkedBody, bytes], None] = ChunkedBody._size
        """Reads the next line."""
        self.is_complete = False
        """Whether what comes next is another request."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The part of `data` that is body, and what is still to be fed or, once the body is
        complete, belongs to the next request. At most `CHUNKED_BYTES_MAX` are read. Raises
        `Refused`.
        """
        body = bytearray()
        position, end = 0, min(len(data), CHUNKED_BYTES_MAX)
        while position < end and not self.is_complete:
            if self._left:
                part = data[position : min(end, position + self._left)]
                body += part
                self._left -= len(part)
                position += len(part)
            else:
                position = self._read_line(data, position, end)
        return bytes(body), data[position:]

    def _read_line(self, data: bytes, start: int, end: int) -> int:
        """The position behind what was read, which may be a part of the line."""
        newline = data.find(b"\n", start, end)
        stop = end if newline < 0 else newline + 1
        self._line += data[start:stop]
        self._account(stop - start)
        if newline >= 0:
            line = bytes(self._line)
            self._line.clear()
            self._expected(self, line)
        return stop

    def _account(self, count: int) -> None:
        """Count `count` more bytes of a line; those of a size are free. Raises `Refused`."""
        if self._expected is not ChunkedBody._trailer:
            count = min(count, max(0, len(self._line) - SIZE_LINE_BYTES_MAX))
        self._room -= count
        if self._room < 0:
            raise self._too_large(f"{self._limit} bytes")

    def _too_large(self, limit: str) -> Refused:
        return too_large(
            f"The chunk extensions and trailers of this request have more than {limit}. Send "
            "fewer, or none: they are not used."
        )

    def _size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise unreadable()
        self._left = int(match[1], 16)
        self._expected = ChunkedBody._end_of_chunk if self._left else ChunkedBody._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line != _BLANK:
            raise unreadable()
        self._expected = ChunkedBody._size

    def _trailer(self, line: bytes) -> None:
        if line == _BLANK:
            self.is_complete = True
            return
        self._trailers += 1
        if self._trailers > self._fields_max:
            raise self._too_large(f"{self._fields_max} trailers")
        if not _TRAILER.fullmatch(line):
            raise unreadable()
