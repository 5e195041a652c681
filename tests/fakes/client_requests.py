"""Members of bodies that real clients send, by client."""

from __future__ import annotations

from typing import Any

from tests.fakes.create_bodies import CALL, FUNCTION

SECOND_TURN: list[Any] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    },
    CALL,
    {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
    {"role": "user", "content": "go on"},
]

CLIENTS: dict[str, dict[str, Any]] = {
    "codex and opencode, second turn": {"store": False, "input": SECOND_TURN, "tools": [FUNCTION]},
    "codex": {
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0196-session",
        "client_metadata": {"turn": "1"},
        "text": {"verbosity": "medium"},
        "tools": [{**FUNCTION, "strict": False}],
        "input": [
            {
                "type": "message",
                "role": "developer",
                "id": "msg_0196f2a4-77aa-7e01-9c1f-5f6f0a8f2b3c",
                "content": [{"type": "input_text", "text": "You are a coding agent."}],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "encrypted_content": "gAAAA",
            },
            CALL,
            {
                "type": "function_call_output",
                "id": "fco_1",
                "call_id": "call_1",
                "output": [
                    {"type": "input_text", "text": "x"},
                    {
                        "type": "input_image",
                        "image_url": "data:image/png;base64,AA==",
                        "detail": "high",
                    },
                ],
            },
        ],
    },
    "the gpt-oss compatibility test": {
        "instructions": "",
        "input": [
            {"role": "user", "content": "Как здоровье системы?"},
            {
                "id": "rs_1",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "We call."}],
                "status": "completed",
            },
            {**CALL, "id": "fc_1", "status": "completed"},
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": "{}",
                "status": "completed",
            },
        ],
        "include": [],
        "tools": [{**FUNCTION, "description": "d", "strict": False}],
        "stream": False,
    },
    "LlamaIndex": {
        "include": None,
        "instructions": None,
        "metadata": None,
        "user": None,
        "max_output_tokens": None,
        "previous_response_id": None,
        "store": False,
        "temperature": 0.1,
        "truncation": "disabled",
        "tool_choice": "none",
        "stream_options": None,
        "top_logprobs": None,
        "service_tier": None,
        "background": None,
    },
    "LangChain, output only": {
        "previous_response_id": "resp_1",
        "input": [{"type": "function_call_output", "call_id": "c", "output": ""}],
        "stream": False,
    },
    "LangChain for JavaScript": {
        "text": {},
        "tools": [
            {
                **FUNCTION,
                "strict": None,
                "description": None,
                "parameters": {"$schema": "https://json-schema.org/draft/2020-12/schema"},
            }
        ],
    },
    "AI SDK": {
        "input": [
            {"type": "item_reference", "id": "rs_1"},
            {"id": "fc_1"},
            {"id": "m", "type": None},
        ],
        "tool_choice": "auto",
        "store": True,
    },
    "semantic-kernel": {
        "text": {},
        "tools": [],
        "metadata": {},
        "previous_response_id": None,
        "store": True,
    },
    "Open WebUI": {
        "reasoning_effort": "low",
        "input": [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}],
    },
    "everything null inside": {
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": None, "verbosity": None},
        "input": [
            {"id": None, "status": None, "phase": None, "role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "x", "annotations": None, "logprobs": None}
                ],
            },
        ],
    },
    "hints": {
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k" * 64,
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "explicit", "ttl": "30m", "prewarm": True},
        "safety_identifier": "s" * 128,
        "service_tier": "ultrafast",
        "user": "u",
        "top_logprobs": 0,
        "truncation": "auto",
        "include": [
            "file_search_call.results",
            "web_search_call.results",
            "web_search_call.action.sources",
            "message.input_image.image_url",
            "computer_call_output.output.image_url",
            "code_interpreter_call.outputs",
            "reasoning.encrypted_content",
        ],
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"context": "current_turn", "mode": "standard"},
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    },
    "at the bounds": {
        "max_output_tokens": 16,
        "max_tool_calls": 1,
        "temperature": 2,
        "top_p": 0,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "metadata": {f"{number:064}": "v" * 512 for number in range(16)},
        "input": "x" * 5_000,
    },
    "codex, with everything": {
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "text": {
            "format": {
                "type": "json_schema",
                "name": "codex_output_schema",
                "strict": True,
                "schema": {"type": "object", "properties": {}, "additionalProperties": False},
            }
        },
        "tools": [
            {**FUNCTION, "name": "exec_command", "strict": False},
            {
                "type": "namespace",
                "name": "multi_agent_v1",
                "description": "Agents.",
                "tools": [{**FUNCTION, "name": "spawn_agent", "strict": False}],
            },
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Edits files.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
            },
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": False},
        ],
        "input": [
            {
                "type": "function_call",
                "namespace": "multi_agent_v1",
                "name": "spawn_agent",
                "call_id": "call_1",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
            {
                "type": "custom_tool_call",
                "call_id": "call_2",
                "name": "apply_patch",
                "input": "x",
                "status": "completed",
                "id": None,
            },
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
            {
                "type": "local_shell_call",
                "call_id": "call_3",
                "status": "completed",
                "action": {
                    "type": "exec",
                    "command": ["ls"],
                    "timeout_ms": None,
                    "env": None,
                    "working_directory": None,
                    "user": None,
                },
            },
            {"type": "function_call_output", "call_id": "call_3", "output": "ok"},
        ],
    },
    "the Agents SDK's shell and patcher": {
        "tools": [
            {"type": "shell", "environment": {"type": "local"}},
            {"type": "apply_patch", "allowed_callers": None},
        ],
        "input": [
            {
                "type": "shell_call",
                "id": "sh_1",
                "call_id": "call_1",
                "status": "completed",
                "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
                "environment": None,
                "caller": None,
                "created_by": None,
            },
            {
                "type": "shell_call_output",
                "call_id": "call_1",
                "max_output_length": 100,
                "output": [
                    {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
                ],
                "provider_data": {},
            },
            {
                "type": "apply_patch_call",
                "id": "apc_1",
                "call_id": "call_2",
                "status": "completed",
                "operation": {"type": "update_file", "path": "a", "diff": "@@"},
            },
            {
                "type": "apply_patch_call_output",
                "call_id": "call_2",
                "status": "completed",
                "output": None,
            },
        ],
    },
    "image and file in new input": {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
                    {"type": "input_file", "file_id": "file_1", "filename": "a.pdf"},
                ],
            }
        ]
    },
}
