"""Requests of every kind that bind the output, each with what a completed response must be."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from tests.fakes.random_schemas import random_schema
from tests.vllm.asking import SEARCH, SEARCH_ASKED, WEATHER, WEATHER_ASKED, answer_of, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

RANDOM_SCHEMAS = 8
BUDGET = {"max_tokens": 40}
"""A small model would rather think on than call a tool that nobody asked for."""
_GRAMMARS = Path(__file__).parents[1] / "data" / "grammars"
_LISTING = """start: "ls" [" " FLAG] | "cat " NAME
FLAG: /-[a-z]{1,3}/
NAME: /[a-z]{1,8}\\.txt/
"""
_PATCH = re.compile(
    r"\*\*\* Begin Patch\n"
    r"(\*\*\* Add File: .+\n(\+.*\n)+"
    r"|\*\*\* Delete File: .+\n"
    r"|\*\*\* Update File: .+\n(\*\*\* Move to: .+\n)?"
    r"(((@@( .+)?|[-+ ].*)\n)+(\*\*\* End of File\n)?)?)+"
    r"\*\*\* End Patch\n?"
)
_PLACE: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "San José", "東京"]},
        "zone": {"type": "integer", "minimum": -12, "maximum": 14},
    },
    "required": ["city", "zone"],
    "additionalProperties": False,
}
_REPORT: Json = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["rain", "sun", 'a "storm"', "東京"]},
        "here": {"$ref": "#/$defs/place"},
        "others": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 99}, {"type": "null"}]},
        "deep": {
            "type": "object",
            "properties": {"sure": {"type": "boolean"}, "unit": {"const": "C"}},
            "required": ["sure", "unit"],
            "additionalProperties": False,
        },
    },
    "required": ["kind", "here", "others", "limit", "deep"],
    "additionalProperties": False,
    "$defs": {"place": _PLACE},
}
REPORT: Json = {"type": "function", "name": "report", "strict": True, "parameters": _REPORT}
CITY: Json = {"type": "function", "name": "city", "strict": True, "parameters": _PLACE}


@dataclass(frozen=True)
class Control:
    """Fields of a request, and what checks that a completed response does as they say."""

    fields: Json
    check: Callable[[Json], None]


def _custom(name: str, **grammar: str) -> Json:
    tool = {"type": "custom", "name": name, "description": "Takes text."}
    return {**tool, "format": {"type": "grammar", **grammar}} if grammar else tool


LISTING = _custom("listing", syntax="lark", definition=_LISTING)
PATCH = _custom(
    "apply_patch", syntax="lark", definition=(_GRAMMARS / "codex_apply_patch.lark").read_text()
)
CODE = _custom("code", syntax="regex", definition="[A-Z]{3}-[0-9]{4}(, [a-zé]{1,5})?")
_INPUTS = {
    "listing": re.compile(r"ls( -[a-z]{1,3})?|cat [a-z]{1,8}\.txt"),
    "apply_patch": _PATCH,
    "code": re.compile(r"[A-Z]{3}-[0-9]{4}(, [a-zé]{1,5})?"),
    "note": re.compile(r".*", re.DOTALL),
}
_ARGUMENTS: dict[str, Json] = {
    "get_weather": {"type": "object"},
    "search": {"type": "object"},
    "report": _REPORT,
    "city": _PLACE,
    "inner": _PLACE,
}


def check_call(call: Json) -> None:
    """Fails unless it is what its tool takes."""
    match call:
        case {"type": "function_call", "name": name, "arguments": arguments}:
            Draft202012Validator(_ARGUMENTS[name]).validate(json.loads(arguments))
        case {"type": "custom_tool_call", "name": name, "input": said}:
            assert _INPUTS[name].fullmatch(said), said
        case {"type": "local_shell_call", "action": {"command": commands}}:
            assert commands
        case {"type": "shell_call", "action": {"commands": commands}}:
            assert commands
        case {"type": "apply_patch_call", "operation": {"type": kind, "path": str()} as operation}:
            assert ("diff" in operation) == (kind != "delete_file")
        case _:
            raise AssertionError(call)


def one_of(*names: str) -> Callable[[Json], None]:
    """One call of these tools, by name or by type, no answer, and nothing told behind the call:
    where no grammar binds the model it may think on.
    """

    def check(response: Json) -> None:
        [call] = calls_of(response)
        assert call.get("name", call["type"]) in names
        check_call(call)
        told = [item for item in response["output"] if item["type"] != "reasoning"]
        assert told[-1] == call, response["output"]
        phases = [item["phase"] for item in response["output"] if item["type"] == "message"]
        assert "final_answer" not in phases

    return check


def json_of(schema: Json) -> Callable[[Json], None]:
    """An answer of the schema, or a refusal; no calls."""

    def check(response: Json) -> None:
        assert not calls_of(response)
        part = answer_of(response)
        if part["type"] == "output_text":
            Draft202012Validator(schema).validate(json.loads(part["text"]))
        else:
            assert part["refusal"]

    return check


def either(*checks: Callable[[Json], None]) -> Callable[[Json], None]:
    """The first for a response with calls, the other for one without."""
    calls, answer = checks

    def check(response: Json) -> None:
        (calls if calls_of(response) else answer)(response)

    return check


def plain(response: Json) -> None:
    """An answer, and no calls."""
    assert not calls_of(response)
    assert answer_of(response)["text"]


def _format(schema: Json, *, strict: bool = True) -> Json:
    asked = {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}
    return {"format": asked}


def _answers(schema: Json, words: str = "Hello there") -> Control:
    return Control({"input": words, "text": _format(schema)}, json_of(schema))


def _calls(words: str, tools: list[Json], choice: Any, *names: str) -> Control:
    fields = {"input": words, "tools": tools, "tool_choice": choice, "reasoning": BUDGET}
    return Control(fields, one_of(*names))


def _allowed(mode: str, *tools: Json) -> Json:
    named = [{"type": tool["type"], "name": tool["name"]} for tool in tools]
    return {"type": "allowed_tools", "mode": mode, "tools": named}


def _named(tool: Json) -> Json:
    return {"type": tool["type"], "name": tool["name"]}


_BOTH = [WEATHER, SEARCH]
_OBJECT: Json = {"type": "object"}
_SPACE: Json = {
    "type": "namespace",
    "name": "space",
    "description": "More.",
    "tools": [{**CITY, "name": "inner"}],
}
_NOTE = _custom("note")

CALLS: dict[str, Control] = {
    "required, one tool": _calls("Hello", [SEARCH], "required", "search"),
    "required, as it likes": _calls(WEATHER_ASKED, _BOTH, "required", "get_weather", "search"),
    "required, unasked": _calls("Hello", _BOTH, "required", "get_weather", "search"),
    "named": _calls(WEATHER_ASKED, _BOTH, _named(SEARCH), "search"),
    "allowed, required": _calls(
        WEATHER_ASKED, [*_BOTH, CITY], _allowed("required", SEARCH, CITY), "search", "city"
    ),
    "strict": _calls("Hello", [REPORT], "required", "report"),
    "strict, several": _calls("Hello", [REPORT, CITY], "required", "report", "city"),
    "strict, in a namespace": _calls(
        "Hello",
        [_SPACE, SEARCH],
        {"type": "function", "name": "inner", "namespace": "space"},
        "inner",
    ),
    "a grammar": _calls("Hello", [LISTING], "required", "listing"),
    "a grammar and functions": _calls(
        "Hello", [LISTING, CODE, CITY], "required", "listing", "code", "city"
    ),
    "a regular expression": _calls("Hello", [CODE, SEARCH], _named(CODE), "code"),
}
"""With a call whose text is short, or is of a function that the model knows."""
FREE_CALLS: dict[str, Control] = {
    "a patch": _calls("Hello", [PATCH, SEARCH], _named(PATCH), "apply_patch"),
    "any text": _calls(SEARCH_ASKED, [_NOTE], "required", "note"),
    "local shell": _calls(
        "Hello", [{"type": "local_shell"}], {"type": "local_shell"}, "local_shell_call"
    ),
    "shell": _calls("Hello", [{"type": "shell"}], {"type": "shell"}, "shell_call"),
    "patcher": _calls(
        "Hello", [{"type": "apply_patch"}], {"type": "apply_patch"}, "apply_patch_call"
    ),
}
"""With a call that has room for any text."""
ANSWERS: dict[str, Control] = {
    "json_schema": _answers(_REPORT),
    "json_schema, told of tools": Control(
        {"input": "Hello", "text": _format(_REPORT), "tools": _BOTH, "tool_choice": "none"},
        json_of(_REPORT),
    ),
}
"""With JSON of a schema, whose strings are all given."""
FREE_ANSWERS: dict[str, Control] = {
    **{
        f"json_schema {seed}": _answers(random_schema(Random(seed)))
        for seed in range(RANDOM_SCHEMAS)
    },
    "json_object": Control(
        {"input": "As JSON please", "text": {"format": {"type": "json_object"}}}, json_of(_OBJECT)
    ),
    "json_schema, not strict": Control(
        {"input": "Hello", "text": _format(_REPORT, strict=False)}, json_of(_OBJECT)
    ),
}
"""With JSON that has room for any text."""
CHOICES: dict[str, Control] = {
    "json_schema, or a call": Control(
        {"input": WEATHER_ASKED, "text": _format(_REPORT), "tools": _BOTH},
        either(one_of("get_weather", "search"), json_of(_REPORT)),
    ),
    "strict, if it likes": Control(
        {"input": WEATHER_ASKED, "tools": [CITY, WEATHER]},
        either(one_of("city", "get_weather"), plain),
    ),
    "allowed, if it likes": Control(
        {"input": WEATHER_ASKED, "tools": _BOTH, "tool_choice": _allowed("auto", SEARCH)},
        either(one_of("search"), plain),
    ),
    "none": Control({"input": WEATHER_ASKED, "tools": _BOTH, "tool_choice": "none"}, plain),
    "one call at most": Control(
        {"input": WEATHER_ASKED, "tools": _BOTH, "parallel_tool_calls": False},
        either(one_of("get_weather", "search"), plain),
    ),
}
"""With an answer, or perhaps a call."""
ALL: dict[str, Control] = {**CALLS, **FREE_CALLS, **ANSWERS, **FREE_ANSWERS, **CHOICES}
