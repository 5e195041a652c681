"""A backend that means harm: a process of its own, in which each model is one way to do it.

`python -m tests.fakes.hostile_backend` says where it listens. It answers `/v1/models` with all its
ways, a completion with what the model of that name does, for as long as somebody reads it, and
`/open` with how many completions those are. Given the name of a way, every model does that.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from gateway.models.harmony.tokenizer import (
    ASSISTANT,
    CHANNEL,
    END,
    FINAL_HEADER,
    MESSAGE,
    RETURN,
    START,
    VOCABULARY_SIZE,
)
from tests.fakes.raw_server import STREAM_END, STREAM_HEAD, chunk, response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Way = Callable[[], Iterable[bytes]]

CONTEXT_LENGTH: Final = 131_072
_WORDS: Final = [1000 + at * 7919 % 50_000 for at in range(997)]
_COMMENTARY: Final = (CHANNEL, 12606, 815, MESSAGE)
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def event(ids: Iterable[int], finish: str | None = None, **fields: Any) -> bytes:
    """One event as vLLM writes it."""
    choice = {"index": 0, "text": " a", "finish_reason": finish, "token_ids": list(ids)}
    line = {"id": "cmpl-1", "object": "text_completion", "choices": [choice], **fields}
    return b"data: " + json.dumps(line, separators=(",", ":")).encode() + b"\n\n"


def said(*parts: Iterable[int], opening: Iterable[int] = FINAL_HEADER) -> bytes:
    """A head, a header, and these parts, one event each."""
    events = [event(opening), *map(event, parts)]
    return STREAM_HEAD + b"".join(map(chunk, events))


def forever(*parts: Iterable[int]) -> Iterable[bytes]:
    """Events of these ids, of which each 0 is another word, again and again."""
    block = b"".join(
        chunk(event(word if token == 0 else token for token in part))
        for word in _WORDS
        for part in parts
    )
    return repeat(block)


def _ending(*events: bytes) -> Iterable[bytes]:
    return [said([0x2AF]), *map(chunk, events), STREAM_END]


def _usage(**counts: int) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


@cache
def _bomb() -> bytes:
    return gzip.compress(event([1]) * 10**6)


WAYS: Final[dict[str, Way]] = {
    "endless-body": lambda: chain([said()], forever([0])),
    "endless-small-body": lambda: chain(
        [said()], repeat(chunk(b'data: {"choices":[{"token_ids":[7]}]}\n\n' * 1000))
    ),
    "endless-header": lambda: chain([said(opening=[CHANNEL])], forever([0])),
    "endless-channels": lambda: chain([said()], forever([CHANNEL], [0])),
    "endless-starts": lambda: chain([said()], forever([START], [0])),
    "endless-markers": lambda: chain([said([0x2AF])], forever([MESSAGE], [0])),
    "endless-messages": lambda: chain(
        [said()], forever([0], [END, START, ASSISTANT], FINAL_HEADER)
    ),
    "endless-preambles": lambda: chain(
        [said(opening=_COMMENTARY)], forever([0, END, START, ASSISTANT, *_COMMENTARY])
    ),
    "endless-orphans": lambda: chain([said()], forever([END], [0])),
    "endless-line": lambda: chain([said(), chunk(b"data: ")], repeat(chunk(b"x" * 65_536))),
    "endless-comments": lambda: chain([said([7])], repeat(chunk(b": ping\n\n" * 1000))),
    "endless-lines": lambda: chain([said([7])], repeat(chunk(b"\n") * 1000)),
    "endless-head": lambda: chain([_HEAD], repeat(b"x: y\r\n" * 1000)),
    "endless-head-value": lambda: chain([_HEAD, b"x: "], repeat(b"y" * 65_536)),
    "endless-interim": lambda: repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "endless-trailers": lambda: chain([said([7]), b"0\r\n"], repeat(b"x: y\r\n" * 1000)),
    "endless-trailer": lambda: chain([said([7]), b"0\r\nx: "], repeat(b"y" * 65_536)),
    "endless-chunk-size": lambda: chain([said([7]), b"5;"], repeat(b"y" * 65_536)),
    "huge-event": lambda: [said(), chunk(event([1000] * 10**6)), STREAM_END],
    "huge-event-of-markers": lambda: [said(), chunk(event([MESSAGE, 7] * 60_000)), STREAM_END],
    "huge-first-event": lambda: [STREAM_HEAD, chunk(event([1000] * 10**6)), STREAM_END],
    "quotes": lambda: _ending(*[event([5])] * 3, b'data: {"text":"' + b'\\"' * 200_000 + b"\n\n"),
    "unknown-id": lambda: _ending(event([5, VOCABULARY_SIZE, 6]), event([RETURN], "stop")),
    "large-id": lambda: _ending(event([2**40]), event([RETURN], "stop")),
    "negative-id": lambda: _ending(event([-1]), event([RETURN], "stop")),
    "no-ids": lambda: _ending(event([]), event(["7"]), event([RETURN], "stop")),  # type: ignore[list-item]
    "goes-on-after-finish": lambda: chain(
        [said([7]), chunk(event([RETURN], "stop"))], forever([0])
    ),
    "two-finishes": lambda: _ending(event([RETURN], "stop"), event([], "length"), _usage()),
    "usage-lies": lambda: _ending(
        event([RETURN], "stop"),
        _usage(prompt_tokens=10**9, completion_tokens=10**9, total_tokens=-1),
    ),
    "type-lies": lambda: [
        response(event([*FINAL_HEADER, 7]) + event([RETURN], "stop"), content_type="text/html")
    ],
    "html": lambda: [response(b"<html>Welcome to nginx!</html>", content_type="text/event-stream")],
    "bomb": lambda: [response(_bomb(), headers="content-encoding: gzip\r\n")],
    "well": lambda: _ending(event([RETURN], "stop"), _usage()),
}
"""What each does. Nothing follows its last bytes but the next answer."""


class Server:
    """`only` is what every model does; None: each its own."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                lengths = [line for line in head.split("\r\n") if line.startswith("content-length")]
                body = await reader.readexactly(int(lengths[0][15:]) if lengths else 0)
                await self._answer(head.split()[1], body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path != "/v1/completions":
            writer.write(self._told(path))
            return
        self._open += 1
        try:
            for part in WAYS[self._only or json.loads(body)["model"]]():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            self._open -= 1

    def _told(self, path: str) -> bytes:
        match path:
            case "/v1/models":
                rows = [{"id": way, "max_model_len": CONTEXT_LENGTH} for way in WAYS]
                return response(json.dumps({"data": rows}).encode())
            case "/version":
                return response(b'{"version":"0.30.0"}')
            case "/open":
                return response(str(self._open).encode())
            case _:
                return response(b"", status=200 if path == "/health" else 404)


async def main() -> None:
    hostile = Server(*sys.argv[1:])
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(json.dumps({"event": "listening", "url": f"http://{host}:{port}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
