"""Events → server-sent events: frames, padding, the end mark. Pure bytes.

One frame is `event:` and `data:` lines with LF only; several frames may share a write, but none is
ever cut in two (responses-api §4.1: one published parser loses what is split).

What a frame holds follows from its event alone, padding too, so that a stream which is resumed goes
on with the bytes that the first one would have had, on any replica.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.protocol.events import Event
    from gateway.protocol.showing import DeltaPattern, DeltaText, ShowDelta

    Encode = Callable[[Event], bytes]
    """How one client is shown an event: as whole frames, one, several or none."""


@runtime_checkable
class WritesDeltas(Protocol):
    """An `Encode` that knows what the deltas of a pattern have in common."""

    def delta_writer(
        self, pattern: DeltaPattern, write: Callable[[bytes], bool], /
    ) -> ShowDelta | None:
        """What writes the same as it makes of each; None where it is to be asked for each."""
        ...


DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": keep-alive\n\n"
"""Shows clients nothing; keeps proxies from closing a silent connection."""
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
PADDING_STEP: Final = 16
"""Delta and padding together have a multiple of this many characters."""

# Looks random, so that compression does not undo the padding; the same in every release, because
# replicas of two of them may serve one stream.
_POOL: Final = base64.urlsafe_b64encode(hashlib.shake_256(b"obfuscation").digest(3 * 2048))
_STARTS: Final = len(_POOL) - PADDING_STEP
_STRIDE: Final = 2741
"""Shares no divisor with the number of starts: neighbours differ, and all are used."""

_heads: Final[dict[str, bytes]] = {}
"""What stands before the data of each type of event; types are few."""

THOUSAND: Final = 1000
DIGITS: Final = [b"%d" % number for number in range(THOUSAND)]
"""Most numbers of events, as they are written: to format one takes ten times as long."""


def plain(event: Event) -> bytes:
    """One event as it goes over the wire."""
    return b"".join((_heads.get(event.type) or _head(event.type), event.data, b"\n\n"))


def obfuscated(event: Event) -> bytes:
    """The same, with what `padded` adds, but without a copy of it in between."""
    head = _heads.get(event.type) or _head(event.type)
    length = event.delta_length
    if not length:
        return b"".join((head, event.data, b"\n\n"))
    start = event.sequence_number * _STRIDE % _STARTS
    padding = _POOL[start : start + PADDING_STEP - length % PADDING_STEP]
    return b"".join((head, event.data[:-1], b',"obfuscation":"', padding, b'"}\n\n'))


def delta_writer(
    encode: Encode, pattern: DeltaPattern, write: Callable[[bytes], bool]
) -> ShowDelta | None:
    """Writes what `encode` makes of deltas; None for one whose frames are not known."""
    if encode is plain:
        return _plain_writer(pattern, write)
    if encode is obfuscated:
        return _obfuscated_writer(pattern, write)
    other: object = encode
    return other.delta_writer(pattern, write) if isinstance(other, WritesDeltas) else None


def _plain_writer(pattern: DeltaPattern, write: Callable[[bytes], bool]) -> ShowDelta:
    head, between, behind = _around(pattern), pattern.between, pattern.behind + b"\n\n"

    def write_delta(number: int, text: DeltaText) -> bool:
        digits = DIGITS[number] if number < THOUSAND else b"%d" % number
        return write(b"".join((head, digits, between, text[1], behind)))

    return write_delta


def _obfuscated_writer(pattern: DeltaPattern, write: Callable[[bytes], bool]) -> ShowDelta:
    head, between = _around(pattern), pattern.between
    middle, end = pattern.behind[:-1] + b',"obfuscation":"', b'"}\n\n'

    def write_delta(number: int, text: DeltaText) -> bool:
        length, delta = text
        digits = DIGITS[number] if number < THOUSAND else b"%d" % number
        start = number * _STRIDE % _STARTS
        padding = _POOL[start : start + PADDING_STEP - length % PADDING_STEP]
        return write(b"".join((head, digits, between, delta, middle, padding, end)))

    return write_delta


def _around(pattern: DeltaPattern) -> bytes:
    """A frame up to its number."""
    return (_heads.get(pattern.type) or _head(pattern.type)) + pattern.before


def frame(event: Event, *, obfuscate: bool) -> bytes:
    """Either of both."""
    return obfuscated(event) if obfuscate else plain(event)


def padded(data: bytes, event: Event) -> bytes:
    """The JSON object that shows an event; that of one with a delta has characters of no meaning,
    so that its size tells nothing of the token in it.
    """
    if not event.delta_length:
        return data
    padding = _padding(event.sequence_number, event.delta_length)
    return b'%s,"obfuscation":"%s"}' % (data[:-1], padding)


def writes(events: Sequence[Event], encode: Encode, *, bytes_max: int) -> Iterator[bytes]:
    """Frames joined into writes of about `bytes_max` bytes at most; a frame is never split."""
    frames = list(map(encode, events))
    if events and events[-1].is_terminal:
        frames.append(DONE)
    begin = 0
    size = 0
    if sum(map(len, frames)) > bytes_max:
        for at, encoded in enumerate(frames):
            size += len(encoded)
            if len(encoded) < size > bytes_max:
                yield b"".join(frames[begin:at])
                begin, size = at, len(encoded)
    if rest := b"".join(frames[begin:]):
        yield rest


def head(type_: str) -> bytes:
    """What stands before the data of an event of this type."""
    return _heads.get(type_) or _head(type_)


def _head(type_: str) -> bytes:
    head = _heads[type_] = b"event: %b\ndata: " % type_.encode()
    return head


def paddings(sequence_number: int, texts: Sequence[str]) -> list[bytes]:
    """The padding of each of some deltas that follow on each other, from this number on."""
    # Those of the next numbers stand one after the other: nothing is left but to shorten each.
    every, step = _every_padding(), PADDING_STEP
    begin = sequence_number % _STARTS * step
    end = begin + len(texts) * step
    while len(every) < end:
        every += _every_padding()
    starts = zip(range(begin, end, step), texts, strict=True)
    return [every[start : start + step - len(text) % step] for start, text in starts]


@cache
def _every_padding() -> bytes:
    """The longest padding of each number, after which they begin anew."""
    return b"".join([_padding(number, 0) for number in range(_STARTS)])


def _padding(sequence_number: int, delta_length: int) -> bytes:
    start = sequence_number * _STRIDE % _STARTS
    return _POOL[start : start + PADDING_STEP - delta_length % PADDING_STEP]
