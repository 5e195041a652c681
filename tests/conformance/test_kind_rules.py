"""Items of every kind: what the model says, and which ones are refused or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.asking import FUNCTION, created, listed, post, refused, user
from tests.fakes.hosted_items import HOSTED
from tests.fakes.stream import texts

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Document, Json

requirement = pytest.mark.requirement

QUESTION = user("What is my name?")


@requirement("parts.output-text")
@requirement("parts.reasoning-text")
@requirement("kinds.message")
@requirement("kinds.reasoning")
@requirement("open-responses.output-phase-schema")
@requirement("harmony.return")
async def test_an_answer_has_its_parts(client: httpx2.AsyncClient, checker: Document) -> None:
    response = await created(client, "[[sim think=2 say=ok]]")
    checker.completed(response)
    reasoning, message = response["output"]
    assert {name: reasoning[name] for name in ("summary", "status")} == {
        "summary": [],
        "status": "completed",
    }
    assert [part["type"] for part in reasoning["content"]] == ["reasoning_text"]
    assert (message["status"], message["phase"]) == ("completed", "final_answer")
    nothing: Json = {"annotations": [], "logprobs": []}
    assert message["content"] == [{"type": "output_text", "text": "ok", **nothing}]


@requirement("kinds.reasoning")
@requirement("harmony.analysis")
async def test_there_is_no_reasoning_without_content(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim think=none say=ok]]")
    assert [item["type"] for item in response["output"]] == ["message"]


@requirement("parts.summary-text")
async def test_a_summary_is_a_part_of_its_reasoning(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim think=20 say=ok]]", reasoning={"summary": "auto"})
    (part,) = response["output"][0]["summary"]
    assert (set(part), part["type"]) == ({"type", "text"}, "summary_text")


@requirement("parts.logprobs-are-whole")
async def test_every_logprob_is_whole(client: httpx2.AsyncClient) -> None:
    response = await created(client, "x", include=["message.output_text.logprobs"])
    (part,) = response["output"][-1]["content"]
    assert part["logprobs"]
    assert {frozenset(entry) for entry in part["logprobs"]} == {
        frozenset({"token", "logprob", "bytes", "top_logprobs"})
    }


@requirement("kinds.function-call")
async def test_arguments_are_a_string(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim call=f arguments={}]]", tools=[FUNCTION])
    call = response["output"][-1]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", "{}")
    assert call["call_id"] != call["id"]


SAID = {"type": "message", "role": "assistant", "content": "Done."}


@requirement("kinds.hosted-calls")
@requirement("kinds.computer")
@requirement("kinds.additions-of-2026")
@pytest.mark.parametrize(("item", "author", "shown"), HOSTED)
async def test_items_of_tools_that_openai_runs_are_kept_as_they_came(
    client: httpx2.AsyncClient, item: Json, author: str, shown: tuple[str | None, str | None]
) -> None:
    # An answer has the question of an MCP server before it.
    question = [raw for raw, _, _ in HOSTED if raw["type"] == "mcp_approval_request"]
    before = question if item["type"] == "mcp_approval_response" else []
    response = await created(client, [*before, item, QUESTION])
    assert item in await listed(client, response)
    # It is part of a history only where the model went on.
    behind = [SAID] if item["type"] == "mcp_approval_response" else []
    told = await client.post("/v1/conversations", json={"items": [item, *behind]})
    kept = await client.get(f"/v1/conversations/{told.json()['id']}/items?order=asc")
    assert kept.json()["data"][:1] == [item]
    prompts = []
    for asked in ([*before, item, QUESTION], [QUESTION]):
        counted = await client.post(
            "/v1/responses/input_tokens", json={"model": "gpt-oss-20b", "input": asked}
        )
        prompts.append(counted.json()["input_tokens"])
    assert (prompts[0] > prompts[1]) is any(shown), author


@requirement("kinds.additions-of-2026")
@pytest.mark.parametrize("kind", ["configuration_update"])
async def test_items_that_would_change_what_is_asked_are_refused_by_their_type(
    client: httpx2.AsyncClient, kind: str
) -> None:
    error = await refused(client, [{"type": kind, "id": "x_1"}, QUESTION])
    assert (error["code"], error["param"]) == ("unsupported_parameter", "input[0].type")
    assert kind in error["message"]


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param({"type": "computer"}, marks=requirement("kinds.computer")),
        pytest.param(
            {
                "type": "computer_use_preview",
                "display_height": 1,
                "display_width": 1,
                "environment": "linux",
            },
            marks=requirement("kinds.computer"),
        ),
        pytest.param(
            {"type": "tool_search", "execution": "server"},
            marks=[requirement("kinds.computer"), requirement("kinds.programmatic-tools")],
        ),
        pytest.param(
            {"type": "programmatic_tool_calling"}, marks=requirement("kinds.programmatic-tools")
        ),
        pytest.param({"type": "web_search"}, marks=requirement("control.hosted-tools")),
        pytest.param(
            {"type": "web_search_preview_2025_03_11"}, marks=requirement("control.hosted-tools")
        ),
        pytest.param(
            {"type": "file_search", "vector_store_ids": []},
            marks=requirement("control.hosted-tools"),
        ),
        pytest.param({"type": "image_generation"}, marks=requirement("control.hosted-tools")),
        pytest.param(
            {"type": "mcp", "server_label": "s"}, marks=requirement("control.hosted-tools")
        ),
        pytest.param(
            {"type": "code_interpreter", "container": {"type": "auto"}},
            marks=requirement("control.hosted-tools"),
        ),
    ],
)
async def test_tools_that_are_not_served_are_dropped_and_named(
    client: httpx2.AsyncClient, tool: Json
) -> None:
    answer = await post(client, tools=[tool, FUNCTION])
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-gateway-dropped-tools"] == tool["type"]
    assert [shown["type"] for shown in answer.json()["tools"]] == ["function"]


@requirement("kinds.item-reference")
async def test_a_reference_needs_no_type(client: httpx2.AsyncClient) -> None:
    first = await created(client, "My name is Ada.")
    asked = (await listed(client, first))[0]["id"]
    for reference in (
        {"type": "item_reference", "id": asked},
        {"type": None, "id": asked},
        {"id": asked},
    ):
        assert "Ada" in texts(await created(client, [reference, QUESTION]))[-1]


@requirement("harmony.call")
@requirement("harmony.end")
@requirement("harmony.analysis")
@requirement("harmony.calls")
@requirement("harmony.commentary")
async def test_channels_become_items(client: httpx2.AsyncClient) -> None:
    response = await created(client, "Give me a preamble and use f", tools=[FUNCTION])
    shown = [(item["type"], item.get("phase") or item.get("name")) for item in response["output"]]
    assert shown == [("reasoning", None), ("message", "commentary"), ("function_call", "f")]


@requirement("harmony.bad-arguments")
async def test_arguments_that_are_no_json_are_passed_on(client: httpx2.AsyncClient) -> None:
    response = await created(client, '[[sim call=f arguments={"a": ]]', tools=[FUNCTION])
    assert response["output"][-1]["arguments"].strip() == '{"a":'
