"""Tools of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Json = dict[str, Any]

PATCH_GRAMMAR = Path("tests/data/grammars/codex_apply_patch.lark").read_text("utf-8")
PATCH = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"

WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a place.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location", "unit"],
        "additionalProperties": False,
    },
}
CLOCK: Json = {
    "type": "function",
    "name": "now",
    "description": "The time at a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
}
NOTE: Json = {"type": "custom", "name": "note", "description": "Keeps a text."}
SUM: Json = {
    "type": "custom",
    "name": "add",
    "description": "Adds two numbers.",
    "format": {"type": "grammar", "syntax": "regex", "definition": r"[0-9]{1,3} \+ [0-9]{1,3}"},
}
PATCHER: Json = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
AGENTS: Json = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [
        {**CLOCK, "name": "spawn", "description": "Starts an agent."},
        {**WEATHER, "name": "ask", "description": "Asks an agent."},
        {**SUM, "name": "count", "description": "Counts agents."},
    ],
}
SHELLS: list[Json] = [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
ALL: list[Json] = [WEATHER, CLOCK, NOTE, SUM, AGENTS, *SHELLS]


def name_of(call: Json) -> str:
    """The name by which the model knows what an item calls."""
    if "name" not in call:
        return str(call["type"].removesuffix("_call"))
    return ".".join(filter(None, (call.get("namespace"), call["name"])))
