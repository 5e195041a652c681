"""Server-sent events, reading side: bytes as they come → payloads of complete events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
Of the fields only `data` means anything to a backend's stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class FrameTooLarge(ValueError):
    """An event is longer than the bound, in bytes; `before` is what the events before it say."""

    def __init__(self, bytes_max: int, before: Sequence[bytes] = ()) -> None:
        super().__init__(f"an event is longer than {bytes_max} bytes")
        self.before = before


class SseSplitter:
    """Cuts a stream behind its last complete event; how it was cut into reads makes no difference.

    `frame_bytes_max` bounds one event, which is also all that is ever kept between two reads.
    The first event of a completion repeats the whole prompt: 128k ids are about 800 kB.
    """

    __slots__ = ("_ends_in_cr", "frame_bytes_max", "rest")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.rest = bytearray()
        """Of an event that is not complete. Longer than the bound, it is too long already."""
        self._ends_in_cr = False
        """A line feed that comes next is part of a line end that was there before."""

    def feed(self, data: bytes) -> bytes:
        """The events that `data` completes, each with its blank line, and with LF for line ends."""
        if self._ends_in_cr or b"\r" in data:
            data = self._with_plain_newlines(data)
        rest = self.rest
        if not rest:
            if data.endswith(b"\n\n"):
                return data
            end = data.rfind(b"\n\n") + 2
            if end < 2:
                rest += data
                return b""
            rest += data[end:]
            return data[:end]
        seen = len(rest)
        rest += data
        end = rest.rfind(b"\n\n", seen - 1) + 2
        if end < 2:
            return b""
        block = bytes(rest[:end])
        del rest[:end]
        return block

    def payloads(self, block: bytes) -> list[bytes]:
        """The `data` of each event of a block that `feed` returned, not empty, in order; comments
        vanish. Raises FrameTooLarge.
        """
        payloads: list[bytes] = []
        for frame in block[:-2].split(b"\n\n"):
            if len(frame) > self.frame_bytes_max:
                raise FrameTooLarge(self.frame_bytes_max, payloads)
            if frame.startswith(b"data: ") and len(frame) > 6 and b"\n" not in frame:
                payloads.append(frame[6:])
            elif b"data" in frame and (payload := _joined_data(frame)):
                payloads.append(payload)
        return payloads

    def _with_plain_newlines(self, data: bytes) -> bytes:
        """CR LF and CR become LF, also when a read ends between the two."""
        if self._ends_in_cr and data.startswith(b"\n"):
            data = data[1:]
            self._ends_in_cr = False
        if data:
            self._ends_in_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _joined_data(frame: bytes) -> bytes:
    """The `data` of an event in the general form: any fields, comments, several lines."""
    parts = []
    for line in frame.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            parts.append(value.removeprefix(b" "))
    return b"\n".join(parts)
