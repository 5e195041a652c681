"""Events on their way to one client, whoever makes them.

The client may read as slowly as it likes within one bound, and costs nothing meanwhile but its
socket and the events of one list: whatever makes the events waits with it or lets it fall behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from gateway.api import sse, sse_runs
from gateway.api.body import ClientDisconnected
from gateway.api.writing import Later, begin, part_writer
from gateway.protocol.deltas import Deltas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from starlette.types import Scope, Send

    from gateway.api.sse import Encode
    from gateway.api.sse_runs import EncodeRun
    from gateway.protocol.events import Event
    from gateway.protocol.showing import DeltaPattern, Play, ShowDelta


RUN_FRAME_BYTES: Final = 256
"""About what the frame of a delta has."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one stream.

    A client that does not read one write of about `write_bytes_max` within `write_timeout_s` counts
    as gone. After `comment_interval_s` of silence a stream that has comments gets one.
    """

    write_timeout_s: float
    write_bytes_max: int
    comment_interval_s: float


class EventStream:
    """One answer of server-sent events.

    What is shown is written in the same call: events that are made in one turn of the loop leave
    in one system call, and the request's task sleeps until there is an end, or a client to wait
    for.
    """

    def __init__(self, scope: Scope, send: Send, limits: StreamLimits, encode: Encode) -> None:
        """`encode` is how the client is shown events."""
        self._send = send
        self._write_part = part_writer(scope)
        self._limits = limits
        self._encode = encode
        self._encode_run = sse_runs.encoder(encode)
        self._clock = asyncio.get_running_loop().time
        self._written_at = self._clock()
        self._has_comments = False

    async def write(
        self, play: Play, *, headers: Iterable[tuple[bytes, bytes]] = (), comments: bool
    ) -> None:
        """Status 200, the events as they come, and the end.

        The end mark follows the terminal event, or an empty list, which says that it was there
        before; a stream that ends otherwise was cut off, and its client may resume it. `comments`
        into silence are for streams whose silence may be that of another replica; a run says by
        itself that it is alive. Raises `ClientDisconnected`.
        """
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*sse.HEADERS, *headers]}
        )
        self._has_comments = comments
        if comments:
            await self._play_with_comments(play)
        else:
            await play(self)
        await self._send({"type": "http.response.body", "body": b""})

    async def _play_with_comments(self, play: Play) -> None:
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            playing = asyncio.timeout(None)
            with _Comments(self, group, playing):
                try:
                    async with playing:
                        await play(self)
                except Exception as error:  # noqa: BLE001 - raised again, outside of the group
                    failure = error
        if playing.expired():
            raise ClientDisconnected
        if failure is not None:
            raise failure

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        """`gateway.protocol.showing.Show`: write events."""
        if isinstance(events, Deltas) and self._encode_run is not None:
            return self._write_all(self._runs(events, self._encode_run))
        if len(events) == 1 and events[0].delta_length:
            # Nearly always it is one more delta, and its client keeps up.
            frames = self._encode(events[0])
            if self._write_part(frames):
                self._written_at = self._clock()
                return None
            return self._write(frames) if frames else None
        bytes_max = self._limits.write_bytes_max
        chunks = sse.writes(events, self._encode, bytes_max=bytes_max) if events else [sse.DONE]
        return self._write_all(iter(chunks))

    def deltas(self, pattern: DeltaPattern) -> ShowDelta | None:
        """`gateway.protocol.showing.ShowsDeltas`: write deltas that nobody makes events of."""
        write = self._write_noting if self._has_comments else self._write_part
        return sse.delta_writer(self._encode, pattern, write)

    def _write_noting(self, frame: bytes) -> bool:
        """So that there are no comments between deltas."""
        self._written_at = self._clock()
        return self._write_part(frame)

    def _runs(self, deltas: Deltas, encode: EncodeRun) -> Iterator[bytes]:
        """Their frames, so many together as take about as much as one write may."""
        together = max(1, self._limits.write_bytes_max // RUN_FRAME_BYTES)
        for start in range(0, len(deltas), together):
            yield encode(deltas.part(start, start + together))

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
        if self._write_part(chunk):
            return None
        rest = begin(self._send({"type": "http.response.body", "body": chunk, "more_body": True}))
        return None if rest is None else Later(partial(self._wait, rest))

    async def _wait(self, rest: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await rest
        except TimeoutError:
            raise ClientDisconnected from None
        self._written_at = self._clock()

    async def comment(self) -> None:
        """Write one. Raises `ClientDisconnected`."""
        rest = self._write(sse.COMMENT)
        if rest is not None:
            await rest

    @property
    def silent_s(self) -> float:
        """For how many seconds nothing was written."""
        return self._clock() - self._written_at

    @property
    def comment_interval_s(self) -> float:
        """After so many there is to be a comment."""
        return self._limits.comment_interval_s


class _Comments:
    """While entered, comments on silence, in a task of `group` each time.

    Its timer is not moved by what is written: when it fires, it is set again for what is left of
    the silence. Lets `playing` expire when the client takes nothing of a comment.
    """

    def __init__(
        self, stream: EventStream, group: asyncio.TaskGroup, playing: asyncio.Timeout
    ) -> None:
        self._stream = stream
        self._group = group
        self._playing = playing
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._commenting: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._schedule(self._stream.comment_interval_s)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._commenting is not None:
            self._commenting.cancel()

    def _schedule(self, delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        interval_s = self._stream.comment_interval_s
        left_s = interval_s - self._stream.silent_s
        if left_s <= 0:
            if self._commenting is None or self._commenting.done():
                self._commenting = self._group.create_task(self._comment())
            left_s = interval_s
        self._schedule(left_s)

    async def _comment(self) -> None:
        try:
            await self._stream.comment()
        except ClientDisconnected:
            self._playing.reschedule(self._loop.time())
