"""Stream of events to one client.

A client may read slowly within one bound; it costs only its socket and the events of one list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse
from typing_extensions import override

from gateway.api import sse
from gateway.api.client_connection import CancelOnDisconnect, ClientDisconnected, connection_of
from gateway.protocol.stream_events import TERMINAL_TYPES, Deltas

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
        Sequence,
    )

    from starlette.types import Message, Scope, Send

    from gateway.api.sse import Encoder
    from gateway.protocol.stream_events import Event, EventSource

WRITE_TIMEOUT_S: Final = 60.0
DELTA_FRAME_BYTES: Final = 256
"""Approximate; decides how many deltas are joined to one write."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one stream. A client that does not read one write of about `write_bytes_max` within
    `write_timeout_s` counts as gone.
    """

    write_timeout_s: float = WRITE_TIMEOUT_S
    write_bytes_max: int = 65_536
    comment_after_s: float = sse.COMMENT_AFTER_S


STREAM_LIMITS: Final = StreamLimits()


async def wait_for_client(sending: Awaitable[None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await sending
    except TimeoutError:
        raise ClientDisconnected from None


class TimedResponse(StreamingResponse):
    """Body in parts, for a client that reads each within `write_timeout_s` or counts as gone."""

    write_timeout_s = WRITE_TIMEOUT_S

    @override
    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await wait_for_client(send(message), self.write_timeout_s)

        try:
            await super().stream_response(send_in_time)
        finally:
            # Release what the source holds now, not when it is collected.
            if isinstance(self.body_iterator, AsyncGenerator):
                await self.body_iterator.aclose()


class EventStream:
    """Sink of an event source.

    Events are written in the call that brings them, with one system call for all; the request's
    task sleeps until the end, or while the client's buffer is full.
    """

    __slots__ = (
        "_clock", "_comment_timer", "_encode", "_encode_run", "_head", "_last", "_limits", "_loop",
        "_send", "_write_part", "_written_at",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, send: Send, encoder: Encoder, limits: StreamLimits = STREAM_LIMITS
    ) -> None:
        connection = connection_of(scope)
        self._send = send
        self._write_part = None if connection is None else connection.write_part
        self._limits = limits
        self._encode, self._encode_run = encoder
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._written_at = self._clock()
        self._head: Message | None = None
        self._last = b""
        self._comment_timer: asyncio.TimerHandle | None = None

    async def write(
        self, source: EventSource, *, headers: Iterable[tuple[bytes, bytes]] = (), comments: bool
    ) -> None:
        """Write status 200, the events as they come, and the end.

        The status is written with the first events, so that errors of the source before them can be
        answered with another one; with `comments` at once. The end mark follows the terminal event,
        or an empty list if that was sent before; a stream without it was cut off, and may be
        resumed. `comments` during silence are for streams of other replicas; a local run sends
        signs of life itself. Raises `ClientDisconnected`.
        """
        headers = [*sse.HEADERS, *headers]
        head = {"type": "http.response.start", "status": 200, "headers": headers}
        if comments:
            await self._send(head)
            await self._write_commented(source)
        else:
            self._head = head
            await source(self)
            if self._head is not None:
                await self._send(head)
        # Send the last part together with the end, in one system call.
        rest = begin(self._send({"type": "http.response.body", "body": self._last}))
        if rest is not None:
            await self._wait(rest)

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        if self._head is not None:
            head, self._head = self._head, None
            if (rest := begin(self._send(head))) is not None:
                return Later(partial(self._write_after, rest, events))
        if type(events) is Deltas:
            return self._write_all(self._runs(events))
        if len(events) == 1 and events[0].delta_length:
            # The usual case: one more delta, for a client that keeps up.
            frames = self._encode(events[0])
            return self._write(frames) if frames else None
        chunks = sse.writes(events, self._encode, bytes_max=self._limits.write_bytes_max)
        if not events or events[-1].type in TERMINAL_TYPES:
            *before, self._last = chunks if events else [sse.DONE]
            return self._write_all(iter(before))
        return self._write_all(chunks)

    async def _write_after(self, head: Awaitable[None], events: Sequence[Event]) -> None:
        await self._wait(head)
        if (rest := self(events)) is not None:
            await rest

    def _runs(self, deltas: Deltas) -> Iterator[bytes]:
        together = max(1, self._limits.write_bytes_max // DELTA_FRAME_BYTES)
        for start in range(0, len(deltas), together):
            if frames := self._encode_run(deltas.part(start, start + together)):
                yield frames

    def _write_all(self, chunks: Iterator[bytes]) -> Awaitable[None] | None:
        for chunk in chunks:
            rest = self._write(chunk)
            if rest is not None:
                return Later(partial(self._catch_up, rest, chunks))
        return None

    async def _catch_up(self, rest: Awaitable[None], chunks: Iterator[bytes]) -> None:
        await rest
        for chunk in chunks:
            if (left := self._write(chunk)) is not None:
                await left

    def _write(self, chunk: bytes) -> Awaitable[None] | None:
        self._written_at = self._clock()
        if self._write_part is not None and self._write_part(chunk):
            return None
        rest = begin(self._send({"type": "http.response.body", "body": chunk, "more_body": True}))
        return None if rest is None else Later(partial(self._wait, rest))

    async def _wait(self, rest: Awaitable[None]) -> None:
        await wait_for_client(rest, self._limits.write_timeout_s)
        self._written_at = self._clock()

    async def _write_commented(self, source: EventSource) -> None:
        # The timer needs no task, and writes do not move it: when it fires it waits for the rest of
        # the interval.
        with CancelOnDisconnect() as client:
            interval_s, check = self._limits.comment_after_s, self._comment_if_silent
            self._comment_timer = self._loop.call_later(interval_s, check, client)
            try:
                await source(self)
            finally:
                self._comment_timer.cancel()

    def _comment_if_silent(self, client: CancelOnDisconnect) -> None:
        interval_s = self._limits.comment_after_s
        left_s = interval_s - (self._clock() - self._written_at)
        if left_s <= 0:
            gone_in_s = left_s + self._limits.write_timeout_s
            left_s = interval_s if self._write_comment() else min(interval_s, gone_in_s)
        if left_s > 0:
            self._comment_timer = self._loop.call_later(left_s, self._comment_if_silent, client)
        else:
            client.client_gone()

    def _write_comment(self) -> bool:
        # False: the client has more to read first, and no comment was written.
        if self._write_part is None:
            # A wait may be due to the client or to the server itself.
            body = {"type": "http.response.body", "body": sse.COMMENT, "more_body": True}
            if (rest := begin(self._send(body))) is not None:
                rest.close()
        elif not self._write_part(sse.COMMENT):
            return False
        self._written_at = self._clock()
        return True


def begin(sending: Awaitable[None]) -> Rest | None:
    """Do as much of `sending` as is possible now, and return the rest, to be awaited.

    A server's `send` waits only while the client's buffer is full, so that a task is rarely woken.
    """
    steps = sending.__await__()
    try:
        waited_for = next(steps)
    except StopIteration:
        return None
    return Rest(waited_for, steps)


class Rest:
    __slots__ = ("_steps", "_waited_for")

    def __init__(self, waited_for: Any, steps: Generator[Any, Any, None]) -> None:
        self._waited_for = waited_for
        self._steps = steps

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waited_for
        except BaseException:
            self._steps.close()
            raise
        yield from self._steps


class Later:
    """Coroutine that is created when it is awaited, and so needs no close if it never is."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work().__await__()
