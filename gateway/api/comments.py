"""Comments into the silence of a stream, so that no proxy takes its connection for a dead one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self

from gateway.api.body import ClientDisconnected
from gateway.api.connection import Absence

if TYPE_CHECKING:
    from types import TracebackType


class Comments:
    """While entered, has a stream commented after each `interval_s` of silence.

    It has no task, and what is written does not move its time: when that comes, it waits again for
    what is left of the silence. A client that takes nothing for `patience_s` more counts as
    gone: what is done in here is cancelled then, and `ClientDisconnected` raised instead.
    """

    __slots__ = ("_absence", "_interval_s", "_loop", "_patience_s", "_stream", "_timer")

    def __init__(self, stream: Commented, *, interval_s: float, patience_s: float) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._absence = Absence()

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._interval_s, self._look)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._absence.settle():
            raise ClientDisconnected from None

    def _look(self) -> None:
        """The interval is over: comment, unless something was written meanwhile."""
        left_s = self._interval_s - self._stream.silent_s
        if left_s <= 0:
            is_taken = self._stream.comment()
            gone_in_s = self._interval_s if is_taken else left_s + self._patience_s
            left_s = min(self._interval_s, gone_in_s)
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._absence.notice()


class Commented(Protocol):
    """A stream that says nothing now and then."""

    @property
    def silent_s(self) -> float:
        """For how many seconds nothing was written."""
        ...

    def comment(self) -> bool:
        """Write a comment. False, and it was not written: the client has more to read before it."""
        ...
