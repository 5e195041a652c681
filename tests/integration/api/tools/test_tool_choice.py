"""`tool_choice` over tools of every kind, with a model that would rather do something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.api.tools.toolbox import AGENTS, ALL, CLOCK, SUM, WEATHER, name_of

if TYPE_CHECKING:
    from tests.integration.api.tools.asking import Asker, Json, Told

TALK = "Greet me. [[sim call=none]]"
ASK = "Use get_weather for Oslo."

NAMED: dict[str, tuple[Json, str]] = {
    "function": ({"type": "function", "name": "now"}, "now"),
    "strict function": ({"type": "function", "name": "get_weather"}, "get_weather"),
    "custom": ({"type": "custom", "name": "note"}, "note"),
    "grammar": ({"type": "custom", "name": "add"}, "add"),
    "dotted": ({"type": "function", "name": "agents.spawn"}, "agents.spawn"),
    "namespace": ({"type": "function", "name": "ask", "namespace": "agents"}, "agents.ask"),
    "custom in a namespace": ({"type": "custom", "name": "agents.count"}, "agents.count"),
    "shell": ({"type": "shell"}, "shell"),
    "patcher": ({"type": "apply_patch"}, "apply_patch"),
}
ALLOWED: dict[str, tuple[list[Json], set[str]]] = {
    "one": ([{"type": "function", "name": "now"}], {"now"}),
    "two kinds": ([{"type": "custom", "name": "add"}, {"type": "shell"}], {"add", "shell"}),
    "in a namespace": ([{"type": "function", "name": "agents.spawn"}], {"agents.spawn"}),
    "a namespace": (
        [{"type": "namespace", "name": "agents"}],
        {"agents.spawn", "agents.ask", "agents.count"},
    ),
}


def names(told: Told) -> set[str]:
    """The tools that were called, by the names that the model knows."""
    return {name_of(call) for call in (*told.calls, *told.announced)}


@pytest.mark.slow
@pytest.mark.parametrize("case", NAMED)
async def test_the_named_tool_is_called_and_no_other(fleet: Asker, case: str) -> None:
    choice, name = NAMED[case]
    told = await fleet.ask(TALK, tools=ALL, tool_choice=choice)
    assert (told.response["status"], names(told)) == ("completed", {name})
    assert told.response["tool_choice"] == choice
    assert told.text == ""


@pytest.mark.parametrize("talk", [TALK, "[[sim attack=silent]]", "[[sim drift=refusal]]"])
async def test_a_call_comes_before_any_prose_where_one_is_required(fleet: Asker, talk: str) -> None:
    told = await fleet.ask(talk, tools=[CLOCK, WEATHER], tool_choice="required")
    # What refuses a call with its arguments makes none that is right.
    is_stubborn = "refusal" in talk and told.code is not None
    assert is_stubborn or names(told) <= {"now", "get_weather"}
    assert is_stubborn or names(told)
    assert told.text == ""


@pytest.mark.slow
@pytest.mark.requirement("control.allowed-tools")
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("case", ALLOWED)
async def test_only_what_is_allowed_is_called(fleet: Asker, case: str, mode: str) -> None:
    listed, allowed = ALLOWED[case]
    choice = {"type": "allowed_tools", "mode": mode, "tools": listed}
    told = await fleet.ask(ASK, tools=ALL, tool_choice=choice)
    assert names(told) <= allowed
    if told.code is None:
        assert names(told) if mode == "required" else names(told) or told.text
    else:
        # A model that insists on another tool, and that nothing holds.
        assert (told.code, fleet.holds, mode) == ("invalid_tool_call", False, "required")
        assert len(allowed) > 1
    assert told.response["tool_choice"] == choice
    assert [tool["type"] for tool in told.response["tools"]] == [tool["type"] for tool in ALL]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["", "attack=call:now", "attack=analysis_call", "attack=twice"])
async def test_none_is_called_where_none_may_be(fleet: Asker, attack: str) -> None:
    told = await fleet.ask(f"{ASK} [[sim {attack}]]", tools=ALL, tool_choice="none")
    assert told.response["status"] == "completed"
    assert names(told) == set()
    assert told.text


@pytest.mark.slow
async def test_a_named_local_shell_is_repeated_as_openais_types_know_it(fleet: Asker) -> None:
    choice = {"type": "local_shell"}
    told = await fleet.ask(TALK, tools=ALL, tool_choice=choice)
    assert names(told) == {"local_shell"}
    repeated = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    assert told.response["tool_choice"] == repeated


@pytest.mark.slow
@pytest.mark.requirement("choice.auto")
@pytest.mark.requirement("create.tool-choice")
async def test_by_itself_the_model_calls_what_it_likes(fleet: Asker) -> None:
    called = await fleet.ask(ASK, tools=ALL)
    assert names(called) == {"get_weather"}
    assert called.response["tool_choice"] == "auto"
    talked = await fleet.ask(TALK, tools=ALL)
    assert names(talked) == set()
    assert talked.text


@pytest.mark.slow
@pytest.mark.requirement("create.parallel-tool-calls")
async def test_two_calls_of_one_turn_are_one_where_they_may_not_be_parallel(fleet: Asker) -> None:
    talk = f"{ASK} [[sim attack=twice grammar_ids=none]]"
    both = await fleet.ask(talk, tools=[WEATHER, CLOCK])
    assert [name_of(call) for call in both.calls] == ["get_weather", "now"]
    one = await fleet.ask(talk, tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    assert one.response["status"] == "completed"
    assert [name_of(call) for call in one.calls] == ["get_weather"]
    assert [call["id"] for call in one.announced] == [call["id"] for call in one.calls]


@pytest.mark.requirement("control.choice-is-checked")
@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ("required", []),
        ({"type": "function", "name": "now"}, []),
        ({"type": "function", "name": "later"}, [CLOCK]),
        ({"type": "custom", "name": "now"}, [CLOCK]),
        ({"type": "function", "name": "add"}, [SUM]),
        ({"type": "function", "name": "spawn"}, [AGENTS]),
        ({"type": "shell"}, [CLOCK]),
        ({"type": "web_search"}, [CLOCK, {"type": "web_search"}]),
        ("required", [{"type": "web_search"}]),
        ("sometimes", [CLOCK]),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, [CLOCK]),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "later"}],
            },
            [CLOCK],
        ),
    ],
)
async def test_a_choice_of_what_is_not_there_is_refused(
    fleet: Asker, choice: Any, tools: list[Json]
) -> None:
    error = await fleet.refusal(400, input="x", tools=tools, tool_choice=choice)
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith("tool_choice")
    assert error["message"].endswith(".")
