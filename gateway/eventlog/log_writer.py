"""Group commit: one task writes the log entries of all runs of this process.

An entry that arrives while no commit is under way is committed at once; those that arrive meanwhile
share the next commit. While the database is away, entries are kept up to bounds at which runs stop
reading from their backends (`Channel.room`).
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.concurrency import ResettableEvent
from gateway.entries import VERSION_BYTE, packed_entry
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.group_commit import GroupCommit, commit_but_defects
from gateway.store.events import LogBatch, LogRow
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
    from datetime import date
    from uuid import UUID

    from gateway.entries import Entry
    from gateway.eventlog.log_batches import Flusher
    from gateway.store.claims import Claim, LogHead
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId

FLUSH_INTERVAL_S: Final = 0.015
"""Between two commits under load, in production."""
CROWD_MIN: Final = 64
"""With this many runs, a commit is a small part of what each of them costs."""
CROWDED_BYTES_MAX: Final = 16
"""Average of each run, as of ids that arrive at their pace; more bytes are worth a later commit."""
CROWDED_SHARE: Final = 1 / 3

LONG_COMMIT_S: Final = 0.25
"""Such a commit is marked in the timeline: clients saw no token meanwhile."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class WriterBounds:
    """Bounds of the log writer. Bytes are those of packed entries.

    A flush takes at least one response, and begins `flush_interval_s` after the one before, or
    `CROWDED_SHARE` of that if `CROWD_MIN` runs have entries. `long_commit_s` includes the attempts
    while the database is away.
    """

    flush_bytes_max: int = 4 * 1024 * 1024
    run_pending_bytes_max: int = 64 * 1024
    pending_bytes_max: int = 32 * 1024 * 1024
    retry_pause_s: float = 0.2
    flush_interval_s: float = 0.0
    long_commit_s: float = LONG_COMMIT_S


class BatchOutcome(Enum):
    COMMITTED = "committed"
    ABSENT = "absent"
    """An earlier attempt may still write it: send it again."""
    FENCED = "fenced"


class Outbox:
    """Packed entries of one claim that are not known to be in the log yet. It does no I/O.

        put → waiting → take → under way → committed    the batch is in the log
                                         → in doubt     the answer of the database was lost
                                         → refused      the answer is that it was not appended

    One batch is under way at a time, so that the log grows in order. After doubt or refusal, the
    head of the log, which only the holder of the claim can move, decides (`learn`). The same batch
    is sent again, byte for byte: an abandoned attempt may still commit after the head was read.
    Then the second one is refused, but the head has moved by exactly its length, so the batch is
    in.
    """

    __slots__ = (
        "_claim", "_day", "_is_refused", "_waiting", "batch", "end", "next_entry", "pending_bytes",
    )  # fmt: skip

    def __init__(self, claim: Claim, day: date, next_entry: int) -> None:
        self._claim = claim
        self._day = day
        self._waiting = bytearray()
        self._is_refused = False
        self.next_entry = self.end = next_entry
        self.pending_bytes = 0
        self.batch: LogBatch | None = None

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> LogRow:
        assert self.batch is None, "a batch is under way"
        count = self.end - self.next_entry
        return LogRow(self.next_entry, count, VERSION_BYTE + self._waiting)

    def put(self, entry: Entry) -> int:
        packed = packed_entry(entry)
        self._waiting += packed
        self.end += 1
        self.pending_bytes += len(packed)
        return len(packed)

    def take(self) -> LogBatch:
        entries = VERSION_BYTE + self._waiting
        self._waiting.clear()
        count = self.end - self.next_entry
        self.batch = LogBatch(self._claim, self._day, self.next_entry, count, entries)
        return self.batch

    def committed(self) -> int:
        """Remove the batch under way. Return how many bytes that frees."""
        batch, self.batch = self.batch, None
        assert batch is not None, "no batch is under way"
        self._is_refused = False
        freed_bytes = len(batch.entries) - len(VERSION_BYTE)
        self.pending_bytes -= freed_bytes
        self.next_entry += batch.count
        return freed_bytes

    def refused(self) -> None:
        # `learn` tells why.
        self._is_refused = True

    def learn(self, head: LogHead | None) -> BatchOutcome:
        """Return the outcome of the batch by a later head; None if the response is gone."""
        batch = self.batch
        assert batch is not None, "no batch is under way"
        if head is None or head.epoch != self._claim.epoch or head.status != "in_progress":
            return BatchOutcome.FENCED
        if head.next_entry == batch.first_entry + batch.count:
            return BatchOutcome.COMMITTED
        is_absent = head.next_entry == batch.first_entry and not self._is_refused
        return BatchOutcome.ABSENT if is_absent else BatchOutcome.FENCED


