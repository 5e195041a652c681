from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.store.notices import Notice
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable
    from uuid import UUID

    from gateway.store.notices import NoticeKind

    Send = Callable[[Iterable[Notice]], Awaitable[None]]

PAUSE_S: Final = 0.005
FOLLOWED_S: Final = 10.0
"""Seconds that a log is announced after a watcher's request, which is repeated more often."""

_log = EventLog(__name__)


class Notifier:
    """Sender of notices, in one task; those within `pause_s` of the last are sent together.

    A log is announced only while it is `followed`, because a notice costs as much as a commit.
    """

    def __init__(
        self,
        send: Send,
        *,
        pause_s: float = PAUSE_S,
        followed_s: float = FOLLOWED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # `send` is `store.notices.notify` of a database.
        self._send = send
        self._clock = clock
        self._pause_s = pause_s
        self._followed_s = followed_s
        self._pending: dict[NoticeKind, dict[UUID, None]] = {}
        self._followed: dict[UUID, float] = {}
        """End times, earliest first."""
        self._own_requests: dict[UUID, float] = {}
        """Times until which own requests to follow are expected back here, earliest first."""
        self._wake = asyncio.Event()
        self._is_away = False

    def announce(self, notice: Notice) -> None:
        # Returns at once; a notice that cannot be sent is dropped.
        if notice.kind == "log":
            self.committed(notice.responses)
        else:
            self._send_soon(notice)

    def _send_soon(self, notice: Notice) -> None:
        if notice.kind == "follow":
            self._note(self._own_requests, notice.responses)
        self._pending.setdefault(notice.kind, {}).update(dict.fromkeys(notice.responses))
        self._wake.set()

    def committed(self, responses: Collection[UUID]) -> None:
        if not self._followed:
            return
        now = self._clock()
        watched = tuple(one for one in responses if self._followed.get(one, now) > now)
        if watched:
            self._send_soon(Notice("log", watched))

    def followed(self, responses: Collection[UUID]) -> None:
        """Note that others follow these logs, for `followed_s`. Own requests come back here too."""
        own = self._own_requests
        self._note(self._followed, [one for one in responses if own.pop(one, None) is None])

    def _note(self, until: dict[UUID, float], responses: Iterable[UUID]) -> None:
        now = self._clock()
        for response in responses:
            until.pop(response, None)
            until[response] = now + self._followed_s
        while until and until[first := next(iter(until))] <= now:
            del until[first]

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await self.flush()
            await asyncio.sleep(self._pause_s)

    async def flush(self) -> None:
        """Send everything pending. It is dropped while the database is away."""
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
