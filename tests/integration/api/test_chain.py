"""State: what a response continues, exactly as it was said, and what it does not inherit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.models.harmony.tokenizer import Vocabulary
from tests.fakes.stream import texts
from tests.integration.api.bodies import ADD, MODEL, WEATHER, create, refused

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

VOCABULARY = Vocabulary.load()


async def prompt_of(backends: Backends, response: dict[str, Any]) -> list[int]:
    """The ids that the backend was asked to continue for a response."""
    (seen, *_) = await backends.of_response(response["id"])
    prompt: list[int] = seen["prompt_ids"]
    return prompt


@pytest.mark.requirement("context.order")
async def test_a_response_continues_another(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="My name is Alice.")
    second = await create(client, input="What is my name?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert "Alice" in texts(second)[-1]


@pytest.mark.requirement("harmony.reasoning-is-kept")
@pytest.mark.requirement("harmony.calls-stay")
async def test_a_tool_loop_extends_the_prompt_id_for_id(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    first = await create(client, input="Use get_weather for Oslo", tools=[WEATHER])
    call = first["output"][-1]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert set(orjson.loads(call["arguments"])) == {"location"}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    second = await create(client, input=[output], previous_response_id=first["id"], tools=[WEATHER])
    (one,), (two,) = [await backends.of_response(r["id"]) for r in (first, second)]
    said = one["prompt_ids"] + one["sent_ids"]
    assert two["prompt_ids"][: len(said)] == said
    assert "65F" in texts(second)[-1]
    third = await create(client, input="what did the tool say?", previous_response_id=second["id"])
    assert "65F" in texts(third)[-1]


@pytest.mark.requirement("context.order")
async def test_stateless_and_stateful_turns_have_the_same_prompt(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation: list[dict[str, Any]] = []
    previous: dict[str, Any] = {}
    for text in ("My name is Dora.", "Hello again", "What is my name?"):
        conversation.append({"role": "user", "content": text})
        stateful = await create(client, input=conversation[-1:], **previous)
        stateless = await create(client, input=conversation, store=False)
        assert await prompt_of(backends, stateful) == await prompt_of(backends, stateless)
        previous = {"previous_response_id": stateful["id"]}
        conversation += stateless["output"]


async def test_a_stateless_tool_loop_says_the_same_in_other_ids(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    """A model may order a call's header in two ways; only the stored turn knows which it was."""
    question = {"role": "user", "content": "Use get_weather for Oslo"}
    first = await create(client, input=[question], tools=[WEATHER])
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    stateful = await create(
        client, input=[output], previous_response_id=first["id"], tools=[WEATHER]
    )
    replayed = [question, *first["output"], output]
    stateless = await create(client, input=replayed, tools=[WEATHER], store=False)
    one, two = [await prompt_of(backends, response) for response in (stateful, stateless)]
    assert sorted(VOCABULARY.decode(one)) == sorted(VOCABULARY.decode(two))
    assert texts(stateful) == texts(stateless)


