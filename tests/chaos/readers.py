"""Clients that keep on trying, as good clients do, and write down everything they were sent."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from tests.chaos.history import Connection, Transcript, is_terminal
from tests.chaos.wire import Request, exchange, json_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.chaos.oracle import Asked

MODEL: Final = "gpt-oss-20b"
PAUSE_S: Final = 0.1
"""Between two attempts that brought nothing."""
PATIENCE_S: Final = 2.5
"""Silence after which a reader that can resume tries another replica."""
FOREGROUND_PATIENCE_S: Final = 60.0
_RETRY: Final = (0, 429, 503)


@dataclass(frozen=True, slots=True)
class Clients:
    """Any number of clients of one tenant. `rng` chooses replicas."""

    urls: Sequence[str]
    key: str
    rng: Random
    deadline_s: float
    """Of `time.monotonic`: whoever has no end by then gives up."""

    def anywhere(self) -> int:
        """The index of a replica."""
        return self.rng.randrange(len(self.urls))

    @property
    def left_s(self) -> float:
        """Seconds until all give up."""
        return max(self.deadline_s - time.monotonic(), 0.0)

    async def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        replica: int | None = None,
    ) -> Connection:
        """One request that is not streamed, to any replica or to one, and not repeated."""
        content = b"" if body is None else orjson.dumps(body)
        connection = Connection(self.anywhere() if replica is None else replica)
        await self._send(Request(method, path, content), connection, FOREGROUND_PATIENCE_S)
        return connection

    async def stream(
        self,
        request: Request,
        connection: Connection,
        *,
        silence_max_s: float = FOREGROUND_PATIENCE_S,
        stop: Callable[[Connection], bool] = lambda _: False,
    ) -> None:
        """One request, read until the server or `stop` ends it."""
        await self._send(request, connection, silence_max_s, stop)

    async def foreground(self, question: Asked, *, store: bool) -> Transcript:
        """Create and read; what breaks stays broken, what was refused for now is tried again."""
        transcript = Transcript(question, store)
        while not transcript.ended and self.left_s:
            connection = Connection(self.anywhere())
            transcript.connections.append(connection)
            body = create_body(question, store=store)
            await self._send(create(body), connection, FOREGROUND_PATIENCE_S)
            learn(transcript)
            if connection.status not in _RETRY:
                break
            await asyncio.sleep(PAUSE_S)
        return transcript

    async def background(self, question: Asked, *, idempotency_key: str) -> Transcript:
        """Create, read, and go on reading anywhere until the end."""
        transcript = Transcript(question, stored=True)
        body = create_body(question, store=True, background=True)
        headers = {"idempotency-key": idempotency_key}
        while transcript.response_id is None and self.left_s:
            connection = Connection(self.anywhere())
            transcript.connections.append(connection)
            await self._send(create(body, headers), connection, PATIENCE_S)
            learn(transcript)
            if connection.status not in (200, *_RETRY):
                return transcript
            if transcript.response_id is None:
                await asyncio.sleep(PAUSE_S)
        await self.follow(transcript)
        return transcript

    async def follow(self, transcript: Transcript) -> None:
        """Read on behind what is known of a response until its end, on any replica."""
        while not transcript.ended and self.left_s:
            after = _last_number(transcript)
            connection = Connection(self.anywhere(), after)
            transcript.connections.append(connection)
            assert transcript.response_id is not None
            await self._send(resume(transcript.response_id, after), connection, PATIENCE_S)
            learn(transcript)
            if connection.status not in (200, *_RETRY):
                return
            if not connection.frames:
                await asyncio.sleep(PAUSE_S)

    async def _send(
        self,
        request: Request,
        connection: Connection,
        silence_max_s: float,
        stop: Callable[[Connection], bool] = lambda _: False,
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.left_s):
                url = self.urls[connection.replica]
                await exchange(
                    url, self.key, request, connection, silence_max_s=silence_max_s, stop=stop
                )


def create_body(
    question: Asked, *, store: bool, background: bool = False, stream: bool = True
) -> dict[str, Any]:
    """The body of a request, without padding in its stream."""
    body = {"model": MODEL, "input": question.text, "store": store, "stream": stream}
    if stream:
        body["stream_options"] = {"include_obfuscation": False}
    return {**body, **question.fields, **({"background": True} if background else {})}


def create(body: dict[str, Any], headers: dict[str, str] | None = None) -> Request:
    """A request that creates a response."""
    return Request("POST", "/v1/responses", orjson.dumps(body), headers or {})


def resume(response_id: str, after: int, *, padded: bool = False) -> Request:
    """A request for the rest of a stream."""
    wish = f"stream=true&include_obfuscation={str(padded).lower()}"
    behind = f"&starting_after={after}" if after >= 0 else ""
    return Request("GET", f"/v1/responses/{response_id}?{wish}{behind}")


def created_id(connection: Connection) -> str | None:
    """The response that an answer is about, streamed or not."""
    if connection.frames:
        first = orjson.loads(connection.frames[0].data)
        return str(first["response"]["id"]) if "response" in first else None
    document = json_body(connection) if connection.status == 200 else {}
    return str(document["id"]) if "id" in document else None


def learn(transcript: Transcript) -> None:
    """From the last connection: which response it is, and whether that was the end."""
    connection = transcript.connections[-1]
    if transcript.response_id is None:
        transcript.response_id = created_id(connection)
    last = transcript.last_event
    transcript.ended = connection.done and last is not None and is_terminal(last)


def _last_number(transcript: Transcript) -> int:
    last = transcript.last_event
    return -1 if last is None else int(last["sequence_number"])
