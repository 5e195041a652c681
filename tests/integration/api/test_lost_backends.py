"""Backends that break off again and again within what a grammar binds: nobody notices but a pause.

The model heeds no schema of itself. So all that is right of what it says is due to the grammars.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from gateway.entries import Hold, Hop
from tests.fakes.controlled import SGLANG, TURN, site
from tests.fakes.recount import log_of
from tests.integration.api.test_structured_output import PERSON, STRICT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Shown, Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

LASTING = {"upstream": {"health_interval_s": 3600, "hops_max": 50, "losses_max": 50}}
TOOL: Json = {"type": "function", "name": "record", "parameters": PERSON, "strict": True}
LISTING: Json = {
    "type": "custom",
    "name": "shell",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "(" start ")" | "ls " FILE\nFILE: /[a-z]{8}é"/ ("/" /[A-Z]{12}/)~2',
    },
}


@pytest.fixture(scope="module", params=[TURN, SGLANG], ids=["vllm", "sglang"])
async def where(
    request: pytest.FixtureRequest, postgres: PostgresServer, template: str
) -> AsyncIterator[Site]:
    """Over two backends that hold whole turns to a grammar."""
    async with site(postgres, template, request.param, request.param, **LASTING) as running:
        yield running


def ask(drift: str, die_after: int) -> str:
    return f"Describe a person. [[sim drift={drift} think=none die_after={die_after}]]"


async def check(where: Site, shown: Shown) -> None:
    """It went on in the middle, and nothing of it was held."""
    assert shown.status == "completed"
    base = where.running.process.foundation
    (tenant,) = [one for one in await where.running.tenants.list() if one.name == "acme"]
    log = await log_of(base.database, tenant.id, shown.background_id)
    assert any(isinstance(entry, Hop) for entry in log)
    assert not any(isinstance(entry, Hold) for entry in log)


@pytest.mark.slow
@pytest.mark.parametrize("die_after", [16, 19, 23])
@pytest.mark.parametrize("drift", ["prose", "types"])
async def test_an_answer_in_a_format_goes_on_in_it(where: Site, drift: str, die_after: int) -> None:
    shown = await where.everywhere(input=ask(drift, die_after), text={"format": STRICT})
    await check(where, shown)
    Draft202012Validator(PERSON).validate(json.loads(shown.text))
    assert "".join(shown.deltas("output_text")) == shown.text


@pytest.mark.slow
@pytest.mark.parametrize("die_after", [16, 19, 23])
@pytest.mark.parametrize("drift", ["prose", "types"])
async def test_the_arguments_of_a_strict_call_go_on_to_fit_their_schema(
    where: Site, drift: str, die_after: int
) -> None:
    shown = await where.everywhere(
        input=ask(drift, die_after), tools=[TOOL], tool_choice="required"
    )
    await check(where, shown)
    (call,) = shown.calls
    Draft202012Validator(PERSON).validate(json.loads(call["arguments"]))
    assert "".join(shown.deltas("function_call_arguments")) == call["arguments"]


@pytest.mark.slow
@pytest.mark.parametrize("die_after", [16, 19, 23])
async def test_the_input_of_a_custom_tool_goes_on_to_fit_its_grammar(
    where: Site, die_after: int
) -> None:
    shown = await where.everywhere(
        input=ask("prose", die_after), tools=[LISTING], tool_choice="required"
    )
    await check(where, shown)
    (call,) = shown.calls
    command = call["input"].strip("()")
    assert command.startswith("ls ")
    assert command.count("/") == 2
