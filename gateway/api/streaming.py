"""Events on their way to one client, whoever makes them.

The client may read as slowly as it likes within one bound, and costs nothing meanwhile but its
socket and the events of one list: whatever makes the events waits with it or lets it fall behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.api import sse, sse_runs
from gateway.api.body import ClientDisconnected
from gateway.api.comments import Comments
from gateway.api.writing import Later, begin, offers_parts, part_writer
from gateway.protocol.deltas import Deltas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from starlette.types import Message, Scope, Send

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

    What is shown is written in the same call, with one system call for all of it, and the request's
    task sleeps until there is an end, or a client to wait for.
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
        self._head: Message | None = None
        self._last = b""

    async def write(
        self, play: Play, *, headers: Iterable[tuple[bytes, bytes]] = (), comments: bool
    ) -> None:
        """Status 200, the events as they come, and the end.

        The status is written with the first events, or at once where there are `comments`: what
        `play` raises before is for whoever can still answer with another one. The end mark follows
        the terminal event, or an empty list, which says that it was there before; a stream that
        ends otherwise was cut off, and its client may resume it. `comments` into silence are for
        streams whose silence may be that of another replica; a run says by itself that it is alive.
        Raises `ClientDisconnected`.
        """
        headers = [*sse.HEADERS, *headers]
        self._head = {"type": "http.response.start", "status": 200, "headers": headers}
        self._has_comments = comments
        if comments:
            await self._send_head()
            with Comments(
                self,
                interval_s=self._limits.comment_interval_s,
                patience_s=self._limits.write_timeout_s,
            ):
                await play(self)
        else:
            await play(self)
            await self._send_head()
        # What is shown last goes with the end: that is one system call for both.
        rest = begin(self._send({"type": "http.response.body", "body": self._last}))
        if rest is not None:
            await self._wait(rest)

    async def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            await self._send(head)

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        """`gateway.protocol.showing.Show`: write events."""
        if self._head is not None and (rest := begin(self._send_head())) is not None:
            return Later(partial(self._show_behind, rest, events))
        if type(events) is Deltas and self._encode_run is not None:
            return self._write_all(self._runs(events, self._encode_run))
        if len(events) == 1 and events[0].delta_length:
            # Nearly always it is one more delta, and its client keeps up.
            frames = self._encode(events[0])
            if self._write_part(frames):
                self._written_at = self._clock()
                return None
            return self._write(frames) if frames else None
        chunks = sse.writes(events, self._encode, bytes_max=self._limits.write_bytes_max)
        if not events or events[-1].is_terminal:
            *before, self._last = chunks if events else [sse.DONE]
            return self._write_all(iter(before))
        return self._write_all(chunks)

    async def _show_behind(self, head: Awaitable[None], events: Sequence[Event]) -> None:
        await self._wait(head)
        if (rest := self(events)) is not None:
            await rest

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

    def comment(self) -> bool:
        """`gateway.api.comments.Commented`"""
        if self._write_part(sse.COMMENT):
            self._written_at = self._clock()
            return True
        if offers_parts(self._write_part):
            return False
        # Nobody can tell whether a server that waits now does so because of the client.
        rest = begin(
            self._send({"type": "http.response.body", "body": sse.COMMENT, "more_body": True})
        )
        if rest is not None:
            rest.close()
        self._written_at = self._clock()
        return True

    @property
    def silent_s(self) -> float:
        """For how many seconds nothing was written."""
        return self._clock() - self._written_at