class Channel:
    __slots__ = (
        "_writer", "claim", "delayed", "durable", "is_ending", "is_open", "is_queued", "lost",
        "moved", "outbox",
    )  # fmt: skip

    def __init__(
        self,
        writer: LogWriter,
        outbox: Outbox,
        claim: Claim,
        *,
        durable: Callable[[int], None],
        lost: Callable[[], None],
    ) -> None:
        self._writer = writer
        self.claim = claim
        self.outbox = outbox
        self.durable = durable
        self.delayed: Callable[[float], None] | None = None
        """Called with the seconds of a long commit, when its entries are durable."""
        self.lost = lost
        self.is_queued = False
        self.is_open = True
        self.is_ending = False
        self.moved = ResettableEvent()
        """Set when entries became durable, when there is room, and when the channel closes."""

    @property
    def is_full(self) -> bool:
        writer = self._writer
        return self.is_open and (
            self.outbox.pending_bytes >= writer.bounds.run_pending_bytes_max
            or writer.pending_bytes >= writer.bounds.pending_bytes_max
        )

    def append(self, entry: Entry) -> None:
        # Never waits; does nothing after the claim is lost. Raises `ValueError` as `entries.pack`.
        if self.is_open:
            self._writer.pending_bytes += self.outbox.put(entry)
            if not self.is_queued:
                self._writer.enqueue(self)

    async def room(self) -> None:
        while self.is_full:
            await self._writer.wait_for_relief(self)
        self._check()

    async def flushed(self) -> int:
        """Wait until all entries so far are durable; return the number of the next entry.

        Raises `ClaimLost`. Waits while the database is away.
        """
        end = self.outbox.end
        while self.is_open and self.outbox.next_entry < end:
            self.moved.clear()
            await self.moved.wait()
        self._check()
        return self.outbox.next_entry

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[LogRow]:
        """Hold the log for the block; yield the unwritten rest, to be committed with the end.

        Nothing may be appended in the block. If it does not close the channel, writing goes on
        after it. Raises `ClaimLost`.
        """
        self.is_ending = True
        try:
            while self.is_open and self.outbox.batch is not None:
                self.moved.clear()
                await self.moved.wait()
            self._check()
            yield await self._writer.complete_row(self)
        finally:
            self.is_ending = False
            self._writer.resume(self)

    def close(self, *, has_ended: bool = False) -> None:
        # Drops what is not under way. Safe to call twice. `has_ended`: the end is committed.
        self._writer.forget(self, has_ended=has_ended)

    def _check(self) -> None:
        if not self.is_open:
            raise ClaimLost


