"""Group commit for rows that somebody waits for: what comes while one is under way goes together.

A row that comes after a pause is committed at once; under load commits keep a distance, so that
several rows share what a transaction costs. A lane is a short cut, never the only way. A row that
could not be committed with others, for whatever reason of its own or of theirs, is its caller's to
commit alone; so nobody suffers for a neighbour, and nobody is told anything but what became of his
own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.errors import StoreUnavailable
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

Row = TypeVar("Row")
Done = TypeVar("Done")

ROWS_MAX: Final = 128
"""Of one commit: what it takes the database must not keep a single row waiting for long."""

_log = EventLog("gateway.runs")


class Batcher(Generic[Row, Done]):
    """`commit_all` commits rows together, all or nothing, but for those it leaves out: it returns
    what became of those that are committed, by their places (0, 1, …).
    """

    def __init__(
        self,
        commit_all: Callable[[Sequence[Row]], Awaitable[Mapping[int, Done]]],
        *,
        rows_max: int = ROWS_MAX,
        interval_s: float = 0.0,
    ) -> None:
        """`interval_s` lies between the beginnings of two commits."""
        self._commit_all = commit_all
        self._rows_max = rows_max
        self._interval_s = interval_s
        self._may_commit_at = 0.0
        self._waiting: deque[tuple[Row, asyncio.Future[Done | None]]] = deque()
        self._work = asyncio.Event()
        self._is_open = False

    async def commit(self, row: Row) -> Done | None:
        """What became of it; None when nothing of it is committed, and the caller has to do it.

        Raises `StoreUnavailable` when the outcome is unknown, or the database away. Of a caller
        that is cancelled nobody knows whether its row is committed.
        """
        if not self._is_open:
            return None
        done: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        self._work.set()
        return await done

    async def run(self) -> None:
        """Commit until cancelled; whoever comes before and after that commits alone."""
        self._is_open = True
        try:
            while True:
                await self._work.wait()
                await self._keep_distance()
                await self._commit_next()
        finally:
            self._is_open = False
            for _, done in self._waiting:
                _tell(done, None)
            self._waiting.clear()

    async def _keep_distance(self) -> None:
        clock = asyncio.get_running_loop().time
        early_s = self._may_commit_at - clock()
        if early_s > 0:
            await asyncio.sleep(early_s)
        self._may_commit_at = clock() + self._interval_s

    async def _commit_next(self) -> None:
        """One commit. Raises only when cancelled."""
        batch: list[tuple[Row, asyncio.Future[Done | None]]] = []
        while self._waiting and len(batch) < self._rows_max:
            row, done = self._waiting.popleft()
            # Whoever has gone meanwhile wants nothing committed.
            if not done.done():
                batch.append((row, done))
        if not self._waiting:
            self._work.clear()
        if not batch:
            return
        became: Mapping[int, Done] = {}
        try:
            became = await self._commit_all([row for row, _ in batch])
        except StoreUnavailable as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - a defect of one row: each caller finds out alone
            _log.warning("rows are committed one by one", count=len(batch), error=error)
        except BaseException:
            _fail(batch, StoreUnavailable("the process ends"))
            raise
        for place, (_, done) in enumerate(batch):
            _tell(done, became.get(place))


def _fail(
    batch: Sequence[tuple[Row, asyncio.Future[Done | None]]], error: StoreUnavailable
) -> None:
    for _, done in batch:
        if not done.done():
            # Each its own: an error that several raise collects the tracebacks of all.
            done.set_exception(StoreUnavailable(str(error)))


def _tell(done: asyncio.Future[Done | None], became: Done | None) -> None:
    if not done.done():
        done.set_result(became)
