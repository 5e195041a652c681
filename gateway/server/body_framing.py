"""Where the body of a request ends, and how much may stand in it that is no body.

A body has a length, or comes in chunks (RFC 9112, section 7.1), each behind a line with its size
and perhaps extensions; behind the last there may be trailers. Extensions and trailers are read
over: nothing here has a use for them. What is not exactly as the RFC has it is refused and never
guessed at, because a proxy in front may have guessed otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from gateway.server.error_responses import Refused, too_large, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNKED_BYTES_MAX: Final = 32_768
"""So many bytes of chunks are read in one turn, because chunks may be tiny."""
SIZE_LINE_BYTES_MAX: Final = 18
"""The longest line that has a size only."""

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_END: Final = b"\r\n"


class Framing(Protocol):
    """The body of one request, as it comes."""

    @property
    def is_complete(self) -> bool:
        """Whether what comes next is another request."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What of `data` is body, and what is still to be fed or, once it is complete, belongs to
        the next request. Raises `Refused`.
        """


class Counted:
    """A body of as many bytes as were announced."""

    __slots__ = ("_left",)

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def is_complete(self) -> bool:
        return not self._left

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if len(data) <= self._left:
            self._left -= len(data)
            return data, b""
        body, rest = data[: self._left], data[self._left :]
        self._left = 0
        return body, rest


class Chunked:
    """A body in chunks. What extensions and trailers have together is bounded as a head is."""

    __slots__ = ("_fields_max", "_left", "_limit", "_line", "_place", "_room", "_trailers")

    def __init__(self, *, bytes_max: int, fields_max: int) -> None:
        self._limit = self._room = bytes_max
        self._fields_max = fields_max
        self._trailers = 0
        self._left = 0
        self._line = bytearray()
        # Functions and no methods: what refers to itself stays until garbage is collected.
        self._place: Callable[[Chunked, bytes], None] = Chunked._size

    @property
    def is_complete(self) -> bool:
        return self._place is Chunked._beyond

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """At most `CHUNKED_BYTES_MAX` of `data` are read."""
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
            self._place(self, line)
        return stop

    def _account(self, count: int) -> None:
        """A line of `count` more bytes, of which those of a size are free."""
        if self._place is not Chunked._trailer:
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
        self._place = Chunked._end_of_chunk if self._left else Chunked._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line != _END:
            raise unreadable()
        self._place = Chunked._size

    def _trailer(self, line: bytes) -> None:
        if line == _END:
            self._place = Chunked._beyond
            return
        self._trailers += 1
        if self._trailers > self._fields_max:
            raise self._too_large(f"{self._fields_max} trailers")
        if not _TRAILER.fullmatch(line):
            raise unreadable()

    def _beyond(self, _line: bytes) -> None:
        raise AssertionError("nothing is read behind the end")
