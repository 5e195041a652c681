"""Whatever shapes the output in a request holds: choices of tools, formats, grammars, stops."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from openai.types.responses import Response

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.serving import serving
from tests.fakes.stream import stream
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.integration.api.tools.toolbox import CLOCK, SUM, WEATHER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

MODEL = "gpt-oss-20b"
QUIET = "Greet me in three words."
AGENTS: Json = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{**CLOCK, "name": "spawn", "description": "Starts an agent."}],
}
PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a", "b"]}},
}
FORMAT: Json = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}


@pytest.fixture(scope="module", params=["0.33.0", "0.10.2"], ids=["grammars", "no grammars"])
async def gateway(
    request: pytest.FixtureRequest, postgres: PostgresServer, template: str
) -> AsyncIterator[RunningGateway]:
    """With a backend of a vLLM that can hold a model to a grammar, or of one that cannot."""
    name = await postgres.create(template)
    async with serving(create_simulator(WaywardOptions(version=request.param))) as url:
        settings = gateway_settings(postgres.database_url(name), [url])
        async with running_gateway(settings) as running:
            yield running
    await postgres.drop(name)


async def create(client: httpx2.AsyncClient, **body: Any) -> Json:
    """A response that completed, and that OpenAI's SDK can read."""
    answer = await client.post("/v1/responses", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    assert response["status"] == "completed", response["error"]
    Response.model_validate(response, strict=True)
    return response


def calls(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"].endswith("_call")]


def text_of(response: Json) -> str:
    """The only part of the answer."""
    (part,) = response["output"][-1]["content"]
    assert part["type"] == "output_text"
    return str(part["text"])


@pytest.mark.requirement("control.required")
async def test_a_call_is_made_where_one_is_required(client: httpx2.AsyncClient) -> None:
    response = await create(client, input=QUIET, tools=[WEATHER, CLOCK], tool_choice="required")
    assert {call["name"] for call in calls(response)} <= {"get_weather", "now"}
    assert calls(response)
    assert response["output"][-1] == calls(response)[-1]


@pytest.mark.requirement("control.named")
@pytest.mark.parametrize("tool", [WEATHER, CLOCK], ids=["strict", "not strict"])
async def test_the_named_function_is_called(client: httpx2.AsyncClient, tool: Json) -> None:
    choice = {"type": "function", "name": tool["name"]}
    response = await create(client, input=QUIET, tools=[WEATHER, CLOCK], tool_choice=choice)
    assert {call["name"] for call in calls(response)} == {tool["name"]}
    assert response["tool_choice"] == choice


@pytest.mark.requirement("control.none")
async def test_none_is_called_where_none_may_be(client: httpx2.AsyncClient) -> None:
    response = await create(
        client, input="How is the weather in San Francisco?", tools=[WEATHER], tool_choice="none"
    )
    assert calls(response) == []
    assert text_of(response)


@pytest.mark.requirement("control.allowed-tools")
@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_are_called(client: httpx2.AsyncClient, mode: str) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "now"}]}
    response = await create(
        client,
        input="How is the weather in San Francisco?",
        tools=[WEATHER, CLOCK],
        tool_choice=choice,
    )
    assert {call["name"] for call in calls(response)} <= {"now"}
    assert mode == "auto" or calls(response)
    assert response["tool_choice"] == choice
    assert [tool["name"] for tool in response["tools"]] == ["get_weather", "now"]


@pytest.mark.slow
@pytest.mark.requirement("control.strict-function")
async def test_arguments_of_a_strict_function_satisfy_its_schema(
    client: httpx2.AsyncClient,
) -> None:
    choice = {"type": "function", "name": "get_weather"}
    response = await create(client, input=QUIET, tools=[WEATHER], tool_choice=choice)
    for call in calls(response):
        Draft202012Validator(WEATHER["parameters"]).validate(json.loads(call["arguments"]))


@pytest.mark.requirement("control.json-schema")
async def test_a_strict_format_is_kept(client: httpx2.AsyncClient) -> None:
    response = await create(client, input=QUIET, text={"format": FORMAT})
    Draft202012Validator(PERSON).validate(json.loads(text_of(response)))
    assert response["text"]["format"] == {**FORMAT, "description": None}


@pytest.mark.requirement("control.json-schema")
async def test_a_strict_format_is_kept_in_a_stream(client: httpx2.AsyncClient) -> None:
    events = await stream(client, {"model": MODEL, "input": QUIET, "text": {"format": FORMAT}})
    said = "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
    Draft202012Validator(PERSON).validate(json.loads(said))
    assert said == text_of(events[-1]["response"])


@pytest.mark.slow
@pytest.mark.requirement("control.json-object")
async def test_a_json_object_is_one(client: httpx2.AsyncClient) -> None:
    response = await create(client, input=QUIET, text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(text_of(response)), dict)


