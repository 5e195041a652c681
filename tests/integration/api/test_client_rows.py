"""What every known client sends is served as it is sent; what a strict gateway says to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.client_requests import CLIENTS
from tests.fakes.client_rows import ANSWER, ROWS, STRICTLY_REFUSED, function
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.stream import parse_stream, texts
from tests.integration.api.bodies import MODEL, WEATHER, create, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.observation import Backends

NEED_STORED_ITEMS = {"AI SDK", "LangChain, output only"}
HAVE_FOREIGN_SEALS = {"codex"}
WHOLE = {
    name: {"input": "x", **body}
    for name, body in CLIENTS.items()
    if name not in NEED_STORED_ITEMS | HAVE_FOREIGN_SEALS
}
DROPPED = "web_search, code_interpreter, file_search, mcp"


@pytest.fixture(scope="module")
async def strict(shared_database_url: str, backends: Backends) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway that refuses what it cannot honour."""
    settings = gateway_settings(shared_database_url, backends.urls, input={"strict": True})
    async with (
        running_gateway(settings) as running,
        http_client(running.url, headers=running.headers) as client,
    ):
        yield client


@pytest.mark.parametrize("name", ROWS)
async def test_what_a_client_sends_is_served(client: httpx2.AsyncClient, name: str) -> None:
    response = await create(client, **ROWS[name])
    assert response["status"] == "completed"


@pytest.mark.parametrize("name", ROWS)
async def test_what_a_client_sends_is_served_as_a_stream(
    client: httpx2.AsyncClient, name: str
) -> None:
    body = {"model": MODEL, **ROWS[name], "stream": True}
    answer = await client.post("/v1/responses", json=body, headers={"accept": "application/json"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert parse_stream(answer.text)[-1]["type"] == "response.completed"


@pytest.mark.parametrize("name", WHOLE)
async def test_members_that_are_peculiar_to_a_client_are_served(
    client: httpx2.AsyncClient, name: str
) -> None:
    body = {"model": MODEL, **WHOLE[name]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.requirement("create.unknown-parameters")
@pytest.mark.parametrize("name", ROWS)
async def test_a_strict_gateway_refuses_only_what_it_cannot_honour(
    strict: httpx2.AsyncClient, name: str
) -> None:
    if name in STRICTLY_REFUSED:
        error = await refused(strict, 400, **ROWS[name])
        assert (error["code"], error["param"]) == STRICTLY_REFUSED[name]
    else:
        assert (await create(strict, **ROWS[name]))["status"] == "completed"


async def test_tools_that_are_not_run_here_are_dropped_and_named(
    client: httpx2.AsyncClient,
) -> None:
    body = {"model": MODEL, **ROWS["Agents SDK: hosted tools"]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.headers["x-gateway-dropped-tools"] == DROPPED


@pytest.mark.parametrize("name", ["instructor", "pydantic-ai: structured output"])
async def test_a_forced_function_is_called_though_a_format_is_asked_for(
    client: httpx2.AsyncClient, name: str
) -> None:
    response = await create(client, **ROWS[name])
    assert response["output"][-1]["type"] == "function_call"


async def test_the_case_of_a_function_s_name_is_kept(client: httpx2.AsyncClient) -> None:
    name = "transfer_to_Weather_agent"
    body = {**ROWS["Agents SDK: handoff"], "tool_choice": {"type": "function", "name": name}}
    response = await create(client, **body)
    assert response["output"][-1]["name"] == name


@pytest.mark.requirement("models.slashes")
@pytest.mark.requirement("models.retrieve")
@pytest.mark.parametrize("model", ["gpt-oss-20b", "openai/gpt-oss-20b", "small", "openai/small"])
async def test_a_model_is_known_by_all_its_names(client: httpx2.AsyncClient, model: str) -> None:
    answer = await client.post("/v1/responses", json={"model": model, "input": "x"})
    assert (answer.status_code, answer.json()["model"]) == (200, MODEL)
    for spelled in (model, model.replace("/", "%2F")):
        found = await client.get(f"/v1/models/{spelled}")
        assert (found.status_code, found.json()["id"]) == (200, MODEL)


async def called(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A stored response that ends with a call."""
    response = await create(client, input="The weather in Oslo?", tools=[WEATHER], **fields)
    assert response["output"][-1]["type"] == "function_call"
    return response


@pytest.mark.requirement("kinds.client-executed")
@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
async def test_a_tool_s_output_alone_continues_a_response(
    client: httpx2.AsyncClient, include: list[str]
) -> None:
    first = await called(client)
    output = {"call_id": first["output"][-1]["call_id"], "output": "17", "status": "completed"}
    second = await create(
        client,
        input=[{"type": "function_call_output", **output}],
        previous_response_id=first["id"],
        include=include,
        tools=[WEATHER],
    )
    assert texts(second)


@pytest.mark.requirement("kinds.item-reference")
async def test_a_stored_item_may_be_sent_as_a_reference(client: httpx2.AsyncClient) -> None:
    first = await called(client)
    call = first["output"][-1]
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"][:-1]]
    second = await create(
        client,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "The weather in Oslo?"}]},
            *references,
            {"id": call["id"]},
            {"type": "function_call_output", "call_id": call["call_id"], "output": "17"},
        ],
        tools=[WEATHER],
    )
    assert texts(second)


@pytest.mark.requirement("items.reasoning")
@pytest.mark.requirement("control.sealed-reasoning")
async def test_sealed_reasoning_is_taken_back_without_its_text(client: httpx2.AsyncClient) -> None:
    fields = {"store": False, "include": ["reasoning.encrypted_content"]}
    first = await called(client, **fields)
    reasoning, *rest = first["output"]
    second = await create(
        client,
        input=[
            {"role": "user", "content": "The weather in Oslo?"},
            {**reasoning, "content": None},
            *rest,
            {
                "type": "function_call_output",
                "call_id": rest[-1]["call_id"],
                "output": [{"type": "input_text", "text": "17"}],
            },
        ],
        tools=[WEATHER],
        **fields,
    )
    assert texts(second)


@pytest.mark.requirement("items.reasoning")
@pytest.mark.requirement("context.item-not-found")
async def test_reasoning_that_is_known_by_its_id_alone_is_looked_up(
    client: httpx2.AsyncClient,
) -> None:
    first = await create(client, input="x")
    known = {"type": "reasoning", "id": first["output"][0]["id"], "summary": []}
    again = {"role": "user", "content": "y"}
    replayed = [known, {"role": "assistant", "content": texts(first)[0]}, again]
    assert (await create(client, input=[{"role": "user", "content": "x"}, *replayed]))["output"]
    error = await refused(client, 404, input=[{**known, "id": "rs_of_another_server"}, again])
    assert error["message"].startswith("Item with id 'rs_of_another_server' not found.")


@pytest.mark.requirement("context.parent-not-found")
@pytest.mark.requirement("error.previous-response")
@pytest.mark.parametrize("response_id", ["resp_" + "a" * 250, "chatcmpl-1", "", "resp_%00"])
async def test_the_id_of_another_server_is_not_found(
    client: httpx2.AsyncClient, response_id: str
) -> None:
    error = await refused(client, 400, input="x", previous_response_id=response_id)
    assert error["code"] == "previous_response_not_found"


async def test_a_schema_without_strictness_is_only_shown(client: httpx2.AsyncClient) -> None:
    tool = function("f", {**ANSWER, "additionalProperties": True}, strict=False)
    response = await create(client, input="x", tools=[tool])
    (echoed,) = response["tools"]
    assert (echoed["strict"], echoed["description"]) == (False, None)
