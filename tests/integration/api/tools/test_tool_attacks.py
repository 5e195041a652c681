"""Models that do what they may not: nothing of it is shown, and what was asked for is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.api.tools.fleets import FLEETS
from tests.integration.api.tools.toolbox import AGENTS, CLOCK, SUM, WEATHER, name_of

if TYPE_CHECKING:
    from tests.integration.api.tools.asking import Asker, Json, Told

pytestmark = pytest.mark.parametrize("fleet", FLEETS, indirect=True)

TOOLS = [WEATHER, CLOCK, SUM, AGENTS]
ASK = "Use get_weather for Oslo."
NOW: Json = {"type": "function", "name": "now"}
STRICT: Json = {"type": "function", "name": "get_weather"}
ONLY_NOW: Json = {"type": "allowed_tools", "mode": "auto", "tools": [NOW]}

UNSEEN = ["call:add", "call:nothing", "call:agents.spawn", "twice", "analysis_call", "silent"]
HEADERS = ["header", "long_header"]
WRONG = ["drift=prose", "drift=types", "drift=truncated", "drift=extra", "attack=markers"]


def wayward(*words: str, text: str = ASK) -> str:
    """A request of a model that does this even where its engine promises a grammar."""
    return f"{text} [[sim grammar_ids=none {' '.join(words)}]]"


def shown(told: Told) -> list[str]:
    """The calls that anybody saw, all of which are done."""
    assert [item["id"] for item in told.announced] == [item["id"] for item in told.calls]
    return [name_of(call) for call in told.calls]


@pytest.mark.slow
@pytest.mark.requirement("choice.is-enforced")
@pytest.mark.parametrize("attack", [*UNSEEN, *HEADERS])
async def test_a_named_tool_is_called_whatever_the_model_would_rather_call(
    fleet: Asker, attack: str
) -> None:
    told = await fleet.ask(wayward(f"attack={attack}"), tools=TOOLS, tool_choice=NOW)
    assert (told.response["status"], set(shown(told))) == ("completed", {"now"})


@pytest.mark.slow
@pytest.mark.requirement("choice.is-enforced")
@pytest.mark.parametrize("attack", ["call:get_weather", "call:agents.spawn", "call:nothing"])
async def test_a_tool_that_is_not_allowed_is_never_called(fleet: Asker, attack: str) -> None:
    told = await fleet.ask(wayward(f"attack={attack}"), tools=TOOLS, tool_choice=ONLY_NOW)
    # It is made to answer.
    assert (told.response["status"], shown(told)) == ("completed", [])
    assert told.text


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["header", "long_header", "silent", "markers"])
async def test_an_attack_with_no_call_at_all_is_no_call(fleet: Asker, attack: str) -> None:
    told = await fleet.ask(wayward(f"attack={attack}", text="Hi."), tool_choice="none", tools=TOOLS)
    assert (told.response["status"], shown(told)) == ("completed", [])
    assert told.text


@pytest.mark.slow
async def test_an_undeclared_tool_is_passed_on_only_where_the_model_chooses(fleet: Asker) -> None:
    attack = wayward("attack=call:nothing")
    told = await fleet.ask(attack, tools=TOOLS)
    assert shown(told) == ["nothing"]
    required = await fleet.ask(attack, tools=TOOLS, tool_choice="required")
    assert "nothing" not in shown(required)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_arguments_of_a_strict_tool_are_mended_or_the_response_fails(
    fleet: Asker, wrong: str
) -> None:
    mended = await fleet.stream(input=wayward(wrong, "times=1"), tools=TOOLS, tool_choice=STRICT)
    seen = shown(mended)
    if fleet.holds:  # The beginning was streamed, since the engine had promised the grammar.
        assert mended.code in {None, "invalid_tool_call"}
    else:
        assert (mended.code, seen) == (None, ["get_weather"])
    failed = await fleet.stream(input=wayward(wrong), tools=TOOLS, tool_choice=STRICT)
    assert failed.code == "invalid_tool_call"
    assert all(item["status"] == "incomplete" for item in failed.calls)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
async def test_text_outside_of_a_grammar_has_no_done_event(fleet: Asker, wrong: str) -> None:
    choice = {"type": "custom", "name": "add"}
    failed = await fleet.stream(input=wayward(wrong), tools=TOOLS, tool_choice=choice)
    assert failed.code == "invalid_tool_call"
    assert all(item["status"] == "incomplete" for item in failed.calls)


async def test_an_endless_thinker_that_must_call_is_made_to(fleet: Asker) -> None:
    told = await fleet.ask(
        "Go. [[sim attack=endless grammar_ids=none]]",
        tools=TOOLS,
        tool_choice=NOW,
        reasoning={"max_tokens": 40},
    )
    assert (told.response["status"], set(shown(told))) == ("completed", {"now"})
    assert told.response["usage"]["output_tokens_details"]["reasoning_tokens"] == 40


@pytest.mark.requirement("order.truncated-call")
async def test_a_call_that_the_limit_cuts_off_is_incomplete(fleet: Asker) -> None:
    told = await fleet.ask(
        "Go. [[sim think=none]]", tools=TOOLS, tool_choice=STRICT, max_output_tokens=16
    )
    assert (told.response["status"], told.code) == ("incomplete", None)
    assert told.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert all(item["status"] == "incomplete" for item in told.calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("invalid_tool_call", {"tool_choice": STRICT}),
        ("invalid_structured_output", {"text": {"format": {"type": "json_object"}}}),
    ],
)
async def test_a_failure_says_what_to_do(fleet: Asker, code: str, body: Json) -> None:
    told = await fleet.ask(wayward("drift=prose", text="Hi."), tools=TOOLS, **body)
    assert told.code == code
    assert "Try again" in told.response["error"]["message"]
    error = told.events[-2]
    assert (error["type"], error["code"]) == ("error", code)
    assert error["message"] == told.response["error"]["message"]
