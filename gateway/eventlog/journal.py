"""What a run writes to: a log that is shown at once, or one that is committed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.errors import ClaimLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.entries import Entry, Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.live_log import LiveLog
    from gateway.eventlog.log_writer import Channel
    from gateway.protocol.events import Event
    from gateway.store.events import LogRow


class Journal(Protocol):
    """The log of one run, as the run that writes it sees it.

    `finish` commits the end, and shows it: it is visible when this returns. When it raises
    (`StoreError`, `ClaimLost`), nothing of the end is shown and the fold is what it was before.
    """

    @property
    def live(self) -> LiveLog:
        """What was written so far, folded."""
        ...

    @property
    def is_full(self) -> bool:
        """Time to wait for `room`: the log is too far ahead of the database."""
        ...

    def append(self, entry: Entry) -> None:
        """Write an entry. Never waits. Raises `ValueError` for one that cannot stand here."""
        ...

    async def room(self) -> None:
        """Wait until it is not full. Raises `ClaimLost`."""
        ...

    async def committed(self) -> None:
        """Wait until all that was appended is as durable as it will be. Raises `ClaimLost`."""
        ...

    async def finish(self, finished: Finished) -> None:
        """Write the last entry."""
        ...


class MemoryJournal:
    """A foreground response that lives and dies with this process: visible at once.

    `commit` keeps what stays of it; None: nothing does.
    """

    is_full = False

    def __init__(
        self, live: LiveLog, commit: Callable[[Finished, Fold], Awaitable[None]] | None
    ) -> None:
        self.live = live
        self.append = live.append
        self._commit = commit

    async def room(self) -> None:
        """Return: memory is bounded by the tokens that a response may have."""

    async def committed(self) -> None:
        """Return: nobody goes on with what is lost with this process."""

    async def finish(self, finished: Finished) -> None:
        """Commit the end, if anything is kept, then show it. Raises what `commit` does."""
        events = self.live.fold.apply(finished)
        if self._commit is not None:
            try:
                await self._commit(finished, self.live.fold)
            except BaseException:
                self.live.refold()
                raise
        self.live.close(finished, events)


class DurableJournal:
    """A response whose log is committed before anybody sees it.

    `live` is held, and the channel shows it: `durable` is `live.show`. `commit` gets what of the
    log is not written yet, and writes it together with the end and all that stays of the response.
    """

    def __init__(
        self,
        live: LiveLog,
        channel: Channel,
        commit: Callable[[Finished, Fold, LogRow], Awaitable[None]],
    ) -> None:
        self.live = live
        self.channel = channel
        self._commit = commit

    @property
    def is_full(self) -> bool:
        """The database is too far behind."""
        return self.channel.is_full

    def append(self, entry: Entry) -> None:
        """Fold an entry and hand it to the writer; it is shown when it is committed."""
        self.live.append(entry)
        self.channel.append(entry)

    async def room(self) -> None:
        """Wait until the database has caught up. Raises `ClaimLost`."""
        await self.channel.room()

    async def committed(self) -> None:
        """Wait until the log is in the database, as long as that is away. Raises `ClaimLost`."""
        await self.channel.settled()

    async def finish(self, finished: Finished) -> None:
        """Commit the end, with all before it that is not durable yet, then show it.

        Waits while the database is away. Raises `ClaimLost`, and what `commit` does; then it may
        be called again.
        """
        try:
            events = await self._end(finished)
        except ClaimLost:
            raise
        except Exception:
            # What was said is in the log all the same: whoever has to end it says it again.
            await self.channel.settled()
            raise
        self.live.close(finished, events)

    async def _end(self, finished: Finished) -> list[Event]:
        async with self.channel.ending() as rest:
            events = self.live.fold.apply(finished)
            try:
                await self._commit(finished, self.live.fold, rest)
            except BaseException:
                self.live.refold()
                raise
            self.channel.end()
        return events


class JournalWriter:
    """Writes into a journal until it is put down; then `append` raises `ClaimLost`."""

    def __init__(self, journal: Journal) -> None:
        self.is_down = False
        self.append: Callable[[Entry], None] = journal.append
        """Write one entry. Never waits: see `journal.is_full`."""
        self.journal = journal
        self.live = journal.live
        """What was written so far."""

    def put_down(self) -> None:
        """Write no more, whoever has it."""
        self.is_down = True
        self.append = _refuse


def _refuse(_entry: Entry) -> None:
    raise ClaimLost
