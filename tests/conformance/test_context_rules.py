"""What a response continues, what it does not inherit, and which tools may be chosen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.conformance.asking import BREAKS_OFF, FUNCTION, UNKNOWN, created, refused, user
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client
from tests.fakes.stream import texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.conformance.checking import Json
    from tests.fakes.gateway import RunningGateway

requirement = pytest.mark.requirement

CALL: Json = {"type": "function_call", "call_id": "call_X", "name": "f", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_X", "output": "1"}


@pytest.fixture
async def stranger(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of another tenant."""
    key = await new_key(gateway.process.foundation.settings, "globex")
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(gateway.url, headers=headers) as opened:
        yield opened


async def ended(client: httpx2.AsyncClient, response: Json) -> Json:
    """A background response once it is over."""
    while response["status"] in {"queued", "in_progress"}:
        response = (await client.get(f"/v1/responses/{response['id']}")).json()
        await asyncio.sleep(0)
    return response


@requirement("context.order")
async def test_a_chain_is_listed_in_its_order(client: httpx2.AsyncClient) -> None:
    first = await created(client, [user("one"), user("two")])
    second = await created(client, "three", previous_response_id=first["id"])
    third = await created(client, "four", previous_response_id=second["id"])
    page = await client.get(f"/v1/responses/{third['id']}/input_items?order=asc&limit=100")
    listed = page.json()["data"]
    said = [item["content"][0]["text"] for item in listed if item.get("role") == "user"]
    assert said == ["one", "two", "three", "four"]
    assert listed[2:4] == first["output"]
    assert listed[5:7] == second["output"]


@requirement("context.settings-are-not-inherited")
@requirement("create.instructions.not-inherited")
async def test_only_items_are_continued(client: httpx2.AsyncClient) -> None:
    settings: Json = {
        "instructions": "Be brief.",
        "tools": [FUNCTION],
        "tool_choice": "none",
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "temperature": 0.5,
        "top_p": 0.5,
        "metadata": {"a": "b"},
        "max_output_tokens": 2000,
    }
    first = await created(client, "one", **settings)
    second = await created(client, "two", previous_response_id=first["id"])
    bare = await created(client, "two")
    assert {name: second[name] for name in settings} == {name: bare[name] for name in settings}
    assert not [name for name in settings if second[name] == first[name]]


@requirement("context.configuration-update")
async def test_items_that_set_what_follows_are_refused(client: httpx2.AsyncClient) -> None:
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    error = await refused(client, [update, user("x")])
    assert (error["code"], error["param"]) == ("unsupported_parameter", "input[0].type")
    assert "each request" in error["message"]


@requirement("context.parent-not-found")
@pytest.mark.parametrize("kind", ["unknown", "not stored", "deleted", "another tenant's"])
async def test_a_parent_that_is_not_there_is_a_400(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient, kind: str
) -> None:
    owner = stranger if kind == "another tenant's" else client
    parent = await created(owner, "x", store=kind != "not stored")
    if kind == "deleted":
        await client.delete(f"/v1/responses/{parent['id']}")
    parent_id = UNKNOWN if kind == "unknown" else parent["id"]
    error = await refused(client, "x", previous_response_id=parent_id)
    assert error.pop("message").startswith(f"Previous response with id '{parent_id}' not found.")
    assert error == {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "param": "previous_response_id",
    }


@pytest.mark.slow
@requirement("background.continued-when-over")
@requirement("context.ended-otherwise")
async def test_what_was_cancelled_is_continued_once_it_is_over(client: httpx2.AsyncClient) -> None:
    endless = "My name is Ada. [[sim tokens_per_s=100 tokens=100000 think=none]]"
    running = await created(client, endless, background=True)
    previous = {"previous_response_id": running["id"]}
    error = await refused(client, "x", **previous)
    assert error["param"] == "previous_response_id"
    assert (await client.post(f"/v1/responses/{running['id']}/cancel")).status_code == 200
    assert "Ada" in texts(await created(client, "What is my name?", **previous))[-1]


@requirement("context.ended-otherwise")
@pytest.mark.parametrize(
    ("said", "fields", "status"),
    [(BREAKS_OFF, {}, "failed"), ("[[sim tokens=99]]", {"max_output_tokens": 50}, "incomplete")],
)
async def test_what_ended_otherwise_is_continued(
    client: httpx2.AsyncClient, said: str, fields: Json, status: str
) -> None:
    parent = await ended(client, await created(client, said, background=True, **fields))
    assert parent["status"] == status
    child = await created(client, "[[sim think=2 say=ok]]", previous_response_id=parent["id"])
    assert child["status"] == "completed"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        pytest.param(
            [OUTPUT],
            "No tool call found for function call output with call_id call_X.",
            marks=requirement("context.output-without-call"),
        ),
        pytest.param(
            [user("x"), CALL],
            "No tool output found for function call call_X.",
            marks=requirement("context.call-without-output"),
        ),
    ],
)
async def test_calls_and_outputs_pair_up(
    client: httpx2.AsyncClient, said: list[Json], message: str
) -> None:
    parent = await created(client, "x")
    for fields in ({}, {"previous_response_id": parent["id"]}):
        error = await refused(client, said, **fields)
        assert error == {
            "message": message,
            "type": "invalid_request_error",
            "param": "input",
            "code": None,
        }


