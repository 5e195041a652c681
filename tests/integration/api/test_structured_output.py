"""Answers in a format: whatever the model says and the backend can, valid JSON or an honest end."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from tests.fakes.controlled import FLEETS, site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from tests.fakes.controlled import Shown, Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

ASK = "Describe a person called Ada with an emoji."
PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["human", "robot"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "pattern": "^[a-z]{1,8}$"}},
}
STRICT: Json = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
LOOSE: Json = {**STRICT, "strict": False}
ANY: Json = {"type": "json_object"}
FORMATS = {"strict": STRICT, "loose": LOOSE, "object": ANY}
FAILED = "failed invalid_structured_output"
ENGINES = [
    *((fleet, "") for fleet in FLEETS),
    # One that knows no grammars has none to leave.
    *(
        (fleet, f"grammar_ids={ids}")
        for fleet in FLEETS
        if fleet != "no grammars"
        for ids in ("none", 9)
    ),
]
"""Each fleet, and how far its engines really hold a model to a grammar."""
DRIFTS = ["prose", "types", "truncated", "extra"]


def in_turn(places: Iterable[Any], happenings: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Each place with all that may happen; the formats in turn, so that each meets all of both."""
    return [
        (place, happening, shape)
        for (place, happening), shape in zip(
            product(places, happenings), cycle(FORMATS), strict=False
        )
    ]


@pytest.fixture(scope="module")
async def running(
    postgres: PostgresServer, template: str
) -> AsyncIterator[Callable[[str], Awaitable[Site]]]:
    """A site over a kind of fleet: the same for all tests here, in whatever order they run."""
    sites: dict[str, Site] = {}
    async with AsyncExitStack() as stack:

        async def over(fleet: str) -> Site:
            if fleet not in sites:
                opened = site(postgres, template, *FLEETS[fleet])
                sites[fleet] = await stack.enter_async_context(opened)
            return sites[fleet]

        yield over


@pytest.fixture(params=FLEETS)
async def where(request: pytest.FixtureRequest, running: Callable[[str], Awaitable[Site]]) -> Site:
    """Over each kind of fleet."""
    return await running(request.param)


@pytest.fixture(params=FORMATS)
def shape(request: pytest.FixtureRequest) -> Json:
    """A format."""
    return FORMATS[request.param]


def check(shown: Shown, shape: Json) -> None:
    """The answer is what the format promises."""
    value = json.loads(shown.text)
    assert isinstance(value, dict)
    if shape.get("strict"):
        Draft202012Validator(PERSON).validate(value)
    assert "".join(shown.deltas("output_text")) == shown.text


def valid(text: str, shape: Json) -> None:
    value = json.loads(text)
    if shape.get("strict"):
        Draft202012Validator(PERSON).validate(value)


def check_nothing_wrong_was_done(shown: Shown, shape: Json) -> None:
    """Nothing that is not valid is ever shown as completed, however the response ended."""
    for event in shown.events:
        item = event.get("item", {})
        if event["type"] == "response.output_item.done" and item["status"] == "completed":
            for part in item["content"]:
                if part["type"] == "output_text":
                    valid(part["text"], shape)
    if shown.response["status"] != "completed":
        assert shown.status == FAILED
    elif shown.parts[-1]["type"] != "refusal":  # which a grammar allows, too
        check(shown, shape)


@pytest.mark.slow
async def test_an_obedient_model_answers_in_the_format(where: Site, shape: Json) -> None:
    shown = await where.everywhere(input=ASK, text={"format": shape})
    assert shown.status == "completed"
    check(shown, shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "engine", "drift", "shape"),
    [(*engine, drift, shape) for engine, drift, shape in in_turn(ENGINES, DRIFTS)],
    indirect=["where", "shape"],
)
async def test_a_drifting_model_is_held_to_the_format_or_fails(
    where: Site, shape: Json, drift: str, engine: str
) -> None:
    """Also where the engine claims to hold it to a grammar, and does not."""
    asked = f"{ASK} [[sim drift={drift} {engine}]]"
    shown = await where.everywhere(input=asked, text={"format": shape})
    check_nothing_wrong_was_done(shown, shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "drift", "shape"), in_turn(FLEETS, DRIFTS), indirect=["where", "shape"]
)
async def test_a_model_that_drifts_once_is_mended(where: Site, shape: Json, drift: str) -> None:
    shown = await where.everywhere(
        input=f"{ASK} [[sim drift={drift} times=1]]", text={"format": shape}
    )
    assert shown.status == "completed"
    check(shown, shape)


@pytest.mark.slow
@pytest.mark.requirement("parts.refusal")
async def test_a_refusal_is_a_part_of_its_own(
    where: Site, shape: Json, request: pytest.FixtureRequest
) -> None:
    shown = await where.everywhere(input=f"{ASK} [[sim drift=refusal]]", text={"format": shape})
    assert shown.status == "completed"
    if request.node.callspec.params["where"] == "answers":
        check(shown, shape)  # the grammar of such an engine is that of the JSON alone
        return
    (part,) = shown.parts
    assert part == {"type": "refusal", "refusal": "I'm sorry, but I can't help with that."}
    assert "".join(shown.deltas("refusal")) == part["refusal"]
    assert shown.deltas("output_text") == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", [STRICT, LOOSE], ids=["strict", "loose"])
async def test_json_that_is_cut_off_by_its_length_is_incomplete(where: Site, shape: Json) -> None:
    shown = await where.everywhere(
        input=f"{ASK} [[sim think=none]]", text={"format": shape}, max_output_tokens=16
    )
    assert shown.status == "incomplete max_output_tokens"
    assert shown.text
    assert shown.response["output"][-1]["status"] == "incomplete"
    with pytest.raises(ValueError, match="line 1"):
        json.loads(shown.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "die_after", "shape"), in_turn(FLEETS, [0, 3, 9, 20]), indirect=["where", "shape"]
)
async def test_a_format_survives_a_backend_that_dies(
    where: Site, shape: Json, die_after: int
) -> None:
    shown = await where.everywhere(
        input=f"{ASK} [[sim think=2 die_after={die_after} times=1]]", text={"format": shape}
    )
    assert shown.status == "completed"
    check(shown, shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "shape"), list(zip(FLEETS, cycle(FORMATS), strict=False)), indirect=True
)
async def test_a_call_comes_first_and_the_answer_has_the_format(where: Site, shape: Json) -> None:
    tool: Json = {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
            "additionalProperties": False,
        },
        "strict": True,
    }
    body: Json = {"tools": [tool], "text": {"format": shape}}
    first = await where.everywhere(input="How is the weather in Paris?", **body)
    (call,) = first.calls
    assert json.loads(call["arguments"])["location"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "17 degrees"}
    second = await where.everywhere(
        input=[output], previous_response_id=first.response["id"], **body
    )
    assert second.status == "completed"
    check(second, shape)
