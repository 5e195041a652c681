"""Streams whose server is killed go on at another one, of the same engine or not."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events
from tests.fleet.conftest import URLS, restarted
from tests.vllm.asking import LONG_ASKED, answer_of
from tests.vllm.test_lost_backend import events_of

if TYPE_CHECKING:
    from tests.fakes.event_grammar import Stream
    from tests.fleet.conftest import Fleet
    from tests.vllm.recording import Exchange

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.usefixtures("restarts")]

LOST_AT = 20
PLAIN = 4
BOUND = 2
TOKENS_MAX = 1_500
_NUMBERS = {"type": "array", "items": {"enum": [10, 20, 30]}, "minItems": 120, "maxItems": 120}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"all": _NUMBERS},
    "required": ["all"],
    "additionalProperties": False,
}
FORMAT: dict[str, Any] = {
    "text": {"format": {"type": "json_schema", "name": "all", "strict": True, "schema": SCHEMA}}
}


async def read(fleet: Fleet, has_begun: asyncio.Event, **fields: Any) -> Stream:
    """A whole stream; `has_begun` is set in the middle of it."""
    body = {"model": fleet.model, "input": LONG_ASKED, "max_output_tokens": TOKENS_MAX, **fields}
    events: list[dict[str, Any]] = []
    async with fleet.clients[0].stream(
        "POST", "/v1/responses", json={**body, "stream": True}
    ) as answer:
        assert answer.status_code == 200
        async for event in events_of(answer):
            events.append(event)
            if sum(one["type"].endswith(".delta") for one in events) == LOST_AT:
                has_begun.set()
    return check_stream(as_events(events))


@pytest.mark.parametrize("number", range(len(URLS)))
async def test_what_it_said_goes_on_behind_its_ids(fleet: Fleet, number: int) -> None:
    """Plain streams and bound ones, in the middle of what they say: all of them began there."""
    await fleet.use(number)
    begun = [asyncio.Event() for _ in range(PLAIN + BOUND)]
    asked = [{"input": f"{LONG_ASKED} {n}"} for n in range(PLAIN)] + [FORMAT] * BOUND
    reading = [
        asyncio.create_task(read(fleet, event, **fields))
        for event, fields in zip(begun, asked, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    await fleet.use(*range(len(URLS)))
    restarting = asyncio.create_task(restarted(number))
    try:
        responses = [(await one).response for one in reading]
    finally:
        await restarting
    totals, lost = chains(fleet, number)
    print(f"lost with {len(reading)} streams: {[len(one.output) for one in lost]}; {totals}")
    assert lost
    for response in responses[:PLAIN]:
        assert response["status"] in {"completed", "incomplete"}, response
        assert response["usage"]["output_tokens"] in totals
    for response in responses[PLAIN:]:
        assert response["status"] == "completed", response
        Draft202012Validator(SCHEMA).validate(json.loads(answer_of(response)["text"]))


def chains(fleet: Fleet, number: int) -> tuple[list[int], list[Exchange]]:
    """How many ids were said in all by completions of which one goes on where the other ended, and
    those of this server that another one went on with.
    """
    behind: dict[tuple[int, ...], Exchange] = {}
    for recorder in fleet.recorders:
        behind |= {tuple(one.prompt): one for one in recorder.exchanges}
    totals, lost = [], []
    for recorder in fleet.recorders:
        for first in recorder.exchanges:
            total, one = len(first.output), first
            while one.output and (after := behind.get((*one.prompt, *one.output))) is not None:
                total += len(after.output)
                if recorder is fleet.recorders[number] and one is first:
                    lost.append(first)
                one = after
            totals.append(total)
    return totals, lost
