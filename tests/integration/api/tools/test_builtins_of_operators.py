"""The model's own browser and Python, where an operator's MCP server does their work."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.store.tools import mcp_servers
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow
from gateway.tools.mcp.servers import Registry
from tests.fakes import mcp_server
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    import httpx2

    from gateway.store.postgres.database import Database
    from tests.fakes.observation import Backends

TOOLS: dict[str, Any] = {"mcp": {"enabled": True, "networks": ["127.0.0.0/8"]}}
OFFERED = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}]


async def ask(client: httpx2.AsyncClient, **fields: Any) -> tuple[dict[str, Any], str]:
    """The response, and which of its tools were dropped."""
    steps = "[[sim steps=python 1 + 1; search towers; quote]]"
    body = {"model": "gpt-oss-20b", "input": steps, "tools": OFFERED, **fields}
    answer = await client.post("/v1/responses", json=body)
    return answer.json(), answer.headers.get("x-gateway-dropped-tools", "")


@pytest.mark.slow
async def test_a_registered_server_does_the_work(
    database: Database, database_url: str, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wiring.mcp_room.Registry", partial(Registry, ttl_s=0.001))
    with mcp_server.serving() as server:
        row = McpServerRow(
            OPERATOR, ids.new_uuid(), "workshop", server.url, purposes="browser python"
        )
        settings = gateway_settings(
            database_url, backends.urls, models=[{"id": "gpt-oss-20b"}], tools=TOOLS
        )
        async with (
            running_gateway(settings) as gateway,
            http_client(gateway.url, headers=gateway.headers) as client,
        ):
            nothing, dropped = await ask(client)
            assert "web_search" in dropped
            assert nothing["status"] == "completed"
            await mcp_servers.insert(database, row)
            rooms = gateway.process.replica.rooms
            await rooms._find_builtins()
            assert rooms.families >= {"web_search", "code_interpreter"}
            response, dropped = await ask(client, include=["code_interpreter_call.outputs"])
    assert not dropped
    calls = [item for item in response["output"] if item["type"].endswith("_call")]
    assert [call["type"] for call in calls] == ["code_interpreter_call", "web_search_call"], calls
    assert all(call["status"] == "completed" for call in calls)
    assert "ran 1 + 1" in calls[0]["outputs"][0]["logs"]
    assert "towers" in response["output"][-1]["content"][0]["text"]


async def test_a_registered_server_takes_precedence_from_the_start(
    database: Database, database_url: str, backends: Backends
) -> None:
    with mcp_server.serving() as server:
        row = McpServerRow(OPERATOR, ids.new_uuid(), "workshop", server.url, purposes="browser")
        await mcp_servers.insert(database, row)
        settings = gateway_settings(
            database_url,
            backends.urls,
            models=[{"id": "gpt-oss-20b"}],
            tools={**TOOLS, "web": {"enabled": True}},
        )
        async with running_gateway(settings) as gateway:
            assert gateway.process.replica.rooms.is_behind_mcp("browser")
