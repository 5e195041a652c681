"""Whatever tools there are, whatever is chosen, and whatever the model does instead: no call that
is forbidden is ever shown, and none that is required is missing.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.protocol.tool_types import APPLY_PATCH_PARAMETERS
from tests.integration.api.tools.toolbox import ALL, SUM, WEATHER, name_of

if TYPE_CHECKING:
    from tests.integration.api.tools.asking import Asker, Json, Told

OPERATION: Final = APPLY_PATCH_PARAMETERS["properties"]["operation"]
EXAMPLES: Final = 20
CODES: Final = {None, "invalid_tool_call", "required_tool_not_called"}
ATTACKS: Final = (
    *("call:get_weather", "call:now", "call:nothing", "call:agents.spawn", "call:shell"),
    *("twice", "analysis_call", "markers", "marker_ids", "header", "long_header", "silent"),
    *("loop:2", "think_loop:3"),
)
DRIFTS: Final = ("prose", "types", "truncated", "extra", "refusal")


def members(tool: Json) -> list[Json]:
    """The choices that name what a tool offers."""
    if tool["type"] == "namespace":
        return [{"type": one["type"], "name": f"agents.{one['name']}"} for one in tool["tools"]]
    return [{"type": tool["type"], **({"name": tool["name"]} if "name" in tool else {})}]


@st.composite
def requests(draw: st.DrawFn) -> Json:
    """Tools, a choice of them, and whether calls may be parallel."""
    tools = draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=4, unique_by=str))
    names = [name for tool in tools for name in members(tool)]
    some = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique_by=str)
    allowed = st.fixed_dictionaries(
        {
            "type": st.just("allowed_tools"),
            "mode": st.sampled_from(["auto", "required"]),
            "tools": some,
        }
    )
    modes = st.sampled_from(["auto", "none", "required"])
    choice = draw(modes | st.sampled_from(names) | allowed)
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": draw(st.booleans())}


@st.composite
def ways(draw: st.DrawFn) -> str:
    """What a model does instead of what it is asked."""
    words = [
        draw(st.sampled_from([*(f"attack={one}" for one in ATTACKS), "call=none", "call=now"])),
        draw(st.sampled_from(["", *(f"drift={one}" for one in DRIFTS)])),
        draw(st.sampled_from(["", "grammar_ids=none", "grammar_ids=none", "grammar_ids=4"])),
        draw(st.sampled_from(["", "", "times=1", "times=2"])),
        draw(st.sampled_from(["", "think=none", "think=5"])),
    ]
    return f"Use get_weather for Oslo. [[sim {' '.join(filter(None, words))}]]"


def callable_names(body: Json) -> set[str]:
    """What may be called, by the names that the model knows."""
    offered = [name for tool in body["tools"] for name in members(tool)]
    match body["tool_choice"]:
        case "none":
            wanted: list[Json] = []
        case {"type": "allowed_tools", "tools": wanted}:
            pass
        case dict() as one:
            wanted = [one]
        case _:
            wanted = offered
    return {str(name.get("name", name["type"])) for name in wanted}


def is_required(body: Json) -> bool:
    """A call has to be made."""
    choice = body["tool_choice"]
    return choice == "required" or (isinstance(choice, dict) and choice.get("mode") != "auto")


def check_arguments(call: Json) -> None:
    """A call that is done has the shape of its tool."""
    match name_of(call):
        case "get_weather" | "agents.ask":
            Draft202012Validator(WEATHER["parameters"]).validate(json.loads(call["arguments"]))
        case "add" | "agents.count":
            assert re.fullmatch(SUM["format"]["definition"], call["input"])
        case "apply_patch":
            Draft202012Validator(OPERATION).validate(call["operation"])
        case "shell":
            assert call["action"]["commands"]
        case "local_shell":
            assert call["action"]["command"]
        case _:
            pass


def check(body: Json, told: Told) -> None:
    """All of it."""
    allowed = callable_names(body)
    declared = {name.get("name", name["type"]) for tool in body["tools"] for name in members(tool)}
    for call in (*told.announced, *told.calls):
        is_passed_on = body["tool_choice"] == "auto" and name_of(call) not in declared
        assert name_of(call) in allowed or is_passed_on
    for call in told.calls:
        if call["status"] == "completed" and name_of(call) in declared:
            check_arguments(call)
    if not body["parallel_tool_calls"]:
        assert len(told.announced) <= 1
    assert told.code in CODES
    if told.response["status"] == "completed":
        assert told.calls or not is_required(body)
        assert told.calls or told.text


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=requests(), way=ways())
async def test_no_call_is_shown_that_may_not_be_and_none_is_missing(
    fleet: Asker, body: Json, way: str
) -> None:
    told = await fleet.stream(input=way, max_output_tokens=700, **body)
    check(body, told)
