"""Events → server-sent events: frames, padding, the end mark. Pure bytes.

One frame is `event:` and `data:` lines with LF only; several frames may share a write, but none is
ever cut in two (responses-api §4.1: one published parser loses what is split).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.protocol.events import Event

DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
PADDING_STEP: Final = 16
"""Delta and padding together have a multiple of this many characters."""


def frame(event: Event, *, obfuscate: bool) -> bytes:
    """One event as it goes over the wire."""
    data = event.data
    if obfuscate and event.delta_length:
        data = b'%s,"obfuscation":"%s"}' % (data[:-1], _padding(event.delta_length))
    return b"event: %s\ndata: %s\n\n" % (event.type.encode(), data)


def writes(events: Iterable[Event], *, obfuscate: bool, bytes_max: int) -> Iterator[bytes]:
    """Frames joined into writes of about `bytes_max` bytes at most; a frame is never split."""
    pending: list[bytes] = []
    size = 0
    for event in events:
        encoded = frame(event, obfuscate=obfuscate)
        if pending and size + len(encoded) > bytes_max:
            yield b"".join(pending)
            pending, size = [], 0
        pending.append(encoded)
        size += len(encoded)
        if event.is_terminal:
            pending.append(DONE)
    if pending:
        yield b"".join(pending)


def _padding(delta_length: int) -> bytes:
    """Random characters, so that the size of a frame tells nothing of the token in it."""
    missing = PADDING_STEP - delta_length % PADDING_STEP
    return secrets.token_hex((missing + 1) // 2)[:missing].encode()
