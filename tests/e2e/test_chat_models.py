"""Real clients, and a model with a chat template that writes thoughts and calls as a Qwen3 does."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool
from pydantic import BaseModel

from tests.e2e.test_codex import agent as codex_agent
from tests.fakes.chat_model import chat_model_process
from tests.fakes.chat_server import MODEL, write_model
from tests.fakes.client_process import Clients
from tests.fakes.processes import gateway_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openai import AsyncOpenAI, OpenAI

    from tests.fakes.client_process import ClientProcess
    from tests.fakes.processes import GatewayProcess

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
ASKED = "My name is Ada. What is the weather in Paris?"


class Place(BaseModel):
    """What is asked for."""

    location: str


@function_tool
def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


@pytest.fixture(scope="module")
def gateway(
    replicas_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """One in front of that model, and of nothing else."""
    folder = write_model(tmp_path_factory.mktemp("model"))
    known = {"format": "chat", "tokenizer": str(folder), "reasoning": "think", "calls": "hermes"}
    models: Any = [{"id": MODEL, **known}]
    with ExitStack() as stack:
        url = stack.enter_context(chat_model_process())
        home = tmp_path_factory.mktemp("gateway")
        started = gateway_process(home, replicas_database_url, [url], models=models)
        yield stack.enter_context(started)


@pytest.fixture(scope="module")
def clients(gateway: GatewayProcess, key: str, tmp_path_factory: pytest.TempPathFactory) -> Clients:
    """Real clients, which ask for that model."""
    return Clients(gateway.base_url, key, tmp_path_factory.mktemp("home"), MODEL)


@pytest.fixture
def model(async_client: AsyncOpenAI) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(MODEL, async_client)


@pytest.fixture(scope="module")
def ai_sdk(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("ai_sdk") as process:
        yield process


@pytest.mark.client("openai (Python)", "chat models")
def test_a_stream_ends_with_what_is_stored(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello there") as stream:
        thought = [one.delta for one in stream if one.type == "response.reasoning_text.delta"]
        final = stream.get_final_response()
    assert "".join(thought).strip() == "I look at what was asked."
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output_text == "You said: Hello there"
    assert client.responses.retrieve(final.id).output_text == final.output_text


@pytest.mark.client("openai (Python)", "chat models")
def test_a_call_is_answered_and_the_answer_quoted(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=ASKED, tools=[WEATHER])
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"location": "Paris"})
    second = client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input=[
            {"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"},
        ],
    )
    assert "17 degrees" in second.output_text
    third = client.responses.create(
        model=MODEL, previous_response_id=second.id, input="What is my name?"
    )
    assert third.output_text == "Your name is Ada."


@pytest.mark.client("openai (Python)", "chat models")
def test_parse_gives_an_object(client: OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="Where?", text_format=Place)
    assert response.output_parsed == Place(location="Paris")


@pytest.mark.client("openai (Python)", "chat models")
def test_chat_answers_streams_and_parses(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "Hello there"}]
    completion = client.chat.completions.create(model=MODEL, messages=asked)
    assert completion.choices[0].message.content == "You said: Hello there"
    chunks = client.chat.completions.create(model=MODEL, messages=asked, stream=True)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(said) == "You said: Hello there"
    parsed = client.chat.completions.parse(model=MODEL, messages=asked, response_format=Place)
    assert parsed.choices[0].message.parsed == Place(location="Paris")


@pytest.mark.client("openai-agents", "chat models")
async def test_an_agent_calls_its_tool_and_answers(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    result = await Runner.run(agent, ASKED)
    assert "17 degrees in Paris" in result.final_output
    assert len(result.raw_responses) == 2
    streamed = Runner.run_streamed(agent, ASKED)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "17 degrees in Paris" in streamed.final_output
    assert {"raw_response_event", "run_item_stream_event"} <= set(kinds)


@pytest.mark.client("openai-agents", "chat models")
async def test_a_session_is_replayed(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    session = SQLiteSession("conversation")
    await Runner.run(agent, ASKED, session=session)
    result = await Runner.run(agent, "What is my name?", session=session)
    session.close()
    assert result.final_output == "Your name is Ada."


@pytest.mark.client("openai-agents", "chat models")
async def test_an_agent_hands_over(model: OpenAIResponsesModel) -> None:
    helper: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    front: Agent[None] = Agent("Front", model=model, handoffs=[helper])
    result = await Runner.run(front, "Call transfer_to_helper with {}.")
    assert result.last_agent is helper


@pytest.mark.client("openai-agents", "chat models")
async def test_an_agent_ends_with_its_output_type(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Finder", model=model, output_type=Place)
    assert (await Runner.run(agent, "Where?")).final_output == Place(location="Paris")


@pytest.mark.client("@ai-sdk/openai", "chat models")
def test_a_prompt_is_answered_whole_and_in_parts(ai_sdk: ClientProcess) -> None:
    for api in ("responses", "chat"):
        assert "Hello there" in ai_sdk.check("text", api=api)["text"]
        assert "Hello there" in ai_sdk.check("streamed", api=api)["text"]
    assert ai_sdk.check("reasoning")
    assert "Ada" in ai_sdk.check("previous")


@pytest.mark.client("@ai-sdk/openai", "chat models")
def test_a_tool_loop_ends_in_an_answer(ai_sdk: ClientProcess) -> None:
    for store in (True, False):
        found = ai_sdk.check("tools", api="responses", store=store)
        assert "17 degrees in Paris" in found["text"]
        assert found["steps"] == 2
    for api in ("responses", "chat"):
        found = ai_sdk.check("toolsStreamed", api=api)
        assert "17 degrees in Paris" in found["text"]
        assert found["steps"] == 2


@pytest.mark.client("@ai-sdk/openai", "chat models")
def test_a_schema_is_answered_with_its_object(ai_sdk: ClientProcess) -> None:
    paris = {"location": "Paris"}
    for api in ("responses", "chat"):
        assert ai_sdk.check("object", api=api) == {"object": paris, "output": paris}


@pytest.mark.client("Codex CLI", "chat models")
@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_a_command_is_run_and_its_output_quoted(
    gateway: GatewayProcess, key: str, tmp_path: Path, websockets: bool
) -> None:
    codex = codex_agent(tmp_path, gateway, key, model=MODEL, websockets=websockets)
    arguments = json.dumps({"cmd": "echo made | tee made.txt"})
    said = codex.answer(f"My name is Zoe. Call exec_command with {arguments}.")
    assert "The tool says: " in said
    assert (codex.project / "made.txt").read_text() == "made\n"
    assert codex.answer("resume", "--last", "What is my name?") == "Your name is Zoe."


@pytest.mark.client("Codex CLI", "chat models")
def test_a_patch_is_applied(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    codex = codex_agent(tmp_path, gateway, key, model=MODEL, websockets=False)
    patch = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    said = codex.answer(f"Call apply_patch with {json.dumps({'input': patch})}.")
    assert "The tool says: " in said
    assert (codex.project / "new.txt").read_text() == "hello\n"