@pytest.mark.requirement("context.settings-are-not-inherited")
@pytest.mark.requirement("create.instructions.not-inherited")
@pytest.mark.requirement("create.reasoning-effort")
@pytest.mark.requirement("response.reasoning")
async def test_instructions_tools_and_effort_are_not_inherited(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    first = await create(
        client,
        input="Hello",
        instructions="Speak like a pirate.",
        tools=[WEATHER],
        tool_choice="none",
        reasoning={"effort": "high"},
    )
    second = await create(
        client,
        input="Again",
        previous_response_id=first["id"],
        instructions="Answer in French.",
        reasoning={"effort": "minimal"},
    )
    prompt = VOCABULARY.decode(await prompt_of(backends, second))
    assert "Answer in French." in prompt
    assert "pirate" not in prompt
    assert "get_weather" not in prompt
    assert "Reasoning: low" in prompt
    assert second["reasoning"]["effort"] == "low"


@pytest.mark.requirement("items.role-precedence")
@pytest.mark.requirement("create.instructions")
async def test_system_and_developer_messages_keep_their_order(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    messages = [("system", "BBB"), ("user", "q"), ("developer", "CCC"), ("user", "q2")]
    items = [{"role": role, "content": text} for role, text in messages]
    response = await create(client, input=items, instructions="AAA", store=False)
    (seen,) = await backends.of_response(response["id"])
    prompt = VOCABULARY.decode(seen["prompt_ids"])
    places = [prompt.index(text) for text in ("AAA", "BBB", "CCC")]
    assert places == sorted(places)
    assert all(prompt.count(text) == 1 for text in ("AAA", "BBB", "CCC"))


async def test_parallel_calls_are_rendered_with_their_outputs_in_call_order(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    items = [
        {"role": "user", "content": "both"},
        *[
            {"type": "function_call", "call_id": c, "name": n, "arguments": "{}"}
            for c, n in (("c1", "get_weather"), ("c2", "add"))
        ],
        *[
            {"type": "function_call_output", "call_id": c, "output": f"out-{c}"}
            for c in ("c2", "c1")
        ],
    ]
    response = await create(client, input=items, tools=[WEATHER, ADD], store=False)
    prompt = VOCABULARY.decode(await prompt_of(backends, response))
    places = [
        prompt.index(part)
        for part in ("to=functions.get_weather", "out-c1", "to=functions.add", "out-c2")
    ]
    assert places == sorted(places)


@pytest.mark.requirement("kinds.item-reference")
async def test_a_stored_item_can_be_referred_to(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    first = await create(client, input="My name is Bob.")
    items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    reference = [{"type": "item_reference", "id": items[0]["id"]}]
    question = {"role": "user", "content": "What is my name?"}
    response = await create(client, input=[*reference, question])
    assert "Bob" in texts(response)[-1]
    error = await refused(stranger, 404, input=[*reference, question])
    assert "not found" in error["message"]
    assert error["param"] == "input"


@pytest.mark.requirement("input-items.whole-context")
@pytest.mark.requirement("input-items.after")
@pytest.mark.requirement("input-items.order")
async def test_input_items_list_the_whole_context_page_by_page(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="one")
    second = await create(
        client,
        input=[{"role": "user", "content": "two"}, {"role": "user", "content": "three"}],
        previous_response_id=first["id"],
    )
    path = f"/v1/responses/{second['id']}/input_items"
    whole = (await client.get(path, params={"order": "asc", "limit": 100})).json()
    kinds = [item["type"] for item in whole["data"]]
    assert kinds == ["message", "reasoning", "message", "message", "message"]
    assert whole["has_more"] is False
    backwards = (await client.get(path)).json()["data"]
    assert backwards == whole["data"][::-1]
    walked: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = (await client.get(path, params={"order": "asc", "limit": 2, **after})).json()
        walked += page["data"]
        after = {"after": page["last_id"]}
        if not page["has_more"]:
            break
    assert walked == whole["data"]
    for params, listed in (({"order": "asc"}, walked), ({"order": "desc"}, backwards)):
        *earlier, last = listed
        has_more, before = True, last["id"]
        while has_more:
            query = {**params, "limit": 3, "before": before}
            page = (await client.get(path, params=query)).json()
            assert page["data"] == earlier[-3:]
            has_more, before = page["has_more"], page["first_id"]
            earlier = earlier[:-3]
        assert not earlier


@pytest.mark.requirement("delete.body")
@pytest.mark.requirement("delete.afterwards")
@pytest.mark.requirement("context.parent-not-found")
async def test_a_deleted_response_is_gone(client: httpx2.AsyncClient) -> None:
    response = await create(client, input="secret")
    path = f"/v1/responses/{response['id']}"
    answer = await client.delete(path)
    assert answer.json() == {"id": response["id"], "object": "response", "deleted": True}
    for method, target in (("GET", path), ("DELETE", path), ("GET", path + "/input_items")):
        assert (await client.request(method, target)).status_code == 404
    error = await refused(client, 400, input="x", previous_response_id=response["id"])
    assert error["code"] == "previous_response_not_found"


@pytest.mark.slow
@pytest.mark.requirement("context.branches")
async def test_a_response_may_be_continued_many_times_at_once(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="My name is Carol.")
    branches = await asyncio.gather(
        *[
            create(client, input=f"What is my name? {i}", previous_response_id=first["id"])
            for i in range(8)
        ]
    )
    assert len({branch["id"] for branch in branches}) == 8
    assert all("Carol" in texts(branch)[-1] for branch in branches)


@pytest.mark.requirement("context.ended-otherwise")
async def test_a_cut_response_can_be_continued(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="[[sim tokens=200]] go", max_output_tokens=60)
    second = await create(client, input="Go on", previous_response_id=first["id"])
    assert second["status"] == "completed"


async def test_a_call_that_was_cut_off_need_not_be_answered(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="corpus:T15 [[sim think=none]]", tools=[WEATHER])
    second = await create(client, input="Go on", previous_response_id=first["id"])
    assert second["status"] == "completed"


@pytest.mark.requirement("context.output-without-call")
@pytest.mark.requirement("context.call-without-output")
@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            [{"type": "function_call_output", "call_id": "c1", "output": "x"}],
            "No tool call found for function call output with call_id c1.",
        ),
        (
            [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}],
            "No tool output found for function call c1.",
        ),
    ],
)
async def test_unpaired_calls_are_refused(
    client: httpx2.AsyncClient, items: list[dict[str, Any]], message: str
) -> None:
    error = await refused(client, 400, input=items)
    assert (error["message"], error["param"], error["code"]) == (message, "input", None)


@pytest.mark.slow
@pytest.mark.requirement("background.continued-when-over")
@pytest.mark.requirement("retrieve.not-found")
async def test_a_running_response_cannot_be_continued_or_read(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    body = {"model": MODEL, "input": "[[sim stall_after=3]] go", "stream": True}
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        lines = answer.aiter_lines()
        while not (line := await anext(lines)).startswith("data: "):
            pass
        running = orjson.loads(line.removeprefix("data: "))["response"]["id"]
        assert (await client.get(f"/v1/responses/{running}")).status_code == 404
        error = await refused(client, 400, input="x", previous_response_id=running)
        assert "still in progress" in error["message"]
    await backends.until(
        lambda rows: all(
            row["outcome"] == "disconnected"
            for row in rows
            if str(row["request_id"]).startswith(running.removeprefix("resp_"))
        )
    )
