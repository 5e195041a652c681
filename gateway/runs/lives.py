"""The durable responses that are generated in this process: who follows one need not poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.runs.live import LiveLog


class Lives:
    """Live logs by response."""

    def __init__(self) -> None:
        self._lives: dict[UUID, LiveLog] = {}

    def add(self, uuid: UUID, live: LiveLog) -> None:
        """The response is generated here from now on, into this log."""
        self._lives[uuid] = live

    def discard(self, uuid: UUID, live: LiveLog) -> None:
        """It is not any more. Another log of it, because the response came back, stays."""
        if self._lives.get(uuid) is live:
            del self._lives[uuid]

    def get(self, uuid: UUID) -> LiveLog | None:
        """Its log; None when it is generated elsewhere, by nobody, or when that was handed over."""
        live = self._lives.get(uuid)
        return None if live is None or live.handed_over else live
