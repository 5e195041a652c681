"""Logprobs: one entry for each token of the answer, whose bytes are the text, however it comes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.controlled import MODEL, NONE, SGLANG, SGLANG_RUST, TURN, site
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.fakes.controlled import Shown, Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

INCLUDE: Json = {"include": ["message.output_text.logprobs"]}
TEXTS = {
    "words": "Say something.",
    "emoji": "Say something in emoji and Chinese.",
    "dictated": "[[sim say=👩‍👩‍👧‍👦 龘龘 𓀀𓀁 ﷽ नमस्ते é]]",
}


@pytest.fixture(scope="module")
async def where(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """Those that tell logprobs, each in its own way."""
    async with site(postgres, template, TURN, SGLANG, SGLANG_RUST, NONE) as running:
        yield running


def spelled(logprobs: list[Json]) -> str:
    return b"".join(bytes(entry["bytes"]) for entry in logprobs).decode()


def entries(shown: Shown) -> list[Json]:
    """Those of the answer: the same in deltas, done events and the body."""
    (part,) = shown.parts
    streamed = [
        entry
        for event in shown.events
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    (done,) = [one for one in shown.events if one["type"] == "response.output_text.done"]
    (ended,) = [
        one
        for one in shown.events
        if one["type"] == "response.content_part.done" and one["part"]["type"] == "output_text"
    ]
    assert streamed == done["logprobs"] == ended["part"]["logprobs"] == part["logprobs"]
    return list(part["logprobs"])


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("asked", "alternatives"),
    [
        (INCLUDE, 0),
        ({**INCLUDE, "top_logprobs": 0}, 0),
        ({"top_logprobs": 5}, 5),
        ({**INCLUDE, "top_logprobs": 20}, 20),
    ],
    ids=["include", "0", "5", "20"],
)
async def test_tokens_spell_the_answer(
    where: Site, text: str, asked: Json, alternatives: int
) -> None:
    shown = await where.everywhere(input=TEXTS[text], **asked)
    told = entries(shown)
    assert spelled(told) == shown.text
    assert all(len(entry["top_logprobs"]) == alternatives for entry in told)
    assert all(entry["logprob"] <= 0 for entry in told)
    assert shown.response["top_logprobs"] == alternatives
    for entry in told:
        likelihoods = [one["logprob"] for one in entry["top_logprobs"]]
        assert likelihoods == sorted(likelihoods, reverse=True)
        assert all(set(one) == {"token", "bytes", "logprob"} for one in entry["top_logprobs"])


@pytest.mark.requirement("parts.logprobs-are-whole")
async def test_deltas_carry_the_tokens_of_their_text(where: Site) -> None:
    shown = await where.everywhere(input=TEXTS["words"], **INCLUDE)
    for event in shown.events:
        if event["type"] == "response.output_text.delta":
            assert spelled(event["logprobs"]) == event["delta"]


async def test_reasoning_and_calls_have_none(where: Site) -> None:
    tool = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
    shown = await where.everywhere(
        input="Call it. [[sim call=now]]", tools=[tool], top_logprobs=3, parallel_tool_calls=False
    )
    assert shown.calls
    assert "logprobs" not in str(shown.response["output"])
    assert all("logprobs" not in event for event in shown.events)


async def test_nothing_is_told_that_nobody_asked_for(where: Site) -> None:
    shown = await where.everywhere(input=TEXTS["words"])
    assert entries(shown) == []
    rows = await where.backends.seen()
    assert rows
    assert {row["logprobs"] for row in rows} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("die_after", [50, 60, 70])
async def test_another_backend_goes_on_telling_them(where: Site, die_after: int) -> None:
    shown = await where.everywhere(
        input=f"Say something in emoji. [[sim die_after={die_after} times=1]]", top_logprobs=2
    )
    assert shown.status == "completed"
    assert spelled(entries(shown)) == shown.text
    assert {len(entry["top_logprobs"]) for entry in entries(shown)} == {2}


async def test_json_has_them_too(where: Site) -> None:
    shape = {"type": "json_object"}
    shown = await where.everywhere(
        input='Go. [[sim say={"a": "é 龘 👩‍👩‍👧"}]]', text={"format": shape}, top_logprobs=1
    )
    assert spelled(entries(shown)) == shown.text == '{"a": "é 龘 👩‍👩‍👧"}'


async def test_a_stop_cuts_text_and_tokens_alike(where: Site) -> None:
    shown = await where.everywhere(
        input="[[sim say=one two three four]]", stop=[" three"], top_logprobs=1
    )
    assert shown.text == "one two"
    assert spelled(entries(shown)) == shown.text


@pytest.mark.slow
@pytest.mark.parametrize("asked", [INCLUDE, {"top_logprobs": 1}], ids=["include", "top"])
async def test_where_nobody_tells_them_they_are_refused(
    postgres: PostgresServer, template: str, asked: Json
) -> None:
    """Of what does not say which engine it is nobody knows whether it does."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(silent(create_simulator(TURN))))
        name = await postgres.create(template)
        stack.push_async_callback(postgres.drop, name)
        settings = gateway_settings(postgres.database_url(name), [url])
        running = await stack.enter_async_context(running_gateway(settings))
        client = await stack.enter_async_context(http_client(running.url))
        for body in (asked, {**asked, "store": False}, {**asked, "stream": True}):
            answer = await client.post(
                "/v1/responses",
                json={"model": MODEL, "input": "hi", **body},
                headers=running.headers,
            )
            error = answer.json()["error"]
            assert answer.status_code == 400
            assert (error["code"], error["param"]) == ("unsupported_parameter", "include")
        answer = await client.post(
            "/v1/responses", json={"model": MODEL, "input": "hi"}, headers=running.headers
        )
        assert answer.json()["status"] == "completed"


def silent(app: ASGIApp) -> ASGIApp:
    """The same, which does not say what it is."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/version":
            scope = {**scope, "path": "/nothing"}
        await app(scope, receive, send)

    return answer


@pytest.mark.parametrize("count", [-1, 21, 1.5, "3"])
async def test_a_number_of_alternatives_that_is_none_is_refused(where: Site, count: Any) -> None:
    error = await where.refused(input="hi", top_logprobs=count)
    assert error["param"] == "top_logprobs"
