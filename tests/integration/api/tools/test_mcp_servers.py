"""MCP servers behind a whole gateway: those that fail, those that operators registered, secrets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.store.tables.columns import metadata
from gateway.store.tools import mcp_servers
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow
from gateway.tools.mcp.servers import Registry, sealed_headers
from tests.fakes.gateway import RunningGateway, gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.mcp_server import serving
from tests.fakes.stream import parse_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import httpx2

    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer

    Json = dict[str, Any]

MODEL = "gpt-oss-20b"
LOOPBACK = ["127.0.0.0/8"]
TOOLS = {
    "mcp": {
        "enabled": True,
        "url_networks": LOOPBACK,
        "networks": LOOPBACK,
        "url_plain_http": True,
        "servers": "any",
        "connect_timeout_s": 60,
        "list_timeout_s": 60,
    }
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as process:
        yield process.url


@pytest.fixture(scope="module")
def denied() -> Iterator[str]:
    with serving("denied") as process:
        yield process.url


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    settings = gateway_settings(
        own_database_url, backends.urls, models=[{"id": MODEL}], tools=TOOLS
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.wiring.mcp_room.Registry", partial(Registry, ttl_s=1e-6))
        async with running_gateway(settings) as running:
            yield running


@pytest.fixture
async def client(hosting: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(hosting.url, headers=hosting.headers) as opened:
        yield opened


def mcp(url: str | None, label: str = "srv", **fields: Any) -> Json:
    named = {} if url is None else {"server_url": url}
    tool = {"type": "mcp", "server_label": label, "require_approval": "never", **named}
    return {**tool, **fields}


def body_of(steps: str, *tools: Json, **fields: Any) -> Json:
    return {"model": MODEL, "input": f"[[sim steps={steps}]]", "tools": list(tools), **fields}


async def ask(client: httpx2.AsyncClient, steps: str, *tools: Json, **fields: Any) -> Json:
    answer = await client.post("/v1/responses", json=body_of(steps, *tools, **fields))
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    assert response["status"] == "completed", response
    return response


def items(response: Json, kind: str) -> list[Json]:
    return [item for item in response["output"] if item["type"] == kind]


def text(response: Json) -> str:
    return str(response["output"][-1]["content"][0]["text"])


@pytest.mark.slow
async def test_server_that_dies_in_a_call_does_not_end_the_response(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    file = tmp_path / "effects"
    with serving() as dying:
        steps = f'mcp srv.effect {{"file": "{file}", "dies": true}}; say done'
        response = await ask(client, steps, mcp(dying.url))
    (call,) = items(response, "mcp_call")
    assert (call["status"], call["output"]) == ("failed", None)
    assert call["error"]["type"] == "http_error"
    assert call["error"]["message"].startswith("outcome unknown")
    assert file.read_text(encoding="utf-8") == "called\n"
    assert text(response) == "done"


@pytest.mark.slow
async def test_model_reads_why_a_call_failed_and_goes_on(
    client: httpx2.AsyncClient, server: str
) -> None:
    body = body_of("mcp srv.boom {}; quote", mcp(server), stream=True)
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        events = parse_stream("".join([part async for part in answer.aiter_text()]))
    kinds = [event["type"] for event in events]
    assert "response.mcp_call.failed" in kinds
    assert "response.mcp_call.completed" not in kinds
    response = events[-1]["response"]
    (call,) = items(response, "mcp_call")
    assert call["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "Error executing tool boom"}],
    }
    assert "Error executing tool boom" in text(response)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ['{"a": "x", "b": 2}', "[1]", '{"a": 1}'])
async def test_arguments_that_do_not_fit_are_answered_and_not_sent(
    client: httpx2.AsyncClient, server: str, arguments: str
) -> None:
    response = await ask(client, f"mcp srv.add {arguments}; quote", mcp(server))
    calls = items(response, "mcp_call")
    for call in calls:  # where a grammar binds the model it cannot write them at all
        if call["status"] == "failed":
            assert (call["error"]["type"], call["error"]["code"]) == ("mcp_protocol_error", -32602)


@pytest.mark.slow
async def test_server_that_cannot_be_listed_is_told_and_the_response_goes_on(
    client: httpx2.AsyncClient, denied: str, server: str
) -> None:
    tools = [mcp(denied, "closed"), mcp(server)]
    response = await ask(client, 'mcp srv.say {"text": "hi"}; quote', *tools)
    closed, opened = items(response, "mcp_list_tools")
    assert (closed["server_label"], closed["tools"]) == ("closed", [])
    assert "401" in closed["error"]
    assert "error" not in opened
    assert {tool["name"] for tool in opened["tools"]} > {"add", "say"}
    assert text(response) == "hi"


async def test_only_allowed_tools_are_listed_and_described(
    client: httpx2.AsyncClient, server: str
) -> None:
    response = await ask(
        client, 'mcp srv.say {"text": "hi"}; quote', mcp(server, allowed_tools=["say"])
    )
    (listed,) = items(response, "mcp_list_tools")
    assert [tool["name"] for tool in listed["tools"]] == ["say"]


@pytest.mark.slow
async def test_registered_server_is_named_by_its_label_and_has_its_own_credentials(
    client: httpx2.AsyncClient, hosting: RunningGateway, denied: str
) -> None:
    base = hosting.process.foundation
    row = McpServerRow(OPERATOR, ids.new_uuid(), "crm", denied)
    secret = sealed_headers(base.sealer, OPERATOR, row.id, {"authorization": "Bearer good"})
    await mcp_servers.insert(base.database, replace(row, secret=secret))
    try:
        response = await ask(client, 'mcp crm.say {"text": "hi"}; quote', mcp(None, "crm"))
        assert text(response) == "hi"
        assert "good" not in repr(response)
        taken = mcp(None, "crm", authorization="mine")
        answer = await client.post("/v1/responses", json=body_of("say x", taken))
        assert answer.status_code == 400
    finally:
        await mcp_servers.remove(base.database, OPERATOR, "crm")
    answer = await client.post("/v1/responses", json=body_of("say x", mcp(None, "crm")))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].server_label")


@pytest.mark.slow
async def test_secrets_of_a_request_reach_its_server_and_nothing_else(
    client: httpx2.AsyncClient,
    hosting: RunningGateway,
    postgres: PostgresServer,
    own_database_url: str,
    server: str,
) -> None:
    secrets = ("hunter2-in-a-header", "hunter2-token", "hunter2-in-a-url")
    url = f"{server}?key={secrets[2]}"
    tool = mcp(url, headers={"X-Key": secrets[0]}, authorization=secrets[1])
    response = await ask(client, "mcp srv.headers {}; say done", tool, background=False)
    (call,) = items(response, "mcp_call")
    assert all(secret in call["output"] for secret in secrets[:2])  # the server told them itself
    quiet = await ask(client, 'mcp srv.say {"text": "x"}; say done', tool, store=True)
    assert not any(secret in repr(quiet) for secret in secrets)
    for table in metadata.tables:
        rows = await postgres.fetch(f"SELECT * FROM {table}", url=own_database_url)
        for row in rows:
            if quiet["id"].removeprefix("resp_") not in repr(row).replace("-", ""):
                continue
            stored = b"".join(
                one if isinstance(one, bytes) else repr(one).encode() for one in row.values()
            )
            assert not any(secret.encode() in stored for secret in secrets), table


@pytest.mark.slow
async def test_approval_is_of_this_call_of_this_server_with_these_credentials(
    client: httpx2.AsyncClient, server: str
) -> None:
    wary = mcp(server, require_approval="always")
    first = await ask(client, 'mcp srv.say {"text": "hi"}; quote', wary)
    (request,) = items(first, "mcp_approval_request")
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
    }
    body = {"model": MODEL, "previous_response_id": first["id"], "input": [approval]}
    with_others = mcp(server, require_approval="always", authorization="other")
    answer = await client.post("/v1/responses", json={**body, "tools": [with_others]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "approval_mismatch")
    refused = {**approval, "approve": False, "reason": "Too risky."}
    answer = await client.post("/v1/responses", json={**body, "input": [refused], "tools": [wary]})
    assert answer.status_code == 200, answer.text
    assert items(answer.json(), "mcp_call") == []
    answer = await client.post("/v1/responses", json={**body, "tools": [wary]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "approval_already_used")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"server_url": "ftp://mcp.example"}, "server_url"),
        ({"server_url": "https://u:p@mcp.example"}, "server_url"),
        ({"headers": {"Cookie": "a"}}, "headers"),
        ({"headers": {"Host": "a"}}, "headers"),
        ({"authorization": "Bearer abc"}, "authorization"),
        ({"require_approval": "maybe"}, "require_approval"),
        ({"server_label": "a.b"}, "server_label"),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_its_path(
    client: httpx2.AsyncClient, server: str, fields: Json, param: str
) -> None:
    answer = await client.post("/v1/responses", json=body_of("say x", mcp(server, **fields)))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(f"tools[0].{param}")
