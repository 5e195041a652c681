"""Hosted tools in a whole gateway: created, run, shown, continued; against real servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.entries import TOOLS_FOLD_VERSION
from gateway.store.postgres.statements import Statement
from tests.fakes import mcp_server
from tests.fakes.gateway import RunningGateway, gateway_settings, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import httpx2

    from tests.fakes.observation import Backends

    Json = dict[str, Any]

LOOPBACK = {
    "url_networks": ["127.0.0.0/8"],
    "url_plain_http": True,
    "servers": "any",
    "connect_timeout_s": 60,
    "list_timeout_s": 60,
}
TOOLS = {
    "web": {"enabled": True},
    "python": {"enabled": True, "engine": "monty"},
    "mcp": {"enabled": True, **LOOPBACK},
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mcp_server.serving() as process:
        yield process.url


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    settings = gateway_settings(
        own_database_url, backends.urls, models=[{"id": "gpt-oss-20b"}], tools=TOOLS
    )
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture
async def hosted(hosting: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(hosting.url, headers=hosting.headers) as opened:
        yield opened


def mcp(url: str, **fields: Any) -> Json:
    return {
        "type": "mcp",
        "server_label": "srv",
        "server_url": url,
        "require_approval": "never",
        **fields,
    }


async def ask(client: httpx2.AsyncClient, steps: str, tools: list[Json], **fields: Any) -> Json:
    body = {"model": "gpt-oss-20b", "input": f"[[sim steps={steps}]]", "tools": tools, **fields}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    return shown


def types(response: Json) -> list[str]:
    return [item["type"] for item in response["output"] if item["type"] != "reasoning"]


def text(response: Json) -> str:
    return str(response["output"][-1]["content"][0]["text"])


async def test_a_tool_of_a_server_is_called_and_the_model_reads_its_result(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    response = await ask(hosted, 'mcp srv.add {"a": 40, "b": 2}; quote', [mcp(server)])
    assert response["status"] == "completed", response
    assert types(response) == ["mcp_list_tools", "mcp_call", "message"]
    call = next(item for item in response["output"] if item["type"] == "mcp_call")
    assert (call["server_label"], call["name"], call["error"]) == ("srv", "add", None)
    assert "42" in call["output"]
    assert "42" in text(response)
    assert response["usage"]["output_tokens_details"]["tool_output_tokens"] > 0


@pytest.mark.slow
async def test_a_background_response_calls_tools_and_can_be_streamed_again(
    hosted: httpx2.AsyncClient, hosting: RunningGateway, server: str
) -> None:
    steps, tools = 'mcp srv.say {"text": "hello"}; quote', [mcp(server, authorization="hunter2")]
    body = {
        "model": "gpt-oss-20b",
        "input": f"[[sim steps={steps}]]",
        "tools": tools,
        "background": True,
        "stream": True,
    }
    async with hosted.stream("POST", "/v1/responses", json=body) as answer:
        lines = [line async for line in answer.aiter_lines()]
    events = [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]
    response = events[-1]["response"]
    assert (response["status"], text(response)) == ("completed", "hello")
    assert "hunter2" not in repr(events)
    path = f"/v1/responses/{response['id']}"
    for after in (0, len(events) // 2):
        query = f"?stream=true&starting_after={after}"
        async with hosted.stream("GET", path + query) as answer:
            again = [line async for line in answer.aiter_lines()]
        replayed = [orjson.loads(line[6:]) for line in again if line.startswith("data: {")]
        assert replayed == events[after + 1 :]
    database = hosting.process.foundation.database
    async with database.runs_transaction() as connection:
        row = await connection.execute(
            Statement("SELECT fold_version FROM responses WHERE status = 'completed' AND durable")
        )
        assert TOOLS_FOLD_VERSION in {fold_version for (fold_version,) in row}


async def test_python_and_the_browser_work_side_by_side(hosted: httpx2.AsyncClient) -> None:
    tools: list[Json] = [
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    response = await ask(
        hosted,
        "search nothing of the kind; python print(6 * 7); quote",
        tools,
        include=["code_interpreter_call.outputs"],
    )
    assert types(response) == ["web_search_call", "code_interpreter_call", "message"], response
    assert "42" in text(response)


@pytest.mark.slow
async def test_a_call_is_made_once_it_was_approved(hosted: httpx2.AsyncClient, server: str) -> None:
    tools = [mcp(server, require_approval="always")]
    first = await ask(hosted, 'mcp srv.add {"a": 1, "b": 2}; quote', tools)
    assert types(first) == ["mcp_list_tools", "mcp_approval_request"]
    assert first["status"] == "completed"
    request_id = first["output"][-1]["id"]
    answer = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": True}
    body = {
        "model": "gpt-oss-20b",
        "previous_response_id": first["id"],
        "input": [answer],
        "tools": tools,
    }
    second = await hosted.post("/v1/responses", json=body)
    assert second.status_code == 200, second.text
    assert types(second.json()) == ["mcp_call", "message"]
    assert (
        "3"
        in next(item for item in second.json()["output"] if item["type"] == "mcp_call")["output"]
    )
    third = await hosted.post("/v1/responses", json=body)
    assert third.status_code == 400, "an approval is used once"


async def test_what_is_not_enabled_is_dropped(client: httpx2.AsyncClient) -> None:
    body = {"model": "gpt-oss-20b", "input": "hi", "tools": [{"type": "web_search"}]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ("required", "web_search_call"),
        ({"type": "web_search"}, "web_search_call"),
        ({"type": "code_interpreter"}, "code_interpreter_call"),
    ],
)
async def test_a_call_that_is_demanded_comes_first_and_then_the_answer(
    hosted: httpx2.AsyncClient, choice: str | Json, kind: str
) -> None:
    tools: list[Json] = [
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    body = {"model": "gpt-oss-20b", "input": "Hello", "tools": tools, "tool_choice": choice}
    answer = await hosted.post("/v1/responses", json=body)
    response = answer.json()
    assert response["status"] == "completed", response
    assert types(response)[0].endswith("_call")
    assert choice == "required" or types(response)[0] == kind
    assert types(response)[-1] == "message"


@pytest.mark.slow
async def test_an_answer_in_json_follows_the_calls(hosted: httpx2.AsyncClient, server: str) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    response = await ask(
        hosted,
        'mcp srv.add {"a": 1, "b": 2}',
        [mcp(server)],
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
    )
    assert types(response) == ["mcp_list_tools", "mcp_call", "message"], response
    assert set(orjson.loads(text(response))) == {"n"}


@pytest.mark.slow
async def test_no_more_calls_are_made_than_the_request_wants(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    steps = "; ".join(f'mcp srv.add {{"a": {n}, "b": 2}}' for n in range(3))
    response = await ask(hosted, f"{steps}; quote", [mcp(server)], max_tool_calls=2)
    assert response["status"] == "completed", response
    assert types(response).count("mcp_call") == 2


@pytest.mark.slow
async def test_a_server_that_is_away_costs_its_tools_and_not_the_response(
    hosted: httpx2.AsyncClient,
) -> None:
    with mcp_server.serving() as dying:
        tools = [mcp(dying.url)]
        first = await ask(hosted, 'mcp srv.add {"a": 1, "b": 2}; quote', tools)
        assert types(first) == ["mcp_list_tools", "mcp_call", "message"]
        second = await ask(hosted, "mcp srv.die; mcp srv.add {}; quote", tools)
        assert second["status"] == "completed", second
        calls = [item for item in second["output"] if item["type"] == "mcp_call"]
        assert [call["status"] for call in calls] == ["failed", "failed"]


async def begun(
    client: httpx2.AsyncClient, body: Json, until: str = "response.mcp_call_arguments.done"
) -> AsyncIterator[Json]:
    """The events of a stream, up to one; then the client hangs up."""
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = orjson.loads(line[6:])
                yield event
                if event["type"] == until:
                    return


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang-up", "cancel"])
async def test_who_cancels_a_response_cancels_its_call(
    hosting: RunningGateway, hosted: httpx2.AsyncClient, server: str, tmp_path: Path, how: str
) -> None:
    """The tool makes the folder when it is cancelled. Whoever ends the response, the audit says
    that the call was made, and where it went."""
    folder = tmp_path / "cancelled"
    body = {
        "model": "gpt-oss-20b",
        "input": f'[[sim steps=mcp srv.wait {{"folder": "{folder}"}}]]',
        "tools": [mcp(server)],
        "background": how == "cancel",
        "stream": True,
    }
    events = [event async for event in begun(hosted, body)]
    path = f"/v1/responses/{events[0]['response']['id']}"
    if how == "cancel":
        cancelled = (await hosted.post(f"{path}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert [item["status"] for item in cancelled["output"] if item["type"] == "mcp_call"] == [
            "incomplete"
        ]
    made = Statement(
        "SELECT outcome, convert_from(hosts, 'UTF8') FROM tool_calls WHERE response_id = :id"
    )
    database = hosting.process.foundation.database
    uuid = ids.parse_response_id(events[0]["response"]["id"])
    rows: list[tuple[str, str]] = []
    async with asyncio.timeout(30):
        while not folder.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        while not rows:
            await asyncio.sleep(0.05)
            async with database.owner_transaction() as connection:
                rows = [tuple(row) for row in await connection.execute(made, {"id": uuid})]
    assert rows == [("cancelled", "127.0.0.1")]


@pytest.mark.slow
async def test_a_container_goes_on_behind_a_response_that_somebody_else_ended(
    hosted: httpx2.AsyncClient,
) -> None:
    """It had no hosted tool, so its own log knows nothing of the container."""
    conversation = (await hosted.post("/v1/conversations", json={})).json()["id"]
    tools: list[Json] = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    await ask(hosted, "python kept = 6 * 7; say ok", tools, conversation=conversation)
    body = {
        "model": "gpt-oss-20b",
        "input": "[[sim think=none tokens=500 tokens_per_s=20]] go",
        "conversation": conversation,
        "background": True,
    }
    running = (await hosted.post("/v1/responses", json=body)).json()
    ended = await hosted.post(f"/v1/responses/{running['id']}/cancel")
    assert ended.json()["status"] == "cancelled"
    last = await ask(hosted, "python print(kept); quote", tools, conversation=conversation)
    assert "42" in text(last)
