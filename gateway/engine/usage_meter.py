"""What unstored responses used, booked after their clients have the answer: together, soon, once.

Whoever books waits for nothing. A line that comes while none is under way is written at once, and
what comes within the interval after that goes together. While the database is away lines are kept,
for a time and up to a number; what cannot be kept is in the log of this process, with its numbers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import StoreUnavailable
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.store.usage import UsageLine
    from gateway.telemetry import Metrics
    from gateway.tenancy import TenantId

    Record = Callable[[Sequence[tuple[TenantId, UsageLine]]], Awaitable[None]]

_log = EventLog("gateway.runs")


@dataclass(frozen=True, slots=True)
class MeterBounds:
    """`lines_max` lines wait for the database, each for `patience_s`; `batch_lines_max` of them go
    together. Between the beginnings of two writes lie `interval_s`, or `retry_pause_s` while the
    database is away.
    """

    lines_max: int = 20_000
    batch_lines_max: int = 500
    patience_s: float = 60.0
    interval_s: float = 0.1
    retry_pause_s: float = 0.2


DEFAULT_BOUNDS: Final = MeterBounds()


@dataclass(frozen=True, slots=True)
class _Booked:
    tenant_id: TenantId
    line: UsageLine
    until: float


class UsageMeter:
    """Writes usage lines. Booking one twice is booking it once."""

    def __init__(
        self, record: Record, *, metrics: Metrics, bounds: MeterBounds = DEFAULT_BOUNDS
    ) -> None:
        """`record` is `store.usage.record_all` of a database."""
        self._record = record
        self._metrics = metrics
        self._bounds = bounds
        self._booked: deque[_Booked] = deque()
        self._under_way: list[_Booked] = []
        self._work = asyncio.Event()
        self.is_running = False
        """Otherwise nothing is written before `flush`."""

    def book(self, tenant_id: TenantId, line: UsageLine) -> None:
        """Have it written soon. Never waits; when too many wait already, it is only logged."""
        if len(self._booked) + len(self._under_way) >= self._bounds.lines_max:
            self._give_up(line, StoreUnavailable("too many usage lines wait for the database"))
            return
        until = asyncio.get_running_loop().time() + self._bounds.patience_s
        self._booked.append(_Booked(tenant_id, line, until))
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled; call `flush` after that."""
        bounds = self._bounds
        self.is_running = True
        try:
            while True:
                await self._work.wait()
                is_written = await self._write_next()
                await asyncio.sleep(bounds.interval_s if is_written else bounds.retry_pause_s)
        finally:
            self.is_running = False

    async def flush(self, *, wait_s: float) -> None:
        """Write all that is left, for `wait_s` at most; what is left then is logged."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while self._booked or self._under_way:
            if await self._write_next():
                continue
            if asyncio.get_running_loop().time() + self._bounds.retry_pause_s > deadline:
                break
            await asyncio.sleep(self._bounds.retry_pause_s)
        for one in (*self._under_way, *self._booked):
            self._give_up(one.line, StoreUnavailable("the process ends"))
        self._under_way.clear()
        self._booked.clear()

    async def _write_next(self) -> bool:
        """Write some of those that wait. False: they still do, because the database is away."""
        while self._booked and len(self._under_way) < self._bounds.batch_lines_max:
            self._under_way.append(self._booked.popleft())
        try:
            await self._write(self._under_way)
        except StoreUnavailable as error:
            self._drop_overdue(error)
            return False
        # Only now: a write that was cancelled is made again by `flush`.
        self._under_way.clear()
        if not self._booked:
            self._work.clear()
        return True

    async def _write(self, lines: Sequence[_Booked]) -> None:
        """All of them, or, when one is in the way, all the others. Raises `StoreUnavailable`."""
        if not lines:
            return
        try:
            await self._record([(one.tenant_id, one.line) for one in lines])
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of one line must not cost the others
            if len(lines) == 1:
                self._give_up(lines[0].line, error)
                return
            middle = len(lines) // 2
            await self._write(lines[:middle])
            await self._write(lines[middle:])

    def _drop_overdue(self, error: StoreUnavailable) -> None:
        now = asyncio.get_running_loop().time()
        for one in self._under_way:
            if one.until <= now:
                self._give_up(one.line, error)
        self._under_way = [one for one in self._under_way if one.until > now]

    def _give_up(self, line: UsageLine, error: Exception) -> None:
        self._metrics.store_failed(type(error).__name__)
        _log.error(
            "usage was not booked",
            response_id=ids.response_id(line.response),
            model=line.model,
            error=error,
            **asdict(line.tokens),
        )
