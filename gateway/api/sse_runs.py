"""A run of deltas → the frames that `api.sse` makes of its events, in one step.

What differs from frame to frame is put into columns, each made for all frames at once, and what
they have in common into columns that repeat it: read row by row, the columns are the frames. That
takes a fraction of the time that as many events and their frames take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import orjson

from gateway.api import sse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.api.sse import Encode
    from gateway.protocol.deltas import Deltas

    EncodeRun = Callable[[Deltas], bytes]
    """How one client is shown a run of deltas: as whole frames."""


@runtime_checkable
class EncodesRuns(Protocol):
    """An `Encode` that knows what it makes of all events of a run."""

    def run(self, deltas: Deltas, /) -> bytes:
        """The same bytes as of each event, joined."""
        ...


_LAST_DIGITS: Final = [b"%03d" % number for number in range(sse.THOUSAND)]
_SEPARATOR: Final = "\x7f"
"""Stands in JSON as it is, and in hardly any text."""


def plain(deltas: Deltas) -> bytes:
    """What `sse.plain` makes of each, joined."""
    return _frames(deltas, [], b'"' + deltas.pattern.behind + b"\n\n")


def obfuscated(deltas: Deltas) -> bytes:
    """What `sse.obfuscated` makes of each, joined."""
    columns = [
        [b'"' + deltas.pattern.behind[:-1] + b',"obfuscation":"'] * len(deltas),
        sse.paddings(deltas.sequence_number, deltas.texts),
    ]
    return _frames(deltas, columns, b'"}\n\n')


ENCODERS: Final[Mapping[Encode, EncodeRun]] = {sse.plain: plain, sse.obfuscated: obfuscated}
"""How runs are shown where events are shown like this."""


def encoder(encode: Encode) -> EncodeRun | None:
    """How a client that is shown events like this is shown runs; None: each event by itself."""
    if (run := ENCODERS.get(encode)) is not None:
        return run  # nearly always; to look at a protocol's members takes many times as long
    other: object = encode
    return other.run if isinstance(other, EncodesRuns) else None


def _frames(deltas: Deltas, columns: Sequence[list[bytes]], end: bytes) -> bytes:
    """The frames, of which `columns` are what stands between the texts and the `end`."""
    pattern, count = deltas.pattern, len(deltas)
    heads, digits = _numbered(sse.head(pattern.type) + pattern.before, deltas)
    texts = [[pattern.between + b'"'] * count, _encoded(deltas.texts)]
    return _by_rows([heads, digits, *texts, *columns, [end] * count])


def _numbered(head: bytes, deltas: Deltas) -> tuple[list[bytes], list[bytes]]:
    """The frames up to their numbers, and the last digits of these. Nothing has to be written for
    any of them: the other digits are the same for a thousand of them.
    """
    start, stop = deltas.sequence_number, deltas.sequence_number + len(deltas)
    heads: list[bytes] = []
    digits: list[bytes] = []
    while start < stop:
        thousands, last = divmod(start, sse.THOUSAND)
        some = (_LAST_DIGITS if thousands else sse.DIGITS)[last : last + stop - start]
        heads += [head + b"%d" % thousands if thousands else head] * len(some)
        digits += some
        start += len(some)
    return heads, digits


def _encoded(texts: Sequence[str]) -> list[bytes]:
    """Each of them as JSON, without its quotation marks. To encode them one by one takes ten times
    as long.
    """
    encoded = orjson.dumps(_SEPARATOR.join(texts))[1:-1].split(_SEPARATOR.encode())
    if len(encoded) == len(texts):
        return encoded
    return [orjson.dumps(text)[1:-1] for text in texts]


def _by_rows(columns: Sequence[list[bytes]]) -> bytes:
    """The first cells of all columns, then the second ones, and so on."""
    width = len(columns)
    cells = [b""] * (width * len(columns[0]))
    for at, column in enumerate(columns):
        cells[at::width] = column
    return b"".join(cells)
