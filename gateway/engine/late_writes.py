"""Writes that follow the answer to the client, and are repeated while the database is away."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from typing_extensions import override

from gateway import ids
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.group_commit import GroupCommit, commit_but_defects
from gateway.store import endings
from gateway.store.endings import FinishedResponse
from gateway.store.tools.tool_calls import AuditedCall
from gateway.store.usage_lines import UsageLine
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId

    Deposit = Callable[[TenantId, FinishedResponse], Awaitable[bool]]
    Usable = Callable[[Collection[TenantId]], Awaitable[Collection[TenantId]]]

Row = TypeVar("Row", UsageLine, FinishedResponse, AuditedCall)

_log = EventLog(__name__)


RETRY_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LateBounds:
    """Bounds of one queue of rows; `size_max` is lines of usage, or bytes of ends.

    While the database is away a row is kept for `patience_s`.
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
    """Writer of rows in their order; writing one twice must do nothing.

    Rows of tenants whose keys cannot be had now wait apart, and hold up nobody else's.
    """

    def __init__(
        self,
        record: Callable[[Sequence[tuple[TenantId, Row]]], Awaitable[None]],
        *,
        metrics: Metrics,
        bounds: LateBounds = USAGE_BOUNDS,
        usable: Usable | None = None,
    ) -> None:
        """Write with `record`, which raises `StoreUnavailable`; `usable` is for sealed rows."""
        self._record: Callable[[Sequence[tuple[TenantId, Row]]], Awaitable[None]] = record
        self._metrics = metrics
        self._bounds = bounds
        self._usable = usable
        self._waiting: GroupCommit[_Waiting[Row]] = GroupCommit(
            self._write_or_pause, size_max=bounds.batch_rows_max, interval_s=bounds.interval_s
        )
        self._size = 0
        """Size of the rows that wait or are being written."""
        self._is_over = False

    def put(self, tenant_id: TenantId, row: Row) -> None:
        """Queue a row. If the queue is full or the process ends, it is only logged."""
        size = self._size_of(row)
        if self._is_over or self._size + size > self._bounds.size_max:
            why = "the process ends" if self._is_over else "too much waits for the database"
            self._give_up(row, StoreUnavailable(why))
            return
        until = asyncio.get_running_loop().time() + self._bounds.patience_s
        self._waiting.put(_Waiting(tenant_id, row, size, until))
        self._size += size

    async def run(self) -> None:
        # Runs until cancelled; call `flush` after that.
        await self._waiting.run()

    async def flush(self, *, wait_s: float) -> None:
        """Write the remaining rows within `wait_s` seconds, and log the others."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while rows := self._waiting.take():
            if await self._write_or_put_back(rows):
                continue
            if asyncio.get_running_loop().time() + self._bounds.retry_pause_s > deadline:
                break
            await asyncio.sleep(self._bounds.retry_pause_s)
        while rows := self._waiting.take():
            self._expire(rows, StoreUnavailable("the process ends"))
        self._is_over = True

    async def _write_or_pause(self, rows: list[_Waiting[Row]]) -> None:
        if not await self._write_or_put_back(rows):
            await asyncio.sleep(self._bounds.retry_pause_s)

    async def _write_or_put_back(self, rows: list[_Waiting[Row]]) -> bool:
        # False: the database, or a tenant's keys, are unavailable, and the rows of these that have
        # not expired wait again.
        ready: list[_Waiting[Row]] = rows
        apart: list[_Waiting[Row]] = []
        try:
            ready, apart = await self._without_keys_apart(rows)
            are_written = await self._try_write(ready, self._waiting.put_back)
            ready = []
            return await self._try_write(apart, self._waiting.extend) and are_written
        except BaseException:
            # A write that was cancelled is made again by `flush`.
            self._waiting.put_back(apart)
            self._waiting.put_back(ready)
            raise

    async def _without_keys_apart(
        self, rows: list[_Waiting[Row]]
    ) -> tuple[list[_Waiting[Row]], list[_Waiting[Row]]]:
        if self._usable is None:
            return rows, []
        try:
            usable = await self._usable({one.tenant_id for one in rows})
        except Exception:  # noqa: BLE001 - the write itself says what is wrong
            return rows, []
        ready = [one for one in rows if one.tenant_id in usable]
        return ready, [one for one in rows if one.tenant_id not in usable]

    async def _try_write(
        self, rows: list[_Waiting[Row]], wait_again: Callable[[list[_Waiting[Row]]], None]
    ) -> bool:
        if not rows:
            return True
        try:
            # A defective row must not cost the others.
            await commit_but_defects(
                [(one.tenant_id, one.row) for one in rows],
                self._record,
                lambda one, error: self._give_up(one[1], error),
            )
        except StoreUnavailable as error:
            now = asyncio.get_running_loop().time()
            self._expire([one for one in rows if one.until <= now], error)
            wait_again([one for one in rows if one.until > now])
            return False
        self._size -= sum(one.size for one in rows)
        return True

    def _expire(self, rows: list[_Waiting[Row]], error: Exception) -> None:
        for one in rows:
            self._size -= one.size
            self._give_up(one.row, error)

    def _give_up(self, row: Row, error: Exception) -> None:
        self._metrics.store_failed(type(error).__name__)
        self._log_loss(row, error)

    def _size_of(self, row: Row) -> int:
        del row
        return 1

    @abstractmethod
    def _log_loss(self, row: Row, error: Exception) -> None: ...


class UsageMeter(LateWriter[UsageLine]):
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
    """Writer of ends of foreground responses that clients have seen and rows do not hold yet.

    The database was away, or another process took this one for dead and ended them.
    """

    def __init__(
        self,
        deposit: Deposit,
        *,
        metrics: Metrics,
        bounds: LateBounds = ENDS_BOUNDS,
        usable: Usable | None = None,
    ) -> None:
        # `deposit` is `late_writes.deposit` of a database.
        super().__init__(self._deposit_all, metrics=metrics, bounds=bounds, usable=usable)
        self._deposit = deposit

    @override
    def _size_of(self, row: FinishedResponse) -> int:
        return len(row.body) + sum(len(one.context.json) for one in row.items)

    async def _deposit_all(self, rows: Sequence[tuple[TenantId, FinishedResponse]]) -> None:
        for tenant_id, end in rows:
            is_kept = await self._deposit(tenant_id, end)
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
    """Write how a foreground response ended here, even if another process has ended it meanwhile.

    Returns False if it was deleted or ended in another way. Safe to repeat. Raises
    `StoreUnavailable`.
    """
    try:
        await endings.finish(database, tenant_id, end)
    except ClaimLost:
        return await endings.deposit(database, tenant_id, end)
    return True
