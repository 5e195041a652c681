"""Real clients, and models that do not speak Harmony.

One has a chat template and writes thoughts and calls as a Qwen3 does. The server of the other is
asked by messages and returns text, not ids.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool
from pydantic import BaseModel

from tests.e2e.test_codex import agent as codex_agent
from tests.e2e.test_codex import calling
from tests.e2e.test_openai_client import WEATHER
from tests.fakes.chat_model import chat_model_process
from tests.fakes.chat_server import MODEL as CHAT_MODEL
from tests.fakes.chat_server import write_model
from tests.fakes.client_process import Clients
from tests.fakes.processes import gateway_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from openai import AsyncOpenAI, OpenAI

    from tests.fakes.client_process import ClientProcess
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

ASKED: Final = "My name is Ada. What is the weather in Paris?"
WHERE: Final = "The weather in Paris, please."


class Place(BaseModel):
    """What is asked for."""

    location: str


@function_tool
def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


@dataclass(frozen=True, slots=True)
class Served:
    """A model, the settings that name it, and how it is made to do what a test needs.

    `thought` is of what it thinks, `calling` makes a request that has it call a tool (its name and
    its arguments), and `quoting` says how it begins to quote what a tool said.
    """

    url: str
    settings: dict[str, Any]
    thought: str
    calling: Callable[[str, object], str]
    quoting: Callable[[str], str]

    @property
    def model(self) -> str:
        return str(self.settings["id"])


@contextmanager
def by_template(folder: Path) -> Iterator[Served]:
    """A model with a chat template."""
    tokenizer = str(write_model(folder))
    known = {"format": "chat", "tokenizer": tokenizer, "reasoning": "think", "calls": "hermes"}
    with chat_model_process() as url:
        yield Served(
            url,
            {"id": CHAT_MODEL, **known},
            thought="I look at what was asked.",
            calling=lambda tool, arguments: f"Call {tool} with {json.dumps(arguments)}.",
            quoting=lambda _: "The tool says: ",
        )


@contextmanager
def by_messages(simulator: SimulatorProcess) -> Iterator[Served]:
    """A model that is passed through; at the end none of the requests came to it as ids."""
    simulator.until_healthy()
    seen = {row["number"] for row in simulator.requests()}
    yield Served(
        simulator.url,
        {
            "id": "by-messages",
            "served_as": "gpt-oss-20b",
            "format": "passthrough",
            "context_length": 131_072,
        },
        thought="I look at the whole conversation",
        calling=calling,
        quoting=lambda tool: f"{tool} says",
    )
    asked = [row for row in simulator.requests() if row["number"] not in seen]
    assert asked
    assert not [row for row in asked if row["stop_token_ids"]]


@pytest.fixture(scope="module", params=["chat", "passthrough"])
def served(
    request: pytest.FixtureRequest,
    simulator: SimulatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    if request.param == "chat":
        opened = by_template(tmp_path_factory.mktemp("model"))
    else:
        opened = by_messages(simulator)
    with opened as found:
        yield found


@pytest.fixture(scope="module")
def gateway(
    replicas_database_url: str, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """One in front of that model, and of nothing else."""
    home = tmp_path_factory.mktemp("gateway")
    models: Any = [served.settings]
    with gateway_process(home, replicas_database_url, [served.url], models=models) as started:
        yield started


@pytest.fixture(scope="module")
def clients(
    gateway: GatewayProcess, key: str, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> Clients:
    """Real clients, which ask for that model."""
    return Clients(gateway.base_url, key, tmp_path_factory.mktemp("home"), served.model)


@pytest.fixture
def model(async_client: AsyncOpenAI, served: Served) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(served.model, async_client)


@pytest.fixture(scope="module")
def ai_sdk(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("ai_sdk") as process:
        yield process


@pytest.mark.client("openai (Python)", "chat models")
@pytest.mark.client("openai (Python)", "pass-through")
def test_a_stream_ends_with_what_is_stored(client: OpenAI, served: Served) -> None:
    with client.responses.stream(model=served.model, input="Hello there") as stream:
        thought = [one.delta for one in stream if one.type == "response.reasoning_text.delta"]
        final = stream.get_final_response()
    assert served.thought in "".join(thought)
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert "Hello there" in final.output_text
    assert client.responses.retrieve(final.id).output_text == final.output_text


@pytest.mark.client("openai (Python)", "chat models")
@pytest.mark.client("openai (Python)", "pass-through")
def test_a_call_is_answered_and_the_answer_quoted(client: OpenAI, served: Served) -> None:
    first = client.responses.create(model=served.model, input=ASKED, tools=[WEATHER])
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"location": "Paris"})
    second = client.responses.create(
        model=served.model,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}],
    )
    assert "17 degrees" in second.output_text
    third = client.responses.create(
        model=served.model, previous_response_id=second.id, input="What is my name?"
    )
    assert "Ada" in third.output_text


@pytest.mark.client("openai (Python)", "chat models")
@pytest.mark.client("openai (Python)", "pass-through")
def test_parse_gives_an_object(client: OpenAI, served: Served) -> None:
    response = client.responses.parse(model=served.model, input=WHERE, text_format=Place)
    assert response.output_parsed == Place(location="Paris")


@pytest.mark.client("openai (Python)", "chat models")
@pytest.mark.client("openai (Python)", "pass-through")
def test_chat_answers_streams_and_parses(client: OpenAI, served: Served) -> None:
    asked: Any = [{"role": "user", "content": WHERE}]
    completion = client.chat.completions.create(model=served.model, messages=asked)
    said = completion.choices[0].message.content
    assert said
    assert "Paris" in said
    chunks = client.chat.completions.create(model=served.model, messages=asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    parsed = client.chat.completions.parse(
        model=served.model, messages=asked, response_format=Place
    )
    assert parsed.choices[0].message.parsed == Place(location="Paris")


@pytest.mark.client("openai-agents", "chat models")
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


@pytest.mark.client("openai-agents", "chat models")
@pytest.mark.client("openai-agents", "pass-through")
async def test_a_session_is_replayed(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    session = SQLiteSession("conversation")
    await Runner.run(agent, ASKED, session=session)
    result = await Runner.run(agent, "What is my name?", session=session)
    session.close()
    assert "Ada" in result.final_output


@pytest.mark.client("openai-agents", "chat models")
@pytest.mark.client("openai-agents", "pass-through")
async def test_an_agent_hands_over(model: OpenAIResponsesModel, served: Served) -> None:
    helper: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    front: Agent[None] = Agent("Front", model=model, handoffs=[helper])
    result = await Runner.run(front, served.calling("transfer_to_helper", {}))
    assert result.last_agent is helper


@pytest.mark.client("openai-agents", "chat models")
@pytest.mark.client("openai-agents", "pass-through")
async def test_an_agent_ends_with_its_output_type(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Finder", model=model, output_type=Place)
    assert (await Runner.run(agent, WHERE)).final_output == Place(location="Paris")


@pytest.mark.client("@ai-sdk/openai", "chat models")
@pytest.mark.client("@ai-sdk/openai", "pass-through")
def test_a_prompt_is_answered_whole_and_in_parts(ai_sdk: ClientProcess) -> None:
    for api in ("responses", "chat"):
        assert "Hello there" in ai_sdk.check("text", api=api)["text"]
        assert "Hello there" in ai_sdk.check("streamed", api=api)["text"]
    assert ai_sdk.check("reasoning")
    assert "Ada" in ai_sdk.check("previous")


@pytest.mark.client("@ai-sdk/openai", "chat models")
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


@pytest.mark.client("@ai-sdk/openai", "chat models")
@pytest.mark.client("@ai-sdk/openai", "pass-through")
def test_a_schema_is_answered_with_its_object(ai_sdk: ClientProcess) -> None:
    paris = {"location": "Paris"}
    for api in ("responses", "chat"):
        assert ai_sdk.check("object", api=api) == {"object": paris, "output": paris}


@pytest.mark.client("Codex CLI", "chat models")
@pytest.mark.client("Codex CLI", "pass-through")
@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_a_command_is_run_and_its_output_quoted(
    gateway: GatewayProcess, key: str, tmp_path: Path, served: Served, websockets: bool
) -> None:
    codex = codex_agent(tmp_path, gateway, key, model=served.model, websockets=websockets)
    said = codex.answer(served.calling("exec_command", {"cmd": "echo made | tee made.txt"}))
    assert served.quoting("exec_command") in said
    assert (codex.project / "made.txt").read_text() == "made\n"
    assert "Zoe" in codex.answer("resume", "--last", "My name is Zoe. What is my name?")


@pytest.mark.client("Codex CLI", "chat models")
@pytest.mark.client("Codex CLI", "pass-through")
def test_a_patch_is_applied(
    gateway: GatewayProcess, key: str, tmp_path: Path, served: Served
) -> None:
    codex = codex_agent(tmp_path, gateway, key, model=served.model, websockets=False)
    patch = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    said = codex.answer(served.calling("apply_patch", {"input": patch}))
    assert served.quoting("apply_patch") in said
    assert (codex.project / "new.txt").read_text() == "hello\n"
