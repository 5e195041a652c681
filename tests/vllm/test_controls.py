"""Every control over the output holds with a real engine, with its grammars and without them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.vllm.asking import ENDED_WELL, SEARCH, WEATHER, calls_of, create, streamed
from tests.vllm.controls import ALL, ANSWERS, CALLS, CHOICES, FREE_ANSWERS, FREE_CALLS

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.event_grammar import Stream
    from tests.vllm.conftest import Vllm
    from tests.vllm.controls import Json

pytestmark = pytest.mark.vllm

SHORT = {**CALLS, **ANSWERS, **CHOICES}
FREE = {**FREE_CALLS, **FREE_ANSWERS}
LOOSE = {WEATHER["name"], SEARCH["name"]}
"""Functions that are not strict."""
SAMPLES = 60
AT_ONCE = 16
GIVEN_UP = {"required_tool_not_called", "invalid_tool_call", "invalid_structured_output"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", SHORT)
async def test_a_control_holds(
    client: httpx2.AsyncClient, model: str, name: str, stream: bool
) -> None:
    control = SHORT[name]
    if stream:
        response = (await streamed(client, model=model, **control.fields)).response
    else:
        response = await create(client, model=model, **control.fields)
    assert response["status"] == "completed", response["output"]
    control.check(response)


@pytest.mark.parametrize("name", FREE)
async def test_a_control_with_room_for_any_text_holds_or_the_response_says_that_it_does_not(
    client: httpx2.AsyncClient, model: str, name: str
) -> None:
    """Engines take Harmony's markers for text, so that a small model may end JSON with one."""
    for temperature in (0, 1):
        fields = {"temperature": temperature, **FREE[name].fields}
        _check(name, (await streamed(client, model=model, **fields)).response)


async def _sampled(
    client: httpx2.AsyncClient, model: str, samples: int
) -> list[tuple[str, Stream]]:
    """So many streams of all controls in turn, at temperature 1."""
    names = list(ALL)
    places = asyncio.Semaphore(AT_ONCE)

    async def sample(number: int) -> tuple[str, Stream]:
        name = names[number % len(names)]
        async with places:
            fields = ALL[name].fields
            return name, await streamed(client, model=model, temperature=1, **fields)

    return await asyncio.gather(*(sample(number) for number in range(samples)))


def _check(name: str, response: dict[str, Any]) -> None:
    """Fails unless it is what the control asks for, cut off, or said not to be that."""
    if response["status"] == "failed":
        assert response["error"]["code"] in GIVEN_UP, (name, response)
    else:
        assert response["status"] in ENDED_WELL, (name, response)
    if response["status"] == "completed":
        ALL[name].check(response)


@pytest.mark.timeout(1800)
async def test_sampled_responses_under_controls_are_valid_wherever_they_complete(
    client: httpx2.AsyncClient, model: str, vllm: Vllm
) -> None:
    for name, stream in await _sampled(client, model, SAMPLES):
        # To an engine a marker within a string is text, to the parser it is the end.
        _check(name, _without_loose_arguments(stream.response))
        assert name in FREE or stream.response["status"] in ENDED_WELL, (name, stream.response)
    await vllm.until_idle()


@pytest.mark.timeout(1800)
async def test_without_grammars_a_control_holds_or_the_response_says_that_it_does_not(
    free_client: httpx2.AsyncClient, model: str
) -> None:
    for name, stream in await _sampled(free_client, model, SAMPLES):
        for response in _with_one_call_each(_without_loose_arguments(stream.response)):
            _check(name, response)


def _with_one_call_each(response: Json) -> list[Json]:
    """A response with each of its calls alone, where it may have several: what no grammar binds
    may call again.
    """
    calls = calls_of(response)
    if len(calls) < 2 or not response["parallel_tool_calls"]:
        return [response]
    others = [[one for one in calls if one is not call] for call in calls]
    output = response["output"]
    return [{**response, "output": [item for item in output if item not in out]} for out in others]


def _without_loose_arguments(response: Json) -> Json:
    """Arguments of functions that are not strict are passed on as the model wrote them."""
    shown = [
        {**item, "arguments": "{}"} if item.get("name") in LOOSE else item
        for item in response["output"]
    ]
    return {**response, "output": shown}


@pytest.mark.parametrize("name", ["required, one tool", "named"])
async def test_without_grammars_the_call_that_is_required_is_made(
    free_client: httpx2.AsyncClient, model: str, name: str
) -> None:
    response = await create(free_client, model=model, **CALLS[name].fields)
    assert response["status"] in ENDED_WELL, response
    assert [call["name"] for call in calls_of(response)] == ["search"]
