"""Calls and outputs of every kind, as clients send them, without their `call_id`."""

from __future__ import annotations

from typing import Any

from gateway.protocol.call_items import FILE_NOTE, IMAGE_NOTE

CALLS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "function_call", "name": "f", "arguments": "{ }"}, "f", "{ }"),
    (
        {"type": "function_call", "name": "f", "namespace": "ns", "arguments": "not JSON"},
        "ns.f",
        "not JSON",
    ),
    ({"type": "custom_tool_call", "name": "c", "input": "grün\n"}, "c", '{"input":"grün\\n"}'),
    (
        {"type": "custom_tool_call", "name": "c", "namespace": "ns", "input": ""},
        "ns.c",
        '{"input":""}',
    ),
    (
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        "local_shell",
        '{"command":["ls"]}',
    ),
    (
        {
            "type": "local_shell_call",
            "action": {"command": ["ls"], "env": {"A": "b"}, "timeout_ms": 5, "user": None},
        },
        "local_shell",
        '{"command":["ls"],"env":{"A":"b"},"timeout_ms":5}',
    ),
    (
        {"type": "shell_call", "action": {"commands": ["ls", "pwd"], "max_output_length": 9}},
        "shell",
        '{"commands":["ls","pwd"],"max_output_length":9}',
    ),
    (
        {
            "type": "apply_patch_call",
            "operation": {"type": "update_file", "path": "p", "diff": "@@"},
        },
        "apply_patch",
        '{"operation":{"type":"update_file","path":"p","diff":"@@"}}',
    ),
    (
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "p"}},
        "apply_patch",
        '{"operation":{"type":"delete_file","path":"p"}}',
    ),
    ({"type": "tool_search_call", "arguments": {"query": "x"}}, "tool_search", '{"query":"x"}'),
    ({"type": "tool_search_call"}, "tool_search", "{}"),
]
"""A call, and the name and the arguments that the model knows it by."""

COMMAND = {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
OUTPUTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "function_call_output", "output": "ok"}, "ok"),
    (
        {
            "type": "custom_tool_call_output",
            "output": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image"},
                {"type": "input_file"},
            ],
        },
        f"a\n{IMAGE_NOTE}\n{FILE_NOTE}",
    ),
    ({"type": "local_shell_call_output", "output": "{}"}, "{}"),
    (
        {
            "type": "shell_call_output",
            "output": [COMMAND, {**COMMAND, "outcome": {"type": "timeout"}}],
        },
        '[{"stdout":"a\\n","stderr":"","outcome":{"type":"exit","exit_code":0}},'
        '{"stdout":"a\\n","stderr":"","outcome":{"type":"timeout"}}]',
    ),
    ({"type": "apply_patch_call_output", "status": "completed"}, '{"status":"completed"}'),
    (
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
        '{"status":"failed","output":"no such file"}',
    ),
    (
        {
            "type": "tool_search_output",
            "tools": [
                {"type": "function", "name": "f", "description": "F.", "parameters": {}},
                {
                    "type": "namespace",
                    "name": "ns",
                    "description": "",
                    "tools": [{"type": "custom", "name": "g"}],
                },
                {"type": "web_search"},
            ],
        },
        '{"tools":[{"name":"f","description":"F."},{"name":"ns.g"}]}',
    ),
]
"""An output, and the text that the model is shown."""
