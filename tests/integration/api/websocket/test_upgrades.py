"""Upgrades: who may open a connection, and what everybody else is answered."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import InvalidStatus

from gateway.app import create_app
from tests.fakes.gateway import running_gateway
from tests.fakes.websocket import connected

if TYPE_CHECKING:
    import httpx2
    from starlette.types import Message
    from websockets.http11 import Response

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway

CODEX = {"headers": {"OpenAI-Beta": "responses_websockets=2026-02-06"}}


async def refused(url: str, key: str | None, **options: Any) -> Response:
    """The answer to an upgrade that was not granted."""
    with pytest.raises(InvalidStatus) as refusal:
        async with connected(url, key, **options):
            pass
    return refusal.value.response


def error_in(answer: Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.requirement("websocket.upgrade")
@pytest.mark.requirement("traps.one-path")
@pytest.mark.parametrize(("key", "code"), [(None, None), ("sk-unknown-key", "invalid_api_key")])
async def test_without_a_key_there_is_no_connection(
    gateway: RunningGateway, key: str | None, code: str | None
) -> None:
    answer = await refused(gateway.url, key)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert error_in(answer)["code"] == code


@pytest.mark.requirement("traps.one-path")
@pytest.mark.requirement("websocket.upgrade")
async def test_there_is_one_path_for_it(gateway: RunningGateway) -> None:
    for path in ("chat/completions", "x" * 1_000):
        address = f"{gateway.url.replace('http', 'ws')}/v1/{path}"
        answer = await refused(gateway.url, gateway.key, address=address)
        assert answer.status_code == 404
        message = error_in(answer)["message"]
        assert "WebSocket mode is at /v1/responses" in message
        assert len(message) < 300


async def test_the_path_without_an_upgrade_names_its_methods(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/v1/responses")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "Connection: Upgrade" in answer.json()["error"]["message"]


@pytest.mark.requirement("websocket.codex")
async def test_a_connection_has_a_number_and_what_codex_asks_for(gateway: RunningGateway) -> None:
    async with connected(gateway.url, gateway.key, **CODEX) as peer:
        response = peer.connection.response
        assert response is not None
        assert response.headers["x-request-id"].startswith("req_")
        assert response.headers["openai-version"] == "2020-10-01"
        assert "sec-websocket-extensions" not in response.headers


@pytest.mark.slow
async def test_one_connection_too_many_is_refused(settings: Settings) -> None:
    few = settings.model_copy(
        update={"websockets": settings.websockets.model_copy(update={"connections_max": 2})}
    )
    async with running_gateway(few) as gateway, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(connected(gateway.url, gateway.key))
        answer = await refused(gateway.url, gateway.key)
        assert (answer.status_code, error_in(answer)["code"]) == (429, "rate_limit_exceeded")
        assert "retry-after" in answer.headers
        await stack.aclose()
        async with connected(gateway.url, gateway.key) as peer:
            assert await peer.response()


@pytest.mark.slow
async def test_a_process_that_ends_opens_no_connection(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        gateway.process.end_streams()
        answer = await refused(gateway.url, gateway.key)
        assert (answer.status_code, error_in(answer)["code"]) == (503, "server_is_overloaded")


async def test_a_server_that_cannot_answer_upgrades_closes_them(settings: Settings) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/v1/responses", "headers": [], "extensions": {}}
    await create_app(settings)(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
