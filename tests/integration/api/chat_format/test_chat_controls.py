"""What a request demands of a model with a chat template."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_server import MODEL, OPENING, Refused, called, chatml
from tests.fakes.stream import stream, texts
from tests.integration.api.bodies import ADD, WEATHER, create

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.api.chat_format.conftest import Chatting, Template

OSLO = called("get_weather", '{"location": "Oslo"}')
THREE = called("add", '{"a": 1, "b": 2}')
STRICT = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
        "additionalProperties": False,
    },
}
ANSWER = {
    "type": "json_schema",
    "name": "answer",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
}


def calls(response: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (item["name"], item["arguments"])
        for item in response["output"]
        if item["type"] == "function_call"
    ]


async def test_a_thought_is_closed_where_its_budget_is_used_up(chatting: Chatting) -> None:
    chatting.server.script = lambda _: "<think>\nI could go on for ever and ever.\n</think>\n\nNo."
    chatting.server.goes_on = lambda begun: "Yes." if "</think>" in begun else ""
    made = await create(chatting.client, model=MODEL, input="Hi", reasoning={"max_tokens": 12})
    assert texts(made) == ["Yes."]
    assert made["usage"]["output_tokens_details"]["reasoning_tokens"] == 12
    assert chatting.server.prompt().endswith(f"{OPENING}<think>\nI could go o\n</think>\n\n")


async def test_calls_made_at_once_are_told_as_one_turn(chatting: Chatting) -> None:
    chatting.server.script = lambda _: f"Both.\n{OSLO}\n{THREE}"
    first = await create(chatting.client, model=MODEL, input="Hi", tools=[WEATHER, ADD])
    assert calls(first) == [("get_weather", '{"location": "Oslo"}'), ("add", '{"a": 1, "b": 2}')]
    ids = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": text}
        for call_id, text in zip(reversed(ids), ("3", "cold"), strict=True)
    ]
    chatting.server.script = lambda _: "Done."
    await create(
        chatting.client,
        model=MODEL,
        input=outputs,
        tools=[WEATHER, ADD],
        previous_response_id=first["id"],
    )
    turn = f"{OPENING}Both.\n{OSLO}\n{THREE}<|im_end|>\n"
    cold, three = (
        f"<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n"
        for text in ("cold", "3")
    )
    assert chatting.server.prompt().endswith(f"{turn}{cold}{three}{OPENING}")


def one_call_in_a_message(body: dict[str, Any]) -> str:
    """As the templates of Llama 3 do it."""
    if any(len(message.get("tool_calls", ())) > 1 for message in body["messages"]):
        raise Refused("This model only supports single tool-calls at once!")
    return chatml(body)


async def test_calls_made_at_once_are_told_one_by_one_to_a_template_that_takes_one(
    of_template: Callable[[Template], Chatting],
) -> None:
    chatting = of_template(one_call_in_a_message)
    server = chatting.server
    server.script = lambda _: f"{OSLO}\n{THREE}"
    first = await create(chatting.client, model=MODEL, input="Hi", tools=[WEATHER, ADD])
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": text}
        for item, text in zip(first["output"], ("cold", "3"), strict=True)
    ]
    server.script = lambda _: "Done."
    second = await create(
        chatting.client,
        model=MODEL,
        input=outputs,
        tools=[WEATHER, ADD],
        previous_response_id=first["id"],
    )
    assert texts(second) == ["Done."]
    turns = "".join(
        f"{OPENING}{call}<|im_end|>\n"
        f"<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n"
        for call, text in ((OSLO, "cold"), (THREE, "3"))
    )
    assert server.prompt().endswith(f"{turns}{OPENING}")


def answering_results(body: dict[str, Any]) -> str:
    """As the templates of Mistral do it."""
    roles = [message["role"] for message in body["messages"]]
    if ("tool", "user") in pairwise(roles):
        raise Refused("conversation roles must alternate")
    return chatml(body)


async def test_a_user_may_interrupt_a_model_whose_template_wants_answers(
    of_template: Callable[[Template], Chatting],
) -> None:
    chatting = of_template(answering_results)
    chatting.server.script = lambda _: OSLO
    first = await create(chatting.client, model=MODEL, input="Hi", tools=[WEATHER])
    call_id = first["output"][0]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "cold"}
    chatting.server.script = lambda _: "As you wish."
    second = await create(
        chatting.client,
        model=MODEL,
        input=[output, {"role": "user", "content": "Stop."}],
        tools=[WEATHER],
        previous_response_id=first["id"],
    )
    assert texts(second) == ["As you wish."]
    said_nothing = f"{OPENING}<|im_end|>\n<|im_start|>user\nStop.<|im_end|>\n{OPENING}"
    assert chatting.server.prompt().endswith(f"cold\n</tool_response><|im_end|>\n{said_nothing}")


async def test_a_second_call_is_taken_back_where_one_is_allowed(chatting: Chatting) -> None:
    chatting.server.script = lambda _: f"{OSLO}\n{THREE}"
    made = await create(
        chatting.client, model=MODEL, input="Hi", tools=[WEATHER, ADD], parallel_tool_calls=False
    )
    assert calls(made) == [("get_weather", '{"location": "Oslo"}')]


async def test_a_call_that_is_required_is_opened(chatting: Chatting) -> None:
    chatting.server.script = lambda _: "I would rather talk."
    chatting.server.goes_on = lambda _: ' {"location": "Oslo"}}\n</tool_call>'
    made = await create(
        chatting.client, model=MODEL, input="Hi", tools=[WEATHER], tool_choice="required"
    )
    assert calls(made) == [("get_weather", '{"location": "Oslo"}')]
    front = '<tool_call>\n{"name": "get_weather", "arguments":'
    assert chatting.server.prompt().endswith(front)


async def test_arguments_that_break_the_schema_are_said_again(chatting: Chatting) -> None:
    said = [called("get_weather", '{"location": 7}'), OSLO]
    server = chatting.server
    server.script = lambda _: said[len(server.asked) - 1]
    made = await create(chatting.client, model=MODEL, input="Hi", tools=[STRICT])
    assert calls(made) == [("get_weather", '{"location": "Oslo"}')]


@pytest.mark.parametrize("first", ["It is three.", '{"n": "3"}'])
@pytest.mark.parametrize("tools", [[], [WEATHER]])
async def test_an_answer_that_is_not_what_was_asked_for_is_said_again(
    chatting: Chatting, first: str, tools: list[Any]
) -> None:
    server = chatting.server
    said = [first, '{"n": 3}', '{"n": 3}']
    server.script = lambda _: said[len(server.asked) - 1]
    server.goes_on = '{"n": 3}'.removeprefix
    form = {"format": ANSWER}
    made = await create(chatting.client, model=MODEL, input="Hi", text=form, tools=tools)
    assert texts(made) == ['{"n": 3}']
    assert "JSON Schema" in server.prompt()


async def test_text_before_a_call_is_reasoning_beside_a_format(chatting: Chatting) -> None:
    chatting.server.script = lambda _: f"<think>\nHm.\n</think>\n\nLet me see.\n{OSLO}"
    body: dict[str, Any] = {"model": MODEL, "input": "Hi", "tools": [WEATHER]}
    body["text"] = {"format": ANSWER}
    made = await create(chatting.client, **body)
    assert [item["type"] for item in made["output"]] == ["reasoning", "reasoning", "function_call"]
    assert made["output"][1]["content"][0]["text"] == "Let me see."
    assert calls(made) == [("get_weather", '{"location": "Oslo"}')]
    assert len(chatting.server.asked) == 1
    streamed = (await stream(chatting.client, body))[-1]["response"]
    assert calls(streamed) == calls(made)


async def test_a_stop_string_ends_the_answer(chatting: Chatting) -> None:
    chatting.server.script = lambda _: "One. Two. Three."
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stop": ["Three"]}
    answer = (await chatting.client.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"] == "One. Two. "


async def test_streamed_calls_are_whole(chatting: Chatting) -> None:
    chatting.server.script = lambda _: OSLO
    events = await stream(chatting.client, {"model": MODEL, "input": "Hi", "tools": [WEATHER]})
    deltas = [one["delta"] for one in events if one["type"].endswith("arguments.delta")]
    assert "".join(deltas) == '{"location": "Oslo"}'


async def test_long_arguments_may_stand_in_front_of_the_name(chatting: Chatting) -> None:
    """So Hermes' models write them: there is nothing to repair."""
    arguments = json.dumps({"location": "Oslo, " * 40})
    body = f'{{"arguments": {arguments}, "name": "get_weather"}}'
    chatting.server.script = lambda _: f"<tool_call>\n{body}\n</tool_call>"
    made = await create(chatting.client, model=MODEL, input="Hi", tools=[WEATHER])
    assert calls(made) == [("get_weather", arguments)]
    assert len(chatting.server.asked) == 1


