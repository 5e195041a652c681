"""Who is shown a log that is written elsewhere, as soon as something of it is found here.

One look finds what is new of all logs that are followed, and shows it to their readers in the same
pass: no task wakes for that. As where a log is written (`gateway.runs.live`), text of an open part
goes the shortest way (`gateway.runs.flow`), and what else follows from it is made up for later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.log import Singles, single_ids
from gateway.runs.flow import Flow
from gateway.runs.slices import ALL_KNOWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from gateway.log import Portion
    from gateway.protocol.showing import ShowsDeltas
    from gateway.runs.lives import Lives
    from gateway.runs.place import Place
    from gateway.runs.tails import Tail
    from gateway.store.events import LogRow

SHORT_BYTES: Final = 1024
"""Packed entries that take less than a slice to fold: what came since the last look, mostly."""
FLOWING_MAX: Final = 256
"""So many ids are folded at once."""
FEW_IDS: Final = 8
"""More are written together, which costs less than one by one."""


class Follower:
    """Shows what a tail brings; see `tails.Hears`.

    Where something has to be waited for, or is not at hand, or goes on here, the task wakes that
    `wait`s.
    """

    __slots__ = ("_failure", "_flow", "_lives", "_place", "_rest", "_show", "_tail", "_waiter")

    def __init__(self, place: Place, show: ShowsDeltas, tail: Tail, lives: Lives) -> None:
        self._place = place
        self._show = show
        self._tail = tail
        self._lives = lives
        self._waiter: asyncio.Future[None] | None = None
        self._rest: Awaitable[None] | None = None
        self._failure: Exception | None = None
        self._flow: Flow | None = None

    async def wait(self) -> None:
        """Until there is something to do that takes a task. Raises what `show` raised.

        Whoever calls this has shown all before the entry where the place stands.
        """
        if self._tail.is_beyond(self._place.next_entry):
            return
        self._waiter = asyncio.get_running_loop().create_future()
        self._tail.followers.append(self)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._tail.followers.remove(self)
            self._land()
        if self._failure is not None:
            raise self._failure
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest

    def hear(self, part: LogRow) -> bool:
        """Show what comes next. Whether that was all of it, and the task sleeps on."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        try:
            if self._heard(part):
                return True
        except Exception as error:  # noqa: BLE001 - the reader's task raises it, others go on
            self._failure = error
        waiter.set_result(None)
        return False

    def notice(self) -> None:
        """The tail has moved."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._tail.is_beyond(self._place.next_entry):
            waiter.set_result(None)

    def _heard(self, part: LogRow) -> bool:
        place = self._place
        if part.first_entry > place.next_entry or len(part.entries) > SHORT_BYTES:
            return False
        if self._lives.get(place.uuid) is not None:
            return False
        flow = self._flow
        if flow is not None and part.first_entry == place.next_entry:
            # Nearly always it is one more id, or two.
            ids = single_ids(part.entries)
            if ids is not None and len(ids) <= FEW_IDS and self._flowed(flow, ids):
                return True
        return all(map(self._shown, place.unread([part]))) and not place.is_through()

    def _shown(self, portion: Portion) -> bool:
        """Show one, folded. False where the client has to be waited for."""
        self._land()
        events = self._place.fold.replay(portion, self._place.after)
        self._rest = self._show(events)
        if self._rest is None:
            self._flow = self._new_flow()
        return self._rest is None

    def _flowed(self, flow: Flow, ids: Iterable[int]) -> bool:
        """Show these as text of what is open, as far as that is simple; whether it was."""
        for token in ids:
            if not flow.hear(token, 0.0):
                return False
            self._place.next_entry += 1
        return True

    def _new_flow(self) -> Flow | None:
        flowing = self._place.fold.flowing()
        if flowing is None or flowing.number <= self._place.after:
            return None
        show = self._show.deltas(flowing.pattern)
        return None if show is None else Flow(flowing, show, ids_max=FLOWING_MAX, now=0.0)

    def _land(self) -> None:
        """Fold what flowed."""
        flow, self._flow = self._flow, None
        if flow is not None and flow.ids:
            self._place.fold.replay(Singles(tuple(flow.ids)), ALL_KNOWN)
