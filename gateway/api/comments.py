"""Comments into the silence of a stream, so that no proxy takes its connection for a dead one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from gateway.api.connection import CancelOnDisconnect

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Comments(CancelOnDisconnect):
    """While entered, has a stream commented after each `interval_s` of silence.

    It has no task, and what is written does not move its timer: when that fires, it waits again for
    what is left of the silence. A client that takes nothing for `patience_s` more counts as gone:
    what is done in here is cancelled then, and `ClientDisconnected` raised instead.
    """

    __slots__ = ("_interval_s", "_patience_s", "_stream", "_timer")

    def __init__(self, stream: Commented, *, interval_s: float, patience_s: float) -> None:
        super().__init__()
        self._stream = stream
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._timer: asyncio.TimerHandle | None = None

    @override
    def __enter__(self) -> Self:
        self._wait(self._interval_s)
        return super().__enter__()

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().__exit__(kind, error, trace)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._comment)

    def _comment(self) -> None:
        left_s = self._interval_s - self._stream.silent_s
        if left_s <= 0:
            is_taken = self._stream.comment()
            gone_in_s = self._interval_s if is_taken else left_s + self._patience_s
            left_s = min(self._interval_s, gone_in_s)
        if left_s > 0:
            self._wait(left_s)
        else:
            self.client_gone()


class Commented(Protocol):
    """A stream that is silent now and then."""

    @property
    def silent_s(self) -> float:
        """For how many seconds nothing was written."""
        ...

    def comment(self) -> bool:
        """Write a comment. False, and it was not written: the client has more to read before it."""
        ...
