"""The serving part: a bare ASGI server that sends events like the gateway's, made beforehand.

`python -m tests.load.parts.serving LOAD TOKENS_PER_EVENT` with a `Load` as JSON. As in an engine
all streams take their steps together.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING, Final

import uvicorn

from gateway.models.harmony.tokenizer import Vocabulary
from tests.load.loading import Load
from tests.load.tape import WORDS, named_event, words

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BACKLOG: Final = 4096
_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]
_ITEM: Final = "msg_066615907c7144918800000000000000"


class Pace:
    """Steps at the rate of a load; without a rate every step is at once."""

    def __init__(self, rate_per_s: float) -> None:
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._waiting: list[asyncio.Future[None]] = []

    async def step(self) -> None:
        if not self._interval_s:
            return
        loop = asyncio.get_running_loop()
        if not self._waiting:
            now = loop.time()
            loop.call_at(now - now % self._interval_s + self._interval_s, self._go_on)
        future = loop.create_future()
        self._waiting.append(future)
        await future

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def events(load: Load, tokens_per_event: int) -> list[bytes]:
    """What one answer consists of: every stream says what the one in the first slot would."""
    texts = [word for _, word in words(Vocabulary.load())]
    said = [texts[0 if place < 2 else place * 7 % WORDS] for place in range(load.words)]
    place = {"item_id": _ITEM, "output_index": 0, "content_index": 0}
    deltas = [
        named_event(
            "response.output_text.delta",
            **place,
            delta="".join(said[at : at + tokens_per_event]),
            logprobs=[],
            obfuscation="k3Fd9wQz2LpX",
        )
        for at in range(0, load.words, tokens_per_event)
    ]
    done = named_event("response.completed", response={"id": "resp_0", "status": "completed"})
    return [*deltas, done]


class App:
    """Sends the events to whoever asks for anything."""

    def __init__(self, load: Load, tokens_per_event: int) -> None:
        self._events = events(load, tokens_per_event)
        self._pace = Pace(load.rate_per_s / tokens_per_event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await self._pace.step()
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    load, tokens_per_event = Load(**json.loads(sys.argv[1])), int(sys.argv[2])
    config = uvicorn.Config(
        App(load, tokens_per_event),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
