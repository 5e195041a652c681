"""Live fragments over server-sent events, rendered once for all viewers.

No task renders them: of the viewers that wait for the next version one does it for all, and where
that one leaves, another.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.errors import RateLimited, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

INTERVAL_S: Final = 1.0
HEARTBEAT_S: Final = 15.0
"""Without a change, after which a comment keeps the connection open."""
VIEWERS_MAX: Final = 50
"""Streams of one process."""
CHECK_S: Final = 60.0
"""Between two looks for sessions that have ended."""
_HEARTBEAT: Final = b":\n\n"


class Topic:
    """Versions of one fragment."""

    def __init__(
        self, render: Callable[[], Awaitable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._render = render
        self._clock = clock
        self._rendering = asyncio.Lock()
        self.number = 0
        """Number of the newest version."""
        self._due = float("-inf")
        self._html = ""

    async def after(self, number: int) -> tuple[int, str]:
        """Return the first version after `number`, with its own number."""
        async with self._rendering:
            if self.number <= number:
                await asyncio.sleep(max(0.0, self._due - self._clock()))
                self._due = self._clock() + INTERVAL_S
                self._html = await self._render()
                self.number += 1
            return self.number, self._html


class Streams:
    def __init__(
        self,
        topics: Mapping[str, Topic],
        is_ending: Callable[[], bool],
        open_among: Callable[[Collection[str]], Awaitable[Collection[str]]],
    ) -> None:
        """Serve until `is_ending`: browsers then connect to another replica.

        `open_among` returns the secrets of open sessions.
        """
        self._topics = topics
        self._is_ending = is_ending
        self._open_among = open_among
        self._checked_at = time.monotonic()
        self._ended: Collection[str] = ()
        self._viewers: Counter[str] = Counter()

    def require_room(self) -> None:
        if self._viewers.total() >= VIEWERS_MAX:
            raise RateLimited(f"{VIEWERS_MAX} people look at this replica already.")

    async def follow(self, path: str, secret: str) -> AsyncIterator[bytes]:
        topic, shown = self._topics[path], ""
        # The page is newer than what there is.
        number = topic.number
        sent_at = time.monotonic()
        self._viewers[secret] += 1
        try:
            while not self._is_ending() and await self._is_open(secret):
                number, html = await _next(topic, number, shown)
                now = time.monotonic()
                if html != shown or now - sent_at > HEARTBEAT_S:
                    sent_at = now
                    yield _HEARTBEAT if html == shown else _event(html)
                    shown = html
        finally:
            self._viewers[secret] -= 1
            self._viewers = +self._viewers

    async def _is_open(self, secret: str) -> bool:
        # One viewer looks for all.
        now = time.monotonic()
        if now - self._checked_at > CHECK_S:
            self._checked_at = now
            # Viewers that come meanwhile are not among those that are looked up.
            viewers = set(self._viewers)
            with suppress(StoreError):
                self._ended = viewers.difference(await self._open_among(viewers))
        return secret not in self._ended


async def _next(topic: Topic, number: int, shown: str) -> tuple[int, str]:
    # While the database is away the page keeps what it shows.
    try:
        return await topic.after(number)
    except StoreError:
        await asyncio.sleep(INTERVAL_S)
        return number, shown


def _event(html: str) -> bytes:
    lines = (f"data: {line}\n" for line in html.splitlines() if line.strip())
    return ("".join(lines) + "\n").encode()
