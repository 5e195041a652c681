"""What one tenant may have of the hosted tools, and another one more of, through HTTP."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway import ids
from gateway.store.postgres.statements import Statement
from gateway.store.tools import tool_calls, web_pages
from gateway.store.tools.web_pages import StoredPage
from gateway.tenancy import TenantId
from tests.fakes import mcp_server
from tests.fakes.gateway import RunningGateway, gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx2
    from starlette.requests import Request

    from gateway.store.tools.tool_calls import AuditedCall
    from gateway.tenancy.policy import PolicyChanges
    from tests.fakes.observation import Backends

    Json = dict[str, Any]

MODEL = "gpt-oss-20b"
SEARCH: Json = {"type": "web_search"}
PYTHON: Json = {"type": "code_interpreter", "container": {"type": "auto"}}
PAGES = [
    StoredPage("https://zebra.example/stripes", "Quaggas", "The quagga had stripes."),
    StoredPage("https://horse.example/hooves", "Horses", "The quagga had hooves."),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mcp_server.serving() as process:
        yield process.url


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    tools = {
        "web": {"enabled": True, "allowed_networks": ["127.0.0.0/8"]},
        "python": {"enabled": True, "engine": "monty", "memory_bytes_max": 4 * 1024**3},
        "mcp": {
            "enabled": True,
            "url_networks": ["127.0.0.0/8"],
            "url_plain_http": True,
            "connect_timeout_s": 60,
            "list_timeout_s": 60,
        },
    }
    settings = gateway_settings(
        own_database_url, backends.urls, models=[{"id": MODEL}], tools=tools
    )
    async with running_gateway(settings) as running:
        database = running.process.foundation.database
        await web_pages.put_documents(
            database, None, PAGES, language=settings.tools.web.index_language
        )
        yield running


@asynccontextmanager
async def tenant(hosting: RunningGateway, **policy: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a tenant with this policy."""
    changes: PolicyChanges | None = policy or None
    settings = hosting.process.foundation.settings
    key = await new_key(settings, f"tenant-{ids.new_uuid().hex}", changes)
    async with http_client(hosting.url, headers={"authorization": f"Bearer {key}"}) as client:
        yield client


async def post(client: httpx2.AsyncClient, said: str, *tools: Json, **fields: Any) -> Json:
    body = {"model": MODEL, "input": f"[[sim steps={said}]]", "tools": list(tools), **fields}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    assert shown["status"] == "completed", shown
    return shown


def mcp(url: str) -> Json:
    return {"type": "mcp", "server_label": "srv", "server_url": url, "require_approval": "never"}


def text(response: Json) -> str:
    return str(response["output"][-1]["content"][0]["text"])


def calls(response: Json, kind: str) -> list[Json]:
    return [item for item in response["output"] if item["type"] == kind]


SAY_TWICE = f'mcp srv.say {{"text": "{"x" * 600}"}}; mcp srv.say {{"text": "y"}}; say Done'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "made"),
    [({}, 2), ({"tool_result_bytes_max": 500}, 1), ({"tool_result_ids_max": 1}, 2)],
)
async def test_results_have_bounds(
    hosting: RunningGateway, server: str, policy: Json, made: int
) -> None:
    async with tenant(hosting, **policy) as client:
        response = await post(client, SAY_TWICE, mcp(server))
        answered = [call["status"] for call in calls(response, "mcp_call")]
        assert answered.count("completed") == made


@pytest.mark.slow
async def test_a_tenant_without_egress_has_the_index_and_registered_servers(
    hosting: RunningGateway, server: str
) -> None:
    async def page(request: Request) -> PlainTextResponse:
        visited.append(request.url.path)
        return PlainTextResponse("A page.")

    visited: list[str] = []
    site = Starlette(routes=[Route("/{path:path}", page)])
    async with serving(site) as url, tenant(hosting, egress="refused") as client:
        found = await post(client, "search quagga; quote", SEARCH)
        assert "stripes" in text(found)
        opened = await post(client, f"open {url}/a; quote", SEARCH)
        assert "only pages that are kept here" in text(opened)
        assert visited == []
        async with tenant(hosting) as free:
            opened = await post(free, f"open {url}/a; quote", SEARCH)
            assert "A page." in text(opened)
            assert "/a" in visited
        body = {"model": MODEL, "input": "Hi", "tools": [mcp(server)]}
        answer = await client.post("/v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].server_url")
        assert "only registered servers" in answer.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [{"egress_domains": "horse.example"}, {"egress_denied_domains": "zebra.example"}]
)
async def test_a_tenant_reads_what_its_domains_allow(hosting: RunningGateway, policy: Json) -> None:
    async with tenant(hosting, **policy) as client:
        found = await post(client, "search quagga; quote", SEARCH)
        assert "hooves" in text(found)
        assert "stripes" not in text(found)
        refused = await post(client, f"open {PAGES[0].url}; quote", SEARCH)
        assert "domain is not among those" in text(refused)
        allowed = await post(client, f"open {PAGES[1].url}; quote", SEARCH)
        assert "hooves" in text(allowed)


