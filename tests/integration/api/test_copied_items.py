"""Items of the context that clients send back, as agents do that keep all items and an id, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.harmony_script import vocabulary
from tests.fakes.stream import texts
from tests.fakes.websocket import connected
from tests.integration.api.bodies import MODEL, WEATHER, create, refused

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

Json = dict[str, Any]
AGAIN = {"role": "user", "content": "again"}
ASK = "Use get_weather for Oslo"


async def begun(client: httpx2.AsyncClient, *items: Json) -> str:
    answer = await client.post("/v1/conversations", json={"items": items})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def kept(client: httpx2.AsyncClient, path: str) -> list[Json]:
    """A list of items, oldest first."""
    answer = await client.get(f"/v1/{path}", params={"order": "asc", "limit": 100})
    assert answer.status_code == 200, answer.text
    items: list[Json] = answer.json()["data"]
    return items


async def prompt_of(backends: Backends, response: Json) -> list[int]:
    seen = await backends.of_response(response["id"])
    prompt: list[int] = seen[0]["prompt_ids"]
    return prompt


def output_of(call: Json) -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}


@pytest.mark.slow
@pytest.mark.requirement("create.conversation")
async def test_an_answer_sent_back_is_once_in_its_conversation(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    prompts, lists = [], []
    for sends_back in (False, True):
        conversation = await begun(client)
        responses = [await create(client, input="hello", conversation=conversation)]
        for _ in range(2):
            said = [item for response in responses for item in response["output"]]
            new = [*said, AGAIN] if sends_back else [AGAIN]
            responses.append(await create(client, input=new, conversation=conversation))
        prompts.append([await prompt_of(backends, response) for response in responses])
        items = await kept(client, f"conversations/{conversation}/items")
        lists.append([item["type"] for item in items])
        inputs = await kept(client, f"responses/{responses[-1]['id']}/input_items")
        assert [item["id"] for item in inputs] == [item["id"] for item in items[: len(inputs)]]
    assert prompts[0] == prompts[1]
    assert lists[0] == lists[1]


@pytest.mark.slow
@pytest.mark.parametrize("names", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("drops", [(), ("id",), ("status", "namespace")])
async def test_a_tool_loop_may_send_all_of_it_back(
    client: httpx2.AsyncClient, backends: Backends, names: str, drops: tuple[str, ...]
) -> None:
    conversation = await begun(client) if names == "conversation" else None

    def after(previous: Json) -> Json:
        return {names: conversation or previous["id"], "tools": [WEATHER]}

    begins = {"conversation": conversation} if conversation else {}
    first = await create(client, input=ASK, tools=[WEATHER], **begins)
    thought, call = first["output"]
    copy = {name: value for name, value in call.items() if name not in drops}
    second = await create(client, input=[thought, copy, output_of(call)], **after(first))
    assert "65F" in texts(second)[-1]
    all_of_it = [copy, output_of(call), *second["output"], AGAIN]
    body = {"input": all_of_it, **after(second)}
    counted = await client.post("/v1/responses/input_tokens", json={"model": MODEL, **body})
    alone = await create(client, input=[AGAIN], store=False, **after(second))
    third = await create(client, **body)
    assert await prompt_of(backends, third) == await prompt_of(backends, alone)
    assert counted.json()["input_tokens"] == third["usage"]["input_tokens"]
    inputs = await kept(client, f"responses/{third['id']}/input_items")
    assert [item["type"] for item in inputs] == [
        *("message", "reasoning", "function_call", "function_call_output"),
        *(item["type"] for item in second["output"]),
        "message",
    ]
    alone = await create(client, input=[AGAIN], store=False, **after(third))
    again = await create(client, input=[*inputs, AGAIN], **after(third))
    assert await prompt_of(backends, again) == await prompt_of(backends, alone)


async def test_outputs_that_a_client_collects_count_once(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    """Agents of Semantic Kernel send the question and all outputs so far in every round."""
    question = {"role": "user", "content": f"{ASK} twice"}
    offered = {"tools": [WEATHER]}
    first = await create(client, input=[question], **offered)
    outputs = [output_of(first["output"][-1])]
    after = {"previous_response_id": first["id"], **offered}
    second = await create(client, input=[question, *outputs], **after)
    outputs.append(output_of(second["output"][-1]))
    after["previous_response_id"] = second["id"]
    alone = await create(client, input=[question, outputs[-1]], **after)
    collected = await create(client, input=[question, *outputs], **after)
    prompt = await prompt_of(backends, collected)
    assert prompt == await prompt_of(backends, alone)
    spelled = vocabulary().decode(prompt)
    assert spelled.rindex("65F") > spelled.rindex(ASK)
    inputs = await kept(client, f"responses/{collected['id']}/input_items")
    answered = [item["call_id"] for item in inputs if item["type"] == "function_call_output"]
    assert answered == [output["call_id"] for output in outputs]


async def test_an_edited_copy_is_refused_by_its_place_and_id(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="hello")
    answer = first["output"][-1]
    edited = {**answer, "content": [{"type": "output_text", "text": "never said"}]}
    error = await refused(client, 400, input=[AGAIN, edited], previous_response_id=first["id"])
    assert (error["code"], error["param"]) == ("invalid_value", "input[1]")
    assert error["message"].startswith(f"Duplicate item found with id '{answer['id']}'")
    new = {name: value for name, value in edited.items() if name != "id"}
    await create(client, input=[new, AGAIN], previous_response_id=first["id"])
    stateless = await create(client, input=[edited, AGAIN])
    assert stateless["status"] == "completed"


async def test_an_edited_call_and_a_second_output_are_refused(client: httpx2.AsyncClient) -> None:
    first = await create(client, input=ASK, tools=[WEATHER])
    call = first["output"][-1]
    output = output_of(call)
    second = await create(client, input=[output], tools=[WEATHER], previous_response_id=first["id"])
    after = {"previous_response_id": second["id"], "tools": [WEATHER]}
    nameless = {name: value for name, value in call.items() if name != "id"}
    for new, place in (
        ([{**call, "arguments": "{}"}], 0),
        ([{**nameless, "arguments": "{}"}], 0),
        ([call, {**output, "output": "70F"}], 1),
        ([{**output, "output": "70F"}], 0),
    ):
        error = await refused(client, 400, input=[*new, AGAIN], **after)
        assert error["param"] == f"input[{place}]"
        assert "Duplicate item found with" in error["message"]


async def test_an_item_of_another_conversation_is_a_new_one_here(
    client: httpx2.AsyncClient,
) -> None:
    first = await create(client, input="hello")
    conversation = await begun(client)
    body = {"input": [first["output"][-1], AGAIN], "conversation": conversation}
    await create(client, **body)
    items = await kept(client, f"conversations/{conversation}/items")
    assert items[0]["id"] == first["output"][-1]["id"]


async def test_items_added_by_hand_are_added_once(client: httpx2.AsyncClient) -> None:
    message = {"role": "user", "content": "hi", "type": "message"}
    conversation = await begun(client, message)
    path = f"conversations/{conversation}/items"
    (item,) = await kept(client, path)
    answer = await client.post(f"/v1/{path}", json={"items": [item, message, item]})
    (added,) = answer.json()["data"]
    assert [one["id"] for one in await kept(client, path)] == [item["id"], added["id"]]
    answer = await client.post(f"/v1/{path}", json={"items": [item]})
    assert answer.json()["data"] == []
    edited = {**item, "content": [{"type": "input_text", "text": "ho"}]}
    answer = await client.post(f"/v1/{path}", json={"items": [message, edited]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "items[1]")
    assert item["id"] in error["message"]
    twice = await begun(client, item, item)
    assert [one["id"] for one in await kept(client, f"conversations/{twice}/items")] == [item["id"]]
    answer = await client.post("/v1/conversations", json={"items": [item, edited]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items[1]")


async def test_an_output_added_by_hand_without_its_call_is_added_once(
    client: httpx2.AsyncClient,
) -> None:
    conversation = await begun(client)
    asked = {"conversation": conversation, "tools": [WEATHER]}
    first = await create(client, input=ASK, **asked)
    await create(client, input=[output_of(first["output"][-1])], **asked)
    path = f"conversations/{conversation}/items"
    before = await kept(client, path)
    output = next(item for item in before if item["type"] == "function_call_output")
    added = await client.post(f"/v1/{path}", json={"items": [output]})
    assert (added.status_code, added.json()["data"]) == (200, [])
    assert await kept(client, path) == before


@pytest.mark.slow
@pytest.mark.parametrize("store", [True, False])
async def test_a_connection_knows_what_is_sent_back(
    gateway: RunningGateway, backends: Backends, store: bool
) -> None:
    prompts = []
    for sends_back in (False, True):
        async with connected(gateway.url, gateway.key) as peer:
            first = await peer.response(ASK, tools=[WEATHER], store=store)
            known, new = list(first["output"]), [output_of(first["output"][-1])]
            previous = first
            for _ in range(2):
                sent = [*known, *new] if sends_back else new
                after = {"previous_response_id": previous["id"], "tools": [WEATHER]}
                previous = await peer.response(input=sent, store=store, **after)
                known += [*new, *previous["output"]] if new[0] != AGAIN else []
                prompts.append(await prompt_of(backends, previous))
                new = [AGAIN]
    assert prompts[:2] == prompts[2:]


async def test_a_connection_reads_what_it_lacks_of_a_stored_history(
    client: httpx2.AsyncClient, gateway: RunningGateway
) -> None:
    first = await create(client, input="hello")
    answer = first["output"][-1]
    async with connected(gateway.url, gateway.key) as peer:
        second = await peer.response("go on", previous_response_id=first["id"])
        after = {"previous_response_id": second["id"]}
        third = await peer.response(input=[answer, AGAIN], **after)
        alone = await peer.response(input=[AGAIN], **after)
        assert third["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
        edited = {**answer, "content": "never said"}
        refusal = await peer.refusal(input=[edited, AGAIN], **after)
        assert answer["id"] in refusal["error"]["message"]


async def test_a_compaction_takes_what_is_sent_back_once(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="hello")
    body = {"model": MODEL, "previous_response_id": first["id"]}
    asked = await kept(client, f"responses/{first['id']}/input_items")
    made = [
        (await client.post("/v1/responses/compact", json={**body, "input": new})).json()
        for new in ([AGAIN], [*asked, *first["output"], AGAIN])
    ]
    alone, again = (
        [item.get("content") for item in one["output"] if item["type"] == "message"] for one in made
    )
    assert alone == again


@pytest.mark.slow
async def test_what_openais_sdk_dumps_is_what_was_said(
    gateway: RunningGateway, backends: Backends
) -> None:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key) as sdk:
        first = await sdk.responses.create(model=MODEL, input="hello")
        after: Json = {"model": MODEL, "previous_response_id": first.id}
        again: list[Any] = [AGAIN]
        alone = await sdk.responses.create(input=again, **after)
        wanted = await prompt_of(backends, alone.to_dict())
        ways: list[Json] = [{}, {"exclude_unset": True}, {"exclude_none": True}, {"by_alias": True}]
        for way in ways:
            said: list[Any] = [item.model_dump(**way) for item in first.output]
            sent = await sdk.responses.create(input=[*said, *again], **after)
            assert await prompt_of(backends, sent.to_dict()) == wanted


@pytest.mark.parametrize("approve", [True, False])
async def test_an_answer_to_nothing_that_was_asked_is_refused(
    client: httpx2.AsyncClient, approve: bool
) -> None:
    said = {"type": "mcp_approval_response", "approval_request_id": "mcpr_none", "approve": approve}
    for new in ([AGAIN, said], [said, AGAIN], [said, {"role": "assistant", "content": "x"}]):
        error = await refused(client, 400, input=new)
        assert (error["code"], error["param"]) == ("approval_not_found", "input")
        assert "'mcpr_none'" in error["message"]


async def test_a_call_id_of_two_open_calls_is_named(client: httpx2.AsyncClient) -> None:
    calls = [
        {"type": "function_call", "call_id": "x", "name": name, "arguments": "{}"} for name in "ab"
    ]
    outputs = [
        {"type": "function_call_output", "call_id": "x", "output": said} for said in ("1", "2")
    ]
    error = await refused(client, 400, input=[AGAIN, *calls, *outputs])
    assert "The call_id x is used twice" in error["message"]
    assert error["param"] == "input"


async def test_an_id_that_clients_number_is_no_other_call_of_that_id(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    search = {"type": "web_search_call", "id": "ws_numbered", "status": "completed"}
    for query in ("the first", "the second"):
        action = {"type": "search", "query": query}
        response = await create(client, input=[{**search, "action": action}, AGAIN])
        assert query in vocabulary().decode(await prompt_of(backends, response))
