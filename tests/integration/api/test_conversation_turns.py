"""Responses that continue a conversation: what they read, and what is added to it when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import END, Vocabulary
from tests.fakes.stream import texts
from tests.integration.api.bodies import MODEL, WEATHER, create, refused
from tests.integration.api.following import created, ended, id_in, is_delta, listed, taken

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

Json = dict[str, Any]
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
VOCABULARY = Vocabulary.load()


async def begun(client: httpx2.AsyncClient, *texts: str) -> str:
    """The id of a conversation with messages of the user."""
    items = [{"role": "user", "content": text} for text in texts]
    answer = await client.post("/v1/conversations", json={"items": items})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def items_of(client: httpx2.AsyncClient, conversation: str) -> list[Json]:
    answer = await client.get(
        f"/v1/conversations/{conversation}/items", params={"order": "asc", "limit": 100}
    )
    listed: list[Json] = answer.json()["data"]
    return listed


async def added(client: httpx2.AsyncClient, conversation: str, *items: Json) -> httpx2.Response:
    return await client.post(f"/v1/conversations/{conversation}/items", json={"items": items})


async def running(client: httpx2.AsyncClient, conversation: str) -> str:
    """The id of a background response that says things without end."""
    begun = created(client, input=ENDLESS, conversation=conversation)
    return id_in(await taken(begun, is_delta))


@pytest.mark.requirement("create.conversation")
@pytest.mark.requirement("conversations.appended-once")
async def test_a_response_is_added_with_its_input(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client, "My name is Alice.")
    first = await create(client, input="What is my name?", conversation=conversation)
    assert first["conversation"] == {"id": conversation}
    assert "Alice" in texts(first)[-1]
    _, question, *output = await items_of(client, conversation)
    assert question["content"][0]["text"] == "What is my name?"
    assert output == first["output"]
    stored = (await client.get(f"/v1/responses/{first['id']}")).json()
    assert stored == first
    listed = await client.get(f"/v1/responses/{first['id']}/input_items", params={"order": "asc"})
    assert listed.json()["data"] == (await items_of(client, conversation))[:2]


@pytest.mark.requirement("response.conversation")
async def test_only_who_used_a_conversation_is_shown_one(client: httpx2.AsyncClient) -> None:
    assert "conversation" not in await create(client, input="Hello")
    conversation = await begun(client, "Hello")
    for fields in ({"conversation": {"id": conversation}}, {"conversation": conversation}):
        response = await create(client, input="Hi", store=False, **fields)
        assert response["conversation"] == {"id": conversation}


@pytest.mark.requirement("create.input.absent")
async def test_a_conversation_stands_for_the_input(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client, "My name is Bela. What is my name?")
    response = await create(client, conversation=conversation)
    assert "Bela" in texts(response)[-1]
    assert (await items_of(client, conversation))[1:] == response["output"]


@pytest.mark.slow
async def test_a_prompt_continues_the_one_before_on_every_replica(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation = await begun(client)
    said: list[int] = []
    for number, one in enumerate([client, second] * 3):
        text = f"[[sim think=none]] Turn {number}"
        response = await create(one, input=text, conversation=conversation)
        (seen,) = await backends.of_response(response["id"])
        assert seen["prompt_ids"][: len(said)] == said
        said = [*seen["prompt_ids"], *seen["sent_ids"][:-1]]  # its last one ends the turn
    assert len(await items_of(client, conversation)) == 2 * 6


@pytest.mark.slow
async def test_a_tool_loop_extends_the_prompt_id_for_id(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation = await begun(client)
    first = await create(
        client, input="Use get_weather for Oslo", tools=[WEATHER], conversation=conversation
    )
    call = first["output"][-1]
    error = await refused(client, 400, input="Go on", conversation=conversation)
    assert error["message"] == f"No tool output found for function call {call['call_id']}."
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    third = await create(second, input=[output], tools=[WEATHER], conversation=conversation)
    (one,), (two,) = [await backends.of_response(r["id"]) for r in (first, third)]
    said = one["prompt_ids"] + one["sent_ids"]
    assert two["prompt_ids"][: len(said)] == said
    assert "65F" in texts(third)[-1]


@pytest.mark.slow
async def test_a_conversation_has_the_prompt_of_a_chain(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation = await begun(client)
    previous: Json = {}
    for text in ("My name is Dora.", "Hello again", "What is my name?"):
        pair = [
            await create(client, input=text, **fields)
            for fields in ({"conversation": conversation}, previous)
        ]
        one, two = [(await backends.of_response(r["id"]))[0]["prompt_ids"] for r in pair]
        assert one == two
        previous = {"previous_response_id": pair[1]["id"]}


async def test_a_call_that_was_approved_elsewhere_is_shown_once(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    call = {"server_label": "s", "name": "n", "arguments": "{}"}
    items = [
        {"type": "mcp_approval_request", "id": "mcpr_1", **call},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", **call, "output": "4"},
        {"role": "user", "content": "Go on"},
    ]
    added = await client.post("/v1/conversations", json={"items": items})
    pair = [
        await create(client, **fields)
        for fields in ({"conversation": added.json()["id"]}, {"input": items})
    ]
    one, two = [(await backends.of_response(r["id"]))[0]["prompt_ids"] for r in pair]
    assert one == two


@pytest.mark.requirement("conversations.locked")
@pytest.mark.requirement("error.conversation-locked")
async def test_of_many_at_once_one_goes_on(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    conversation = await begun(client)
    body = {"model": MODEL, "input": ENDLESS, "conversation": conversation, "stream": True}
    refusals: list[str] = []
    all_but_one = asyncio.Event()

    async def attempt(one: httpx2.AsyncClient, *, background: bool) -> None:
        way = {**body, "background": background}
        async with one.stream("POST", "/v1/responses", json=way) as answer:
            if answer.status_code == 200:
                await all_but_one.wait()
                return
            await answer.aread()
        refusals.append(answer.json()["error"]["code"])
        if len(refusals) == 7:
            all_but_one.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for one in (client, second) * 2:
            for background in (False, True):
                group.create_task(attempt(one, background=background))
    assert refusals == ["conversation_locked"] * 7


@pytest.mark.slow
@pytest.mark.requirement("error.conversation-locked")
@pytest.mark.requirement("conversations.locked")
async def test_the_refusal_says_what_openai_says(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client, "Hello")
    held = await running(client, conversation)
    error = {
        "message": "Another process is currently operating on this conversation. Please retry"
        " in a few seconds.",
        "type": "invalid_request_error",
        "param": "conversation",
        "code": "conversation_locked",
    }
    for way in ({}, {"stream": True}, {"background": True}):
        assert await refused(client, 400, input="Hi", conversation=conversation, **way) == error
    path = f"/v1/conversations/{conversation}"
    (item,) = await items_of(client, conversation)
    for answer in (
        await added(client, conversation, {"role": "user", "content": "x"}),
        await client.delete(f"{path}/items/{item['id']}"),
        await client.delete(path),
    ):
        assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert (await client.post(path, json={"metadata": {"a": "b"}})).status_code == 200
    await client.post(f"/v1/responses/{held}/cancel")


@pytest.mark.slow
@pytest.mark.requirement("create.conversation.unstored")
async def test_what_is_not_stored_reads_and_adds_nothing(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client, "My name is Carla.")
    held = await running(client, conversation)
    response = await create(
        client, input="What is my name?", store=False, conversation=conversation
    )
    assert "Carla" in texts(response)[-1]
    await client.post(f"/v1/responses/{held}/cancel")
    assert len(await items_of(client, conversation)) == 1
    await create(client, input="Hi", conversation=conversation)


async def test_a_cancelled_response_adds_nothing_and_lets_others_go_on(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    conversation = await begun(client)
    held = await running(client, conversation)
    answer = await second.post(f"/v1/responses/{held}/cancel")
    assert answer.json()["status"] == "cancelled"
    assert await items_of(client, conversation) == []
    response = await create(client, input="Hi", conversation=conversation)
    assert (await items_of(client, conversation))[1:] == response["output"]


async def test_a_background_response_is_added_when_it_ends(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    conversation = await begun(client)
    queued = await create(client, input="Hi", conversation=conversation, background=True)
    assert queued["conversation"] == {"id": conversation}
    response = await ended(second, queued["id"])
    assert (await items_of(second, conversation))[1:] == response["output"]
    assert (await create(second, input="Hi", conversation=conversation))["status"] == "completed"


@pytest.mark.slow
@pytest.mark.requirement("conversations.appended-once")
async def test_a_failed_response_adds_nothing(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client, "Hello")
    body = {"model": MODEL, "input": "[[sim error_after=3]] go", "conversation": conversation}
    for way in ({"stream": True}, {}):
        await client.post("/v1/responses", json={**body, **way})
    queued = await create(client, **{**body, "background": True})
    assert (await ended(client, queued["id"]))["status"] == "failed"
    assert len(await items_of(client, conversation)) == 1


async def test_a_cut_answer_is_added(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client)
    response = await create(
        client,
        input="[[sim tokens=200 think=none]] go",
        max_output_tokens=60,
        conversation=conversation,
    )
    assert response["status"] == "incomplete"
    assert (await items_of(client, conversation))[1:] == response["output"]


async def test_a_client_that_hangs_up_leaves_nothing_behind(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client)
    begun_stream = created(client, input=ENDLESS, conversation=conversation, background=False)
    await taken(begun_stream, is_delta)
    async with asyncio.timeout(60):
        while True:
            body = {"model": MODEL, "input": "Hi", "conversation": conversation}
            answer = await client.post("/v1/responses", json=body)
            if answer.status_code == 200:
                break
            assert answer.json()["error"]["code"] == "conversation_locked"
    assert (await items_of(client, conversation))[1:] == answer.json()["output"]


@pytest.mark.slow
async def test_the_same_request_again_is_the_same_turn(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    conversation = await begun(client)
    headers = {"idempotency-key": f"turn-of-{conversation}"}
    body = {
        "model": MODEL,
        "input": "[[sim tokens_per_s=200 tokens=60 think=none]] go",
        "conversation": conversation,
    }
    tries = [one.post("/v1/responses", json=body, headers=headers) for one in (client, second) * 3]
    answers = [*await asyncio.gather(*tries)]
    answers.append(await client.post("/v1/responses", json=body, headers=headers))
    assert [answer.status_code for answer in answers] == [200] * 7
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 6
    assert (await items_of(client, conversation))[1:] == answers[0].json()["output"]


@pytest.mark.slow
async def test_a_stream_ends_when_all_is_added(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    conversation = await begun(client)
    for background in (False, True):
        await listed(created(client, input="Hi", conversation=conversation, background=background))
        await create(second, input="Hi", conversation=conversation)
    assert len(await items_of(client, conversation)) == 4 * 3


@pytest.mark.slow
async def test_a_chain_goes_on_from_a_turn(client: httpx2.AsyncClient) -> None:
    conversation = await begun(client, "My name is Edda.")
    turn = await create(client, input="Hello", conversation=conversation)
    await create(client, input="My name is Fritz.", conversation=conversation)
    branch = await create(client, input="What is my name?", previous_response_id=turn["id"])
    assert "Edda" in texts(branch)[-1]
    assert "conversation" not in branch
    listed = await client.get(f"/v1/responses/{branch['id']}/input_items", params={"order": "asc"})
    assert listed.json()["data"][:2] == (await items_of(client, conversation))[:2]
    assert len(await items_of(client, conversation)) == 7
    await client.delete(f"/v1/conversations/{conversation}")
    error = await refused(client, 400, input="x", previous_response_id=turn["id"])
    assert error["code"] == "previous_response_not_found"
    assert conversation in error["message"]
    assert (await client.get(f"/v1/responses/{turn['id']}")).json() == turn


@pytest.mark.slow
async def test_what_lost_its_other_half_is_not_shown(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation = await begun(client)
    first = await create(
        client, input="Use get_weather for Oslo", tools=[WEATHER], conversation=conversation
    )
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    await create(client, input=[output], conversation=conversation)
    await create(client, input="Thanks", conversation=conversation)
    kept = await items_of(client, conversation)
    (place,) = [item["id"] for item in kept if item["type"] == "function_call_output"]
    await client.delete(f"/v1/conversations/{conversation}/items/{place}")
    last = await create(client, input="Go on", conversation=conversation)
    (seen,) = await backends.of_response(last["id"])
    assert "functions.get_weather" not in VOCABULARY.decode(seen["prompt_ids"])
    assert call in await items_of(client, conversation)
    lost = {**output, "call_id": "call_lost"}
    assert (await added(client, conversation, lost)).status_code == 200
    assert (await create(client, input="Go on", conversation=conversation))["output"]


async def test_an_item_of_a_conversation_can_be_referred_to(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    conversation = await begun(client, "My name is Gerda.")
    (item,) = await items_of(client, conversation)
    asked = [{"id": item["id"]}, {"role": "user", "content": "What is my name?"}]
    assert "Gerda" in texts(await create(client, input=asked))[-1]
    await refused(stranger, 404, input=asked)


@pytest.mark.requirement("error.not-found")
async def test_an_unknown_conversation_is_not_found(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    theirs = await begun(stranger)
    for conversation in (theirs, "conv_nonsense", "conv_" + "0" * 32):
        for fields in ({}, {"store": False}, {"background": True}):
            error = await refused(client, 404, input="x", conversation=conversation, **fields)
            assert error["message"].startswith(f"Conversation with id '{conversation}' not found.")
            assert "POST /v1/conversations" in error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, {"background": True}])
async def test_sealed_reasoning_comes_back_as_it_was_said(
    client: httpx2.AsyncClient, backends: Backends, way: Json
) -> None:
    sealed = {"include": ["reasoning.encrypted_content"], "tools": [WEATHER]}
    question = {"role": "user", "content": "Use get_weather for Oslo"}
    said = await create(client, input=[question], store=False, **sealed)
    thought, call = said["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    conversation = await begun(client, question["content"])
    answer = await added(client, conversation, {**thought, "content": None}, call, output)
    assert answer.status_code == 200, answer.text
    turn = await create(client, tools=[WEATHER], conversation=conversation, **way)
    await ended(client, turn["id"])
    (one,), (two,) = [await backends.of_response(r["id"]) for r in (said, turn)]
    beginning = one["sent_ids"][: one["sent_ids"].index(END)]
    start = len(one["prompt_ids"])
    assert two["prompt_ids"][start : start + len(beginning)] == beginning


@pytest.mark.slow
async def test_a_turn_is_counted_also_while_another_is_under_way(
    client: httpx2.AsyncClient,
) -> None:
    conversation = await begun(client, "Hello")
    body = {"model": MODEL, "input": "Hi", "conversation": conversation}
    count = await client.post("/v1/responses/input_tokens", json=body)
    held = await running(client, conversation)
    again = await client.post("/v1/responses/input_tokens", json=body)
    assert again.json() == count.json()
    await client.post(f"/v1/responses/{held}/cancel")
    response = await create(client, input="Hi", conversation=conversation)
    assert response["usage"]["input_tokens"] == count.json()["input_tokens"]


async def test_a_conversation_goes_on_from_its_compaction(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation = await begun(client, "My name is Hedda.")
    first = await create(client, input="Say something.", conversation=conversation)
    trigger = [{"type": "compaction_trigger"}]
    short = await create(client, input=trigger, conversation=conversation)
    assert [item["type"] for item in short["output"]] == ["compaction"]
    kept = await items_of(client, conversation)
    assert [item["type"] for item in kept][-2:] == ["message", "compaction"]
    last = await create(client, input="Go on", conversation=conversation)
    (seen, *_) = await backends.of_response(last["id"])
    prompt = VOCABULARY.decode(seen["prompt_ids"])
    assert "Hedda" in prompt
    assert texts(first)[-1] not in prompt.split("[Summary")[0]