class LogWriter:
    """Committer of the batches of all channels, one flush at a time.

    A channel's `durable` gets the number of the next entry when all before it is committed; `lost`
    is called at most once, when nothing more can be written under its claim.
    """

    def __init__(
        self,
        flusher: Flusher,
        bounds: WriterBounds,
        *,
        metrics: Metrics,
        committed: Callable[[Collection[UUID]], None],
    ) -> None:
        self._flusher = flusher
        self.bounds = bounds
        self._metrics = metrics
        metrics.log_pending_bytes.append(lambda: self.pending_bytes)
        self._committed = committed
        self._channels: dict[UUID, Channel] = {}
        self._queue: GroupCommit[Channel] = GroupCommit(
            self._write,
            size_max=bounds.flush_bytes_max,
            size_of=_begin_batch,
            interval_s=bounds.flush_interval_s,
            pause=self._wait_for_company,
        )
        self._crowded = ResettableEvent()
        self._blocked: set[Channel] = set()
        self._is_away = False
        self._began = 0.0
        self.pending_bytes = 0

    def open(
        self,
        claim: Claim,
        day: date,
        next_entry: int,
        *,
        durable: Callable[[int], None],
        lost: Callable[[], None],
        fence: int | None = None,
    ) -> Channel:
        """Open a channel to the log of a response, from entry number `next_entry` on.

        A `fence` read before the response was claimed spares the claim other proof. An open channel
        to the same log is lost: a later claim has brought the response back here.
        """
        if fence is not None:
            self._flusher.begins(claim, day, next_entry, fence)
        channel = Channel(self, Outbox(claim, day, next_entry), claim, durable=durable, lost=lost)
        before = self._channels.get(claim.uuid)
        if before is not None:
            self._lose(before)
        self._channels[claim.uuid] = channel
        return channel

    def fence(self, tenant_id: TenantId) -> int | None:
        return self._flusher.fence(tenant_id)

    async def run(self) -> None:
        await self._queue.run()

    async def _write(self, channels: list[Channel]) -> None:
        await commit_but_defects(channels, self._write_until_decided, self._lose_faulty)
        # Nobody waits for it. The next one makes up for a failure.
        try:
            await self._flusher.settle()
        except Exception as error:  # noqa: BLE001 - a defect, which must not stop all others
            self._metrics.store_failed(type(error).__name__)
            _log.warning("logs are not moved to their places", error=error)
        self._wake_blocked()

    async def _wait_for_company(self, early_s: float) -> None:
        crowded_s = early_s - self.bounds.flush_interval_s * (1 - CROWDED_SHARE)
        if crowded_s > 0:
            await asyncio.sleep(crowded_s)
            early_s -= crowded_s
        if not self._is_crowded:
            self._crowded.clear()
            await self._crowded.within(early_s)

    @property
    def _is_crowded(self) -> bool:
        runs = len(self._queue)
        return runs >= CROWD_MIN and self.pending_bytes <= runs * CROWDED_BYTES_MAX

    def resume(self, channel: Channel) -> None:
        # The end was not committed, so what waits in the channel is written.
        if channel.is_open:
            self._flusher.resume(channel.claim)
            if channel.outbox.has_waiting and not channel.is_queued:
                self.enqueue(channel)

    def enqueue(self, channel: Channel) -> None:
        channel.is_queued = True
        self._queue.put(channel)
        if len(self._queue) == CROWD_MIN and self._is_crowded:
            self._crowded.set()

    def forget(self, channel: Channel, *, has_ended: bool = False) -> None:
        # A batch under way is still written.
        if channel.is_open:
            channel.is_open = False
            (self._flusher.ended if has_ended else self._flusher.close)(channel.claim)
            del self._channels[channel.claim.uuid]
            self.pending_bytes -= channel.outbox.pending_bytes
            channel.moved.set()
            self._wake_blocked()

    async def complete_row(self, channel: Channel) -> LogRow:
        row = channel.outbox.waiting()
        while True:
            try:
                row = await self._flusher.complete_row(channel.claim, row)
            except StoreUnavailable as error:
                await self._pause(error)
                continue
            if not channel.is_open:
                raise ClaimLost
            return row

    async def wait_for_relief(self, channel: Channel) -> None:
        self._blocked.add(channel)
        try:
            channel.moved.clear()
            await channel.moved.wait()
        finally:
            self._blocked.discard(channel)

    def _wake_blocked(self) -> None:
        if self.pending_bytes < self.bounds.pending_bytes_max:
            for channel in self._blocked:
                channel.moved.set()

    async def _write_until_decided(self, channels: Sequence[Channel]) -> None:
        self._began = asyncio.get_running_loop().time()
        while channels := [one for one in channels if one.is_open and one.outbox.batch is not None]:
            try:
                channels = await self._flush(channels)
            except StoreUnavailable as error:
                await self._pause(error)
            if channels:
                # They were refused, or the answer was lost.
                channels = await self._resolve(channels)

    async def _flush(self, channels: list[Channel]) -> list[Channel]:
        batches: list[LogBatch] = []
        size_bytes = 0
        for channel in channels:
            if (batch := channel.outbox.batch) is not None:
                batches.append(batch)
                size_bytes += len(batch.entries)
        began = asyncio.get_running_loop().time()
        uuids = await self._flusher.append(batches)
        took_s = asyncio.get_running_loop().time() - began
        self._metrics.log_flushed(len(uuids), size_bytes, took_s)
        self._is_away = False
        refused: list[Channel] = []
        are_all = len(uuids) == len(channels)
        for channel in channels:
            if are_all or channel.claim.uuid in uuids:
                self._commit(channel)
            else:
                channel.outbox.refused()
                refused.append(channel)
        self._announce(uuids)
        return refused

    async def _resolve(self, channels: list[Channel]) -> list[Channel]:
        unclear = [one for one in channels if one.is_open and one.outbox.batch is not None]
        if not unclear:
            return []
        heads = await self._ask(unclear)
        again: list[Channel] = []
        committed: set[UUID] = set()
        for channel in unclear:
            match channel.outbox.learn(heads.get(channel.claim.uuid)):
                case BatchOutcome.COMMITTED:
                    committed.add(channel.claim.uuid)
                    self._commit(channel)
                case BatchOutcome.ABSENT:
                    again.append(channel)
                case BatchOutcome.FENCED:
                    self._lose(channel)
        self._announce(committed)
        return again

    async def _ask(self, channels: Iterable[Channel]) -> dict[UUID, LogHead]:
        logs = [(channel.claim.tenant_id, channel.claim.uuid) for channel in channels]
        while True:
            try:
                return await self._flusher.heads(logs)
            except StoreUnavailable as error:
                await self._pause(error)
            except Exception as error:  # noqa: BLE001 - nobody can tell: the claims are given up
                _log.error("heads of logs cannot be read", error=error)
                return {}

    def _lose_faulty(self, channel: Channel, error: Exception) -> None:
        response_id = ids.response_id(channel.claim.uuid)
        _log.error("a log cannot be written", response_id=response_id, error=error)
        self._lose(channel)

    async def _pause(self, error: StoreUnavailable) -> None:
        if not self._is_away:
            self._is_away = True
            _log.warning("logs are not written: the database is away", error=error)
        await asyncio.sleep(self.bounds.retry_pause_s)

    def _commit(self, channel: Channel) -> None:
        freed_bytes = channel.outbox.committed()
        if not channel.is_open:
            # Of the first under a claim nobody knew yet when it was closed.
            self._flusher.close(channel.claim)
            return
        self.pending_bytes -= freed_bytes
        channel.moved.set()
        try:
            channel.durable(channel.outbox.next_entry)
            took_s = asyncio.get_running_loop().time() - self._began
            if took_s >= self.bounds.long_commit_s and channel.delayed is not None:
                channel.delayed(took_s)
        except Exception as error:  # noqa: BLE001 - a defect of one run must not stop all others
            _log.error("a log cannot be shown", error=error)
            self._lose(channel)

    def _lose(self, channel: Channel) -> None:
        if not channel.is_open:
            return
        self.forget(channel)
        try:
            channel.lost()
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("a run cannot be abandoned", error=error)

    def _announce(self, uuids: Collection[UUID]) -> None:
        if not uuids:
            return
        try:
            self._committed(uuids)
        except Exception as error:  # noqa: BLE001 - readers elsewhere poll as well
            _log.error("commits cannot be announced", error=error)


def _begin_batch(channel: Channel) -> int | None:
    channel.is_queued = False
    if channel.is_open and not channel.is_ending:
        return len(channel.outbox.take().entries)
    return None
