"""One stream of tokens from a backend: how long it may be silent, and where its ids go."""

from __future__ import annotations

import asyncio
import math
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gateway.fair_queue import ReadTurns
    from gateway.generation import TokenChunk, TokenSink
    from gateway.upstreams.backend import Timeouts
    from gateway.upstreams.completions import CompletionReader
    from gateway.upstreams.http.connection import Connection
    from gateway.upstreams.http.transport import ResponseBody

_SILENCE: Final = "no token in time"


class TokenStream:
    """One generation under way, and the connection it goes over (an `AnswerListener`).

    Body bytes become chunks, and these are given to the sink, in the read they came in or when it
    is the turn of their tenant. The task that asked for the generation sleeps meanwhile: it wakes
    up once, at the end, and once for each time that the sink has no room.

    `heard_at` is since when the backend is waited for, in the loop's time: never (inf) while the
    sink has no room. The sink runs in the context of the task that made this object, not of the
    one that once opened the connection.
    """

    __slots__ = (
        "_body",
        "_changed",
        "_error",
        "_is_done",
        "_is_held",
        "_kept_back",
        "_loop",
        "_on_finish",
        "_on_first",
        "_reader",
        "_run",
        "_sink",
        "_tenant",
        "_timeout_s",
        "_timeouts",
        "_turns",
        "connection",
        "has_begun",
        "heard_at",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        sink: TokenSink,
        reader: CompletionReader,
        timeouts: Timeouts,
        turns: ReadTurns,
        *,
        tenant: Hashable = None,
        on_first: Callable[[], None] | None = None,
        on_finish: Callable[[], None] | None = None,
    ) -> None:
        # Reads are parsed in the `turns` of the `tenant`. `on_first` is called before the sink has
        # the first chunk, `on_finish` before the last.
        self.connection: Connection | None = None
        self.has_begun = False
        """The backend has sent something that the sink was told."""
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self._timeout_s = timeouts.first_token_s
        """How long the backend may be silent at this stage of the answer."""
        self._sink = sink
        self._reader = reader
        self._timeouts = timeouts
        self._turns = turns
        self._tenant = tenant
        self._on_first = on_first
        self._on_finish = on_finish
        self._run = copy_context().run
        self._body: ResponseBody | None = None
        self._changed: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_held = False
        """The sink has no room."""
        self._is_done = False
        self._kept_back = 0
        """How much the reader kept back when the timeout began."""

    def attach(self, body: ResponseBody) -> None:
        """Take over the body of the answer, from its first byte on.

        The request is about to be sent, and its task still waits for the head of the answer.
        """
        self._body = body
        self.connection = body.connection

    async def complete(self, body: ResponseBody) -> None:
        """Return once the sink has the finish, or needs no more.

        The connection is then free, or closed. Raises the reader's fault, after the sink had all
        ids before it, and what the sink raises. Cancelling closes the connection at once.
        """
        self.attach(body)
        connection = body.connection
        try:
            if not self._is_done and not connection.is_pouring:
                connection.wait_until(self.heard_at + self._timeout_s)
                connection.pour(self)
            while not self._is_done:
                if self._is_held:
                    await self._go_on(connection)
                else:
                    self._changed = self._loop.create_future()
                    await self._changed
        finally:
            self._is_done = True
            body.close()
        if self._is_held and not await self._sink.room():
            return
        if self._error is not None:
            raise self._error

    async def _go_on(self, connection: Connection) -> None:
        if not await self._sink.room():
            self._break_off()
            return
        self._is_held = False
        if self._reader.has_more:
            self._defer(connection)
        else:
            self._read_on(connection)

    def take(self, data: bytes) -> None:
        if self.connection is None or self._turns.begin(self._tenant):
            self._pass_on(self._reader.feed(data))
            self._turns.end()
        else:
            self._reader.keep(data)
            self._defer(self.connection)

    def _defer(self, connection: Connection) -> None:
        connection.defer()
        self._turns.wait(self._tenant, self._on_turn)

    def _on_turn(self) -> None:
        if self._is_done or self.connection is None:
            return
        self._pass_on(self._reader.go_on())
        if not (self._reader.has_more or self._is_held or self._is_done):
            self._read_on(self.connection)

    def _read_on(self, connection: Connection) -> None:
        reader = self._reader
        if self.heard_at == math.inf:
            self.heard_at = self._loop.time()
        if self.has_begun and (reader.ids_left <= 0 or reader.finish is not None):
            self._timeout_s = self._timeouts.tail_s
        connection.wait_until(self.heard_at + self._timeout_s)
        connection.go_on()

    def end(self, error: httpx2.TransportError | None) -> None:
        # The body ended, broke off, or has brought no id for too long (`AnswerListener`).
        if error is None:
            why = "stream ended without a finish reason"
        else:
            why = _SILENCE if isinstance(error, httpx2.ReadTimeout) else describe(error)
        self._pass_on(self._reader.end(why))

    def _pass_on(self, chunk: TokenChunk | None) -> None:
        # None if the read brought no ids; it may have brought a fault.
        reader = self._reader
        if chunk is None:
            if reader.fault is not None:
                self._fail(reader.fault)
                return
            if reader.kept_back != self._kept_back:
                self._restart_timeout()
            if reader.has_more:
                self._defer_rest()
            return
        try:
            if not self.has_begun or chunk.finish is not None:
                self._run(self._notify_edges, chunk)
            has_room = self._run(self._sink.on_tokens, chunk)
        except Exception as error:  # noqa: BLE001  it comes out of `complete`
            self._fail(error)
            return
        if not has_room or chunk.finish is not None or reader.fault is not None:
            self._stop(has_room=has_room)
            return
        self._restart_timeout()
        if reader.has_more:
            self._defer_rest()

    def _defer_rest(self) -> None:
        # Other streams have their turn before the rest of a long read.
        if self.connection is not None:
            self._defer(self.connection)

    def _restart_timeout(self) -> None:
        # Ids restart the timeout, even if they are kept back; bytes alone do not.
        reader = self._reader
        self._kept_back = reader.kept_back
        if self.connection is None:
            return
        self.heard_at = self._loop.time()
        if reader.ids_left <= 0 or reader.finish is not None:
            self._timeout_s = self._timeouts.tail_s
        self.connection.wait_until(self.heard_at + self._timeout_s)

    def _notify_edges(self, chunk: TokenChunk) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._timeout_s = self._timeouts.stall_s
            if self._on_first is not None:
                self._on_first()
        if chunk.finish is not None and self._on_finish is not None:
            self._on_finish()

    def _stop(self, *, has_room: bool) -> None:
        # For good, or until there is room.
        body, reader = self._body, self._reader
        self._is_held = not has_room
        if reader.finished and not reader.overran and body is not None:
            body.drain(self._timeouts.tail_s)
            self._is_done = True
            self._wake()
        elif reader.finished:
            self._break_off()
        elif reader.fault is not None:
            self._fail(reader.fault)
        else:
            self.heard_at = math.inf
            if self.connection is not None:
                self.connection.hold()
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._break_off()

    def _break_off(self) -> None:
        if self._body is not None:
            self._body.close()
        self._is_done = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is None:
            if self.connection is not None:
                self.connection.wake()
        elif not self._changed.done():
            self._changed.set_result(None)


def describe(error: httpx2.TransportError) -> str:
    return f"{type(error).__name__}: {error}"
