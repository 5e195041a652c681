"""Conversations full of calls, and the tools that real clients declare."""

from __future__ import annotations

import json
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from gateway.models.harmony.tokenizer import Vocabulary
from tests.integration.api.tools.toolbox import AGENTS, ALL, CLOCK, PATCH, PATCHER, WEATHER, name_of

if TYPE_CHECKING:
    from tests.integration.api.tools.asking import Asker, Json

VOCABULARY = Vocabulary.load()
QUESTION: Json = {"role": "user", "content": "Use now for Oslo."}
OBJECT: Json = {"type": "object", "properties": {}, "additionalProperties": False}
COMMAND: Json = {"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


def function(name: str, **more: object) -> Json:
    return {"type": "function", "name": name, "description": name, "parameters": OBJECT, **more}


CODEX: Json = {
    "tools": [
        *(function(name, strict=False) for name in ("exec_command", "write_stdin", "view_image")),
        *(function(name, strict=False) for name in ("request_user_input", "create_goal")),
        PATCHER,
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Agents.",
            "tools": [function("spawn_agent", strict=False), function("wait", strict=False)],
        },
        {"type": "namespace", "name": "mcp__files", "tools": [function("read", strict=False)]},
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "client"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-session",
    "client_metadata": {"session": "x"},
}


async def prompt_of(fleet: Asker, response: Json) -> str:
    """What the model was shown."""
    seen = await fleet.backends.of_response(response["id"])
    return VOCABULARY.decode(seen[0]["prompt_ids"])


@pytest.mark.parametrize(
    "name", ["exec_command", "apply_patch", "multi_agent_v1.spawn_agent", "mcp__files.read"]
)
async def test_codex_calls_every_kind_of_its_tools_and_replays_it(fleet: Asker, name: str) -> None:
    patch = json.dumps({"input": PATCH})
    arguments = f"arguments={patch}" if name == "apply_patch" else ""
    question = {
        "type": "message",
        "role": "user",
        "id": "msg_0199-1",
        "content": [{"type": "input_text", "text": f"Go. [[sim call={name} {arguments}]]"}],
    }
    first = await fleet.body(input=[question], **CODEX)
    (call,) = [item for item in first["output"] if item["type"].endswith("call")]
    assert name_of(call) == name
    assert call.get("namespace") == (name.rpartition(".")[0] or None)
    output = {
        "type": f"{call['type']}_output",
        "id": "fco_0199-2",
        "call_id": call["call_id"],
        "output": "done-here",
    }
    second = await fleet.body(input=[question, *first["output"], output], **CODEX)
    assert second["status"] == "completed"
    assert "done-here" in await prompt_of(fleet, second)


@pytest.mark.requirement("kinds.programmatic-tools")
async def test_tools_that_only_openai_runs_are_dropped_or_refused(fleet: Asker) -> None:
    body = {"model": "gpt-oss-20b", "input": "Hi", **CODEX}
    answer = await fleet.client.post("/v1/responses", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-dropped-tools"] == "web_search"
    kinds = [tool["type"] for tool in answer.json()["tools"]]
    assert "web_search" not in kinds
    assert len(kinds) == len(CODEX["tools"]) - 1


@pytest.mark.requirement("harmony.commentary")
async def test_a_preamble_before_a_call_is_commentary(fleet: Asker) -> None:
    told = await fleet.ask("Use now for Oslo, with a preamble.", tools=[CLOCK, WEATHER])
    kinds = [(item["type"], item.get("phase")) for item in told.response["output"]]
    assert kinds == [("reasoning", None), ("message", "commentary"), ("function_call", None)]
    required = await fleet.ask(
        "Use now for Oslo, with a preamble.", tools=[CLOCK], tool_choice="required"
    )
    kinds = [(item["type"], item.get("phase")) for item in required.response["output"]]
    assert kinds == [("reasoning", None), ("message", "commentary"), ("function_call", None)]


def many_calls() -> list[tuple[Json, Json]]:
    """Calls of all kinds with their outputs."""
    plain: list[tuple[Json, Json]] = [
        ({"type": "function_call", "name": "now", "arguments": "{}"}, {"output": "out-0"}),
        ({"type": "custom_tool_call", "name": "note", "input": "x"}, {"output": "out-1"}),
        (
            {"type": "function_call", "name": "ask", "namespace": "agents", "arguments": "{}"},
            {"output": "out-2"},
        ),
        (
            {"type": "shell_call", "action": {"commands": ["ls"]}},
            {"output": [{**COMMAND, "stdout": "out-3"}]},
        ),
        (
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "p"}},
            {"status": "failed", "output": "out-4"},
        ),
    ]
    return [
        (
            {**call, "call_id": f"call_{at}"},
            {"type": f"{call['type']}_output", "call_id": f"call_{at}", **output},
        )
        for at, (call, output) in enumerate(plain)
    ]


@pytest.mark.parametrize("order", list(permutations(range(5)))[::17])
async def test_calls_and_their_outputs_come_in_any_order(
    fleet: Asker, order: tuple[int, ...]
) -> None:
    pairs = many_calls()
    items = [*(call for call, _ in pairs), *(pairs[at][1] for at in order)]
    response = await fleet.body(input=[QUESTION, *items], tools=ALL)
    assert response["status"] == "completed"
    prompt = await prompt_of(fleet, response)
    places = [prompt.index(f"out-{at}") for at in range(5)]
    assert prompt.index("functions.agents.ask") < places[2]
    recipients = [prompt.rfind(" to=assistant", 0, place) for place in places]
    authors = [prompt[:at].rpartition("functions.")[2] for at in recipients]
    assert authors == ["now", "note", "agents.ask", "shell", "apply_patch"]


@pytest.mark.parametrize("missing", ["call", "output", "kind"])
async def test_calls_and_outputs_that_do_not_pair_are_refused(fleet: Asker, missing: str) -> None:
    for call, output in many_calls():
        wrong = "custom" if call["type"] != "custom_tool_call" else "shell"
        other = {"type": "function_call_output", "call_id": output["call_id"], "output": "x"}
        items = {
            "call": [output],
            "output": [call],
            "kind": [call, {**other, "type": f"{wrong}_tool_call_output"}],
        }[missing]
        if missing == "kind" and wrong == "shell":
            items[1] = {**other, "type": "local_shell_call_output"}
        error = await fleet.refusal(400, input=[QUESTION, *items], tools=ALL)
        assert error["type"] == "invalid_request_error"
        if missing != "kind":
            assert output["call_id"] in error["message"]


async def test_a_conversation_goes_on_without_the_tools_that_it_called(fleet: Asker) -> None:
    choice = {"type": "function", "name": "agents.spawn"}
    first = await fleet.body(input=[QUESTION], tools=[AGENTS], tool_choice=choice)
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "gone"}
    second = await fleet.body(input=[output], previous_response_id=first["id"], tools=[CLOCK])
    assert second["status"] == "completed"
    assert "gone" in await prompt_of(fleet, second)
