"""Tools that items of a context bring: those that a search at the client found, and added ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from openai.types.responses import ResponseToolSearchCall

from gateway.models.harmony.tokenizer import Vocabulary

if TYPE_CHECKING:
    from tests.integration.api.tools.asking import Asker, Json

VOCABULARY = Vocabulary.load()
SEARCH: Json = {"type": "tool_search", "execution": "client"}
QUESTION: Json = {"role": "user", "content": "open the page [[sim call=none]]"}
OPEN_TAB: Json = {
    "type": "function",
    "name": "open_tab",
    "description": "Opens.",
    "parameters": {"type": "object", "properties": {"url": {"type": "string"}}},
    "defer_loading": True,
}
BROWSER: Json = {
    "type": "namespace",
    "name": "mcp__browser",
    "description": "A browser.",
    "tools": [OPEN_TAB],
}
CLOCK: Json = {"type": "function", "name": "now", "parameters": {"type": "object"}}
OPEN_TAB_CALL = "Use open_tab. [[sim call=open_tab]]"
DECLARED = "type open_tab = "
SHOWN = (
    'assistant to=functions.tool_searchcommentary json{"query":"browser"}functions.tool_search'
    ' to=assistantcommentary{"tools":[{"name":"open_tab","description":"Opens."}]}'
)
"""Without the markers."""


def search(call_id: str = "t1") -> Json:
    return {"type": "tool_search_call", "call_id": call_id, "arguments": {"query": "browser"}}


def found(*tools: Json, call_id: str = "t1") -> Json:
    return {"type": "tool_search_output", "call_id": call_id, "tools": list(tools)}


def message(text: str) -> Json:
    return {"role": "user", "content": text}


async def prompt_of(fleet: Asker, response: Json) -> str:
    seen = await fleet.backends.of_response(response["id"])
    return VOCABULARY.decode(seen[0]["prompt_ids"])


@pytest.mark.requirement("kinds.additions-of-2026")
async def test_a_search_is_shown_as_call_and_result_and_what_it_found_is_offered(
    fleet: Asker,
) -> None:
    told = await fleet.body(input=[QUESTION, search(), found(OPEN_TAB)], tools=[SEARCH])
    prompt = await prompt_of(fleet, told)
    assert DECLARED in prompt
    assert SHOWN in prompt
    assert [tool["type"] for tool in told["tools"]] == ["tool_search"]
    assert "offered_tools" not in told


@pytest.mark.requirement("kinds.programmatic-tools")
async def test_the_model_searches_by_an_item_of_its_own(fleet: Asker) -> None:
    tool = {**SEARCH, "description": "Finds tools.", "parameters": {"type": "object"}}
    asked = 'Go. [[sim call=tool_search arguments={"goal":"open"}]]'
    told = await fleet.ask(asked, tools=[tool])
    (call,) = [item for item in told.response["output"] if item["type"] == "tool_search_call"]
    read = ResponseToolSearchCall.model_validate_json(json.dumps(call), strict=True)
    assert (read.execution, read.arguments, read.status) == (
        "client",
        {"goal": "open"},
        "completed",
    )
    assert call["call_id"].startswith("call_")
    assert call["id"].startswith("tsc_")


async def test_a_tool_that_was_loaded_stays_loaded_along_a_chain(fleet: Asker) -> None:
    asked = 'Go. [[sim call=tool_search arguments={"query":"tab"}]]'
    first = await fleet.body(input=asked, tools=[SEARCH])
    (call,) = [item for item in first["output"] if item["type"] == "tool_search_call"]
    second = await fleet.body(
        input=[found(BROWSER, call_id=call["call_id"])],
        tools=[SEARCH],
        previous_response_id=first["id"],
    )
    third = await fleet.body(
        input="Use mcp__browser.open_tab. [[sim call=mcp__browser.open_tab]]",
        tools=[SEARCH],
        previous_response_id=second["id"],
    )
    prompt = await prompt_of(fleet, third)
    assert "type mcp__browser.open_tab = " in prompt
    assert "Tools of `mcp__browser`: A browser." in prompt
    (opened,) = [item for item in third["output"] if item["type"] == "function_call"]
    assert (opened["namespace"], opened["name"]) == ("mcp__browser", "open_tab")


async def listed(fleet: Asker, path: str) -> list[Json]:
    answer = await fleet.client.get(f"/v1/{path}", params={"order": "asc", "limit": 100})
    items: list[Json] = answer.json()["data"]
    return items


@pytest.mark.slow
@pytest.mark.parametrize("names", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("drops", [(), ("id",), ("status", "execution")])
async def test_searches_and_what_they_loaded_may_be_sent_back(
    fleet: Asker, names: str, drops: tuple[str, ...]
) -> None:
    made = await fleet.client.post("/v1/conversations", json={})
    conversation = made.json()["id"] if names == "conversation" else None

    def after(previous: Json) -> Json:
        return {names: conversation or previous["id"], "tools": [SEARCH]}

    def copies(items: list[Json]) -> list[Json]:
        return [
            {key: value for key, value in item.items() if key not in drops}
            if item["type"].startswith("tool_search")
            else item
            for item in items
        ]

    asked = message('Go. [[sim call=tool_search arguments={"query":"tab"}]]')
    first = await fleet.body(
        input=[{**ADDED, "tools": [CLOCK]}, asked],
        tools=[SEARCH],
        **({"conversation": conversation} if conversation else {}),
    )
    (call,) = [item for item in first["output"] if item["type"] == "tool_search_call"]
    said = [*first["output"], found(BROWSER, call_id=call["call_id"])]
    second = await fleet.body(input=copies(said), **after(first))
    alone = await fleet.body(input=[message("again")], store=False, **after(second))
    sent = [*copies([*said, *second["output"]]), message("again")]
    third = await fleet.body(input=sent, **after(second))
    prompt = await prompt_of(fleet, third)
    assert prompt == await prompt_of(fleet, alone)
    assert [prompt.count(f"type {name} = ") for name in ("now", "mcp__browser.open_tab")] == [1, 1]
    inputs = await listed(fleet, f"responses/{third['id']}/input_items")
    alone = await fleet.body(input=[message("more")], store=False, **after(third))
    fourth = await fleet.body(
        input=[*copies([*inputs, *third["output"]]), message("more")], **after(third)
    )
    assert await prompt_of(fleet, fourth) == await prompt_of(fleet, alone)
    kept = await listed(fleet, f"responses/{fourth['id']}/input_items")
    assert kept[:-1] == [*inputs, *third["output"]]


async def test_a_tool_that_was_loaded_in_a_conversation_can_be_chosen(fleet: Asker) -> None:
    items = [QUESTION, search(), found(OPEN_TAB)]
    made = await fleet.client.post("/v1/conversations", json={"items": items})
    told = await fleet.body(
        input="Go on.",
        conversation=made.json()["id"],
        tools=[SEARCH],
        tool_choice={"type": "function", "name": "open_tab"},
    )
    assert DECLARED in await prompt_of(fleet, told)
    assert [item["name"] for item in told["output"] if item["type"] == "function_call"] == [
        "open_tab"
    ]


async def test_a_choice_of_what_was_never_loaded_is_refused_in_a_chain_too(fleet: Asker) -> None:
    first = await fleet.body(input="Hi")
    answer = await fleet.client.post(
        "/v1/responses",
        json={
            "model": "gpt-oss-20b",
            "input": "Go on.",
            "previous_response_id": first["id"],
            "tools": [SEARCH, OPEN_TAB],
            "tool_choice": {"type": "function", "name": "open_tab"},
        },
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tool_choice"


async def test_a_deferred_tool_is_told_by_name_until_a_search_loads_it(fleet: Asker) -> None:
    tools = [SEARCH, OPEN_TAB, CLOCK]
    before = await prompt_of(fleet, await fleet.body(input=[QUESTION], tools=tools))
    assert DECLARED not in before
    assert "Tools that it can load:\n// - `open_tab`: Opens." in before
    assert "type now = " in before
    told = await fleet.body(input=[QUESTION, search(), found(OPEN_TAB)], tools=tools)
    after = await prompt_of(fleet, told)
    assert after.count(DECLARED) == 1
    assert "Tools that it can load" not in after
    assert told["tools"][1]["defer_loading"] is True


async def test_without_a_search_at_the_client_nothing_is_held_back(fleet: Asker) -> None:
    told = await fleet.body(input=[QUESTION], tools=[{"type": "tool_search"}, OPEN_TAB])
    assert DECLARED in await prompt_of(fleet, told)


async def test_a_search_of_a_server_is_shown_and_loads_too(fleet: Asker) -> None:
    items = [
        QUESTION,
        {**search(), "call_id": None, "execution": "server"},
        {**found(OPEN_TAB), "call_id": None, "execution": "server"},
    ]
    told = await fleet.body(input=items)
    prompt = await prompt_of(fleet, told)
    assert DECLARED in prompt
    assert SHOWN in prompt
    again = await fleet.body(input="Go on.", previous_response_id=told["id"])
    assert DECLARED in await prompt_of(fleet, again)


async def test_a_search_of_a_server_without_its_output_is_left_out(fleet: Asker) -> None:
    told = await fleet.body(input=[{**search(), "call_id": None}, QUESTION])
    assert "tool_search" not in await prompt_of(fleet, told)


async def test_a_search_that_nobody_answered_is_refused(fleet: Asker) -> None:
    body = {"model": "gpt-oss-20b", "input": [QUESTION, search()], "tools": [SEARCH]}
    answer = await fleet.client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "No tool output found for tool search call t1."


ADDED: Json = {"type": "additional_tools", "role": "developer", "tools": [OPEN_TAB, SEARCH]}


@pytest.mark.requirement("kinds.additions-of-2026")
@pytest.mark.parametrize("instructed", [False, True])
async def test_added_tools_are_offered_from_there_on(fleet: Asker, *, instructed: bool) -> None:
    added = {**ADDED, "tools": [{**OPEN_TAB, "defer_loading": False}, {"type": "web_search"}]}
    leading: list[Json] = [{"role": "developer", "content": "Be brief."}] if instructed else []
    body = {"model": "gpt-oss-20b", "input": [added, *leading, QUESTION]}
    answer = await fleet.client.post("/v1/responses", json=body)
    assert answer.headers["x-gateway-dropped-tools"] == "web_search"
    first = await prompt_of(fleet, answer.json())
    assert first.count("developer") == 1
    assert ("Be brief." in first) is instructed
    told = await fleet.body(
        input=OPEN_TAB_CALL, previous_response_id=answer.json()["id"], parallel_tool_calls=False
    )
    assert DECLARED in await prompt_of(fleet, told)
    assert [item["name"] for item in told["output"] if item["type"] == "function_call"] == [
        "open_tab"
    ]
    listed = await fleet.client.get(f"/v1/responses/{answer.json()['id']}/input_items?order=asc")
    kept = listed.json()["data"][0]
    assert kept["id"].startswith("at_")
    assert {name: kept[name] for name in added} == added


async def test_added_tools_may_be_deferred_and_searched_for(fleet: Asker) -> None:
    told = await fleet.body(input=[ADDED, QUESTION])
    prompt = await prompt_of(fleet, told)
    assert "type tool_search = " in prompt
    assert DECLARED not in prompt


async def test_added_tools_outlive_a_compaction(fleet: Asker) -> None:
    added = {**ADDED, "tools": [CLOCK]}
    body = {
        "model": "gpt-oss-20b",
        "input": [added, QUESTION, {"role": "assistant", "content": "x"}],
    }
    compacted = await fleet.client.post("/v1/responses/compact", json=body)
    output = compacted.json()["output"]
    assert [item["type"] for item in output] == ["additional_tools", "message", "compaction"]
    told = await fleet.body(input=[*output, message("Go on.")])
    assert "type now = " in await prompt_of(fleet, told)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (found({"type": "function"}), "input[0].tools[0].name"),
        (found({"type": "function", "name": "a b"}), "input[0].tools[0].name"),
        (found({**BROWSER, "tools": [{"type": "mcp"}]}), "input[0].tools[0].tools[0].type"),
        ({**ADDED, "tools": [{"type": "functoin"}]}, "input[0].tools[0].type"),
        ({**ADDED, "tools": None}, "input[0].tools"),
        ({**ADDED, "role": "user"}, "input[0].role"),
    ],
)
async def test_what_cannot_be_told_to_the_model_is_refused_with_its_place(
    fleet: Asker, item: Json, param: str
) -> None:
    body = {"model": "gpt-oss-20b", "input": [item, QUESTION]}
    answer = await fleet.client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