async def test_a_custom_tool_is_a_function_to_it(chatting: Chatting) -> None:
    chatting.server.script = lambda _: called("note", '{"input": "milk"}')
    tool = {"type": "custom", "name": "note", "description": "Keeps a text."}
    made = await create(chatting.client, model=MODEL, input="Hi", tools=[tool])
    [call] = [item for item in made["output"] if item["type"] == "custom_tool_call"]
    assert call["input"] == "milk"
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "kept"}
    chatting.server.script = lambda _: "Done."
    await create(
        chatting.client, model=MODEL, input=[output], tools=[tool], previous_response_id=made["id"]
    )
    again = called("note", '{"input":"milk"}')
    assert f"{again}<|im_end|>" in chatting.server.prompt()


async def test_a_long_conversation_is_summed_up(chatting: Chatting) -> None:
    server = chatting.server
    server.script = lambda before: "We greeted." if "summary" in before else "Hello!"
    items: list[dict[str, Any]] = [{"role": "user", "content": "Hi " * 400}]
    items += [
        {"role": "assistant", "content": "Hello. " * 400},
        {"role": "user", "content": "Go on"},
    ]
    made = await create(
        chatting.client,
        model=MODEL,
        input=items,
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    assert texts(made)[-1] == "Hello!"
    assert "We greeted." in server.prompt()
    assert "Hello. Hello." not in server.prompt()
    second = await create(
        chatting.client, model=MODEL, input="More", previous_response_id=made["id"]
    )
    assert second["status"] == "completed"
    assert server.prompt().count("We greeted.") == 1


async def test_a_conversation_of_the_api_is_continued(chatting: Chatting) -> None:
    chatting.server.script = lambda _: "Hello!"
    kept = (await chatting.client.post("/v1/conversations", json={})).json()
    await create(chatting.client, model=MODEL, input="Hi", conversation=kept["id"])
    await create(chatting.client, model=MODEL, input="Bye", conversation=kept["id"])
    assert f"{OPENING}Hello!<|im_end|>\n<|im_start|>user\nBye" in chatting.server.prompt()


async def test_sealed_reasoning_is_shown_again(chatting: Chatting) -> None:
    chatting.server.script = lambda _: f"<think>\nI look.\n</think>\n\n{OSLO}"
    body: dict[str, Any] = {
        "model": MODEL,
        "store": False,
        "tools": [WEATHER],
        "include": ["reasoning.encrypted_content"],
    }
    first = await create(chatting.client, input="Hi", **body)
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}
    sealed = [{k: v for k, v in item.items() if k != "content"} for item in first["output"]]
    chatting.server.script = lambda _: "Done."
    user = {"role": "user", "content": "Hi"}
    await create(chatting.client, input=[user, *sealed, output], **body)
    assert f"{OPENING}<think>\nI look.\n</think>\n\n\n{OSLO}" in chatting.server.prompt()
