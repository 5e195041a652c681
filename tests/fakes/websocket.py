"""A client of WebSocket mode that sees every frame."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

WAIT_S = 60.0
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
MODEL = "gpt-oss-20b"


class Peer:
    """One connection. `stream_id` of a frame tells whose it is."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, **frame: Any) -> None:
        """Send a frame."""
        await self.connection.send(json.dumps(frame))

    async def ask(self, text: str = "Hello", **fields: Any) -> None:
        """Ask for a response that is not stored."""
        body: dict[str, Any] = {"model": MODEL, "input": text, "store": False} | fields
        await self.say(type="response.create", **body)

    async def hear(self) -> dict[str, Any]:
        """The next frame."""
        async with asyncio.timeout(WAIT_S):
            text = await self.connection.recv()
        assert isinstance(text, str)
        frame: dict[str, Any] = json.loads(text)
        return frame

    async def hear_until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The next frames, up to the first that is wanted."""
        frames = [await self.hear()]
        while not wanted(frames[-1]):
            frames.append(await self.hear())
        return frames

    async def answer(self, text: str = "Hello", **fields: Any) -> list[dict[str, Any]]:
        """All events of one response, or the one frame that refuses it."""
        await self.ask(text, **fields)
        return await self.hear_until(is_end)

    async def response(self, text: str = "Hello", **fields: Any) -> dict[str, Any]:
        """A response that ended well."""
        last = (await self.answer(text, **fields))[-1]
        assert last["type"] == "response.completed", last
        response: dict[str, Any] = last["response"]
        return response

    async def refusal(self, text: str = "Hello", **fields: Any) -> dict[str, Any]:
        """The only frame that a request is answered with, which says what is wrong with it."""
        frames = await self.answer(text, **fields)
        assert [frame["type"] for frame in frames] == ["error"], frames
        return frames[0]

    async def closed(self) -> tuple[int | None, str | None]:
        """The code and the reason of the close, once it comes; fails for any frame before."""
        async with asyncio.timeout(WAIT_S):
            await self.connection.wait_closed()
        return self.connection.close_code, self.connection.close_reason


def is_end(frame: dict[str, Any]) -> bool:
    """Nothing of a turn follows."""
    is_refusal = frame["type"] == "error" and "sequence_number" not in frame
    return is_refusal or frame["type"] in ENDS


@asynccontextmanager
async def connected(url: str, key: str | None, **options: Any) -> AsyncIterator[Peer]:
    """A connection to the gateway at `url`; what it is sent is read, whether or not it is heard."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    headers |= options.pop("headers", {})
    address = f"{url.replace('http', 'ws', 1)}/v1/responses"
    async with connect(
        options.pop("address", address),
        additional_headers=headers,
        proxy=None,
        **{"max_queue": None, **options},
    ) as connection:
        yield Peer(connection)
