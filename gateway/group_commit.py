"""Group commit: rows that come at one time share one transaction.

A row that comes after a pause is committed at once; under load, those between two commits go
together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.errors import StoreUnavailable
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

Row = TypeVar("Row")
Done = TypeVar("Done")
_Call = tuple[Row, "asyncio.Future[Done | None]"]

BATCH_ROWS_MAX: Final = 128
"""A row that comes alone has to wait for one whole commit."""

_log = EventLog(__name__)


class GroupCommit(Generic[Row]):
    def __init__(
        self,
        commit: Callable[[list[Row]], Awaitable[None]],
        *,
        size_max: int,
        size_of: Callable[[Row], int | None] | None = None,
        interval_s: float = 0.0,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        # `commit` is called with each batch, which may be empty. A batch takes rows until their
        # sizes reach `size_max`. `size_of` is called when a row is taken, and returns None for a
        # row that is not wanted any more; without it each row counts 1. `pause` may return early,
        # to begin the next commit before `interval_s` is over.
        self._commit = commit
        self._size_max = size_max
        self._size_of = size_of
        self._interval_s = interval_s
        self._pause = pause
        self._waiting: deque[Row] = deque()
        self._work = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, row: Row) -> None:
        self._waiting.append(row)
        self._work.set()

    def extend(self, rows: Iterable[Row]) -> None:
        self._waiting.extend(rows)
        if self._waiting:
            self._work.set()

    def put_back(self, rows: Iterable[Row]) -> None:
        self._waiting.extendleft(reversed(list(rows)))
        if self._waiting:
            self._work.set()

    def take(self) -> list[Row]:
        rows: list[Row] = []
        size = 0
        while self._waiting and size < self._size_max:
            row = self._waiting.popleft()
            row_size = 1 if self._size_of is None else self._size_of(row)
            if row_size is not None:
                rows.append(row)
                size += row_size
        if not self._waiting:
            self._work.clear()
        return rows

    async def run(self) -> None:
        clock, may_begin_at = asyncio.get_running_loop().time, 0.0
        while True:
            await self._work.wait()
            if (early_s := may_begin_at - clock()) > 0:
                await self._pause(early_s)
            may_begin_at = clock() + self._interval_s
            await self._commit(self.take())


async def commit_but_defects(
    rows: Sequence[Row],
    commit: Callable[[Sequence[Row]], Awaitable[None]],
    give_up: Callable[[Row, Exception], None],
) -> None:
    """Commit all rows but the defective ones, which are passed to `give_up`: batches that fail are
    halved until these are alone. Raises `StoreUnavailable`.
    """
    try:
        await commit(rows)
    except StoreUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - a defect of one row must not cost the others
        if len(rows) == 1:
            give_up(rows[0], error)
            return
        middle = len(rows) // 2
        for half in (rows[:middle], rows[middle:]):
            if half:
                await commit_but_defects(half, commit, give_up)


class Batcher(Generic[Row, Done]):
    """Committer of rows together, for callers that wait until theirs is committed.

    If a batch fails, each caller commits its own row: one bad row costs the others nothing.
    """

    def __init__(
        self,
        commit_all: Callable[[Sequence[Row]], Awaitable[Mapping[int, Done]]],
        *,
        rows_max: int = BATCH_ROWS_MAX,
        interval_s: float = 0.0,
    ) -> None:
        # `commit_all` commits rows together, all or nothing, but for those it leaves out: it
        # returns the outcomes of the committed ones by position. `interval_s` lies between the
        # beginnings of two commits.
        self._commit_all = commit_all
        self._calls: GroupCommit[_Call[Row, Done]] = GroupCommit(
            self._commit, size_max=rows_max, interval_s=interval_s
        )
        self._is_open = False

    async def commit(self, row: Row) -> Done | None:
        """Return the outcome of a row; None: it is not committed, and the caller has to do it.

        Raises `StoreUnavailable`, also when the outcome is unknown. The row of a cancelled caller
        may be committed or not.
        """
        if not self._is_open:
            return None
        done: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()
        self._calls.put((row, done))
        return await done

    async def run(self) -> None:
        self._is_open = True
        try:
            await self._calls.run()
        finally:
            self._is_open = False
            while calls := self._calls.take():
                for _, done in calls:
                    if not done.done():
                        done.set_result(None)

    async def _commit(self, calls: list[_Call[Row, Done]]) -> None:
        # A caller that was cancelled meanwhile wants nothing committed.
        calls = [call for call in calls if not call[1].done()]
        if not calls:
            return
        outcomes: Mapping[int, Done] = {}
        try:
            outcomes = await self._commit_all(list(map(itemgetter(0), calls)))
        except StoreUnavailable as error:
            _fail(calls, str(error))
        except Exception as error:  # noqa: BLE001 - a defect of one row: each caller finds out alone
            _log.warning("rows are committed one by one", count=len(calls), error=error)
        except BaseException:
            _fail(calls, "the process ends")
            raise
        for position, (_, done) in enumerate(calls):
            if not done.done():
                done.set_result(outcomes.get(position))


def _fail(calls: list[_Call[Row, Done]], why: str) -> None:
    for _, done in calls:
        if not done.done():
            # Each its own: an error that several raise collects the tracebacks of all.
            done.set_exception(StoreUnavailable(why))
