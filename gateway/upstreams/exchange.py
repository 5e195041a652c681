"""A generation as it is heard: bytes of a body → chunks → a listener, all in the read they came in.

The task that asked for the generation sleeps meanwhile. It wakes up once, at the end, and once for
each time that the listener is full.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import httpx2

from gateway.upstreams.long_reads import LongReads
from gateway.upstreams.steady import Shortcut

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gateway.generation import HearText, Listener, TokenChunk
    from gateway.upstreams.backend import Timeouts
    from gateway.upstreams.completions import CompletionReader
    from gateway.upstreams.http.connection import Connection
    from gateway.upstreams.http.transport import ResponseBody

_SILENCE: Final = "no token in time"
_LONG_IDS_MIN: Final = 16
"""A read with so many ids is one of many."""


class Exchange:
    """One generation under way, and the connection it goes over.

    `heard_at` is since when it is waited for, in the loop's time: never, while the listener has no
    room for more. A read is heard in the context of the task that made this object, not of the one
    that once opened the connection.
    """

    __slots__ = (
        "_body", "_changed", "_error", "_heard_at", "_insider", "_is_held", "_is_over",
        "_leaves_rest", "_listener", "_long", "_loop", "_reader", "_run", "_shortcut", "_timeouts",
        "connection", "has_begun",
    )  # fmt: skip

    def __init__(self, listener: Listener, reader: CompletionReader, timeouts: Timeouts) -> None:
        self.connection: Connection | None = None
        self.has_begun = False
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._listener = listener
        self._insider = _insider(listener)
        self._reader = reader
        self._timeouts = timeouts
        self._run = copy_context().run
        self._body: ResponseBody | None = None
        self._changed: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_held = False
        self._is_over = False
        self._leaves_rest = False
        self._long: LongReads | None = None
        self._shortcut = Shortcut(reader, timeouts.stall_s)

    @property
    def heard_at(self) -> float:
        """See above."""
        return max(self._heard_at, self._shortcut.heard_at)

    def goes_over(self, body: ResponseBody) -> None:
        """The request is about to be sent, and this is where its answer will be.

        From here on it may be poured in here, while its task still waits for it to begin.
        """
        self._body = body
        self.connection = body.connection

    async def hear_out(self, body: ResponseBody) -> None:
        """Until the finish was heard, or enough; then the connection is free, or closed.

        Raises what the reader found wrong with the body, after all ids before it were heard, and
        what the listener raises. To cancel it closes the connection at once.
        """
        self.goes_over(body)
        connection = body.connection
        try:
            if not self._is_over and not connection.is_pouring:
                connection.wait_until(self.heard_at + self._timeouts.first_token_s)
                connection.pour(self)
            while not self._is_over:
                if self._is_held:
                    await self._go_on(connection)
                else:
                    self._changed = self._loop.create_future()
                    await self._changed
        finally:
            body.close()
        if self._leaves_rest and not await self._listener.room():
            return
        if self._error is not None:
            raise self._error

    async def _go_on(self, connection: Connection) -> None:
        """Hear more, once there is room for it, and all else that goes on here had its turn."""
        if self._listener.is_full and not await self._listener.room():
            self._break_off()
            return
        reader = self._reader
        if reader.has_more:
            await asyncio.sleep(0)
        self._is_held = False
        if reader.has_more:
            self._pass_on(reader.go_on())
        if not (self._is_held or self._is_over):
            if self._heard_at == math.inf:
                self._heard_at = self._loop.time()
            connection.wait_until(self.heard_at + self._patience_s)
            connection.go_on()

    def take(self, data: bytes) -> None:
        """A read of the body."""
        chunk = self._reader.feed(data)
        self._pass_on(chunk)
        if chunk is None or self._body is None or self._body.connection.is_long:
            return
        if len(chunk.ids) >= _LONG_IDS_MIN:
            self._lengthen(self._body.connection)
        elif len(chunk.ids) == 1:
            take = self._shortcut.open(self._insider, self._body.connection)
            if take is not None and not (self._is_over or self._is_held):
                self._body.connection.shorten(take, data)

    def _lengthen(self, connection: Connection) -> None:
        shape = self._reader.steady_shape
        if shape is None or self._is_over or self._is_held:
            return
        if self._long is None or self._long.shape is not shape:
            self._long = LongReads(shape, self._take_run)
        connection.lengthen(self._long)

    def _take_run(self, ids: list[int]) -> bool:
        """The ids of events that were read elsewhere, if such are what comes next."""
        chunk = None if self._long is None else self._reader.take_run(self._long.shape, ids)
        if chunk is None:
            return False
        self._pass_on(chunk)
        return True

    def end(self, error: httpx2.TransportError | None) -> None:
        """The body ended, was broken off, or has brought no id for too long."""
        if error is None:
            why = "stream ended without a finish reason"
        else:
            why = _SILENCE if isinstance(error, httpx2.ReadTimeout) else describe(error)
        self._pass_on(self._reader.end(why))

    def _pass_on(self, chunk: TokenChunk | None) -> None:
        reader = self._reader
        if chunk is None:
            if reader.fault is not None:
                self._fail(reader.fault)
            elif reader.has_more:
                self._hold()
            return
        is_between = self.has_begun and chunk.finish is None
        self.has_begun = True
        listener = self._insider if is_between else self._listener
        try:
            goes_on = self._run(listener.hear, chunk)
            is_full = listener.is_full
        except Exception as error:  # noqa: BLE001  it comes out of `hear_out`
            self._fail(error)
            return
        if not goes_on or is_full or chunk.finish is not None or reader.fault is not None:
            self._stop(goes_on=goes_on, is_full=is_full)
            return
        self._wait()
        if reader.has_more:
            self._hold()

    def _stop(self, *, goes_on: bool, is_full: bool) -> None:
        """Hear no more: for good, or until there is room."""
        body, reader = self._body, self._reader
        self._leaves_rest = goes_on and is_full
        if reader.finished and not reader.overran and body is not None:
            body.drain(self._timeouts.tail_s)
            self._is_over = True
            self._wake()
        elif not goes_on or reader.finished:
            self._break_off()
        elif reader.fault is not None:
            self._fail(reader.fault)
        else:
            self._heard_at = math.inf
            self._hold()

    def _hold(self) -> None:
        """Have the task hear what comes next, and nothing else come meanwhile."""
        if self.connection is not None:
            self._is_held = True
            self.connection.hold()
            self._wake()

    @property
    def _patience_s(self) -> float:
        """How long the backend may say nothing now."""
        timeouts, reader = self._timeouts, self._reader
        if not self.has_begun:
            return timeouts.first_token_s
        may_say_more = reader.finish is None and reader.ids_left > 0
        return timeouts.stall_s if may_say_more else timeouts.tail_s

    def _wait(self) -> None:
        """Patience begins anew: ids were heard, bytes alone do not count."""
        if self.connection is not None:
            self._heard_at = now = self._loop.time()
            self.connection.wait_until(now + self._patience_s)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._break_off()

    def _break_off(self) -> None:
        if self._body is not None:
            self._body.close()
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is None:
            if self.connection is not None:
                self.connection.wake()
        elif not self._changed.done():
            self._changed.set_result(None)


class Overheard:
    """A listener, and somebody else who is told of its first chunk, and of the last one.

    What is between these may be told to the `listener` alone.
    """

    __slots__ = ("_finish", "_first", "listener", "room")

    def __init__(
        self,
        listener: Listener,
        *,
        first: Callable[[], None],
        finish: Callable[[], None] | None = None,
    ) -> None:
        self.listener = listener
        self._first: Callable[[], None] | None = first
        self._finish = finish
        self.room: Callable[[], Coroutine[object, object, bool]] = listener.room

    @property
    def is_full(self) -> bool:
        """Whether the listener is."""
        return self.listener.is_full

    def flow(self) -> HearText | None:
        """The listener's: nobody else is told of what is in between."""
        return self.listener.flow()

    def hear(self, chunk: TokenChunk) -> bool:
        """Whether the listener wants more."""
        if self._first is not None:
            first, self._first = self._first, None
            first()
        if chunk.finish is not None and self._finish is not None:
            self._finish()
        return self.listener.hear(chunk)


def _insider(listener: Listener) -> Listener:
    """The one that is overheard by all others."""
    while isinstance(listener, Overheard):
        listener = listener.listener
    return listener


def describe(error: httpx2.TransportError) -> str:
    """What went wrong with a connection, for operators."""
    return f"{type(error).__name__}: {error}"
