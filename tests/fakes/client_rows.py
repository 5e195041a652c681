"""Whole bodies, one for each kind of client, with what is peculiar to it (and no model)."""

from __future__ import annotations

from typing import Any

EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
    "additionalProperties": False,
}
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def function(name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A function tool."""
    return {"type": "function", "name": name, "parameters": parameters, **fields}


def answer_format(name: str, **fields: Any) -> dict[str, Any]:
    """`text` with a schema."""
    return {"format": {"type": "json_schema", "name": name, "schema": ANSWER, **fields}}


ROWS: dict[str, dict[str, Any]] = {
    "openai-py: parameters of this year": {
        "input": "x",
        "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "implicit", "comparison_response_id": "resp_1"},
        "prompt_cache_retention": "24h",
        "safety_identifier": "s" * 128,
        "service_tier": "fast",
        "reasoning": {"effort": "xhigh", "mode": "pro", "context": "auto", "summary": "auto"},
        "image": {"context_compression": True},
        "access_programs": {"cyber": True},
    },
    "Agents SDK: hosted tools": {
        "input": [{"content": "x", "role": "user"}],
        "include": [],
        "tools": [
            {
                "type": "web_search",
                "filters": None,
                "user_location": None,
                "search_context_size": "medium",
            },
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"type": "file_search", "vector_store_ids": ["vs_1"]},
            {
                "type": "mcp",
                "server_label": "s",
                "server_url": "https://mcp.example/sse",
                "require_approval": "never",
            },
        ],
    },
    "Agents SDK: handoff": {
        "input": [{"content": "x", "role": "user"}],
        "include": [],
        "tools": [
            function("transfer_to_weather_agent", {**EMPTY, "additionalProperties": False}),
            function("transfer_to_Weather_agent", EMPTY, strict=True, description="Hands over."),
        ],
    },
    "Agents SDK: structured output": {
        "instructions": "",
        "input": [{"content": "x", "role": "user"}],
        "include": [],
        "tools": [],
        "text": answer_format("final_output", strict=True),
    },
    "AI SDK: not stored": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tool_choice": "auto",
        "tools": [function("weather", {**WEATHER, "$schema": DRAFT_07}, strict=False)],
    },
    "opencode": {
        "input": [
            {"role": "developer", "content": "You are opencode."},
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        ],
        "max_output_tokens": 32_000,
        "prompt_cache_key": "ses_5f1c2e",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
    },
    "Mastra": {
        "input": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "input_text", "text": "y"}]},
        ]
    },
    "LangChain": {
        "input": [{"type": "message", "role": "user", "content": "x"}],
        "stream": False,
        "tools": [function("weather", WEATHER, description="d")],
    },
    "LangChain for JavaScript": {
        "input": [{"type": "message", "role": "user", "content": "x"}],
        "text": {},
        "tools": [function("weather", {**WEATHER, "$schema": DRAFT_2020}, strict=None)],
        "store": False,
        "stream": False,
    },
    "pydantic-ai: replay": {
        "input": [
            {"role": "user", "content": "x"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "encrypted_content": None,
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {
                "role": "assistant",
                "id": "msg_1",
                "content": [{"type": "output_text", "text": "y", "annotations": []}],
                "status": "completed",
                "type": "message",
            },
            {"role": "user", "content": "z"},
        ]
    },
    "pydantic-ai: structured output": {
        "input": [{"role": "user", "content": "x"}],
        "tools": [function("final_result", ANSWER, strict=False, description="The result.")],
        "tool_choice": "required",
        "parallel_tool_calls": True,
    },
    "LlamaIndex": {
        "input": [{"role": "user", "content": "x"}],
        **dict.fromkeys(
            ("include", "instructions", "metadata", "user", "max_output_tokens", "tools")
        ),
        "previous_response_id": None,
        "store": False,
        "temperature": 0.1,
        "top_p": 1.0,
        "truncation": "disabled",
        "parallel_tool_calls": True,
    },
    "LlamaIndex: structured output": {
        "input": [{"role": "user", "content": "x"}],
        "tool_choice": "none",
        "text": answer_format("Answer"),
        "store": False,
    },
    "instructor": {
        "input": [{"role": "user", "content": "x"}],
        "text": answer_format("Answer", strict=True),
        "tools": [function("Answer", ANSWER, strict=True)],
        "tool_choice": {"type": "function", "name": "Answer"},
    },
    "autogen": {
        "input": [{"role": "system", "content": "You help."}, {"role": "user", "content": "x"}],
        "temperature": 1,
        "truncation": "disabled",
    },
    "semantic-kernel": {
        "input": [{"role": "user", "content": "x"}],
        "text": {},
        "tools": [],
        "metadata": {},
        "previous_response_id": None,
        "store": True,
    },
    "Open WebUI": {
        "input": [
            {"type": "message", "role": "user", "content": "x"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "y"}],
            },
            {"type": "message", "role": "user", "content": "z"},
        ],
        "reasoning_effort": "low",
        "stream": False,
    },
    "llm": {
        "input": [{"role": "user", "content": "x"}],
        "store": False,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "output",
                "strict": False,
                "schema": {"type": "object", "properties": {"a": {"type": "string"}}},
            }
        },
    },
}
"""What each sends to begin with; all of it is served."""

STRICTLY_REFUSED: dict[str, tuple[str, str]] = {
    "Agents SDK: hosted tools": ("unsupported_parameter", "tools[0].type"),
    "Open WebUI": ("unknown_parameter", "reasoning_effort"),
}
"""What a strict gateway says to some of them: code and param."""
