"""Single rows of many callers, committed together: one transaction for what comes at one time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gateway.errors import StoreUnavailable
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

Row = TypeVar("Row")
Done = TypeVar("Done")

BATCH_ROWS_MAX: Final = 128
"""Rows of one commit: while the database works on it, a row that comes alone has to wait."""

_log = EventLog(__name__)


class Batcher(Generic[Row, Done]):
    """Commits rows together, for callers that wait until theirs is committed.

    A row that comes after a pause is committed at once. Under load there is a pause between two
    commits, so that several rows share the cost of a transaction. A row that could not be committed
    together with others, whichever of them is at fault, is given back to its caller, who commits it
    alone: one bad row costs the others nothing.
    """

    def __init__(
        self,
        commit_all: Callable[[Sequence[Row]], Awaitable[Mapping[int, Done]]],
        *,
        rows_max: int = BATCH_ROWS_MAX,
        interval_s: float = 0.0,
    ) -> None:
        """`commit_all` commits rows together, all or nothing, but for those it leaves out: it
        returns what became of those that are committed, by their places (0, 1, …). `interval_s`
        lies between the beginnings of two commits.
        """
        self._commit_all = commit_all
        self._rows_max = rows_max
        self._interval_s = interval_s
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
        """Commit until cancelled. A row that comes before or after that is given back at once."""
        clock, may_commit_at = asyncio.get_running_loop().time, 0.0
        self._is_open = True
        try:
            while True:
                await self._work.wait()
                if (early_s := may_commit_at - clock()) > 0:
                    await asyncio.sleep(early_s)
                may_commit_at = clock() + self._interval_s
                await self._commit_next()
        finally:
            self._is_open = False
            for _, done in self._waiting:
                if not done.done():
                    done.set_result(None)
            self._waiting.clear()

    async def _commit_next(self) -> None:
        """One commit. Raises only when cancelled."""
        rows: list[Row] = []
        callers: list[asyncio.Future[Done | None]] = []
        while self._waiting and len(rows) < self._rows_max:
            row, done = self._waiting.popleft()
            # A caller that was cancelled meanwhile wants nothing committed.
            if not done.done():
                rows.append(row)
                callers.append(done)
        if not self._waiting:
            self._work.clear()
        if not rows:
            return
        became: Mapping[int, Done] = {}
        try:
            became = await self._commit_all(rows)
        except StoreUnavailable as error:
            _fail(callers, error)
        except Exception as error:  # noqa: BLE001 - a defect of one row: each caller finds out alone
            _log.warning("rows are committed one by one", count=len(rows), error=error)
        except BaseException:
            _fail(callers, StoreUnavailable("the process ends"))
            raise
        for place, done in enumerate(callers):
            if not done.done():
                done.set_result(became.get(place))


def _fail(callers: Iterable[asyncio.Future[Any]], error: StoreUnavailable) -> None:
    for done in callers:
        if not done.done():
            # Each its own: an error that several raise collects the tracebacks of all.
            done.set_exception(StoreUnavailable(str(error)))
