"""Server-sent events, reading side: bytes as they come → payloads of complete events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
Of the fields only `data` means anything to a backend's stream.
"""

from __future__ import annotations


class FrameTooLarge(ValueError):
    """An event is longer than the bound."""


class SseSplitter:
    """Cuts a stream into events; how it was cut into reads makes no difference.

    `frame_bytes_max` bounds one event, which is also all that is ever kept between two reads.
    The first event of a completion repeats the whole prompt: 128k ids are about 800 kB.
    """

    __slots__ = ("_ends_in_cr", "_frame_bytes_max", "_rest")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._ends_in_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The `data` of every event that `data` completes, in order; comments vanish.

        Raises FrameTooLarge.
        """
        if self._ends_in_cr or b"\r" in data:
            data = self._with_plain_newlines(data)
        rest = self._rest
        if not rest:
            end = data.rfind(b"\n\n")
            block = data[:end] if end >= 0 else b""
            rest += data[end + 2 :] if end >= 0 else data
        else:
            seen = len(rest)
            rest += data
            end = rest.rfind(b"\n\n", seen - 1)
            block = bytes(rest[:end]) if end >= 0 else b""
            if end >= 0:
                del rest[: end + 2]
        if len(rest) > self._frame_bytes_max:
            raise FrameTooLarge(f"an event is longer than {self._frame_bytes_max} bytes")
        return self._payloads(block) if block else []

    def _payloads(self, block: bytes) -> list[bytes]:
        payloads = []
        for frame in block.split(b"\n\n"):
            if len(frame) > self._frame_bytes_max:
                raise FrameTooLarge(f"an event is longer than {self._frame_bytes_max} bytes")
            if len(frame) > 6 and frame.startswith(b"data: ") and b"\n" not in frame:
                payloads.append(frame[6:])
            elif payload := _joined_data(frame):
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
    parts = []
    for line in frame.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            parts.append(value.removeprefix(b" "))
    return b"\n".join(parts)
