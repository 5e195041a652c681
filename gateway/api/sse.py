"""Events → server-sent events.

A frame is `event:` and `data:` lines with LF only. Writes never end within a frame, since some
parsers lose split ones, and no frame contains another character that some readers take for a line's
end. A frame, padding included, follows from its event alone: any replica resumes a stream with the
same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from gateway.json_output import one_line
from gateway.protocol.responses import open_responses
from gateway.protocol.stream_events import TERMINAL_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.protocol.stream_events import Deltas, Event


class Encoder(NamedTuple):
    """Encoder of a stream for one client: `event` returns the frames of one event, or none; `run`
    the same bytes as `event` of each delta.
    """

    event: Callable[[Event], bytes]
    run: Callable[[Deltas], bytes]


DONE: Final = b"data: [DONE]\n\n"
COMMENT_AFTER_S: Final = 15.0
"""Half of what impatient proxies wait for a byte."""
COMMENT: Final = b": keep-alive\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
PADDING_STEP: Final = 16
"""A delta and its padding have a multiple of this many characters."""

# Looks random, so that compression does not undo the padding. It must not change between releases:
# replicas of two of them may serve one stream.
_POOL: Final = base64.urlsafe_b64encode(hashlib.shake_256(b"obfuscation").digest(3 * 2048))
_STARTS: Final = len(_POOL) - PADDING_STEP
_STRIDE: Final = 2741
"""Distance between successive paddings in the pool. Coprime to `_STARTS`, so that all are used."""

_heads: Final[dict[str, bytes]] = {}

_THOUSAND: Final = 1000
_DIGITS: Final = [b"%d" % number for number in range(_THOUSAND)]
_LAST_DIGITS: Final = [b"%03d" % number for number in range(_THOUSAND)]
_SEPARATOR: Final = "\x7f"
"""Separator of texts that are encoded at once: JSON does not escape it, and texts rarely
have it.
"""


def plain(event: Event) -> bytes:
    head = _heads.get(event.type) or _head(event.type)
    return b"".join((head, one_line(event.data), b"\n\n"))


def unnamed(parts: Iterable[bytes]) -> bytes:
    return one_line(b"data: %b\n\n" % b"\n\ndata: ".join(parts))


def obfuscated(event: Event) -> bytes:
    """Return the frame, with one copy less than `padded`."""
    head = _heads.get(event.type) or _head(event.type)
    # Most are ASCII, which saves a call per token.
    data = event.data if event.data.isascii() else one_line(event.data)
    length = event.delta_length
    if not length:
        return b"".join((head, data, b"\n\n"))
    start = event.sequence_number * _STRIDE % _STARTS
    padding = _POOL[start : start + PADDING_STEP - length % PADDING_STEP]
    return b"".join((head, data[:-1], b',"obfuscation":"', padding, b'"}\n\n'))


def padded(data: bytes, event: Event) -> bytes:
    """Add padding to a delta event's JSON, to hide the length of the token."""
    if not event.delta_length:
        return data
    padding = _padding(event.sequence_number, event.delta_length)
    return b'%s,"obfuscation":"%s"}' % (data[:-1], padding)


def writes(
    events: Sequence[Event], encode: Callable[[Event], bytes], *, bytes_max: int
) -> Iterator[bytes]:
    """Join frames into writes of about `bytes_max` bytes."""
    frames = list(map(encode, events))
    if events and events[-1].type in TERMINAL_TYPES:
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
    # Paddings of consecutive numbers are adjacent in the list, and only need cutting to length.
    every, step = _every_padding(), PADDING_STEP
    begin = sequence_number % _STARTS * step
    end = begin + len(texts) * step
    while len(every) < end:
        every += _every_padding()
    starts = zip(range(begin, end, step), texts, strict=True)
    return [every[start : start + step - len(text) % step] for start, text in starts]


@cache
def _every_padding() -> bytes:
    return b"".join([_padding(number, 0) for number in range(_STARTS)])


def _padding(sequence_number: int, delta_length: int) -> bytes:
    start = sequence_number * _STRIDE % _STARTS
    return _POOL[start : start + PADDING_STEP - delta_length % PADDING_STEP]


# Frames of a run of deltas are built by columns, one for each part that differs between frames and
# constant ones for the rest; the rows are the frames. That takes a fraction of the time of one
# event and frame after another.


def plain_run(deltas: Deltas) -> bytes:
    return _frames(deltas, [], b'"' + deltas.pattern.behind + b"\n\n")


def obfuscated_run(deltas: Deltas) -> bytes:
    columns = [
        [b'"' + deltas.pattern.behind[:-1] + b',"obfuscation":"'] * len(deltas),
        _paddings(deltas.sequence_number, deltas.texts),
    ]
    return _frames(deltas, columns, b'"}\n\n')


PLAIN: Final = Encoder(plain, plain_run)
OBFUSCATED: Final = Encoder(obfuscated, obfuscated_run)


def encoder_of(dialect: str, *, obfuscate: bool) -> Encoder:
    encoder = OBFUSCATED if obfuscate else PLAIN
    if dialect == "openai":
        return encoder
    return Encoder(partial(_event, encoder), partial(_run, encoder))


def _event(encoder: Encoder, event: Event) -> bytes:
    # Events that Open Responses lacks become comments, which still show that the response goes on.
    shown = open_responses.shown(event)
    return encoder.event(shown) if shown else COMMENT


def _run(encoder: Encoder, deltas: Deltas) -> bytes:
    shown = open_responses.shown_deltas(deltas)
    return encoder.run(shown) if shown else COMMENT * len(deltas)


def _frames(deltas: Deltas, columns: Sequence[list[bytes]], end: bytes) -> bytes:
    # `columns` stand between the texts and the `end`.
    pattern, count = deltas.pattern, len(deltas)
    heads, digits = _frame_numbers(
        (_heads.get(pattern.type) or _head(pattern.type)) + pattern.before, deltas
    )
    texts = [[pattern.between + b'"'] * count, _encode_texts(deltas.texts)]
    return _by_rows([heads, digits, *texts, *columns, [end] * count])


def _frame_numbers(head: bytes, deltas: Deltas) -> tuple[list[bytes], list[bytes]]:
    # A thousand frames share all but the last digits, so no number is formatted per frame.
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
