"""How far the logs have come that are followed here and may be written elsewhere.

One poll for all of them, however many streams follow them, and none while nothing is followed.
Being told (`heard`) only makes it sooner.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError
from gateway.runs.moment import Moment
from gateway.runs.notifier import FOLLOWED_S
from gateway.store.claims import Head
from gateway.store.tables import TERMINAL
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
    from uuid import UUID

    from gateway.store.events import LogRow
    from gateway.store.followed import Look, Seen
    from gateway.tenancy import TenantId

    LookAt = Callable[[Collection[tuple[TenantId, UUID]], Seen], Awaitable[Look]]

LOOK_PAUSE_S: Final = 0.005
"""A process commits sixty times a second at most: one look is enough for each, and for several."""
FOLLOW_INTERVAL_S: Final = FOLLOWED_S / 3
"""Whoever writes the watched logs is asked so often to go on telling of them."""
PARTS_MAX: Final = 128
"""Parts of one log that are kept for those who follow it: of a second or two."""

_log = EventLog("gateway.runs")


class Tail:
    """The end of one log, as last seen. `head` None: the response is unknown, or was deleted."""

    def __init__(self, tenant_id: TenantId) -> None:
        self.tenant_id = tenant_id
        self.watchers = 0
        self.head: Head | None = None
        self.follow_at = math.inf
        """When to ask again whoever writes it to tell of it."""
        self._is_seen = False
        self._changed = Moment()
        self._parts: deque[LogRow] = deque(maxlen=PARTS_MAX)

    def since(self, entry: int) -> list[LogRow]:
        """The log from entry number `entry` on, as far as it is at hand; [] when that is not."""
        rows = [part for part in self._parts if part.first_entry + part.count > entry]
        return rows if rows and rows[0].first_entry <= entry else []

    def is_beyond(self, entries: int) -> bool:
        """Has the log been seen to have more entries than so many, or to be at its end?"""
        if not self._is_seen:
            return False
        head = self.head
        return head is None or head.next_entry > entries or head.status in TERMINAL

    async def moved(self, beyond: int) -> None:
        """Wait until the log has more than `beyond` entries, or will never have."""
        while not self.is_beyond(beyond):
            await self._changed.wait()

    def add(self, epoch: int, part: LogRow) -> None:
        """A flush has brought this, under an epoch."""
        head, end = self.head, part.first_entry + part.count
        if head is None or (epoch, end) > (head.epoch, head.next_entry):
            self._parts.append(part)
            self.show(Head(epoch, end, "in_progress"))

    def show(self, head: Head | None) -> None:
        """Let everybody who waits look at this. A log does not become shorter."""
        before = self.head
        if head is not None and before is not None:
            head = replace(head, next_entry=max(head.next_entry, before.next_entry))
        if self._is_seen and head == before:
            return
        self.head, self._is_seen = head, True
        self._changed.set()
        self._changed = Moment()


class Tails:
    """The tails that are watched in this process, kept up to date by `run`.

    All of them are looked at every `interval_s`, those that are heard of at once, but never twice
    within `pause_s`.
    """

    def __init__(
        self,
        look: LookAt,
        *,
        interval_s: float,
        pause_s: float = LOOK_PAUSE_S,
        follow: Callable[[tuple[UUID, ...]], None] = lambda _: None,
    ) -> None:
        """`look` is `store.followed.look` of a database.

        `follow` asks other processes to tell of these logs, for `notifier.FOLLOWED_S`.
        """
        self._look_at = look
        self._seen: Seen = {}
        self._follow = follow
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._tails: dict[UUID, Tail] = {}
        self._heard: set[UUID] = set()
        self._is_watched = asyncio.Event()
        self._wake = asyncio.Event()

    @contextmanager
    def watch(self, tenant_id: TenantId, uuid: UUID) -> Iterator[Tail]:
        """Keep an eye on a log, from now on until this is left."""
        tail = self._tails.get(uuid)
        if tail is None:
            tail = self._tails[uuid] = Tail(tenant_id)
        tail.watchers += 1
        self._is_watched.set()
        self.heard([uuid])
        try:
            yield tail
        finally:
            tail.watchers -= 1
            if not tail.watchers:
                del self._tails[uuid]
            if not self._tails:
                self._is_watched.clear()
                self._seen.clear()

    def heard(self, uuids: Iterable[UUID]) -> None:
        """There is more in these logs: look now. Those that nobody watches are left alone."""
        told = self._tails.keys() & set(uuids)
        if told:
            self._heard |= told
            self._wake.set()

    def missed(self) -> None:
        """Some may not have been told of: look at all of them now."""
        self.heard(list(self._tails))

    async def run(self) -> None:
        """Look until cancelled.

        While the database is away it is tried again, and whoever waits goes on waiting.
        """
        due = 0.0
        is_reported = False
        while True:
            await self._is_watched.wait()
            is_due = not await self._is_told(before=due)
            chosen, self._heard = self._heard, set()
            if is_due:
                chosen = set(self._tails)
                now = asyncio.get_running_loop().time()
                due = now + self._interval_s
                self._go_on_following(now)
            try:
                await self._look(chosen)
                is_reported = False
            except StoreError as error:
                if not is_reported:
                    _log.warning("the logs that are followed cannot be looked at", error=error)
                is_reported = True
            await asyncio.sleep(self._pause_s)

    def _go_on_following(self, now: float) -> None:
        """Not at the first look: most that are watched from their beginning soon run here."""
        asked = tuple([uuid for uuid, tail in self._tails.items() if tail.follow_at <= now])
        for tail in self._tails.values():
            if tail.follow_at <= now:
                tail.follow_at = now + FOLLOW_INTERVAL_S
            elif tail.follow_at == math.inf:
                tail.follow_at = now
        if asked:
            self._follow(asked)

    async def _is_told(self, *, before: float) -> bool:
        """Wait until something is heard, or it is time to look at everything."""
        if asyncio.get_running_loop().time() < before:
            try:
                async with asyncio.timeout_at(before):
                    await self._wake.wait()
            except TimeoutError:
                pass
            else:
                self._wake.clear()
                return True
        self._wake.clear()
        return False

    async def _look(self, uuids: set[UUID]) -> None:
        asked = {uuid: self._tails[uuid] for uuid in uuids & self._tails.keys()}
        if not asked:
            return
        found = await self._look_at(
            [(tail.tenant_id, uuid) for uuid, tail in asked.items()], self._seen
        )
        for uuid, tail in asked.items():
            tail.show(found.heads.get(uuid))
        if len(asked) == len(self._tails):
            # Processes come and go, and somebody always follows something.
            for writer in self._seen.keys() - set(found.writers):
                del self._seen[writer]
        if found.parts:
            # All of them, because what is seen now is not read again.
            watched = {uuid.bytes: tail for uuid, tail in self._tails.items()}
            for uuid_bytes, epoch, part in found.parts:
                if (one := watched.get(uuid_bytes)) is not None:
                    one.add(epoch, part)
