"""Events on their way to one client, whoever makes them.

The client may read as slowly as it likes within one bound, and costs nothing meanwhile but its
socket and the events of one list: whatever makes the events waits with it or lets it fall behind.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.api import sse
from gateway.api.body import ClientDisconnected

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from starlette.types import Send

    from gateway.api.sse import Encode
    from gateway.protocol.events import Event


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
    """One answer of server-sent events."""

    def __init__(self, send: Send, limits: StreamLimits, encode: Encode) -> None:
        """`encode` is how the client is shown events."""
        self._send = send
        self._limits = limits
        self._encode = encode
        self._written_at = asyncio.get_running_loop().time()

    async def write(
        self,
        batches: AsyncGenerator[list[Event], None],
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        comments: bool,
    ) -> None:
        """Status 200, the events as they come, and the end.

        The end mark follows the terminal event, or an empty list, which says that it was there
        before; a stream that ends otherwise was cut off, and its client may resume it. `comments`
        into silence are for streams whose silence may be that of another replica; a run says by
        itself that it is alive. Finalises `batches` whatever happens. Raises `ClientDisconnected`.
        """
        async with aclosing(batches):
            start = {"type": "http.response.start", "status": 200}
            await self._send(start | {"headers": [*sse.HEADERS, *headers]})
            if comments:
                await self._write_with_comments(batches)
            else:
                await self._write_events(batches)
            await self._send({"type": "http.response.body", "body": b""})

    async def _write_with_comments(self, batches: AsyncGenerator[list[Event], None]) -> None:
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            reading = asyncio.timeout(None)
            commenting = group.create_task(self._comment(reading))
            try:
                async with reading:
                    await self._write_events(batches)
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                failure = error
            commenting.cancel()
        if reading.expired():
            raise ClientDisconnected
        if failure is not None:
            raise failure

    async def _write_events(self, batches: AsyncGenerator[list[Event], None]) -> None:
        bytes_max = self._limits.write_bytes_max
        async for events in batches:
            if not events:
                await self._write(sse.DONE)
            for chunk in sse.writes(events, self._encode, bytes_max=bytes_max):
                await self._write(chunk)

    async def _comment(self, reading: asyncio.Timeout) -> None:
        """Comment on silence; let `reading` expire when the client takes none of it."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await asyncio.sleep(self._written_at + self._limits.comment_interval_s - clock())
                if clock() - self._written_at >= self._limits.comment_interval_s:
                    await self._write(sse.COMMENT)
        except ClientDisconnected:
            reading.reschedule(clock())

    async def _write(self, chunk: bytes) -> None:
        clock = asyncio.get_running_loop().time
        self._written_at = clock()
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            raise ClientDisconnected from None
        self._written_at = clock()
