from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING

from gateway import ids
from gateway.engine.late_writes import USAGE_BOUNDS, UsageMeter
from gateway.errors import StoreConflict, StoreUnavailable
from gateway.generation import TokenUsage
from gateway.store.usage_lines import UsageLine
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from tests.fakes.logs import captured_logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

TENANT = TenantId(ids.new_uuid())


def line(tokens: int = 1) -> UsageLine:
    return UsageLine(
        ids.new_uuid(), ids.new_uuid(), "m", datetime.now(UTC), TokenUsage(input_tokens=tokens)
    )


class Books:
    """Where lines are written; `failures` are raised by the next writes, one each."""

    def __init__(self, **bounds: float) -> None:
        self.batches: list[list[UsageLine]] = []
        self.failures: list[Exception] = []
        self.refused: UsageLine | None = None
        self.written = asyncio.Semaphore(0)
        fast = {"interval_s": 0.0, "retry_pause_s": 0.0, **bounds}
        self.meter = UsageMeter(
            self._record,
            metrics=Metrics(),
            bounds=replace(USAGE_BOUNDS, **fast),  # type: ignore[arg-type]
        )

    async def _record(self, lines: Sequence[tuple[TenantId, UsageLine]]) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        if any(one is self.refused for _, one in lines):
            raise StoreConflict("ck_usage")
        self.batches.append([one for _, one in lines])
        self.written.release()


@asynccontextmanager
async def running(books: Books) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(books.meter.run())
        await asyncio.sleep(0)
        yield
        task.cancel()


async def test_lines_are_written_together_and_nobody_waits() -> None:
    books = Books()
    lines = [line(), line(), line()]
    async with running(books):
        for one in lines:
            books.meter.put(TENANT, one)
        await books.written.acquire()
    assert books.batches == [lines]


async def test_lines_are_kept_while_the_database_is_away() -> None:
    books = Books()
    books.failures = [StoreUnavailable("away")] * 3
    lines = [line(), line()]
    async with running(books):
        for one in lines:
            books.meter.put(TENANT, one)
        await books.written.acquire()
    assert books.batches == [lines]


async def test_a_flush_writes_what_was_under_way_and_what_waited() -> None:
    books = Books(batch_rows_max=2)
    lines = [line() for _ in range(5)]
    for one in lines:
        books.meter.put(TENANT, one)
    writing = asyncio.ensure_future(books.meter.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await books.meter.flush(wait_s=5)
    assert list(chain.from_iterable(books.batches)) == lines


async def test_a_line_that_is_refused_costs_the_others_nothing_and_is_logged() -> None:
    books = Books()
    lines = [line() for _ in range(5)]
    books.refused = lines[3]
    for one in lines:
        books.meter.put(TENANT, one)
    with captured_logs() as logged:
        await books.meter.flush(wait_s=5)
    assert list(chain.from_iterable(books.batches)) == [*lines[:3], lines[4]]
    assert told(logged) == 1


async def test_what_cannot_be_kept_is_logged() -> None:
    books = Books(size_max=2)
    with captured_logs() as logged:
        for _ in range(3):
            books.meter.put(TENANT, line())
        books.failures = [StoreUnavailable("away")] * 2
        await books.meter.flush(wait_s=-1)
    assert told(logged) == 3
    assert books.batches == []


async def test_patience_ends() -> None:
    books = Books(patience_s=0.0)
    books.failures = [StoreUnavailable("away")]
    books.meter.put(TENANT, line(7))
    with captured_logs() as logged:
        await books.meter.flush(wait_s=5)
    assert told(logged) == 1
    assert books.batches == []


def told(logged: Sequence[Mapping[str, object]]) -> int:
    return sum(entry["event"] == "usage was not booked" for entry in logged)


async def test_a_line_that_comes_after_the_flush_is_logged() -> None:
    books = Books()
    await books.meter.flush(wait_s=5)
    with captured_logs() as logged:
        books.meter.put(TENANT, line())
    assert books.batches == []
    assert told(logged) == 1
