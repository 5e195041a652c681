"""One request at the backend that was chosen for it (a `RequestListener`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gateway.generation import TokenRequest, TokenSink
    from gateway.upstreams.admission.admission import Admission
    from gateway.upstreams.admission.fair import CountedRequest
    from gateway.upstreams.admission.slots import Slot
    from gateway.upstreams.member import Member


class PlacedRequest:
    """A context that gives the sink to generate into, and takes back the slot: what waits goes on
    then. `slot` and `admission` are None where nothing is counted.

    While it is entered it may be called back (`recall.Running`): that cancels the task which has
    entered it, and `was_recalled` tells this from any other cancellation.
    """

    __slots__ = (
        "_admission", "_cancelling", "_request", "_said", "_service", "_slot", "_task", "_timer",
        "_watched", "member",
    )  # fmt: skip

    def __init__(
        self,
        member: Member,
        watched: AbstractContextManager[TokenSink],
        request: TokenRequest,
        slot: Slot | None = None,
        admission: Admission | None = None,
        service: CountedRequest | None = None,
    ) -> None:
        self.member = member
        self._watched = watched
        self._request = request
        self._slot = slot
        self._admission = admission
        self._service = service
        self._said: int | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def upstream(self) -> str:
        return self.member.name

    @property
    def share(self) -> float:
        return self._request.share

    @property
    def has_begun(self) -> bool:
        return self._slot is not None and self._slot.has_begun

    @property
    def can_go_on(self) -> bool:
        # Another backend can continue from ids, but not in the middle of a grammar.
        return self._request.chat is None and self._request.constraint is None

    def on_first_token(self, seconds: float) -> None:
        # `seconds` since the request was sent.
        if self._timer is not None:
            self._timer.cancel()
        if self._slot is not None:
            self._slot.first(seconds)
            self._start_waiting()

    def on_finish(self) -> None:
        # After the last token there is nothing left to recall.
        if self._admission is not None:
            self._admission.running.discard(self._request.tenant, self)

    def on_end(self, tokens: int) -> None:
        self._said = tokens

    def on_busy(self) -> None:
        if self._slot is not None:
            self._slot.refused()

    def close(self) -> None:
        with self:
            pass

    def expect(self, within_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(within_s, self._overdue)

    def _overdue(self) -> None:
        assert self._admission is not None, "nothing is expected without it"
        assert self._slot is not None
        self._slot.overdue()
        self._admission.make_room(self._request.tenant, [self.member.name], self._request.share)

    def recall(self) -> None:
        """Stop the request, so that it waits for its turn again."""
        assert self._task is not None, "it is called back while it is entered"
        self._cancelling = self._task.cancelling()
        self._task.cancel()

    def was_recalled(self) -> bool:
        """Return True if the cancellation that was raised is that of `recall`.

        Call this once, and only after a cancellation.
        """
        if self._cancelling is None or self._task is None:
            return False
        return self._task.uncancel() <= self._cancelling

    def _start_waiting(self) -> None:
        if self._admission is not None and self._admission.waiting:
            self._admission.pump()

    def __enter__(self) -> TokenSink:
        if self._admission is not None:
            self._task = asyncio.current_task()
            self._admission.running.add(self._request.tenant, self)
        return self._watched.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._watched.__exit__(kind, error, traceback)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._admission is not None:
                self._admission.running.discard(self._request.tenant, self)
            if self._service is not None:
                self._service.end(self._said)
            if self._slot is not None:
                self._slot.release()
                self._start_waiting()
