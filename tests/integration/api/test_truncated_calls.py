"""`truncation: auto` with calls in the history: a call and its output go together, or stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.controlled import site
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

WORDS = "one two three four five " * 60
CALLS: dict[str, tuple[Json, Json]] = {
    "function_call": (
        {"name": "f", "arguments": "{}"},
        {"type": "function_call_output", "output": WORDS},
    ),
    "custom_tool_call": (
        {"name": "say", "input": "hi"},
        {"type": "custom_tool_call_output", "output": WORDS},
    ),
    "shell_call": (
        {"action": {"commands": ["ls"]}},
        {
            "type": "shell_call_output",
            "output": [
                {"stdout": WORDS, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            ],
        },
    ),
    "apply_patch_call": (
        {"operation": {"type": "delete_file", "path": "a"}, "status": "completed"},
        {"type": "apply_patch_call_output", "status": "completed", "output": WORDS},
    ),
}


@pytest.fixture(scope="module")
async def where(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """A window of 2000 tokens."""
    async with site(postgres, template, WaywardOptions(context_length=2_000)) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALLS)
async def test_old_turns_go_with_their_calls(where: Site, kind: str) -> None:
    call, output = CALLS[kind]
    items: list[Json] = []
    for number in range(12):
        items.append({"role": "user", "content": f"Question {number}."})
        items.append({"type": kind, "call_id": f"call_{number}", **call})
        items.append({**output, "call_id": f"call_{number}"})
        items.append({"role": "assistant", "content": f"Answer {number}."})
    items.append({"role": "user", "content": "Last question."})
    error = await where.refused(input=items)
    assert error["code"] == "context_length_exceeded"
    response = await where.post(input=items, truncation="auto")
    assert response["status"] == "completed"
    (row,) = await where.backends.of_response(response["id"])
    text = vocabulary().decode([one for one in row["prompt_ids"] if one < 200_000])
    assert "Last question." in text
    assert "Question 0." not in text
    assert text.count("to=functions.") >= text.count("functions.") // 3
    assert response["usage"]["input_tokens"] == len(row["prompt_ids"]) < 2_000
