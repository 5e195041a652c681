"""openai-python against a real process: create, stream, retrieve, list, delete, models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import NotFoundError
from openai.types.responses import Response, ResponseFunctionToolCall

if TYPE_CHECKING:
    from openai import OpenAI

MODEL = "gpt-oss-20b"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.mark.client("openai (Python)", "text")
def test_create_answers_with_text_and_reasoning(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello there")
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert "Hello there" in response.output_text
    assert response._request_id is not None


@pytest.mark.client("openai (Python)", "streaming")
def test_a_stream_is_iterated_to_its_end(client: OpenAI) -> None:
    with client.responses.create(model=MODEL, input="Hello there", stream=True) as events:
        seen = list(events)
    assert seen[0].type == "response.created"
    assert seen[-1].type == "response.completed"
    said = "".join(one.delta for one in seen if one.type == "response.output_text.delta")
    assert said == seen[-1].response.output_text
    assert [one.sequence_number for one in seen] == list(range(len(seen)))


@pytest.mark.requirement("accept.sdk")
@pytest.mark.client("openai (Python)", "streaming")
def test_the_stream_helper_ends_with_what_is_stored(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello there") as stream:
        snapshots = [one.snapshot for one in stream if one.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == snapshots[-1]
    assert client.responses.retrieve(final.id).output_text == final.output_text


@pytest.mark.client("openai (Python)", "stored responses")
def test_retrieve_is_what_create_said(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello there", metadata={"a": "b"})
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


@pytest.mark.client("openai (Python)", "stored responses")
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_input_items_are_paged_in_both_orders(client: OpenAI, order: Any) -> None:
    texts = [f"text {number}" for number in range(5)]
    messages: Any = [{"role": "user", "content": text} for text in texts]
    response = client.responses.create(model=MODEL, input=messages)
    pages = client.responses.input_items.list(response.id, limit=1, order=order)
    assert len(pages.data) == 1
    items: list[Any] = list(pages)
    listed = [item.content[0].text for item in items]
    assert listed == (texts if order == "asc" else texts[::-1])
    assert len({item.id for item in items}) == len(texts)


@pytest.mark.client("openai (Python)", "stored responses")
def test_a_deleted_response_is_gone(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello there")
    client.responses.delete(response.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(NotFoundError):
        client.responses.delete(response.id)


@pytest.mark.requirement("accept.sdk")
@pytest.mark.requirement("models.slashes")
@pytest.mark.client("openai (Python)", "models")
def test_models_are_listed_and_found_by_name(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} >= {MODEL}
    assert client.models.retrieve(MODEL).id == MODEL
    assert client.models.retrieve(f"openai/{MODEL}").id == MODEL


@pytest.mark.client("openai (Python)", "stored responses")
def test_a_chain_remembers(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ada.")
    second = client.responses.create(
        model=MODEL, input="What is my name?", previous_response_id=first.id
    )
    assert "Ada" in second.output_text
    assert second.previous_response_id == first.id


@pytest.mark.client("openai (Python)", "replayed history")
def test_a_replayed_output_remembers_without_storage(client: OpenAI) -> None:
    context: Any = [{"role": "user", "content": "My name is Ada."}]
    first = client.responses.create(model=MODEL, input=context, store=False)
    context += [item.to_dict() for item in first.output]
    context.append({"role": "user", "content": "What is my name?"})
    second = client.responses.create(model=MODEL, input=context, store=False)
    assert "Ada" in second.output_text


@pytest.mark.client("openai (Python)", "tools")
@pytest.mark.parametrize("stateful", [True, False])
def test_a_tool_loop_ends_in_an_answer_that_quotes_the_tool(client: OpenAI, stateful: bool) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.responses.create(model=MODEL, input=asked, tools=[WEATHER], store=stateful)
    call = _only_call(first)
    assert call.name == "get_weather"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}
    second = client.responses.create(
        model=MODEL,
        input=[result] if stateful else [*asked, *_dicts(first), result],
        previous_response_id=first.id if stateful else None,
        tools=[WEATHER],
        store=stateful,
    )
    assert "17 degrees" in second.output_text


def _only_call(response: Response) -> ResponseFunctionToolCall:
    (call,) = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
    return call


def _dicts(response: Response) -> list[Any]:
    return [item.to_dict() for item in response.output]
