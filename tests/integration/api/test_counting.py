"""POST /v1/responses/input_tokens: exactly what a response of the same would be billed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.api.bodies import ADD, MODEL, WEATHER, create
from tests.integration.api.summaries import user

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

Json = dict[str, Any]
TRIGGER = {"type": "compaction_trigger"}
CALLED = [
    user("Add 1 and 2"),
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "3"},
]
SHAPE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
SHAPES: list[Json] = [
    {"input": "Hello there"},
    {"input": [user("Hello"), {"role": "assistant", "content": "Hi."}, user("naïve 东京 🎉")]},
    {"input": "Hello", "instructions": "Be brief.", "reasoning": {"effort": "high"}},
    {"input": CALLED, "tools": [ADD, WEATHER]},
    {"input": "Hello", "tools": [ADD], "tool_choice": "none", "parallel_tool_calls": False},
    {"input": "Hello", "tools": [{"type": "custom", "name": "say"}, {"type": "shell"}]},
    {
        "input": "Hello",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SHAPE}},
        "truncation": "auto",
    },
    {"input": [{"role": "developer", "content": "Hm."}, user("x")], "reasoning": None},
]


async def count(client: httpx2.AsyncClient, **body: Any) -> int:
    answer = await client.post("/v1/responses/input_tokens", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    counted: Json = answer.json()
    assert counted == {"object": "response.input_tokens", "input_tokens": counted["input_tokens"]}
    return int(counted["input_tokens"])


@pytest.mark.requirement("count.exact")
@pytest.mark.parametrize("body", SHAPES)
async def test_what_is_counted_is_what_is_billed(client: httpx2.AsyncClient, body: Json) -> None:
    response = await create(client, **body)
    assert await count(client, **body) == response["usage"]["input_tokens"]


@pytest.mark.requirement("count.exact")
async def test_what_a_response_continues_is_counted(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="My name is Ada.")
    body = {"input": "And mine?", "previous_response_id": first["id"]}
    counted = await count(client, **body)
    assert counted == (await create(client, **body))["usage"]["input_tokens"]
    assert counted > first["usage"]["input_tokens"]


@pytest.mark.slow
async def test_what_is_too_long_to_be_run_is_counted_whatever_may_be_left_out(
    client: httpx2.AsyncClient,
) -> None:
    long = {"input": "word " * 200_000}
    refused = await client.post(
        "/v1/responses", json={"model": MODEL, "truncation": "auto", **long}
    )
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    counted = await count(client, truncation="auto", **long)
    assert counted == await count(client, **long) > 150_000


async def test_a_compacted_context_is_counted_as_it_is_shown(client: httpx2.AsyncClient) -> None:
    compacted = await create(client, input=[user("x"), {"type": "compaction_trigger"}])
    body = {"input": [*compacted["output"], user("y")]}
    assert await count(client, **body) == (await create(client, **body))["usage"]["input_tokens"]


CALL = {"type": "custom_tool_call", "call_id": "d", "name": "say", "input": "naïve 🎉"}
TURNS: list[list[Json]] = [
    [user("Hello")],
    [{"role": "developer", "content": "Mind your manners."}, user("東京 <|end|> \u0000")],
    [user("x"), {"role": "assistant", "content": "y", "phase": "commentary"}],
    CALLED,
    [user("Say it"), CALL, {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"}],
    [user("[[sim tokens=40]] word " * 20)],
]
TOOLS: list[Json] = [ADD, WEATHER, {"type": "custom", "name": "say"}, {"type": "apply_patch"}]
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "instructions": st.sampled_from(["", "Be brief.", "# Instructions\n\n* none"]),
    "tools": st.lists(st.sampled_from(TOOLS), max_size=3, unique_by=str),
    "tool_choice": st.sampled_from(["auto", "none"]),
    "parallel_tool_calls": st.booleans(),
    "reasoning": st.sampled_from([{"effort": "low"}, {"effort": "high", "summary": "auto"}, {}]),
    "text": st.sampled_from(
        [
            {"format": {"type": "json_schema", "name": "n", "schema": SHAPE}},
            {"format": {"type": "json_object"}},
            {"verbosity": "low"},
        ]
    ),
    "truncation": st.sampled_from(["auto", "disabled"]),
    "max_output_tokens": st.integers(16, 64),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, list[Json], Json]:
    """What is continued, of how many turns each of so many items; then what is asked."""
    way = draw(st.sampled_from(["nothing", "chain", "conversation"]))
    earlier = draw(st.lists(st.sampled_from(TURNS), min_size=1, max_size=3))
    names = draw(st.sets(st.sampled_from(sorted(OPTIONS))))
    compacted = draw(st.booleans())
    asked: Json = {name: draw(OPTIONS[name]) for name in sorted(names)}
    asked["input"] = draw(st.sampled_from(TURNS))
    turns: list[Json] = [{"input": items} for items in earlier]
    if compacted:
        turns.append({"input": [user("Well?"), TRIGGER]})
    return way, turns, asked


@pytest.mark.slow
@pytest.mark.requirement("count.exact")
@given(drawn=requests())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_whatever_is_asked_is_billed_as_it_is_counted(
    client: httpx2.AsyncClient, drawn: tuple[str, list[Json], Json]
) -> None:
    """Behind nothing, a chain or a conversation, compacted or not, with any of the parameters."""
    way, turns, asked = drawn
    if way == "conversation":
        made = await client.post("/v1/conversations", json={"items": [user("My name is Ada.")]})
        asked = {**asked, "conversation": made.json()["id"]}
    said: list[Json] = []
    for turn in turns:
        asking = {**turn, "conversation": asked.get("conversation")}
        asking["previous_response_id"] = asked.get("previous_response_id")
        response = await create(client, **asking)
        if way == "chain":
            asked = {**asked, "previous_response_id": response["id"]}
        said += [item for item in turn["input"] if item != TRIGGER] + response["output"]
    if way == "nothing":
        asked = {**asked, "input": said + asked["input"]}
    counted = await count(client, **asked)
    assert counted == (await create(client, **asked))["usage"]["input_tokens"]


@pytest.mark.slow
@pytest.mark.requirement("count.stores-nothing")
async def test_counting_asks_no_model(client: httpx2.AsyncClient, backends: Backends) -> None:
    before = len(await backends.seen())
    await count(client, input="Hello")
    assert len(await backends.seen()) == before


@pytest.mark.slow
async def test_what_is_too_long_to_be_run_is_counted(client: httpx2.AsyncClient) -> None:
    words = "word " * 140_000
    assert await count(client, input=words) > 131_072


@pytest.mark.requirement("count.parameters")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "x"}, "model", "missing_required_parameter"),
        ({"model": MODEL}, "input", "missing_required_parameter"),
        ({"model": MODEL, "input": 1}, "input", "invalid_type"),
        (
            {"model": MODEL, "input": "x", "tools": [{**ADD, "name": "a b"}]},
            "tools[0].name",
            "invalid_value",
        ),
        (
            {"model": MODEL, "previous_response_id": "resp_1"},
            "previous_response_id",
            "previous_response_not_found",
        ),
        ({"model": MODEL, "input": CALLED[2:]}, "input", None),
    ],
)
async def test_mistakes_are_answered_as_those_of_a_response(
    client: httpx2.AsyncClient, body: Json, param: str, code: str | None
) -> None:
    answer = await client.post("/v1/responses/input_tokens", json=body)
    same = await client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()) == (same.status_code, same.json())
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.requirement("count.parameters")
async def test_parameters_that_do_not_count_are_named(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": "x", "stream": True, "personality": "kind"}
    answer = await client.post("/v1/responses/input_tokens", json=body)
    assert answer.headers["x-ignored-parameters"] == "stream, personality"
