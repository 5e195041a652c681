"""An item of every tool that OpenAI runs, as its API shows it, and the call and the result that
the model is shown."""

from __future__ import annotations

from typing import Any, Final

from gateway.protocol.call_items import IMAGE_NOTE, NO_RESULT

Json = dict[str, Any]

HOSTED: Final[list[tuple[Json, str, tuple[str | None, str | None]]]] = [
    (
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "naïve", "queries": ["naïve"]},
        },
        "web_search",
        ('{"action":{"type":"search","query":"naïve","queries":["naïve"]}}', NO_RESULT),
    ),
    (
        {
            "type": "file_search_call",
            "id": "fs_1",
            "status": "failed",
            "queries": ["q"],
            "results": [{"file_id": "f", "text": "found", "score": 0.5}],
        },
        "file_search",
        (
            '{"queries":["q"]}',
            '{"results":[{"file_id":"f","text":"found","score":0.5}],"status":"failed"}',
        ),
    ),
    (
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "print(1)",
            "container_id": "cntr_1",
            "outputs": [
                {"type": "logs", "logs": "1"},
                {"type": "image", "url": "data:image/png;base64,AAAA"},
            ],
        },
        "code_interpreter",
        (
            '{"code":"print(1)"}',
            f'{{"outputs":[{{"type":"logs","logs":"1"}},{{"type":"image","url":"{IMAGE_NOTE}"}}]}}',
        ),
    ),
    (
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "result": "AAAA",
            "revised_prompt": "a cat",
        },
        "image_generation",
        ('{"revised_prompt":"a cat"}', f'{{"result":"{IMAGE_NOTE}"}}'),
    ),
    (
        {
            "type": "computer_call",
            "id": "cu_1",
            "status": "completed",
            "call_id": "call_1",
            "pending_safety_checks": [],
            "action": {"type": "click", "button": "left", "x": 1, "y": 2},
        },
        "computer",
        ('{"action":{"type":"click","button":"left","x":1,"y":2}}', None),
    ),
    (
        {
            "type": "computer_call_output",
            "id": "cuo_1",
            "status": "completed",
            "call_id": "call_1",
            "output": {"type": "computer_screenshot", "image_url": "https://example.com/a.png"},
        },
        "computer",
        (None, f'{{"output":"{IMAGE_NOTE}"}}'),
    ),
    (
        {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "s",
            "tools": [{"name": "t", "input_schema": {}, "annotations": None}],
            "error": None,
        },
        "mcp",
        (None, None),
    ),
    (
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "server_label": "s",
            "name": "t",
            "arguments": "{}",
        },
        "mcp",
        ('{"server_label":"s","name":"t","arguments":"{}"}', None),
    ),
    (
        {
            "type": "mcp_approval_response",
            "id": "mcpa_1",
            "approval_request_id": "mcpr_1",
            "approve": False,
            "reason": "no",
        },
        "mcp",
        (None, '{"approve":false,"reason":"no"}'),
    ),
    (
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "status": "completed",
            "server_label": "s",
            "name": "t",
            "arguments": "{}",
            "output": "done",
            "error": None,
        },
        "mcp",
        ('{"server_label":"s","name":"t","arguments":"{}"}', '{"output":"done"}'),
    ),
    (
        {
            "type": "mcp_call",
            "id": "mcp_2",
            "server_label": "a server",
            "name": "t",
            "arguments": "{}",
        },
        "mcp",
        ('{"server_label":"a server","name":"t","arguments":"{}"}', NO_RESULT),
    ),
    (
        {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": []},
        "additional_tools",
        (None, None),
    ),
    (
        {"type": "program", "id": "prog_1", "call_id": "call_1", "code": "f()", "fingerprint": "x"},
        "program",
        ('{"code":"f()"}', None),
    ),
    (
        {
            "type": "program_output",
            "id": "progo_1",
            "call_id": "call_1",
            "status": "incomplete",
            "result": "1",
        },
        "program",
        (None, '{"result":"1","status":"incomplete"}'),
    ),
]
