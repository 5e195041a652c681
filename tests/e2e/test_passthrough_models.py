"""Real clients, and a model whose server is asked by messages and returns text, not ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession

from tests.e2e.test_chat_models import ASKED, WEATHER, Place, get_weather
from tests.e2e.test_codex import agent as codex_agent
from tests.e2e.test_codex import calling
from tests.fakes.client_process import Clients
from tests.fakes.processes import gateway_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openai import AsyncOpenAI, OpenAI

    from tests.fakes.client_process import ClientProcess
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

MODEL: Final = "by-messages"
MODELS: Final[Any] = [
    {
        "id": MODEL,
        "served_as": "gpt-oss-20b",
        "format": "passthrough",
        "context_length": 131_072,
    }
]


@pytest.fixture(scope="module")
def gateway(
    replicas_database_url: str,
    simulator: SimulatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    """One that knows that model alone."""
    home = tmp_path_factory.mktemp("gateway")
    with gateway_process(home, replicas_database_url, [simulator.url], models=MODELS) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def only_messages(gateway: GatewayProcess, simulator: SimulatorProcess) -> Iterator[None]:
    """None of these requests comes to the server as ids."""
    simulator.until_healthy()
    seen = {row["number"] for row in simulator.requests()}
    yield
    asked = [row for row in simulator.requests() if row["number"] not in seen]
    assert asked
    assert not [row for row in asked if row["stop_token_ids"]]


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


@pytest.mark.client("openai (Python)", "pass-through")
def test_a_stream_ends_with_what_is_stored(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello there") as stream:
        thought = [one.delta for one in stream if one.type == "response.reasoning_text.delta"]
        final = stream.get_final_response()
    assert "I look at the whole conversation" in "".join(thought)
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert "Hello there" in final.output_text
    assert client.responses.retrieve(final.id).output_text == final.output_text


@pytest.mark.client("openai (Python)", "pass-through")
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
    assert "Ada" in third.output_text


@pytest.mark.client("openai (Python)", "pass-through")
def test_parse_gives_an_object(client: OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL, input="The weather in Paris, please.", text_format=Place
    )
    assert response.output_parsed == Place(location="Paris")


@pytest.mark.client("openai (Python)", "pass-through")
def test_chat_answers_streams_and_parses(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "The weather in Paris, please."}]
    completion = client.chat.completions.create(model=MODEL, messages=asked)
    said = completion.choices[0].message.content
    assert said
    assert "Paris" in said
    chunks = client.chat.completions.create(model=MODEL, messages=asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    parsed = client.chat.completions.parse(model=MODEL, messages=asked, response_format=Place)
    assert parsed.choices[0].message.parsed == Place(location="Paris")


@pytest.mark.client("openai-agents", "pass-through")
async def test_an_agent_calls_its_tool_and_answers(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    result = await Runner.run(agent, ASKED)
    assert "17 degrees in Paris" in result.final_output
    assert len(result.raw_responses) == 2
    streamed = Runner.run_streamed(agent, ASKED)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "17 degrees in Paris" in streamed.final_output
    assert {"raw_response_event", "run_item_stream_event"} <= set(kinds)


@pytest.mark.client("openai-agents", "pass-through")
async def test_a_session_is_replayed(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    session = SQLiteSession("conversation")
    await Runner.run(agent, ASKED, session=session)
    result = await Runner.run(agent, "What is my name?", session=session)
    session.close()
    assert "Ada" in result.final_output


@pytest.mark.client("openai-agents", "pass-through")
async def test_an_agent_hands_over(model: OpenAIResponsesModel) -> None:
    helper: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    front: Agent[None] = Agent("Front", model=model, handoffs=[helper])
    result = await Runner.run(front, "Call transfer_to_helper")
    assert result.last_agent is helper


@pytest.mark.client("openai-agents", "pass-through")
async def test_an_agent_ends_with_its_output_type(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Finder", model=model, output_type=Place)
    result = await Runner.run(agent, "The weather in Paris, please.")
    assert result.final_output == Place(location="Paris")


@pytest.mark.client("@ai-sdk/openai", "pass-through")
def test_a_prompt_is_answered_whole_and_in_parts(ai_sdk: ClientProcess) -> None:
    for api in ("responses", "chat"):
        assert "Hello there" in ai_sdk.check("text", api=api)["text"]
        assert ai_sdk.check("streamed", api=api)["parts"] > 1
    assert ai_sdk.check("reasoning")
    assert "Ada" in ai_sdk.check("previous")


@pytest.mark.client("@ai-sdk/openai", "pass-through")
def test_a_tool_loop_ends_in_an_answer(ai_sdk: ClientProcess) -> None:
    for store in (True, False):
        found = ai_sdk.check("tools", api="responses", store=store)
        assert "17 degrees in Paris" in found["text"]
        assert found["steps"] == 2
    for api in ("responses", "chat"):
        found = ai_sdk.check("toolsStreamed", api=api)
        assert "17 degrees in Paris" in found["text"]
        assert found["steps"] == 2


@pytest.mark.client("@ai-sdk/openai", "pass-through")
def test_a_schema_is_answered_with_its_object(ai_sdk: ClientProcess) -> None:
    paris = {"location": "Paris"}
    for api in ("responses", "chat"):
        assert ai_sdk.check("object", api=api) == {"object": paris, "output": paris}


@pytest.mark.client("Codex CLI", "pass-through")
@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_a_command_is_run_and_its_output_quoted(
    gateway: GatewayProcess, key: str, tmp_path: Path, websockets: bool
) -> None:
    codex = codex_agent(tmp_path, gateway, key, model=MODEL, websockets=websockets)
    said = codex.answer(calling("exec_command", {"cmd": "echo made | tee made.txt"}))
    assert "exec_command says" in said
    assert (codex.project / "made.txt").read_text() == "made\n"
    assert "Zoe" in codex.answer("resume", "--last", "My name is Zoe. What is my name?")


@pytest.mark.client("Codex CLI", "pass-through")
def test_a_patch_is_applied(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    codex = codex_agent(tmp_path, gateway, key, model=MODEL, websockets=False)
    patch = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    assert "apply_patch says" in codex.answer(calling("apply_patch", {"input": patch}))
    assert (codex.project / "new.txt").read_text() == "hello\n"
