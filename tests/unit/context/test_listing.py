"""What is listed of a context is valid for OpenAI's SDK, and is accepted as input again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from gateway.context.assembly import assemble
from tests.fakes.cases import each
from tests.fakes.create_bodies import CALL, parse

LISTED: TypeAdapter[Any] = TypeAdapter(ResponseItem)
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
FILE = {"type": "input_file", "file_id": "file_1"}
TEXT = {"type": "input_text", "text": "x"}
SAID = {"type": "output_text", "text": "x"}

INPUTS: dict[str, list[dict[str, Any]]] = {
    "a string": [{"role": "user", "content": "hi"}],
    "nothing": [{"role": "user", "content": ""}, {"role": "user", "content": []}],
    "every role": [{"role": role, "content": "x"} for role in ("system", "developer", "user")],
    "image and file": [{"role": "user", "content": [TEXT, IMAGE, FILE]}],
    "assistant, as a string": [{"role": "assistant", "content": "x", "phase": "commentary"}],
    "assistant, as input": [{"role": "assistant", "content": [TEXT]}],
    "assistant, bare": [{"role": "assistant", "content": [SAID]}],
    "user, as output": [{"role": "user", "content": [SAID], "phase": "final_answer"}],
    "refusal": [
        {"role": role, "content": [{"type": "refusal", "refusal": "no"}]}
        for role in ("user", "assistant")
    ],
    "reasoning": [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
    ],
    "tool loop": [
        CALL,
        {**CALL, "type": "function_call_output", "output": [TEXT, IMAGE, FILE]},
        {**CALL, "namespace": "n"},
        {**CALL, "type": "function_call_output", "output": ""},
    ],
    "a call that was cut off": [{**CALL, "status": "incomplete"}],
    "custom tool": [
        {"type": "custom_tool_call", "call_id": "c", "name": "t", "input": "x", "namespace": "n"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [TEXT, IMAGE]},
    ],
    "local shell": [
        {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["a"]}},
        {"type": "local_shell_call_output", "call_id": "c", "output": "x"},
    ],
    "shell": [
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["a"], "timeout_ms": 5}},
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
    ],
    "patch": [
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "create_file", "path": "a", "diff": "+a"},
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"},
    ],
    "a search for tools": [
        {"type": "tool_search_call", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "tools": []},
        {"type": "tool_search_call", "arguments": {}, "call_id": "c", "execution": None},
        {"type": "tool_search_output", "call_id": "c", "tools": [], "status": None},
    ],
}
NOT_IN_SDK = {"local_shell_call_output": {"call_id"}}
"""The SDK gives the id of the call as that of its output, so that the output has none."""


def listed(items: list[dict[str, Any]], response: UUID) -> list[dict[str, Any]]:
    context = assemble((), parse(input=items).input, stored={}, unsealed={}, response=response)
    return [orjson.loads(item.json) for item in context.items[context.inherited :]]


def test_a_search_for_tools_is_listed_with_who_made_it() -> None:
    said = [item["execution"] for item in listed(INPUTS["a search for tools"], UUID(int=1))]
    assert said == ["server", "server", "client", "client"]


@each("items", INPUTS.values())
def test_every_item_is_listed_as_the_sdk_describes_it(items: list[dict[str, Any]]) -> None:
    shown = listed(items, UUID(int=1))
    assert len(shown) == len(items)
    for item in shown:
        parsed = LISTED.validate_json(orjson.dumps(item), strict=True)
        assert parsed.type == item["type"]
        assert set(parsed.model_extra) <= NOT_IN_SDK.get(item["type"], set())


@each("items", INPUTS.values())
def test_what_is_listed_is_listed_alike_when_it_is_sent_again(items: list[dict[str, Any]]) -> None:
    shown = listed(items, UUID(int=1))
    assert listed(shown, UUID(int=2)) == shown
