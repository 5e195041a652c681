"""What is written after its client has the answer: usage of what is not stored, ends of what is.
And the audit of hosted tools.

Whoever puts a row waits for nothing. While the database is away rows are kept, for a time and up to
a size; what cannot be kept is in the log of this process, with its numbers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from typing_extensions import override

from gateway import ids
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.store import endings
from gateway.store.endings import FinishedResponse
from gateway.store.tools.tool_calls import AuditedCall
from gateway.store.usage import UsageLine
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId

    RecordCalls = Callable[[Sequence[tuple[TenantId, AuditedCall]]], Awaitable[None]]
    RecordUsage = Callable[[Sequence[tuple[TenantId, UsageLine]]], Awaitable[None]]
    Deposit = Callable[[TenantId, FinishedResponse], Awaitable[bool]]

Row = TypeVar("Row", UsageLine, FinishedResponse, AuditedCall)

_log = EventLog(__name__)


RETRY_PAUSE_S: Final = 0.2
"""Between two attempts to write to a database that is away."""


@dataclass(frozen=True, slots=True)
class LateBounds:
    """Bounds of one queue of rows: how much waits, for how long, and how often it is written.

    `size_max` is in what the queue counts: lines of usage, or bytes of ends. While the database is
    away a row waits for `patience_s`, and is given up when the next attempt fails. One write takes
    `batch_rows_max` rows at most. After one that went well the next waits `interval_s`, after one
    that failed `retry_pause_s`.
    """

    size_max: int
    patience_s: float
    batch_rows_max: int = 1
    interval_s: float = 0.0
    retry_pause_s: float = RETRY_PAUSE_S


USAGE_BOUNDS: Final = LateBounds(20_000, patience_s=60.0, batch_rows_max=500, interval_s=0.1)
ENDS_BOUNDS: Final = LateBounds(32 * 1024 * 1024, patience_s=600.0)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Row]):
    tenant_id: TenantId
    row: Row
    size: int
    until: float


class LateWriter(ABC, Generic[Row]):
    """Writes rows in the order in which they came. Writing one twice is writing it once."""

    def __init__(self, metrics: Metrics, bounds: LateBounds) -> None:
        self._metrics = metrics
        self._bounds = bounds
        self._waiting: deque[_Waiting[Row]] = deque()
        self._size = 0
        self._is_over = False
        """Nobody writes any more."""
        self._work = asyncio.Event()

    def put(self, tenant_id: TenantId, row: Row) -> None:
        """Have it written soon. Never waits; when too much waits already, it is only logged."""
        size = self._size_of(row)
        if self._is_over or self._size + size > self._bounds.size_max:
            why = "the process ends" if self._is_over else "too much waits for the database"
            self._give_up(row, StoreUnavailable(why))
            return
        until = asyncio.get_running_loop().time() + self._bounds.patience_s
        self._waiting.append(_Waiting(tenant_id, row, size, until))
        self._size += size
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled; call `flush` after that."""
        bounds = self._bounds
        while True:
            await self._work.wait()
            is_written = await self._write_next()
            await asyncio.sleep(bounds.interval_s if is_written else bounds.retry_pause_s)

    async def flush(self, *, wait_s: float) -> None:
        """Write all that is left, for `wait_s` at most; what is left then is logged."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while self._waiting:
            if await self._write_next():
                continue
            if asyncio.get_running_loop().time() + self._bounds.retry_pause_s > deadline:
                break
            await asyncio.sleep(self._bounds.retry_pause_s)
        while self._waiting:
            self._give_up(self._take(), StoreUnavailable("the process ends"))
        self._is_over = True

    async def _write_next(self) -> bool:
        """Write some of those that wait. False: they still do, because the database is away."""
        batch = list(islice(self._waiting, self._bounds.batch_rows_max))
        try:
            await self._write([(one.tenant_id, one.row) for one in batch])
        except StoreUnavailable as error:
            now = asyncio.get_running_loop().time()
            while self._waiting and self._waiting[0].until <= now:
                self._give_up(self._take(), error)
            return False
        # Only now: a write that was cancelled is made again by `flush`.
        for _ in batch:
            self._take()
        if not self._waiting:
            self._work.clear()
        return True

    def _take(self) -> Row:
        first = self._waiting.popleft()
        self._size -= first.size
        return first.row

    def _give_up(self, row: Row, error: Exception) -> None:
        self._metrics.store_failed(type(error).__name__)
        self._log_loss(row, error)

    @abstractmethod
    def _size_of(self, row: Row) -> int: ...

    @abstractmethod
    async def _write(self, rows: Sequence[tuple[TenantId, Row]]) -> None:
        """Write rows, none, or more; a defect of one must not cost the others.

        Raises `StoreUnavailable`.
        """

    @abstractmethod
    def _log_loss(self, row: Row, error: Exception) -> None: ...


class UsageMeter(LateWriter[UsageLine]):
    """What unstored responses used: lines that come while none is under way are written at once,
    what comes within the interval after that goes together.
    """

    def __init__(
        self, record: RecordUsage, *, metrics: Metrics, bounds: LateBounds = USAGE_BOUNDS
    ) -> None:
        """`record` is `store.usage.record_all` of a database."""
        super().__init__(metrics, bounds)
        self._record = record

    @override
    def _size_of(self, row: UsageLine) -> int:
        return 1

    @override
    async def _write(self, rows: Sequence[tuple[TenantId, UsageLine]]) -> None:
        """All of them, or, when one is in the way, all the others."""
        if not rows:
            return
        try:
            await self._record(rows)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of one line must not cost the others
            if len(rows) == 1:
                self._give_up(rows[0][1], error)
                return
            middle = len(rows) // 2
            await self._write(rows[:middle])
            await self._write(rows[middle:])

    @override
    def _log_loss(self, row: UsageLine, error: Exception) -> None:
        _log.error(
            "usage was not booked",
            response_id=ids.response_id(row.response),
            model=row.model,
            error=error,
            **asdict(row.tokens),
        )


class ToolAudit(LateWriter[AuditedCall]):
    """What was done by hosted tools, in numbers and digests."""

    def __init__(
        self, record: RecordCalls, *, metrics: Metrics, bounds: LateBounds = USAGE_BOUNDS
    ) -> None:
        """`record` is `store.tool_calls.record_all` of a database."""
        super().__init__(metrics, bounds)
        self._record = record

    @override
    def _size_of(self, row: AuditedCall) -> int:
        return 1

    @override
    async def _write(self, rows: Sequence[tuple[TenantId, AuditedCall]]) -> None:
        """All of them, or, when one is in the way, each alone."""
        try:
            if rows:
                await self._record(rows)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of one row must not cost the others
            if len(rows) == 1:
                self._give_up(rows[0][1], error)
                return
            for row in rows:
                await self._write([row])

    @override
    def _log_loss(self, row: AuditedCall, error: Exception) -> None:
        _log.error(
            "a call of a hosted tool was not audited",
            response_id=ids.response_id(row.response),
            kind=row.kind,
            outcome=row.outcome,
            attempt=row.attempt,
            result_ids=row.result_ids,
            error=error,
        )


class Deposits(LateWriter[FinishedResponse]):
    """What clients were shown of foreground responses whose rows do not say it yet.

    A response that is to be stored may end while the database is away, or was ended by another
    process that took its owner for dead. Its client is told all the same, so what it was told is
    written as soon as the database takes it.
    """

    def __init__(
        self, deposit: Deposit, *, metrics: Metrics, bounds: LateBounds = ENDS_BOUNDS
    ) -> None:
        """`deposit` is `late_writes.deposit` of a database."""
        super().__init__(metrics, bounds)
        self._deposit = deposit

    @override
    def _size_of(self, row: FinishedResponse) -> int:
        return len(row.body) + sum(len(one.context.json) for one in row.items)

    @override
    async def _write(self, rows: Sequence[tuple[TenantId, FinishedResponse]]) -> None:
        for tenant_id, end in rows:
            try:
                is_kept = await self._deposit(tenant_id, end)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - a defect of one must not cost the others
                self._give_up(end, error)
            else:
                _log.info(
                    "the end of a response was stored late" if is_kept else "an end was not needed",
                    response_id=ids.response_id(end.uuid),
                    status=end.status,
                )

    @override
    def _log_loss(self, row: FinishedResponse, error: Exception) -> None:
        _log.error(
            "the end of a response was not stored",
            response_id=ids.response_id(row.uuid),
            status=row.status,
            error=error,
            output_tokens=row.tokens.output_tokens if row.tokens else 0,
        )


async def deposit(database: Database, tenant_id: TenantId, end: FinishedResponse) -> bool:
    """Write how a foreground response ended here, whoever has ended it meanwhile.

    False where it was deleted, or ended in another way. Safe to repeat. Raises `StoreUnavailable`.
    """
    try:
        await endings.finish(database, tenant_id, end)
    except ClaimLost:
        return await endings.deposit(database, tenant_id, end)
    return True
