"""How often a model is asked again, and what becomes of a call when its backend dies."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from gateway.entries import Hold, Hop, Repair
from tests.fakes.bounds import bounds
from tests.integration.api.tools.fleets import FLEETS, WITH_GRAMMARS, WITHOUT, asker_of
from tests.integration.api.tools.recounting import log_of
from tests.integration.api.tools.toolbox import CLOCK, WEATHER, name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer
    from tests.integration.api.tools.asking import Asker, Json

STRICT: Json = {"type": "function", "name": "get_weather"}
NOW: Json = {"type": "function", "name": "now"}


@pytest.fixture(scope="module", params=["grammars", "no grammars"])
async def strict_fleet(
    request: pytest.FixtureRequest, postgres: PostgresServer, template: str
) -> AsyncIterator[Asker]:
    """A gateway that repairs nothing."""
    async with AsyncExitStack() as stack:
        # Other gateways may be started while this one serves: theirs are the usual bounds.
        with bounds("replica.GuardLimits", repairs_max=0):
            strict = asker_of(postgres, template, FLEETS[request.param])
            asker = await stack.enter_async_context(strict)
        yield asker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("antics", "body", "code"),
    [
        ("attack=call:now", {"tool_choice": STRICT}, "invalid_tool_call"),
        ("drift=types call=get_weather", {"tool_choice": STRICT}, "invalid_tool_call"),
        ("call=none", {"tool_choice": "required"}, "required_tool_not_called"),
        ("drift=prose", {"text": {"format": {"type": "json_object"}}}, "invalid_structured_output"),
    ],
)
async def test_without_repairs_the_first_mistake_is_the_last(
    strict_fleet: Asker, antics: str, body: Json, code: str
) -> None:
    talk = f"Hello. [[sim grammar_ids=none {antics}]]"
    told = await strict_fleet.ask(talk, tools=[WEATHER, CLOCK], **body)
    assert told.code == code
    assert len(await strict_fleet.backends.of_response(told.response["id"])) == 1
    assert all(item["status"] == "incomplete" for item in told.calls)


@pytest.mark.slow
async def test_without_repairs_the_header_of_a_call_is_still_opened_once(
    strict_fleet: Asker,
) -> None:
    # That is no repair: nothing is taken back of a turn that only thought (recovery rule R10).
    talk = "Hello. [[sim grammar_ids=none attack=silent]]"
    told = await strict_fleet.ask(talk, tools=[WEATHER, CLOCK], tool_choice=NOW)
    assert (told.code, [name_of(call) for call in told.calls]) == (None, ["now"])


@pytest.mark.slow
async def test_mistakes_are_mended_as_often_as_the_operator_wants(fleet: Asker) -> None:
    for times in (1, 3, 4):
        talk = f"Use now. [[sim grammar_ids=none attack=call:get_weather times={times}]]"
        choice = {"type": "allowed_tools", "mode": "required", "tools": [NOW]}
        told = await fleet.stream(input=talk, tools=[WEATHER, CLOCK], tool_choice=choice)
        # Whatever it would rather call: its header is opened for it from the second turn on.
        assert [name_of(call) for call in told.calls] == ["now"]
        rules = [
            entry.rule
            for entry in await log_of(fleet.database, told.response["id"])
            if isinstance(entry, Repair)
        ]
        assert rules == ["call_not_allowed"]


@pytest.mark.slow
@pytest.mark.parametrize("after", range(44, 72, 3))
async def test_a_call_goes_on_where_no_grammar_can(
    postgres: PostgresServer, template: str, after: int
) -> None:
    async with asker_of(postgres, template, (WITHOUT, WITH_GRAMMARS)) as fleet:
        talk = f"Hello. [[sim call=get_weather only=b1 die_after={after}]]"
        told = await fleet.stream(input=talk, tools=[WEATHER, CLOCK], tool_choice=STRICT)
        (call,) = told.calls
        assert set(json.loads(call["arguments"])) == {"location", "unit"}
        log = await log_of(fleet.database, told.response["id"])
        hops = [at for at, entry in enumerate(log) if isinstance(entry, Hop)]
        holds = [at for at, entry in enumerate(log) if isinstance(entry, Hold)]
        assert len(hops) == len(holds) <= 1
        assert all(hold > hop for hold, hop in zip(holds, hops, strict=True))
