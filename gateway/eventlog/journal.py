from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from gateway.entries import Mark
from gateway.errors import ClaimLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.entries import Entry, Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.live_log import LiveLog
    from gateway.eventlog.log_writer import Channel
    from gateway.store.events import LogRow

    CommitEnd = Callable[[Finished, Fold, LogRow | None], Awaitable[None]]
    """Commits the end of a response, and the rest of its log if it has one."""


class Journal(ABC):
    """Log of one run as its writer sees it.

    `append` never waits; check `is_full` afterwards. It raises `ValueError` for an entry that is
    invalid here, and `ClaimLost` once the run was abandoned.
    """

    __slots__ = ("append", "is_abandoned", "live")

    def __init__(self, live: LiveLog, append: Callable[[Entry], None]) -> None:
        self.live = live
        self.append = append
        self.is_abandoned = False

    @property
    @abstractmethod
    def is_full(self) -> bool: ...

    @abstractmethod
    async def room(self) -> None:
        """Wait until the log is not full. Raises `ClaimLost`."""

    @abstractmethod
    async def committed(self) -> None:
        """Wait until all entries are as durable as they will be. Raises `ClaimLost`."""

    @abstractmethod
    async def finish(self, finished: Finished, commit: CommitEnd | None) -> None:
        """Commit the last entry, then show it. If that fails, the fold is unchanged.

        Without `commit` nobody stores it.
        """

    def abandon(self) -> None:
        """Refuse all further writes: another replica writes now."""
        self.is_abandoned = True
        self.append = _refuse

    def release(self) -> None:
        """Break reference cycles, which would keep all ids until the next full garbage
        collection.
        """
        self.append = _refuse


class MemoryJournal(Journal):
    """Journal of a foreground response, which ends with this process. It is never full, because the
    limit of tokens bounds its memory.
    """

    __slots__ = ()

    is_full = False

    def __init__(self, live: LiveLog) -> None:
        super().__init__(live, live.append)

    @override
    async def room(self) -> None: ...

    @override
    async def committed(self) -> None:
        # A response that is lost with this process is never continued elsewhere.
        ...

    @override
    async def finish(self, finished: Finished, commit: CommitEnd | None) -> None:
        events = self.live.fold.apply(finished)
        if commit is not None:
            try:
                await commit(finished, self.live.fold, None)
            except BaseException:
                self.live.refold()
                raise
        self.live.close(finished, events)


class DurableJournal(Journal):
    """Journal whose entries are committed before anybody sees them: `live` is held, and shown by
    the channel.
    """

    __slots__ = ("channel",)

    def __init__(self, live: LiveLog, channel: Channel) -> None:
        super().__init__(live, self._write)
        self.channel = channel
        channel.delayed = self._on_long_commit

    @property
    @override
    def is_full(self) -> bool:
        return self.channel.is_full

    def _write(self, entry: Entry) -> None:
        self.live.append(entry)
        self.channel.append(entry)

    def _on_long_commit(self, took_s: float) -> None:
        # Its mark goes with the next entry: a commit of nothing else might be a long one again.
        if self.is_abandoned:
            return
        mark = Mark("commit", time.time_ns() // 1_000_000, str(round(took_s * 1000)))
        if self.channel.is_ending:
            self._write(mark)  # it goes with the end, which waited for this commit
        else:
            self.append = partial(self._write_behind, mark, self.append)

    def _write_behind(self, mark: Mark, append: Callable[[Entry], None], entry: Entry) -> None:
        # Two commits may end between two entries: `append` writes the mark of the first.
        self.append = self._write
        append(mark)
        self._write(entry)

    @override
    async def room(self) -> None:
        await self.channel.room()

    @override
    async def committed(self) -> None:
        await self.channel.flushed()

    @override
    async def finish(self, finished: Finished, commit: CommitEnd | None) -> None:
        """Commit the rest of the entries and the end, then show it.

        Waits while the database is away. If `commit` raises, it may be called again.
        """
        assert commit is not None, "a durable response is stored"
        try:
            async with self.channel.ending() as rest:
                events = self.live.fold.apply(finished)
                try:
                    await commit(finished, self.live.fold, rest)
                except BaseException:
                    self.live.refold()
                    raise
                self.channel.close(has_ended=True)
        except ClaimLost:
            raise
        except Exception:
            # The ids are in the log: the process that ends the response reads them there.
            await self.channel.flushed()
            raise
        self.live.close(finished, events)

    @override
    def release(self) -> None:
        super().release()
        self.channel.delayed = None
        self.channel.lost = _tell_nobody


def _refuse(_entry: Entry) -> None:
    raise ClaimLost


def _tell_nobody() -> None:
    # The run that a lost claim would stop is over.
    ...
