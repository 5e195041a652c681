"""One request at the backend that was chosen for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gateway.generation import TokenSink
    from gateway.upstreams.admission.admission import Admission
    from gateway.upstreams.admission.fair import Service
    from gateway.upstreams.admission.slots import Slot
    from gateway.upstreams.member import Member


class Placed:
    """A context that gives the sink to generate into, and takes back the slot: what waits goes on
    then. `slot` and `admission` are None where nothing is counted.
    """

    __slots__ = ("_admission", "_said", "_service", "_slot", "_watched", "member")

    def __init__(
        self,
        member: Member,
        watched: AbstractContextManager[TokenSink],
        slot: Slot | None = None,
        admission: Admission | None = None,
        service: Service | None = None,
    ) -> None:
        self.member = member
        self._watched = watched
        self._slot = slot
        self._admission = admission
        self._service = service
        self._said: int | None = None

    def first(self, seconds: float) -> None:
        """The first token came, so many seconds after the request was sent."""
        if self._slot is not None:
            self._slot.first(seconds)
            self._changed()

    def ended(self, tokens: int) -> None:
        """So many tokens were generated."""
        self._said = tokens

    def refused(self) -> None:
        """The backend is too busy to take the request."""
        if self._slot is not None:
            self._slot.refused()

    def close(self) -> None:
        """It is not sent after all."""
        with self:
            pass

    def _changed(self) -> None:
        if self._admission is not None and self._admission.waiting:
            self._admission.pump()

    def __enter__(self) -> TokenSink:
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
            if self._service is not None:
                self._service.end(self._said)
            if self._slot is not None:
                self._slot.release()
                self._changed()
