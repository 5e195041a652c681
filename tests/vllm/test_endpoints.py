"""Many sampled requests at once, through every endpoint that generates: nothing breaks."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_streams import chunks_of
from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events
from tests.fakes.websocket import connected
from tests.vllm.asking import DEFAULTS, ENDED_WELL, LONG_ASKED, WEATHER, create, streamed
from tests.vllm.chats import USAGE, chat, is_chat
from tests.vllm.controls import ALL

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.websocket import Peer
    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

Json = dict[str, Any]

REQUESTS = 300
AT_ONCE = 16
OUTPUT_TOKENS_MAX = 120
"""Calls and JSON that are none are asked for again, up to their full length each time."""
CONNECTIONS = 8
GIVEN_UP = {"required_tool_not_called", "invalid_tool_call", "invalid_structured_output"}
"""What is said of a model that does not do what it must."""
MARK = "<|"
SHAPES: list[Json] = [
    {"input": "Hello there"},
    {"input": LONG_ASKED},
    {"input": "naïve 東京 🎉?", "tools": [WEATHER]},
    *(control.fields for control in ALL.values()),
]
CHATS = [shape for shape in SHAPES if is_chat(shape)]


class Visitor:
    """A client of every endpoint, whose requests are all sampled."""

    def __init__(self, client: httpx2.AsyncClient, peers: asyncio.Queue[Peer], model: str) -> None:
        self._client = client
        self._peers = peers
        self._asked: Json = {
            "model": model,
            "temperature": 1,
            "max_output_tokens": OUTPUT_TOKENS_MAX,
        }

    async def visit(self, number: int) -> None:
        """The request of this number: each endpoint in turn, each with all shapes in turn."""
        ways = (self._respond, self._stream, self._connect, self._chat, self._complete)
        turn, way = divmod(number, len(ways))
        await ways[way](turn)

    async def _respond(self, turn: int) -> None:
        check_end(await create(self._client, **SHAPES[turn % len(SHAPES)], **self._asked))

    async def _stream(self, turn: int) -> None:
        stream = await streamed(self._client, **SHAPES[turn % len(SHAPES)], **self._asked)
        check_end(stream.response)

    async def _connect(self, turn: int) -> None:
        peer = await self._peers.get()
        frames = await peer.answer(**{**DEFAULTS, **SHAPES[turn % len(SHAPES)], **self._asked})
        self._peers.put_nowait(peer)
        check_end(check_stream(as_events(frames)).response)

    async def _chat(self, turn: int) -> None:
        shape = CHATS[turn // 2 % len(CHATS)]
        said = await chat(self._client, stream=bool(turn % 2), **shape, **self._asked)
        if said.error is None:
            assert MARK not in json.dumps(said.shown)
        else:
            assert said.error["code"] in GIVEN_UP, said.error

    async def _complete(self, turn: int) -> None:
        tokens = {"max_tokens": OUTPUT_TOKENS_MAX}
        body = {"model": self._asked["model"], "temperature": 1, "prompt": LONG_ASKED, **tokens}
        more = USAGE if turn % 2 else {}
        answer = await self._client.post("/v1/completions", json={**body, **more})
        assert answer.status_code == 200, answer.text
        assert MARK not in answer.text
        *_, last = chunks_of(answer.text) if turn % 2 else [answer.json()]
        assert last["usage"]["completion_tokens"] > 0


def check_end(response: Json) -> None:
    """Fails unless a response ended well, or the model is what failed, as its code says."""
    if response["status"] == "failed":
        assert response["error"]["code"] in GIVEN_UP, response
    else:
        assert response["status"] in ENDED_WELL, response
    assert MARK not in json.dumps(response["output"])


@pytest.mark.timeout(900)
async def test_sampled_requests_to_all_endpoints_at_once_are_answered(
    client: httpx2.AsyncClient, gateway: RunningGateway, vllm: Vllm
) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            opened = connected(gateway.url, gateway.key)
            peers.put_nowait(await stack.enter_async_context(opened))
        visitor = Visitor(client, peers, vllm.model)

        async def visit(number: int) -> None:
            async with places:
                await visitor.visit(number)

        async with asyncio.TaskGroup() as group:
            for number in range(REQUESTS):
                group.create_task(visit(number))
    await vllm.until_idle()
