"""openai-agents and tools that the gateway runs: search, code, and MCP calls with approvals."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    CodeInterpreterTool,
    HostedMCPTool,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    WebSearchTool,
    set_tracing_disabled,
)

if TYPE_CHECKING:
    from agents import MCPToolApprovalFunctionResult, MCPToolApprovalRequest
    from openai import AsyncOpenAI

    from tests.fakes.hosted_gateway import HostedGateway

set_tracing_disabled(disabled=True)


@pytest.fixture
def model(tools_async_client: AsyncOpenAI) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-oss-20b", tools_async_client)


def _asked(name: str) -> str:
    return f'[[sim steps=mcp shop.book {{"name": "{name}"}}; quote]]'


def _hosted(hosted: HostedGateway, seen: list[str], *, approve: bool) -> HostedMCPTool:
    def decide(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        seen.append(request.data.name)
        return {"approve": True} if approve else {"approve": False, "reason": "not today"}

    config: Any = {
        "type": "mcp",
        "server_label": "shop",
        "server_url": hosted.tool_server_url,
        "require_approval": "always",
    }
    return HostedMCPTool(tool_config=config, on_approval_request=decide)


def _kinds(result: Any) -> list[str]:
    return [item.raw_item.type for item in result.new_items if hasattr(item.raw_item, "type")]


@pytest.mark.client("openai-agents", "hosted tools")
async def test_an_agent_searches_and_cites(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Reader", model=model, tools=[WebSearchTool()])
    asked = "lamp [[sim steps=search lamp; open first; cite]]"
    result = await Runner.run(agent, asked)
    assert _kinds(result).count("web_search_call") == 2
    message = result.raw_responses[-1].output[-1]
    assert message.type == "message"
    assert [one.type for one in message.content[0].annotations] == ["url_citation"]  # type: ignore[union-attr]


@pytest.mark.client("openai-agents", "hosted tools")
async def test_an_agent_computes(model: OpenAIResponsesModel) -> None:
    config: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
    agent: Agent[None] = Agent("Counter", model=model, tools=[CodeInterpreterTool(config)])
    result = Runner.run_streamed(agent, "[[sim steps=python print(6 * 7); quote]]")
    kinds = [event.type async for event in result.stream_events()]
    assert "code_interpreter_call" in _kinds(result)
    assert "42" in result.final_output
    assert "raw_response_event" in kinds


@pytest.mark.slow
@pytest.mark.client("openai-agents", "hosted tools")
@pytest.mark.parametrize("by_id", [False, True], ids=["replayed", "by id"])
@pytest.mark.parametrize("approve", [True, False], ids=["approved", "denied"])
async def test_an_agent_asks_before_a_call(
    model: OpenAIResponsesModel, hosted_gateway: HostedGateway, *, approve: bool, by_id: bool
) -> None:
    seen: list[str] = []
    tools: list[Any] = [_hosted(hosted_gateway, seen, approve=approve)]
    agent: Agent[None] = Agent("Clerk", model=model, tools=tools)
    name = f"n-{uuid.uuid4().hex}"
    result = await Runner.run(agent, _asked(name), auto_previous_response_id=by_id)
    assert seen == ["book"]
    assert hosted_gateway.effects().get(name) == (1 if approve else None)
    expected = f"booked {name}" if approve else "not today"
    assert expected in result.final_output


@pytest.mark.slow
@pytest.mark.client("openai-agents", "hosted tools")
async def test_a_session_with_hosted_items_is_replayed(model: OpenAIResponsesModel) -> None:
    agent: Agent[None] = Agent("Reader", model=model, tools=[WebSearchTool()])
    session = SQLiteSession("hosted")
    asked = "My name is Ada. lamp [[sim steps=search lamp; open first; cite]]"
    await Runner.run(agent, asked, session=session)
    result = await Runner.run(agent, "What is my name?", session=session)
    session.close()
    assert "Ada" in result.final_output