@pytest.mark.slow
async def test_servers_are_on_domains_that_the_tenant_may_reach(
    hosting: RunningGateway, server: str
) -> None:
    async with tenant(hosting, egress_denied_domains="127.0.0.1") as client:
        body = {"model": MODEL, "input": "Hi", "tools": [mcp(server)]}
        answer = await client.post("/v1/responses", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "tools[0].server_url")
        assert "policy of your organisation" in error["message"]
    async with tenant(hosting, egress_domains="127.0.0.1") as client:
        response = await post(client, 'mcp srv.add {"a": 1, "b": 2}; say Done', mcp(server))
        assert calls(response, "mcp_call")[0]["output"]


@pytest.mark.slow
async def test_containers_have_bounds(hosting: RunningGateway) -> None:
    async with tenant(hosting, containers_max=1, container_memory_max="1g") as client:
        response = await post(client, "python print(1); quote", PYTHON)
        (call,) = calls(response, "code_interpreter_call")
        assert "1" in text(response)
        refused = await post(client, "python print(2); quote", PYTHON)
        assert "as many containers as there may be" in text(refused)
        answer = await client.post("/v1/containers", json={"name": "c"})
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "too_many_containers"
        await client.delete(f"/v1/containers/{call['container_id']}")
        large = {**PYTHON, "container": {"type": "auto", "memory_limit": "4g"}}
        body = {"model": MODEL, "input": "Hi", "tools": [large]}
        answer = await client.post("/v1/responses", json=body)
        assert answer.json()["error"]["param"] == "tools[0].container.memory_limit"
        made = {"name": "c", "memory_limit": "4g"}
        answer = await client.post("/v1/containers", json=made)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "memory_limit")
    async with tenant(hosting) as client:
        assert (await client.post("/v1/containers", json=made)).status_code == 200


async def audited(hosting: RunningGateway, response: Json, count: int) -> list[AuditedCall]:
    """What the audit says of a response, once it says so much."""
    database = hosting.process.foundation.database
    uuid = ids.parse_response_id(response["id"])
    query = Statement("SELECT tenant_id FROM responses WHERE id = :id")
    async with database.owner_transaction() as connection:
        owner = TenantId(await connection.scalar(query, {"id": uuid}))
    begin = datetime.now(UTC) - timedelta(hours=1)
    async with asyncio.timeout(30):
        while True:
            rows = await tool_calls.since(database, owner, begin, rows_max=100)
            found = [row for row in rows if row.response == uuid]
            if len(found) == count:
                return found[::-1]
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_audit_tells_how_a_call_was_approved_and_what_it_reached(
    hosting: RunningGateway, server: str
) -> None:
    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"A page at {request.url.path}.")

    site = Starlette(routes=[Route("/{path:path}", page)])
    async with serving(site) as url, tenant(hosting) as client:
        said = f'open {url}/a; python print(1); mcp srv.say {{"text": "canary"}}; say Done'
        free = await post(client, said, SEARCH, PYTHON, mcp(server))
        opened, ran, called = await audited(hosting, free, 3)
        assert (opened.hosts, opened.approval) == (("127.0.0.1",), None)
        assert (ran.hosts, ran.approval) == ((), None)
        assert (called.hosts, called.approval) == (("127.0.0.1",), "never")
        assert called.approval_request_id is None

        asking = {**mcp(server), "require_approval": "always"}
        first = await post(client, 'mcp srv.say {"text": "canary"}; quote', asking)
        request_id = first["output"][-1]["id"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request_id}
        body = {
            "model": MODEL,
            "previous_response_id": first["id"],
            "input": [{**answer, "approve": True}],
            "tools": [asking],
        }
        second = (await client.post("/v1/responses", json=body)).json()
        (call,) = await audited(hosting, second, 1)
        assert (call.approval, call.approval_request_id) == ("user", request_id)
        assert "canary" not in repr((opened, ran, called, call))
