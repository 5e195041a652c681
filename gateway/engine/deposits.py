"""What clients were shown of foreground responses whose rows do not say it yet: kept until they do.

A response that is to be stored may end while the database is away, or was ended by another process
that took its owner for dead. Its client is told all the same, so what it was told is written as
soon as the database takes it. It waits in memory, for a time and up to a size; what cannot be
written is in the log of this process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.store import endings
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.store.endings import FinishedResponse
    from gateway.store.postgres.database import Database
    from gateway.telemetry import Metrics
    from gateway.tenancy import TenantId

    Write = Callable[[TenantId, FinishedResponse], Awaitable[bool]]

_log = EventLog("gateway.runs")


@dataclass(frozen=True, slots=True)
class DepositBounds:
    """`bytes_max` wait for the database, each response for `patience_s`, with `retry_pause_s`
    between two attempts.
    """

    bytes_max: int = 32 * 1024 * 1024
    patience_s: float = 600.0
    retry_pause_s: float = 0.2


DEFAULT_BOUNDS: Final = DepositBounds()


@dataclass(frozen=True, slots=True)
class _Waiting:
    tenant_id: TenantId
    end: FinishedResponse
    size_bytes: int
    until: float


async def deposit(database: Database, tenant_id: TenantId, end: FinishedResponse) -> bool:
    """Write how a foreground response ended here, whoever has ended it meanwhile.

    False where it was deleted, or ended in another way. Safe to repeat. Raises `StoreUnavailable`.
    """
    try:
        await endings.finish(database, tenant_id, end)
    except ClaimLost:
        return await endings.deposit(database, tenant_id, end)
    return True


class Deposits:
    """Writes them one by one, in the order in which they came."""

    def __init__(
        self, write: Write, *, metrics: Metrics, bounds: DepositBounds = DEFAULT_BOUNDS
    ) -> None:
        """`write` is `deposit` of a database."""
        self._write = write
        self._metrics = metrics
        self._bounds = bounds
        self._waiting: deque[_Waiting] = deque()
        self._size_bytes = 0
        self._work = asyncio.Event()

    def put(self, tenant_id: TenantId, end: FinishedResponse) -> None:
        """Have it written once the database is back. Never waits."""
        size_bytes = len(end.body) + sum(len(one.context.json) for one in end.items)
        if self._size_bytes + size_bytes > self._bounds.bytes_max:
            self._give_up(end, StoreUnavailable("too many ends wait for the database"))
            return
        until = asyncio.get_running_loop().time() + self._bounds.patience_s
        self._waiting.append(_Waiting(tenant_id, end, size_bytes, until))
        self._size_bytes += size_bytes
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled; call `flush` after that."""
        while True:
            await self._work.wait()
            if not await self._write_next():
                await asyncio.sleep(self._bounds.retry_pause_s)

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
            self._give_up(self._take().end, StoreUnavailable("the process ends"))

    async def _write_next(self) -> bool:
        """Write the first that waits. False: it still does, because the database is away."""
        if not self._waiting:
            self._work.clear()
            return True
        first = self._waiting[0]
        try:
            is_kept = await self._write(first.tenant_id, first.end)
        except StoreUnavailable as error:
            if first.until > asyncio.get_running_loop().time():
                return False
            self._give_up(self._take().end, error)
        except Exception as error:  # noqa: BLE001 - a defect of one must not cost the others
            self._give_up(self._take().end, error)
        else:
            self._take()
            _log.info(
                "the end of a response was stored late" if is_kept else "an end was not needed",
                response_id=ids.response_id(first.end.uuid),
                status=first.end.status,
            )
        return True

    def _take(self) -> _Waiting:
        first = self._waiting.popleft()
        self._size_bytes -= first.size_bytes
        return first

    def _give_up(self, end: FinishedResponse, error: Exception) -> None:
        self._metrics.store_failed(type(error).__name__)
        _log.error(
            "the end of a response was not stored",
            response_id=ids.response_id(end.uuid),
            status=end.status,
            error=error,
            output_tokens=end.tokens.output_tokens if end.tokens else 0,
        )
