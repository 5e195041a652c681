"""With `tools.mcp.strict` a request is refused one of whose MCP servers does not list its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.fakes import mcp_server
from tests.fakes.gateway import RunningGateway, gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.websocket import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.fakes.observation import Backends

    Json = dict[str, Any]

MODEL = "gpt-oss-20b"
NOBODY = "http://127.0.0.1:9/mcp"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with mcp_server.serving() as well, mcp_server.serving("denied") as denied:
        yield {"well": well.url, "denied": denied.url}


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    mcp = {
        "enabled": True,
        "strict": True,
        "connect_timeout_s": 60.0,
        "list_timeout_s": 60.0,
        "url_networks": ["127.0.0.0/8"],
        "url_plain_http": True,
    }
    settings = gateway_settings(
        own_database_url, backends.urls, models=[{"id": MODEL}], tools={"mcp": mcp}
    )
    async with running_gateway(settings) as running:
        yield running


def tool(label: str, url: str) -> Json:
    return {"type": "mcp", "server_label": label, "server_url": url, "require_approval": "never"}


@pytest.mark.slow
async def test_a_server_that_does_not_list_its_tools_fails_the_request(
    hosting: RunningGateway, servers: dict[str, str]
) -> None:
    tools = [tool("well", servers["well"]), tool("shut", servers["denied"])]
    async with http_client(hosting.url, headers=hosting.headers) as client:
        for extra in ({}, {"stream": True}, {"background": True}):
            body = {"model": MODEL, "input": "Hi", "tools": tools, **extra}
            answer = await client.post("/v1/responses", json=body)
            assert answer.status_code == 424, answer.text
            error = answer.json()["error"]
            assert (error["type"], error["code"], error["param"]) == (
                *("external_connector_error", "http_error"),
                "tools",
            )
            assert "'shut'" in error["message"]
            assert "401" in error["message"]
        body = {"model": MODEL, "input": "Hi", "tools": tools[:1]}
        answer = await client.post("/v1/responses", json=body)
        assert answer.json()["output"][0]["type"] == "mcp_list_tools"
        body = {"model": MODEL, "input": "Hi", "tools": tools, "tool_choice": "none"}
        assert (await client.post("/v1/responses", json=body)).status_code == 200


@pytest.mark.slow
async def test_sdks_raise_it_and_do_not_try_again(hosting: RunningGateway) -> None:
    sdk = openai.AsyncOpenAI(base_url=f"{hosting.url}/v1", api_key=hosting.key)
    async with sdk:
        with pytest.raises(openai.APIStatusError) as raised:
            await sdk.responses.create(
                model=MODEL,
                input="Hi",
                tools=[tool("gone", NOBODY)],  # type: ignore[list-item]
            )
    assert raised.value.status_code == 424
    assert raised.value.type == "external_connector_error"


async def test_a_connection_is_told_the_same(hosting: RunningGateway) -> None:
    async with connected(hosting.url, hosting.key) as peer:
        told = await peer.refusal("Hi", tools=[tool("gone", NOBODY)])
    assert (told["status"], told["error"]["type"]) == (424, "external_connector_error")
