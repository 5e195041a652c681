"""The thirty cases of the compatibility test for providers of gpt-oss, with prompts of our own.

Its own program is not run here: this sends what it sends by both of its APIs, and checks what it
checks. The model is the scripted one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.conformance.compatibility_cases import PROMPTS, TOOLS

if TYPE_CHECKING:
    import httpx2

CASES = [(name, prompt) for name, prompts in PROMPTS.items() for prompt in prompts]
RESULT = json.dumps({"ok": True, "note": "naïve 東京\n`done`"}, ensure_ascii=False)


@pytest.mark.slow
@pytest.mark.requirement("accept.suites")
@pytest.mark.requirement("gpt-oss.what-it-sends")
@pytest.mark.requirement("gpt-oss.tool-is-called")
@pytest.mark.requirement("gpt-oss.reasoning-is-shown")
@pytest.mark.requirement("gpt-oss.replay-ends-in-a-message")
@pytest.mark.parametrize(
    ("tool", "prompt"),
    [
        pytest.param(*case, marks=pytest.mark.requirement(f"gpt-oss.case-{number}"))
        for number, case in enumerate(CASES)
    ],
)
async def test_a_tool_is_called_and_its_result_is_answered(
    client: httpx2.AsyncClient, tool: str, prompt: str
) -> None:
    context: list[Any] = [{"role": "user", "content": prompt}]
    first = await _create(client, context)
    (reasoning,) = [item for item in first["output"] if item["type"] == "reasoning"]
    assert reasoning["content"]
    assert {part["type"] for part in reasoning["content"]} == {"reasoning_text"}
    assert all(part["text"] for part in reasoning["content"])
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    assert call["name"] == tool
    Draft202012Validator(TOOLS[tool]["parameters"]).validate(json.loads(call["arguments"]))
    output = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": RESULT,
        "status": "completed",
    }
    second = await _create(client, [*context, *first["output"], output])
    last = second["output"][-1]
    assert (last["type"], last["phase"]) == ("message", "final_answer")
    assert "naïve 東京" in last["content"][0]["text"]


@pytest.mark.slow
@pytest.mark.requirement("accept.suites")
@pytest.mark.requirement("gpt-oss.chat")
@pytest.mark.parametrize(("tool", "prompt"), CASES)
async def test_a_chat_calls_the_tool_and_shows_its_reasoning(
    client: httpx2.AsyncClient, tool: str, prompt: str
) -> None:
    context: list[Any] = [{"role": "user", "content": prompt}]
    first = await _chat(client, context)
    assert first["reasoning"]
    (call,) = first["tool_calls"]
    assert call["function"]["name"] == tool
    arguments = json.loads(call["function"]["arguments"])
    Draft202012Validator(TOOLS[tool]["parameters"]).validate(arguments)
    output = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
    second = await _chat(client, [*context, first, output])
    assert "naïve 東京" in second["content"]


def test_there_are_thirty_cases_and_all_differ() -> None:
    assert len(set(CASES)) == 30
    assert TOOLS.keys() == PROMPTS.keys()


async def _create(client: httpx2.AsyncClient, context: list[Any]) -> dict[str, Any]:
    """What the test's own client sends: empty instructions, no types, no store, no tool_choice."""
    body = {
        "instructions": "",
        "model": "gpt-oss-20b",
        "input": context,
        "include": [],
        "tools": list(TOOLS.values()),
        "stream": False,
    }
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    Response.model_validate(response, strict=True)
    return response


async def _chat(client: httpx2.AsyncClient, messages: list[Any]) -> dict[str, Any]:
    """The message that ends a chat of the same tools."""
    tools = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in TOOLS.values()
    ]
    body = {"model": "gpt-oss-20b", "messages": messages, "tools": tools, "stream": False}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    ChatCompletion.model_validate(answer.json(), strict=True)
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message
