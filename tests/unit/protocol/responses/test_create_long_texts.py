"""Texts longer than the bound: which one it is, in OpenAI's words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.cases import each
from tests.fakes.create_bodies import CALL, CUSTOM, FUNCTION, NAMESPACE, SCHEMA, refusal

LONG = "x" * 5_001
SKILL = {"name": "s", "path": "/s", "description": LONG}
LONG_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"input": LONG}, "input"),
    ({"instructions": LONG}, "instructions"),
    ({"tools": [{**FUNCTION, "description": LONG}]}, "tools[0].description"),
    ({"input": [{"role": "user", "content": LONG}]}, "input[0].content[0].text"),
    ({"input": [{"role": "assistant", "content": LONG}]}, "input[0].content[0].text"),
    (
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": LONG}]}]},
        "input[0].content[0].refusal",
    ),
    (
        {"input": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": LONG}]}]},
        "input[0].content[0].text",
    ),
    (
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": LONG}]}]},
        "input[0].summary[0].text",
    ),
    ({"input": [{**CALL, "arguments": LONG}]}, "input[0].arguments"),
    ({"tools": [{**CUSTOM, "description": LONG}]}, "tools[0].description"),
    ({"tools": [{**NAMESPACE, "description": LONG}]}, "tools[0].description"),
    (
        {"tools": [{"type": "shell", "environment": {"type": "local", "skills": [SKILL]}}]},
        "tools[0].environment.skills[0].description",
    ),
    ({"text": {"format": {**SCHEMA, "description": LONG}}}, "text.format.description"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": LONG}]},
        "input[0].output",
    ),
    (
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": LONG}]},
        "input[0].input",
    ),
    (
        {"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": LONG}]},
        "input[0].output",
    ),
    (
        {"input": [{"type": "local_shell_call_output", "id": "c", "output": LONG}]},
        "input[0].output",
    ),
    (
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image"}, {"type": "input_text", "text": LONG}],
                }
            ]
        },
        "input[0].output[1].text",
    ),
]


@pytest.mark.requirement("items.limits")
@each(("fields", "param"), LONG_TEXTS)
def test_a_text_that_is_too_long_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields) == (
        "string_above_max_length",
        param,
        f"Invalid '{param}': string too long. Expected a string with maximum length 5000, but got "
        "a string with length 5001 instead.",
    )
