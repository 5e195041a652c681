"""A request's part of the Response object, as literal values."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from gateway.constraints.output_rules import OutputRules
from gateway.protocol.responses.response_object import ResponseHead

UUID_OF_TEST: Final = UUID("019aa0b0-c0d0-7e0f-8102-030405060708")
CREATED_AT: Final = 1_795_000_000
ECHO: Final[dict[str, Any]] = {
    "instructions": "Be brief.",
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {"purpose": "test"},
    "model": "gpt-oss-20b",
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": "medium", "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": None,
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
NO_RULES: Final = OutputRules(tools={}, allowed=frozenset())
"""Of a request that demands nothing of the output."""


def response_head(*, background: bool = False) -> ResponseHead:
    """The head that output tests use; always the same one."""
    return ResponseHead(UUID_OF_TEST, CREATED_AT, background, ECHO)