@pytest.mark.requirement("control.custom-tool")
async def test_a_custom_tool_is_called_with_text_and_answered(client: httpx2.AsyncClient) -> None:
    choice = {"type": "custom", "name": "say"}
    tools = [{"type": "custom", "name": "say", "description": "Says a text aloud."}]
    first = await create(client, input=QUIET, tools=tools, tool_choice=choice)
    (call,) = calls(first)
    assert (call["type"], call["name"]) == ("custom_tool_call", "say")
    assert isinstance(call["input"], str)
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "42"}
    second = await create(client, input=[output], previous_response_id=first["id"], tools=tools)
    assert second["output"]


@pytest.mark.requirement("control.grammar")
async def test_no_call_with_text_outside_its_grammar_is_shown(client: httpx2.AsyncClient) -> None:
    body = {"tools": [SUM], "tool_choice": {"type": "custom", "name": "add"}}
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": QUIET, **body})
    response = answer.json()
    shown = [call["input"] for call in calls(response)]
    assert all(re.fullmatch(SUM["format"]["definition"], text) for text in shown)
    if not shown:
        assert response["status"] == "failed"
        assert response["error"]["code"] == "invalid_tool_call"


@pytest.mark.requirement("control.namespace")
async def test_a_call_in_a_namespace_comes_back_as_two_fields(client: httpx2.AsyncClient) -> None:
    choice = {"type": "function", "name": "agents.spawn"}
    first = await create(client, input=QUIET, tools=[CLOCK, AGENTS], tool_choice=choice)
    (call,) = calls(first)
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "agents", "spawn")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    again = [{"role": "user", "content": QUIET}, *first["output"], output]
    assert (await create(client, input=again, tools=[AGENTS], store=False))["output"]


@pytest.mark.requirement("control.shells")
@pytest.mark.parametrize(
    ("kind", "field"),
    [("local_shell", "action"), ("shell", "action"), ("apply_patch", "operation")],
)
async def test_shells_and_the_patcher_are_called_in_their_own_form(
    client: httpx2.AsyncClient, kind: str, field: str
) -> None:
    response = await create(client, input=QUIET, tools=[{"type": kind}], tool_choice={"type": kind})
    (call,) = calls(response)
    assert call["type"] == f"{kind}_call"
    assert call[field]


@pytest.mark.requirement("control.hosted-tools")
async def test_hosted_tools_are_dropped_and_the_response_says_which(
    client: httpx2.AsyncClient,
) -> None:
    tools = [{"type": "web_search"}, CLOCK, {"type": "code_interpreter", "container": "c"}]
    body = {"model": MODEL, "input": QUIET, "tools": tools}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200
    dropped = answer.headers["x-gateway-dropped-tools"]
    assert re.split(r"[, ]+", dropped) == ["web_search", "code_interpreter"]
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]


@pytest.mark.slow
@pytest.mark.requirement("control.logprobs")
async def test_probabilities_are_those_of_the_answer_s_tokens(client: httpx2.AsyncClient) -> None:
    response = await create(
        client, input=QUIET, include=["message.output_text.logprobs"], top_logprobs=2
    )
    (part,) = response["output"][-1]["content"]
    said = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert said.decode() == part["text"]
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
    assert response["top_logprobs"] == 2


@pytest.mark.requirement("control.sealed-reasoning")
async def test_sealed_reasoning_is_given_back_and_no_other(client: httpx2.AsyncClient) -> None:
    body: Json = {"store": False, "include": ["reasoning.encrypted_content"], "tools": [CLOCK]}
    choice = {"type": "function", "name": "now"}
    first = await create(client, input=QUIET, tool_choice=choice, **body)
    sealed, call = first["output"][0], first["output"][-1]
    bare = {"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    question = {"role": "user", "content": QUIET}
    assert (await create(client, input=[question, bare, call, output], **body))["output"]
    foreign = {**bare, "encrypted_content": "gAAAAABforeign"}
    refused = await client.post(
        "/v1/responses", json={"model": MODEL, "input": [question, foreign, call, output], **body}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_encrypted_content"
    assert refused.json()["error"]["param"] == "input[1].encrypted_content"


@pytest.mark.requirement("control.summary")
async def test_reasoning_is_summarised_for_whoever_asks(client: httpx2.AsyncClient) -> None:
    asked = await create(client, input=QUIET, reasoning={"summary": "auto"})
    (reasoning,) = [item for item in asked["output"] if item["type"] == "reasoning"]
    assert "".join(part["text"] for part in reasoning["summary"])
    plain = await create(client, input=QUIET)
    assert [item["summary"] for item in plain["output"] if item["type"] == "reasoning"] == [[]]


@pytest.mark.requirement("control.stop")
async def test_the_answer_ends_before_a_stop(client: httpx2.AsyncClient) -> None:
    whole = text_of(await create(client, input=QUIET, temperature=0))
    stop = whole[len(whole) // 2 :][:4]
    cut = await create(client, input=QUIET, temperature=0, stop=stop)
    assert text_of(cut) == whole[: whole.index(stop)]
    assert cut["stop"] == [stop]
