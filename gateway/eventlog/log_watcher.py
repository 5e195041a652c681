"""Watching logs that other processes may write: one poll for all, and none while none is watched.

A notification (`poll_soon`) only makes the poll sooner.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import StoreError
from gateway.eventlog.notifications import FOLLOWED_S
from gateway.store.flushes import joined
from gateway.store.remote_logs import UNKNOWN, LogQuery
from gateway.store.schema import TERMINAL
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import date
    from uuid import UUID

    from gateway.store.claims import LogHead
    from gateway.store.events import LogRow
    from gateway.store.remote_logs import LogChanges, Part, Seen
    from gateway.tenancy import TenantId

POLL_INTERVAL_S: Final = 0.075
POLL_PAUSE_S: Final = 0.005
"""A process commits sixty times a second at most."""
FOLLOW_INTERVAL_S: Final = FOLLOWED_S / 3
PARTS_MAX: Final = 128
"""A second or two of one log, for its followers."""
SORTED_AT_ONCE: Final = 4096
SHOWN_AT_ONCE: Final = 128
"""Parts of logs between two turns of the event loop. A first poll may find a hundred thousand."""

_log = EventLog(__name__)


class ReadLogChanges(Protocol):
    """Type of `store.remote_logs.poll` of a database."""

    async def __call__(
        self, queries: Sequence[LogQuery], seen: Seen, wanted: Collection[bytes], /
    ) -> LogChanges:
        """Read what these logs, and flushes after `seen`, have beyond what was read before.

        Of flushes only entries of `wanted` logs are returned; `seen` is updated. Raises
        `StoreUnavailable`.
        """


class LogSubscriber(Protocol):
    def on_entries(self, part: LogRow) -> bool:
        """Receive the next entries. Return True if the subscriber needs nothing else."""

    def on_moved(self) -> None:
        """Notice that the log has moved, without its entries."""


class WatchedLog:
    """End of one log, as last seen. `entries` is -1 until then."""

    __slots__ = (
        *("_has_moved", "_parts", "day", "entries", "epoch", "follow_at", "has_ended"),
        *("key", "owner", "readers", "tenant_id", "uuid", "watchers"),
    )

    def __init__(self, tenant_id: TenantId, uuid: UUID, day: date) -> None:
        self.tenant_id = tenant_id
        self.uuid = uuid
        self.key = uuid.bytes
        self.day = day
        self.watchers = 0
        self.readers: list[LogSubscriber] = []
        """Watchers that have all of the log so far, and wait for more."""
        self.epoch = self.entries = -1
        self._has_moved = False
        self.owner: str | None = None
        self.has_ended = False
        """The log has ended or the response is unknown."""
        self.follow_at = math.inf
        """Time at which the writer is asked again to announce this log."""
        self._parts: deque[LogRow] = deque(maxlen=PARTS_MAX)

    def since(self, entry: int) -> list[LogRow]:
        """Return the log from number `entry` on; [] if `entry` is not at hand."""
        rows = [part for part in self._parts if part.first_entry + part.count > entry]
        return rows if rows and rows[0].first_entry <= entry else []

    def is_beyond(self, entries: int) -> bool:
        return self.has_ended or self.entries > entries

    def query(self, *, is_due: bool) -> LogQuery:
        """Return the query for more of the log.

        A log that has moved since it was last due needs no head: its writer is alive.
        """
        is_still = is_due and not self._has_moved
        self._has_moved = self._has_moved and not is_due
        entries = UNKNOWN if self.entries < 0 else self.entries
        return LogQuery(
            self.tenant_id, self.uuid, self.key, self.day, entries, self.owner, is_still
        )

    def add(self, epoch: int, part: LogRow) -> None:
        end = part.first_entry + part.count
        if (epoch, end) <= (self.epoch, self.entries):
            return
        self._has_moved = True
        self.epoch = epoch
        self.entries = max(end, self.entries)
        is_delivered = len(self.readers) == self.watchers
        for reader in self.readers:
            is_delivered = reader.on_entries(part) and is_delivered
        if not is_delivered:
            self._parts.append(part)
        elif self._parts:
            self._parts.clear()

    def show(self, head: LogHead | None, owner: str | None) -> None:
        self.owner = owner
        before = (self.entries, self.has_ended)
        if head is not None:
            self.epoch = head.epoch
            self.entries = max(head.next_entry, self.entries)
        self.has_ended = head is None or head.status in TERMINAL
        if before != (self.entries, self.has_ended):
            for reader in self.readers:
                reader.on_moved()


class LogWatcher:
    """Logs that are watched in this process, polled every `interval_s`.

    Those known to have more are polled at once, but never twice within `pause_s`.
    """

    def __init__(
        self,
        poll: ReadLogChanges,
        *,
        interval_s: float = POLL_INTERVAL_S,
        pause_s: float = POLL_PAUSE_S,
        follow: Callable[[tuple[UUID, ...]], None] = lambda _: None,
    ) -> None:
        # `follow` asks other processes to announce these logs, for `notifications.FOLLOWED_S`.
        self._poll_logs = poll
        self._seen: Seen = {}
        self._follow = follow
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._logs: dict[UUID, WatchedLog] = {}
        self._by_key: dict[bytes, WatchedLog] = {}
        self._chosen: set[UUID] = set()
        self._is_watched = asyncio.Event()
        self._wake = asyncio.Event()

    @contextmanager
    def watch(self, tenant_id: TenantId, uuid: UUID, day: date) -> Iterator[WatchedLog]:
        log = self._logs.get(uuid)
        if log is None:
            log = self._logs[uuid] = WatchedLog(tenant_id, uuid, day)
            self._by_key[log.key] = log
        log.watchers += 1
        self._is_watched.set()
        self.poll_soon([uuid])
        try:
            yield log
        finally:
            log.watchers -= 1
            if not log.watchers:
                del self._logs[uuid], self._by_key[log.key]
            if not self._logs:
                self._is_watched.clear()
                self._seen.clear()

    def poll_soon(self, uuids: Iterable[UUID]) -> None:
        watched = self._logs.keys() & set(uuids)
        if watched:
            self._chosen |= watched
            self._wake.set()

    def poll_all(self) -> None:
        # For when a notification may have been lost.
        self.poll_soon(list(self._logs))

    async def run(self) -> None:
        due = 0.0
        is_reported = False
        while True:
            await self._is_watched.wait()
            is_due = not await self._is_woken(before=due)
            chosen, self._chosen = self._chosen, set()
            if is_due:
                chosen = set(self._logs)
                now = asyncio.get_running_loop().time()
                due = now + self._interval_s
                self._go_on_following(now)
            try:
                await self._poll(chosen, is_due=is_due)
                is_reported = False
            except StoreError as error:
                if not is_reported:
                    _log.warning("the logs that are followed cannot be looked at", error=error)
                is_reported = True
            await asyncio.sleep(self._pause_s)

    def _go_on_following(self, now: float) -> None:
        # Not at the first poll: most logs watched from their beginning soon run in this process.
        followed = tuple([uuid for uuid, log in self._logs.items() if log.follow_at <= now])
        for log in self._logs.values():
            if log.follow_at <= now:
                log.follow_at = now + FOLLOW_INTERVAL_S
            elif log.follow_at == math.inf:
                log.follow_at = now
        if followed:
            self._follow(followed)

    async def _is_woken(self, *, before: float) -> bool:
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

    async def _poll(self, uuids: set[UUID], *, is_due: bool) -> None:
        polled = {uuid: self._logs[uuid] for uuid in uuids & self._logs.keys()}
        if not polled:
            return
        changes = await self._poll_logs(
            [log.query(is_due=is_due) for log in polled.values()], self._seen, self._by_key
        )
        await self._show_parts(changes.parts)
        for uuid, one in changes.heads.items():
            polled[uuid].show(one, changes.owners.get(uuid))
        if is_due:
            # Processes come and go, and somebody always follows something.
            writers = {(log.tenant_id, log.owner) for log in self._logs.values()}
            for writer in self._seen.keys() - writers:
                del self._seen[writer]

    async def _show_parts(self, parts: Iterable[Part]) -> None:
        # Every part must be shown: parts are not read again.
        by_key: dict[bytes, list[tuple[int, LogRow]]] = defaultdict(list)
        for number, (key, epoch, part) in enumerate(parts, 1):
            by_key[key].append((epoch, part))
            if number % SORTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        shown = 0
        for key, of_one in by_key.items():
            if shown >= SHOWN_AT_ONCE:
                shown = 0
                await asyncio.sleep(0)
            log = self._by_key.get(key)
            if log is not None:
                for epoch, part in _together(of_one):
                    log.add(epoch, part)
            shown += len(of_one)


def _together(parts: Sequence[tuple[int, LogRow]]) -> Iterator[tuple[int, LogRow]]:
    # Joined per process (epoch), so that a late reader catches up with one write.
    run: list[LogRow] = []
    of_run, end = 0, 0
    for epoch, part in parts:
        if run and (epoch, part.first_entry) != (of_run, end):
            yield of_run, joined(run)
            run = []
        run.append(part)
        of_run, end = epoch, part.first_entry + part.count
    if run:
        yield of_run, joined(run)
