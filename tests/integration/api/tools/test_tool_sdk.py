"""Tools as a program uses them that is written with OpenAI's library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI

from tests.integration.api.bodies import MODEL
from tests.integration.api.tools.fleets import FLEETS, asker_of
from tests.integration.api.tools.toolbox import ALL, WEATHER

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer
    from tests.integration.api.tools.asking import Asker


def library(fleet: Asker) -> AsyncOpenAI:
    """A client of OpenAI's library in the place of ours."""
    key = fleet.client.headers["authorization"].removeprefix("Bearer ")
    return AsyncOpenAI(base_url=f"{fleet.client.base_url}/v1", api_key=key, max_retries=0)


async def test_a_program_calls_its_tool_and_goes_on(fleet: Asker) -> None:
    tools: Any = [WEATHER]
    async with library(fleet) as client:
        async with client.responses.stream(
            model=MODEL, input="Hello.", tools=tools, tool_choice="required"
        ) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_response()
        call = first.output[-1]
        assert call.type == "function_call"
        assert "response.function_call_arguments.done" in kinds
        second = await client.responses.create(
            model=MODEL,
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "65F"}],
            tools=tools,
        )
        assert "65F" in second.output_text


@pytest.mark.parametrize("kind", ["local_shell", "shell", "apply_patch"])
async def test_a_program_sees_the_calls_of_shells_and_of_the_patcher(
    fleet: Asker, kind: str
) -> None:
    offered: Any = ALL
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
    async with library(fleet) as client:
        response = await client.responses.create(
            model=MODEL, input="Hello.", tools=offered, tool_choice=choice
        )
    assert [item.type for item in response.output] == ["reasoning", f"{kind}_call"]


@pytest.mark.slow
async def test_an_operator_can_have_hosted_tools_refused(
    postgres: PostgresServer, template: str
) -> None:
    strict = {"input": {"strict": True}}
    async with asker_of(postgres, template, FLEETS["grammars"], **strict) as fleet:
        error = await fleet.refusal(400, input="x", tools=[WEATHER, {"type": "web_search"}])
    assert (error["code"], error["param"]) == ("unsupported_parameter", "tools[1].type")
