"""Long work in a thread beside the event loop: in pieces, and never before what the loop has to do.

Python lets two threads that both have something to do take turns, so work in a thread would make
everything that the loop does take twice as long. Work that gives way in between does not.
"""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
P = ParamSpec("P")

PIECE_S: Final = 0.0005
"""So long such a thread goes on before it gives way."""
NAP_S: Final = 0.0001
BUSY_S: Final = 0.0001
"""A nap takes as much longer when somebody else has the interpreter, who is left to it."""
NAPS_MAX: Final = 20
"""So often in a row: also beside a loop that is never idle the work has to come to its end."""
ITEMS_AT_ONCE: Final = 50
"""So many items of a list that may be long are looked at in one call that cannot be paced."""


class _Pace(threading.local):
    """When the work of this thread has to give way next, on the monotonic clock."""

    due: float = math.inf


_pace: Final = _Pace()


@contextmanager
def beside_the_loop() -> Iterator[None]:
    """What is done in here, in a thread that is not the event loop's, gives way to it."""
    _pace.due = monotonic() + PIECE_S
    try:
        yield
    finally:
        _pace.due = math.inf


def done_beside_the_loop(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What `work` returns, done so."""
    with beside_the_loop():
        return work(*args, **named)


def give_way() -> None:
    """Called between the pieces of work that may be long; on the event loop it does nothing."""
    if _pace.due < math.inf and _pace.due <= monotonic():
        for _ in range(NAPS_MAX):
            began = monotonic()
            sleep(NAP_S)
            if monotonic() - began < NAP_S + BUSY_S:
                break
        _pace.due = monotonic() + PIECE_S


def paced(items: Iterable[T]) -> Iterator[T]:
    """The items, giving way between them."""
    for item in items:
        yield item
        give_way()


def in_pieces(items: list[T], size: int = ITEMS_AT_ONCE) -> Iterator[list[T]]:
    """The items in lists of `size` at most, giving way between them."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
        give_way()
