"""The order of the requests of one connection: one after the other on a lane, lanes in parallel."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest, RateLimited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.protocol.responses.websocket import ClientFrame

    Lane = str | None
    TakeTurn = Callable[[ClientFrame], Awaitable[None]]


LANES_MAX: Final = 32
"""Lanes with a name of one connection."""
IN_FLIGHT_MAX: Final = 16
"""Requests of one connection that are worked on at once."""
WAITING_MAX: Final = 64
"""Requests of one connection that wait."""


class Lanes:
    """Calls `take_turn` with each frame in its turn.

    `quiet_since` (the loop's time) is when the last turn ended. While a lane has work it has a task
    in `group`, which must not be left by an exception: `take_turn` raises none.
    """

    def __init__(
        self, group: asyncio.TaskGroup, take_turn: TakeTurn, *, waiting_bytes_max: int
    ) -> None:
        """Bound the requests that wait to `waiting_bytes_max` bytes together."""
        self._group = group
        self._take_turn = take_turn
        self._waiting_bytes_max = waiting_bytes_max
        self._queues: dict[Lane, deque[ClientFrame]] = {}
        self._busy: dict[Lane, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._waiting = 0
        self._waiting_bytes = 0
        self._refusal: Exception | None = None
        self._rest = asyncio.Event()
        self._rest.set()
        self.quiet_since = asyncio.get_running_loop().time()

    @property
    def is_at_rest(self) -> bool:
        return self._rest.is_set()

    def put(self, frame: ClientFrame) -> None:
        """Queue a frame for its turn.

        Raises `InvalidRequest` for too many lanes, `RateLimited` for too many requests, and after
        `refuse` its `refusal`.
        """
        if self._refusal is not None:
            raise self._refusal
        lane = frame.stream_id
        self._check_room(frame)
        self._queues.setdefault(lane, deque()).append(frame)
        self._count(frame, 1)
        if lane not in self._busy:
            self._rest.clear()
            self._busy[lane] = self._group.create_task(self._work(lane))

    def refuse(self, refusal: Exception) -> list[ClientFrame]:
        """Refuse every later frame with `refusal`; drop and return the frames that wait.

        Requests that have begun go on.
        """
        self._refusal = refusal
        dropped = [frame for queue in self._queues.values() for frame in queue]
        for queue in self._queues.values():
            queue.clear()
        self._waiting = self._waiting_bytes = 0
        return dropped

    async def at_rest(self) -> None:
        await self._rest.wait()

    def cancel(self) -> None:
        for task in self._busy.values():
            task.cancel()

    def _check_room(self, frame: ClientFrame) -> None:
        lane = frame.stream_id
        if lane is not None and lane not in self._queues:
            named = len(self._queues) - (None in self._queues)
            if named >= LANES_MAX:
                raise InvalidRequest(
                    f"This connection has {LANES_MAX} streams already. Use one of their "
                    "'stream_id's, or open another connection.",
                    code="websocket_stream_limit_reached",
                    param="stream_id",
                )
        is_next = lane not in self._busy and not self._places.locked()
        size_bytes = self._waiting_bytes + len(frame.text)
        is_full = self._waiting >= WAITING_MAX or size_bytes > self._waiting_bytes_max
        if not is_next and is_full:
            raise RateLimited(
                "This connection has as many requests waiting as it may. Wait until one of them "
                "has been answered.",
                code="rate_limit_exceeded",
            )

    async def _work(self, lane: Lane) -> None:
        queue = self._queues[lane]
        try:
            while queue:
                async with self._places:
                    if queue:
                        frame = queue.popleft()
                        self._count(frame, -1)
                        await self._take_turn(frame)
        finally:
            del self._busy[lane]
            if not self._busy:
                self.quiet_since = asyncio.get_running_loop().time()
                self._rest.set()

    def _count(self, frame: ClientFrame, sign: int) -> None:
        self._waiting += sign
        self._waiting_bytes += sign * len(frame.text)