@requirement("context.output-without-call")
@requirement("context.call-without-output")
@requirement("kinds.client-executed")
async def test_an_output_answers_the_call_of_the_response_before(
    client: httpx2.AsyncClient,
) -> None:
    first = await created(client, "[[sim call=f]]", tools=[FUNCTION])
    previous = {"previous_response_id": first["id"]}
    call_id = first["output"][-1]["call_id"]
    error = await refused(client, "What now?", **previous)
    assert error["message"] == f"No tool output found for function call {call_id}."
    assert texts(await created(client, [{**OUTPUT, "call_id": call_id}], **previous))


@requirement("context.item-not-found")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "rs_X"},
        {"id": "rs_X"},
        {"type": "reasoning", "id": "rs_X", "summary": []},
    ],
)
async def test_an_item_that_is_known_by_its_id_alone_is_a_404(
    client: httpx2.AsyncClient, item: Json
) -> None:
    error = await refused(client, [item, user("x")], status=404)
    assert (error["param"], error["code"]) == ("input", None)
    assert error["message"] == (
        "Item with id 'rs_X' not found. Items are not persisted when `store` is set to false. Try "
        "again with `store` set to true, or remove this item from your input."
    )


@requirement("context.branches")
async def test_one_response_is_continued_in_two_ways(client: httpx2.AsyncClient) -> None:
    parent = await created(client, "My name is Ada.")
    for _ in range(2):
        child = await created(client, "What is my name?", previous_response_id=parent["id"])
        assert "Ada" in texts(child)[-1]


@requirement("context.input-gets-ids")
@requirement("http.ids-of-clients")
async def test_what_came_without_an_id_gets_one(client: httpx2.AsyncClient) -> None:
    sent = [user("x"), {**user("y"), "id": "any-prefix_1", "status": "in_progress"}]
    response = await created(client, sent)
    page = await client.get(f"/v1/responses/{response['id']}/input_items?order=asc")
    first, second = page.json()["data"]
    assert first["id"].startswith("msg_")
    assert second["id"] == "any-prefix_1"
    assert (first["status"], second["status"]) == ("completed", "completed")


@requirement("choice.client-tools")
@pytest.mark.parametrize("kind", ["shell", "apply_patch"])
async def test_a_tool_of_the_client_is_chosen_by_its_type(
    client: httpx2.AsyncClient, kind: str
) -> None:
    tools = [{"type": "shell"}, {"type": "apply_patch"}]
    response = await created(client, "Hello", tools=tools, tool_choice={"type": kind})
    assert response["output"][-1]["type"] == f"{kind}_call"
    assert response["tool_choice"] == {"type": kind}


@requirement("choice.hosted")
@pytest.mark.parametrize(
    "kind",
    [
        *("file_search", "web_search_preview", "web_search_preview_2025_03_11", "computer"),
        *("computer_use", "computer_use_preview", "code_interpreter", "image_generation"),
        *("mcp", "programmatic_tool_calling"),
    ],
)
async def test_a_tool_of_a_server_cannot_be_chosen(client: httpx2.AsyncClient, kind: str) -> None:
    choice = {"type": kind, **({"server_label": "s"} if kind == "mcp" else {})}
    error = await refused(client, "x", tools=[FUNCTION], tool_choice=choice)
    assert error["param"] == "tool_choice"


@requirement("control.choice-is-checked")
async def test_a_choice_needs_its_tool(client: httpx2.AsyncClient) -> None:
    error = await refused(client, "x", tool_choice="required")
    message = "Tool choice 'required' must be specified with 'tools' parameter."
    expected = (message, "tool_choice", "invalid_value")
    assert (error["message"], error["param"], error["code"]) == expected
    choice = {"type": "function", "name": "g"}
    error = await refused(client, "x", tools=[FUNCTION], tool_choice=choice)
    message = "Tool choice 'function' not found in 'tools' parameter."
    expected = (message, "tool_choice", "invalid_value")
    assert (error["message"], error["param"], error["code"]) == expected


@requirement("choice.allowed-tools-mode")
async def test_the_mode_is_echoed_though_it_was_left_out(client: httpx2.AsyncClient) -> None:
    allowed = [{"type": "function", "name": "f"}]
    choice = {"type": "allowed_tools", "tools": allowed}
    response = await created(client, "x", tools=[FUNCTION], tool_choice=choice)
    assert response["tool_choice"] == {**choice, "mode": "auto"}


@pytest.mark.slow
@requirement("choice.allowed-tools-length")
@pytest.mark.parametrize(("count", "code"), [(0, "empty_array"), (129, "array_above_max_length")])
async def test_a_list_of_allowed_tools_is_bounded(
    client: httpx2.AsyncClient, count: int, code: str
) -> None:
    choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}] * count}
    error = await refused(client, "x", tools=[FUNCTION], tool_choice=choice)
    assert (error["code"], error["param"]) == (code, "tool_choice.tools")


@requirement("choice.auto")
async def test_the_model_calls_what_it_likes(client: httpx2.AsyncClient) -> None:
    for text, last in (("[[sim call=f]]", "function_call"), ("[[sim call=none]] x", "message")):
        response = await created(client, text, tools=[FUNCTION])
        assert response["output"][-1]["type"] == last
        assert response["tool_choice"] == "auto"
