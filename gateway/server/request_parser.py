"""Parser of an HTTP request as it arrives.

`httptools` reads on until its input ends. A head, and a chunked body, end with an empty line, so
input is cut behind each. Requests that a proxy in front may have understood otherwise are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import httptools

from gateway.server.refusals import too_large, unreadable

CHUNKED_BYTES_MAX: Final = 16_384
"""Parsed in one round of the loop: input is cut at each line end."""
CHUNK_FREE_BYTES: Final = 20
"""Not counted of a chunk: 16 digits, and two line ends."""

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

_LINE_END: Final = b"\r\n"
_EMPTY_LINE: Final = b"\r\n\r\n"
_OVERLAP: Final = len(_EMPTY_LINE) - 1
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%:\[\]-]*")
_VERSIONS: Final = {b"HTTP/1.1": "1.1", b"HTTP/1.0": "1.0"}


@dataclass(frozen=True, slots=True)
class HeadBounds:
    """Bounds of a head, and of the extensions and trailers of a chunked body."""

    bytes_max: int
    fields_max: int


class IncomingRequest:
    """Request as it arrives. `httptools` calls the methods `on_…`."""

    method: str
    path: bytes
    """Percent-encoded."""
    query: bytes
    version: str
    """`1.1` or `1.0`."""
    keeps_alive: bool
    is_upgrade: bool

    def __init__(self, bounds: HeadBounds) -> None:
        self._bounds = bounds
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._is_head_parsed = False
        self._last = b""
        self._line = b""
        self._size = 0
        """Bytes of the head; then bytes of the body that are not content."""
        self._chunks = 0
        """In this round."""
        self._trailers = 0
        self._body = bytearray()
        self._left: int | None = 0
        """None: the body is chunked."""
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.expects_continue = False
        self.is_complete = False

    def feed_head(self, data: bytes) -> bytes | None:
        """Return the bytes after the head, or None if more has to come. Raises `Refused`."""
        if not self._line:
            length = len(data)
            data = data.lstrip(_LINE_END)
            self._size += length - len(data)
        end = (self._last + data).find(_EMPTY_LINE)
        length = len(data) if end < 0 else end + len(_EMPTY_LINE) - len(self._last)
        self._parse_head(data[:length])
        if end < 0:
            self._last = (self._last + data)[-_OVERLAP:]
            return None
        if not self._is_head_parsed:
            raise unreadable()
        self._check_framing()
        self._last, self._size = b"", 0
        return data[length:]

    def feed_body(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the content in `data`, and the bytes that were not parsed. Raises `Refused`."""
        if self._left is not None:
            content, rest = data[: self._left], data[self._left :]
            self._left -= len(content)
            self.is_complete = not self._left
            return content, rest
        data, start = self._last + data, len(self._last)
        end = min(len(data), start + CHUNKED_BYTES_MAX)
        position = start
        while position < end and not self.is_complete:
            line_at = data.find(_EMPTY_LINE, max(position - _OVERLAP, 0), end)
            cut = end if line_at < 0 else line_at + len(_EMPTY_LINE)
            self._parse(data[position:cut])
            position = cut
        self._last = data[max(position - _OVERLAP, 0) : position]
        content = bytes(self._body)
        self._body.clear()
        # Many chunks do not add up to an allowance for long trailers, which are kept in memory.
        free = CHUNK_FREE_BYTES * self._chunks
        self._size = max(0, self._size + position - start - len(content) - free)
        self._chunks = 0
        if self._size > self._bounds.bytes_max + CHUNK_FREE_BYTES:
            raise self._too_many_extras(f"{self._bounds.bytes_max} bytes")
        if self._trailers > self._bounds.fields_max:
            raise self._too_many_extras(f"{self._bounds.fields_max} trailers")
        return content, data[position:]

    def close(self) -> None:
        # The parser refers to this object.
        self._parser = None

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None, "nothing is fed after the end"
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            raise unreadable() from error

    def _parse_head(self, data: bytes) -> None:
        # No more than there is room for: which fault is found first must not depend on the reads.
        bounds = self._bounds
        room = max(0, bounds.bytes_max - self._size)
        self._size += len(data)
        data = data[:room]
        if not self._line.endswith(b"\n"):
            # The request line by itself: a wrong one is refused without waiting for more.
            line, newline, data = data.partition(b"\n")
            self._line += line + newline
            self._parse(line + newline)
            if newline:
                self._read_line()
        self._parse(data)
        if self._size > bounds.bytes_max:
            raise too_large(
                f"The request line and headers have more than {bounds.bytes_max} bytes. Send "
                "fewer or shorter headers."
            )
        if len(self.headers) > bounds.fields_max:
            raise too_large(f"The request has more than {bounds.fields_max} headers. Send fewer.")

    def _read_line(self) -> None:
        version = _VERSIONS.get(self._line.rstrip(_LINE_END).rpartition(b" ")[2])
        if version is None:
            raise unreadable(OTHER_VERSION)
        try:
            url = httptools.parse_url(self.url)
        except httptools.HttpParserError as error:
            raise unreadable() from error
        self.version, self.path, self.query = version, url.path or b"/", url.query or b""

    def _check_framing(self) -> None:
        # Refuse a request of which the framing of the body, or the host, is ambiguous.
        hosts: list[bytes] = []
        lengths: list[bytes] = []
        encodings: list[bytes] = []
        fields = {b"host": hosts, b"content-length": lengths, b"transfer-encoding": encodings}
        for name, value in self.headers:
            if name in fields:
                fields[name].append(value.strip())
        is_1_1 = self.version == "1.1"
        if len(hosts) > 1 or (is_1_1 and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            raise unreadable(NO_HOST)
        if not encodings:
            # There is at most one length, of digits only: `httptools` refuses all else.
            self._left = int(lengths[0]) if lengths else 0
            self.is_complete = not self._left
            self.close()
            return
        if not is_1_1:
            raise unreadable(OLD_CHUNKS)
        if [encoding.lower() for encoding in encodings] != [b"chunked"]:
            raise unreadable(ENCODED)
        self._left = None

    def _too_many_extras(self, limit: str) -> Exception:
        return too_large(
            f"The chunk extensions and trailers of this request have more than {limit}. Send "
            "fewer, or none: they are not used."
        )

    def on_url(self, url: bytes) -> None:
        # The request target may come in several parts.
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # ASGI wants names in lower case; fields after the head are trailers.
        if self._is_head_parsed:
            self._trailers += 1
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            # A client of HTTP/1.0 would take it for the answer (RFC 9110, section 10.1.1).
            self.expects_continue = self.version == "1.1"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        # The parser forgets these when it reads on.
        parser = self._parser
        assert parser is not None, "it calls this"
        self._is_head_parsed = True
        self.method = parser.get_method().decode("ascii")
        self.keeps_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        # HTTP/1.0 has no upgrades (RFC 9110, section 7.8).
        self.is_upgrade = self.version == "1.1" and parser.should_upgrade()

    def on_chunk_header(self) -> None:
        # Counts the last, empty chunk too.
        self._chunks += 1

    def on_body(self, content: bytes) -> None:
        self._body += content

    def on_message_complete(self) -> None:
        # A body with a length ends by its length, not by this event.
        self.is_complete = self._left is None
