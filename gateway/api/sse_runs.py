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


_THOUSAND: Final = 1000
_DIGITS: Final = [b"%d" % number for number in range(_THOUSAND)]
_LAST_DIGITS: Final = [b"%03d" % number for number in range(_THOUSAND)]


def plain(deltas: Deltas) -> bytes:
    """What `sse.plain` makes of each, joined."""
    return _by_rows([*_columns(deltas), _same(deltas.pattern.behind + b"\n\n", deltas)])


def obfuscated(deltas: Deltas) -> bytes:
    """What `sse.obfuscated` makes of each, joined."""
    return _by_rows(
        [
            *_columns(deltas),
            _same(deltas.pattern.behind[:-1] + b',"obfuscation":"', deltas),
            sse.paddings(deltas.sequence_number, deltas.texts),
            _same(b'"}\n\n', deltas),
        ]
    )


ENCODERS: Final[Mapping[Encode, EncodeRun]] = {sse.plain: plain, sse.obfuscated: obfuscated}
"""How runs are shown where events are shown like this."""


def encoder(encode: Encode) -> EncodeRun | None:
    """How a client that is shown events like this is shown runs; None: each event by itself."""
    if (run := ENCODERS.get(encode)) is not None:
        return run  # nearly always; to look at a protocol's members takes many times as long
    other: object = encode
    return other.run if isinstance(other, EncodesRuns) else None


def _columns(deltas: Deltas) -> list[list[bytes]]:
    """The frames up to the texts and with them."""
    pattern, first = deltas.pattern, deltas.sequence_number
    return [
        _same(sse.head(pattern.type) + pattern.before, deltas),
        _numbers(first, first + len(deltas)),
        _same(pattern.between, deltas),
        list(map(orjson.dumps, deltas.texts)),
    ]


def _same(cell: bytes, deltas: Deltas) -> list[bytes]:
    return [cell] * len(deltas)


def _numbers(start: int, stop: int) -> list[bytes]:
    """Written in decimal, the last three digits looked up: formatting each takes twice as long."""
    numbers: list[bytes] = []
    while start < stop:
        thousands, last = divmod(start, _THOUSAND)
        until = last + stop - start
        if thousands:
            numbers += map((b"%d" % thousands).__add__, _LAST_DIGITS[last:until])
        else:
            numbers += _DIGITS[last:until]
        start = (thousands + 1) * _THOUSAND
    return numbers


def _by_rows(columns: Sequence[list[bytes]]) -> bytes:
    """The first cells of all columns, then the second ones, and so on."""
    width = len(columns)
    cells = [b""] * (width * len(columns[0]))
    for at, column in enumerate(columns):
        cells[at::width] = column
    return b"".join(cells)
