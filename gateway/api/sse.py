"""Events → server-sent events: frames, padding, the end mark. Pure bytes.

One frame is `event:` and `data:` lines with LF only; several frames may share a write, but none is
ever cut in two (responses-api §4.1: one published parser loses what is split). No frame holds
another character that readers of lines take for the end of one.

What a frame holds follows from its event alone, padding too, so that a stream which is resumed goes
on with the bytes that the first one would have had, on any replica.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from gateway.json_lines import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.protocol.stream_events import Deltas, Event


class Encoder(NamedTuple):
    """Functions that encode a stream for one client, as whole frames.

    `event` makes the frames of one event: one, several or none. `run` makes those of a run of
    deltas: the same bytes as `event` of each, joined.
    """

    event: Callable[[Event], bytes]
    run: Callable[[Deltas], bytes]


DONE: Final = b"data: [DONE]\n\n"
COMMENT_AFTER_S: Final = 15.0
"""Seconds of silence before a comment: half of what impatient proxies wait for a byte."""
COMMENT: Final = b": keep-alive\n\n"
"""Comment that shows clients nothing and keeps proxies from closing a silent connection."""
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
PADDING_STEP: Final = 16
"""Number of characters of which a delta and its padding together have a multiple."""

# Looks random, so that compression does not undo the padding; the same in every release, because
# replicas of two of them may serve one stream.
_POOL: Final = base64.urlsafe_b64encode(hashlib.shake_256(b"obfuscation").digest(3 * 2048))
_STARTS: Final = len(_POOL) - PADDING_STEP
_STRIDE: Final = 2741
"""Distance of the starts of successive paddings in the pool. It shares no divisor with the number
of starts: neighbours differ, and all are used."""

_heads: Final[dict[str, bytes]] = {}
"""Bytes before the data of an event, by its type; types are few."""

_THOUSAND: Final = 1000
_DIGITS: Final = [b"%d" % number for number in range(_THOUSAND)]
_LAST_DIGITS: Final = [b"%03d" % number for number in range(_THOUSAND)]
_SEPARATOR: Final = "\x7f"
"""Character between texts that are encoded at once: it stands in JSON as it is, and in hardly any
text."""


def plain(event: Event) -> bytes:
    """Return the frame of one event, without padding."""
    head = _heads.get(event.type) or _head(event.type)
    return b"".join((head, one_line(event.data), b"\n\n"))


def unnamed(parts: Iterable[bytes]) -> bytes:
    """Return one frame without an event name for each JSON object."""
    return one_line(b"data: %b\n\n" % b"\n\ndata: ".join(parts))


def obfuscated(event: Event) -> bytes:
    """Return the frame of one event, padded like `padded`, but with one copy less."""
    head = _heads.get(event.type) or _head(event.type)
    # Most are ASCII: there a call per token is saved.
    data = event.data if event.data.isascii() else one_line(event.data)
    length = event.delta_length
    if not length:
        return b"".join((head, data, b"\n\n"))
    start = event.sequence_number * _STRIDE % _STARTS
    padding = _POOL[start : start + PADDING_STEP - length % PADDING_STEP]
    return b"".join((head, data[:-1], b',"obfuscation":"', padding, b'"}\n\n'))


def padded(data: bytes, event: Event) -> bytes:
    """Add padding to `data`, the JSON of an event with a delta.

    It hides the length of the token from an observer of the size of frames.
    """
    if not event.delta_length:
        return data
    padding = _padding(event.sequence_number, event.delta_length)
    return b'%s,"obfuscation":"%s"}' % (data[:-1], padding)


def writes(
    events: Sequence[Event], encode: Callable[[Event], bytes], *, bytes_max: int
) -> Iterator[bytes]:
    """Join frames into writes of about `bytes_max` bytes; a frame is never split."""
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


def _head(type_: str) -> bytes:
    head = _heads[type_] = b"event: %b\ndata: " % type_.encode()
    return head


def _paddings(sequence_number: int, texts: Sequence[str]) -> list[bytes]:
    # Paddings of consecutive numbers are adjacent in the list, and need only be cut to length.
    every, step = _every_padding(), PADDING_STEP
    begin = sequence_number % _STARTS * step
    end = begin + len(texts) * step
    while len(every) < end:
        every += _every_padding()
    starts = zip(range(begin, end, step), texts, strict=True)
    return [every[start : start + step - len(text) % step] for start, text in starts]


@cache
def _every_padding() -> bytes:
    # The longest padding of each number; numbers repeat after `_STARTS`.
    return b"".join([_padding(number, 0) for number in range(_STARTS)])


def _padding(sequence_number: int, delta_length: int) -> bytes:
    start = sequence_number * _STRIDE % _STARTS
    return _POOL[start : start + PADDING_STEP - delta_length % PADDING_STEP]


# The frames of a run of deltas are made all at once, as columns: one column for each part that
# differs from frame to frame, and repeating ones for the common parts. Read row by row, the columns
# are the frames. That takes a fraction of the time of single events and frames.


def plain_run(deltas: Deltas) -> bytes:
    """Return the frames of a run of deltas, without padding."""
    return _frames(deltas, [], b'"' + deltas.pattern.behind + b"\n\n")


def obfuscated_run(deltas: Deltas) -> bytes:
    """Return the frames of a run of deltas, padded."""
    columns = [
        [b'"' + deltas.pattern.behind[:-1] + b',"obfuscation":"'] * len(deltas),
        _paddings(deltas.sequence_number, deltas.texts),
    ]
    return _frames(deltas, columns, b'"}\n\n')


PLAIN: Final = Encoder(plain, plain_run)
OBFUSCATED: Final = Encoder(obfuscated, obfuscated_run)


def _frames(deltas: Deltas, columns: Sequence[list[bytes]], end: bytes) -> bytes:
    # `columns` stand between the texts and the `end`.
    pattern, count = deltas.pattern, len(deltas)
    heads, digits = _frame_numbers(
        (_heads.get(pattern.type) or _head(pattern.type)) + pattern.before, deltas
    )
    texts = [[pattern.between + b'"'] * count, _encode_texts(deltas.texts)]
    return _by_rows([heads, digits, *texts, *columns, [end] * count])


def _frame_numbers(head: bytes, deltas: Deltas) -> tuple[list[bytes], list[bytes]]:
    # All but the last digits are shared by a thousand frames, so no number has to be formatted per
    # frame.
    start, stop = deltas.sequence_number, deltas.sequence_number + len(deltas)
    heads: list[bytes] = []
    digits: list[bytes] = []
    while start < stop:
        thousands, last = divmod(start, _THOUSAND)
        some = (_LAST_DIGITS if thousands else _DIGITS)[last : last + stop - start]
        heads += [head + b"%d" % thousands if thousands else head] * len(some)
        digits += some
        start += len(some)
    return heads, digits


def _encode_texts(texts: Sequence[str]) -> list[bytes]:
    # Encoding the texts one by one takes ten times as long.
    joined = one_line(orjson.dumps(_SEPARATOR.join(texts)))
    encoded = joined[1:-1].split(_SEPARATOR.encode())
    if len(encoded) == len(texts):
        return encoded
    return [one_line(orjson.dumps(text))[1:-1] for text in texts]


def _by_rows(columns: Sequence[list[bytes]]) -> bytes:
    width = len(columns)
    cells = [b""] * (width * len(columns[0]))
    for at, column in enumerate(columns):
        cells[at::width] = column
    return b"".join(cells)
