"""Browser and Python of an operator's MCP server, behind a whole gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.store.tools import mcp_servers
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.mcp_server import Process, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx2

    from gateway.store.postgres.database import Database
    from tests.fakes.observation import Backends

    Json = dict[str, Any]

MODEL = "gpt-oss-20b"


@pytest.fixture(scope="module", params=["modern", "legacy", "sse"])
def server(request: pytest.FixtureRequest) -> Iterator[Process]:
    with serving(request.param) as process:
        yield process


@pytest.fixture
async def client(
    database: Database, database_url: str, backends: Backends, server: Process
) -> AsyncIterator[httpx2.AsyncClient]:
    row = McpServerRow(OPERATOR, ids.new_uuid(), "tools", server.url, purposes="browser python mcp")
    await mcp_servers.insert(database, row)
    settings = gateway_settings(
        database_url,
        backends.urls,
        models=[{"id": MODEL}],
        tools={"mcp": {"enabled": True, "networks": ["127.0.0.0/8"]}},
    )
    async with (
        running_gateway(settings) as running,
        http_client(running.url, headers=running.headers) as opened,
    ):
        yield opened


async def ask(client: httpx2.AsyncClient, steps: str, *tools: Json, **fields: Any) -> Json:
    body = {"model": MODEL, "input": f"[[sim steps={steps}]]", "tools": list(tools), **fields}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    assert response["status"] == "completed", response
    return response


def items(response: Json, kind: str) -> list[Json]:
    return [item for item in response["output"] if item["type"] == kind]


@pytest.mark.slow
async def test_server_of_the_operator_browses_runs_python_and_is_called_by_its_label(
    client: httpx2.AsyncClient, server: Process
) -> None:
    response = await ask(client, "search cats; open 0; cite", {"type": "web_search"})
    search, page = items(response, "web_search_call")
    assert (search["status"], search["action"]["query"]) == ("completed", "cats")
    assert page["action"] == {"type": "open_page", "url": "https://example.org/found"}
    (part,) = items(response, "message")[0]["content"]
    assert [one["url"] for one in part["annotations"]] == ["https://example.org/found"]

    interpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
    shown = ["code_interpreter_call.outputs"]
    response = await ask(client, "python print(1); quote", interpreter, include=shown)
    (run,) = items(response, "code_interpreter_call")
    assert run["outputs"] == [{"type": "logs", "logs": "ran print(1)"}]

    by_label = {"type": "mcp", "server_label": "tools", "require_approval": "never"}
    response = await ask(client, 'mcp tools.say {"text": "hi"}; quote', by_label)
    assert items(response, "mcp_call")[0]["output"] == "hi"


@pytest.mark.slow
async def test_what_is_found_on_a_page_is_cited_as_that_page(client: httpx2.AsyncClient) -> None:
    search: Json = {"type": "web_search"}
    first = await ask(client, "open https://example.org/a; find x; cite", search)
    following = await ask(client, "cite@1", search, previous_response_id=first["id"])
    _, found = items(first, "web_search_call")
    assert found["action"]["url"] == "https://example.org/a"
    for response in (first, following):
        (part,) = items(response, "message")[0]["content"]
        assert [one["url"] for one in part["annotations"]] == ["https://example.org/a"]


@pytest.mark.slow
async def test_cursors_of_the_operators_browser_go_on_along_a_chain(
    client: httpx2.AsyncClient,
) -> None:
    search: Json = {"type": "web_search"}
    first = await ask(client, "open https://example.org/a; search dogs; quote", search)
    assert items(first, "message")[0]["content"][0]["text"].startswith("[1] dogs")
    chained = {"previous_response_id": first["id"]}
    second = await ask(client, "search cats; quote", search, **chained)
    assert items(second, "message")[0]["content"][0]["text"].startswith("[2] cats")
    third = await ask(
        client, "scroll@0 0; cite", search, **{**chained, "previous_response_id": second["id"]}
    )
    (page,) = items(third, "web_search_call")
    assert page["action"] == {"type": "open_page", "url": "https://example.org/a"}
    (part,) = items(third, "message")[0]["content"]
    assert [one["url"] for one in part["annotations"]] == ["https://example.org/a"]
