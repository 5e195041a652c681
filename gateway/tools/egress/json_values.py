"""Count the values of JSON while it arrives: many values take longer to read than many bytes.

The process reads a megabyte of text in a few milliseconds, one of nothing but brackets in most of a
second, and does nothing else meanwhile. The content of strings does not count.
"""

from __future__ import annotations

import re
from typing import Final

_STRING: Final = re.compile(rb'"(?:[^"\\\n]|\\[^\n])*+["\n]')
"""A line end closes a string that nothing else does: JSON has none in strings."""
_REST: Final = re.compile(rb'(?:[^"\\\n]|\\[^\n])*+')
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")


class ValueCount:
    """Count of the elements and members of one body, or of one event where it is a stream of
    events.
    """

    def __init__(self, *, is_stream: bool) -> None:
        self.count = 0
        """So far: commas, and brackets and braces that open, outside of strings."""
        self._is_stream = is_stream
        self._held: bytes | None = None
        """Inside of a string: what has to be looked at again. None: outside."""
        self._ends_line = False

    def add(self, part: bytes) -> int:
        """Count the next bytes, and return the total; in a stream, that of its largest event."""
        if self._is_stream and self._ends_line and part.startswith((b"\n", b"\r\n")):
            self.count, self._held = 0, None
        self._ends_line = part.endswith(b"\n")
        most = 0
        for number, piece in enumerate(_BLANK_LINE.split(part) if self._is_stream else (part,)):
            if number:
                self.count, self._held = 0, None
            self._add(piece)
            most = max(most, self.count)
        return most

    def _add(self, part: bytes) -> None:
        if self._held is not None:
            part = self._held + part
            end = _end_of_string(part)
            if end == len(part) or part[end:] == b"\\":
                self._held = part[end:]
                return
            part = part[end + 1 :]
        self._held = None
        bare = _STRING.sub(b"", part)
        begin = bare.find(b'"')
        if begin >= 0:
            self._held = bare[begin + 1 :][_end_of_string(bare[begin + 1 :]) :]
            bare = bare[:begin]
        self.count += bare.count(b",") + bare.count(b"[") + bare.count(b"{")


def _end_of_string(part: bytes) -> int:
    found = _REST.match(part)
    assert found is not None, "it matches the empty text"
    return found.end()
