"""The reading part: a bare client of the backend, with the gateway's reader and nothing behind it.

`python -m tests.load.parts.reading LOAD PORT` with a `Load` as JSON prints `{"cpu_s": …}`: the CPU
of this process while the load ran.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Final, cast

import httptools
import uvloop
from typing_extensions import override

from gateway.generation import Sampling
from gateway.models.harmony.tokenizer import STOP_IDS
from gateway.upstreams.token_readers import CompletionReader
from tests.load.loading import Load
from tests.load.systems import BACKEND, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024


class Reading(asyncio.Protocol):
    """One connection: bytes → httptools → CompletionReader → ids that nobody wants."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._reader: CompletionReader | None = None
        self._done: asyncio.Future[int] | None = None
        self._heard = 0

    async def read(self, request: bytes) -> int:
        """How many ids the answer had."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        sampling = Sampling(max_tokens=self._tokens)
        self._reader = CompletionReader(
            BACKEND, sampling, stop_ids=STOP_IDS, frame_bytes_max=FRAME_BYTES_MAX
        )
        self._heard = 0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        self._parts: list[bytes] = []
        self._parser.feed_data(data)
        if self._parts:
            self._feed(b"".join(self._parts))

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parts:
            self._feed(b"".join(self._parts))
            self._parts = []
        assert self._done is not None
        self._done.set_result(self._heard)

    def _feed(self, body: bytes) -> None:
        assert self._reader is not None
        chunk = self._reader.feed(body)
        while chunk is not None or self._reader.has_more:
            self._heard += len(chunk.ids) if chunk is not None else 0
            chunk = self._reader.go_on() if self._reader.has_more else None


async def read_all(load: Load, port: int) -> None:
    """Run the load. Raises `ValueError` when an answer was not whole."""
    body = SYSTEMS[BACKEND].body(load.tokens)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json"
    request = head + b"\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    numbers = iter(range(load.requests))
    async with asyncio.TaskGroup() as group:
        for stream in range(load.streams):
            delay_s = load.ramp_s * stream / load.streams
            group.create_task(_repeat(numbers, request, load.tokens, port, delay_s))


async def _repeat(
    numbers: Iterator[int], request: bytes, tokens: int, port: int, delay_s: float
) -> None:
    await asyncio.sleep(delay_s)
    loop = asyncio.get_running_loop()
    _, reading = await loop.create_connection(lambda: Reading(tokens), "127.0.0.1", port)
    for _ in numbers:
        heard = await reading.read(request)
        if heard != tokens:
            raise ValueError(f"{heard} ids of {tokens}")
    reading.close()


def main() -> None:
    load, port = Load(**json.loads(sys.argv[1])), int(sys.argv[2])
    began = time.process_time()
    uvloop.run(read_all(load, port))
    print(json.dumps({"cpu_s": time.process_time() - began}))


if __name__ == "__main__":
    main()
