"""Notices to other replicas, on their way out: gathered, never in the way of what they tell of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.store.notifications import Notice
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable
    from uuid import UUID

    from gateway.store.notifications import NoticeKind

    Send = Callable[[Iterable[Notice]], Awaitable[None]]

PAUSE_S: Final = 0.025
"""A busy log moves a thousand times a second; whoever follows it sees no difference beyond this."""

_log = EventLog("gateway.runs")


class Notifier:
    """Sends notices from one task; what comes within `pause_s` of the last is sent together."""

    def __init__(self, send: Send, *, pause_s: float = PAUSE_S) -> None:
        """`send` is `store.notifications.notify` of a database."""
        self._send = send
        self._pause_s = pause_s
        self._pending: dict[NoticeKind, dict[UUID, None]] = {}
        self._wake = asyncio.Event()
        self._is_away = False

    def announce(self, notice: Notice) -> None:
        """Have it sent soon. Returns at once; what cannot be sent is dropped."""
        self._pending.setdefault(notice.kind, {}).update(dict.fromkeys(notice.responses))
        self._wake.set()

    def committed(self, responses: Collection[UUID]) -> None:
        """There is more in the logs of these responses."""
        self.announce(Notice("log", tuple(responses)))

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            await self.flush()
            await asyncio.sleep(self._pause_s)

    async def flush(self) -> None:
        """Send what there is."""
        self._wake.clear()
        pending, self._pending = self._pending, {}
        if not pending:
            return
        try:
            await self._send([Notice(kind, tuple(of)) for kind, of in pending.items()])
            self._is_away = False
        except StoreError as error:
            if not self._is_away:
                _log.warning("other replicas are not told, and have to look", error=error)
            self._is_away = True
