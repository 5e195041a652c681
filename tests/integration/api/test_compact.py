"""POST /v1/responses/compact: what it answers, how it is refused, and what it costs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import CompactedResponse

from gateway import ids
from gateway.context.shortening import INTRODUCTION
from tests.fakes.gateway import new_key
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.http_client import http_client
from tests.fakes.stream import texts
from tests.integration.api.bodies import MODEL, WEATHER, create
from tests.integration.api.following import WAIT_S, ended
from tests.integration.api.summaries import misbehaving, summaries_among, summary_requests, user

if TYPE_CHECKING:
    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]


async def compact(client: httpx2.AsyncClient, **body: Any) -> Json:
    answer = await client.post("/v1/responses/compact", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    compacted: Json = answer.json()
    return compacted


async def refused(client: httpx2.AsyncClient, status: int, **body: Any) -> Json:
    answer = await client.post("/v1/responses/compact", json=body)
    assert answer.status_code == status, answer.text
    error: Json = answer.json()["error"]
    return error


async def booked(
    postgres: PostgresServer, url: str, tenant: str, count: int
) -> list[tuple[str, int]]:
    """What a tenant was billed, once that are `count` rows: ids of responses, and their output
    tokens. What is not stored is booked behind its answer.
    """
    query = (
        "SELECT response_id, output_tokens FROM usage JOIN tenants ON tenants.id = tenant_id "
        f"WHERE tenants.name = '{tenant}' ORDER BY response_id"
    )
    async with asyncio.timeout(WAIT_S):
        while True:
            rows = await postgres.fetch(query, url=url)
            if len(rows) >= count:
                return [(ids.response_id(row[0]), row[1]) for row in rows]
            await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.requirement("compact.body")
@pytest.mark.requirement("compact.output")
@pytest.mark.requirement("compact.not-retrievable")
async def test_the_messages_of_the_user_and_one_compaction_are_left(
    client: httpx2.AsyncClient,
) -> None:
    history = [
        user("My name is Ada."),
        {"role": "assistant", "content": "Nice to meet you, traveller."},
        {"role": "user", "content": [{"type": "input_text", "text": "Where am I?"}]},
    ]
    compacted = await compact(client, input=history, prompt_cache_key="k", image=None)
    parsed = CompactedResponse.construct(**compacted)
    assert (compacted["object"], parsed.output[-1].type) == ("response.compaction", "compaction")
    assert list(compacted) == ["id", "object", "created_at", "output", "usage"]
    *users, item = compacted["output"]
    assert [(one["role"], one["status"], one["content"]) for one in users] == [
        ("user", "completed", [{"type": "input_text", "text": "My name is Ada."}]),
        ("user", "completed", [{"type": "input_text", "text": "Where am I?"}]),
    ]
    assert list(item) == ["id", "type", "encrypted_content"]
    assert (await client.get(f"/v1/responses/{compacted['id']}")).status_code == 404


@pytest.mark.requirement("compact.output")
async def test_what_the_operator_says_is_left_where_it_stood(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    history = [
        {"role": "developer", "content": "Answer in French."},
        user("My name is Ada."),
        {"role": "assistant", "content": "Bonjour, voyageuse."},
        {"role": "system", "content": "Be brief."},
        user("Where am I?"),
    ]
    compacted = await compact(client, input=history)
    *kept, item = compacted["output"]
    assert [one["role"] for one in kept] == ["developer", "user", "system", "user"]
    assert item["type"] == "compaction"
    answer = await create(client, input=[*compacted["output"], user("Go on")], store=False)
    (seen,) = await backends.of_response(answer["id"])
    prompt = vocabulary().decode(seen["prompt_ids"])
    assert "Answer in French." in prompt
    assert "Be brief." in prompt
    assert "voyageuse" not in prompt


@pytest.mark.requirement("compact.accepted-back")
@pytest.mark.requirement("kinds.compaction")
async def test_the_output_is_the_next_input_and_can_be_compacted_again(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    history = [user("My name is Ada."), {"role": "assistant", "content": "Nice, traveller."}]
    first = await compact(client, input=history)
    answer = await create(client, input=[*first["output"], user("What is my name?")], store=False)
    assert "Ada" in texts(answer)[-1]
    (seen,) = await backends.of_response(answer["id"])
    prompt = vocabulary().decode(seen["prompt_ids"])
    assert prompt.count(INTRODUCTION) == 1
    assert "traveller" not in prompt
    second = await compact(
        client, input=[*first["output"], user("What is my name?"), *answer["output"]]
    )
    kinds = [item["type"] for item in second["output"]]
    assert kinds == ["message", "message", "compaction"]
    assert second["output"][0] == first["output"][0]
    stored = await create(client, input=[*second["output"], user("Go on")])
    chained = await create(client, input="And on", previous_response_id=stored["id"])
    (seen,) = await backends.of_response(chained["id"])
    assert vocabulary().decode(seen["prompt_ids"]).count(f"user{INTRODUCTION}") == 1
    assert (await create(client, input=second["output"], store=False))["status"] == "completed"


@pytest.mark.slow
@pytest.mark.requirement("compact.chain")
async def test_a_chain_is_compacted_with_its_instructions_and_its_tools(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    first = await create(client, input="Use get_weather for Oslo", tools=[WEATHER])
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    before = len(await summary_requests(backends))
    compacted = await compact(
        client,
        previous_response_id=first["id"],
        input=[output],
        instructions="Mention the sea.",
        service_tier="auto",
    )
    (asked,) = (await summary_requests(backends))[before:]
    prompt = vocabulary().decode(asked["prompt_ids"])
    assert "Mention the sea." in prompt
    assert "Reasoning: low" in prompt
    assert "namespace functions" not in prompt
    usage = compacted["usage"]
    assert usage["input_tokens"] == asked["prompt_tokens"]
    assert usage["output_tokens"] == asked["sent_tokens"]
    assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]


async def test_every_summary_is_billed_once(
    gateway: RunningGateway, settings: Settings, postgres: PostgresServer, shared_database_url: str
) -> None:
    key = await new_key(settings, "summarised")
    async with http_client(gateway.url, headers={"authorization": f"Bearer {key}"}) as client:
        compacted = await compact(client, input="My name is Ada.")
        asked = [user("hi"), {"type": "compaction_trigger"}]
        responses = [
            await create(client, input=asked, store=False),
            await create(client, input=asked),
            await create(client, input=asked, background=True),
        ]
        responses[-1] = await ended(client, responses[-1]["id"])
    expected = [(one["id"], one["usage"]["output_tokens"]) for one in (compacted, *responses)]
    assert min(tokens for _, tokens in expected) > 0
    rows = await booked(postgres, shared_database_url, "summarised", len(expected))
    assert sorted(rows) == sorted(expected)


async def test_a_model_that_writes_no_summary_is_a_failure_of_the_server(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    history = [user("My name is Ada."), {"role": "assistant", "content": "Hello."}]
    async with misbehaving(backends, "attack=mute grammar_ids=none"):
        error = await refused(client, 502, model=MODEL, input=history)
        within = await client.post(
            "/v1/responses",
            json={"model": MODEL, "input": [*history, {"type": "compaction_trigger"}]},
        )
    assert "The model wrote no summary" in error["message"]
    assert (within.status_code, within.json()["error"]) == (502, error)


@pytest.mark.requirement("compact.parameters")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": 5}, "model", "missing_required_parameter"),
        ({"model": MODEL}, "input", "missing_required_parameter"),
        ({"model": MODEL, "input": None}, "input", "missing_required_parameter"),
        ({"model": MODEL, "input": 5}, "input", "invalid_type"),
        ({"model": MODEL, "input": ""}, None, "missing_required_parameter"),
        (
            {"model": MODEL, "input": "x", "prompt_cache_key": "k" * 65},
            "prompt_cache_key",
            "string_above_max_length",
        ),
        (
            {"model": MODEL, "previous_response_id": "resp_unknown"},
            "previous_response_id",
            "previous_response_not_found",
        ),
        (
            {"model": MODEL, "input": [{"type": "compaction", "encrypted_content": "gAAA"}]},
            "input[0].encrypted_content",
            "invalid_encrypted_content",
        ),
    ],
)
async def test_mistakes_are_answered_as_those_of_a_response(
    client: httpx2.AsyncClient, body: Json, param: str | None, code: str
) -> None:
    error = await refused(client, 400, **body)
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.requirement("compact.sealed")
async def test_unknown_models_and_other_tenants_are_refused(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    assert (await refused(client, 404, model="nobody", input="x"))["code"] == "model_not_found"
    compacted = await compact(client, input="x")
    error = await refused(stranger, 400, model=MODEL, input=compacted["output"])
    assert error["param"] == "input[1].encrypted_content"
    keyless = {"authorization": "Bearer none"}
    answer = await client.post("/v1/responses/compact", json={}, headers=keyless)
    assert answer.status_code == 401


@pytest.mark.requirement("compact.parameters")
async def test_what_has_no_effect_is_named(client: httpx2.AsyncClient) -> None:
    answer = await client.post(
        "/v1/responses/compact", json={"model": MODEL, "input": "x", "tools": [WEATHER]}
    )
    assert answer.headers["x-ignored-parameters"] == "tools"


async def test_who_names_a_conversation_is_told_how_it_is_compacted(
    client: httpx2.AsyncClient,
) -> None:
    error = await refused(client, 400, model=MODEL, input="x", conversation="conv_1")
    assert (error["code"], error["param"]) == ("unsupported_parameter", "conversation")
    assert "compaction_trigger" in error["message"]


@pytest.mark.slow
async def test_a_client_that_hangs_up_stops_the_summary(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    before = len(await summary_requests(backends))

    async def hang_up_when_asked() -> None:
        await backends.until(lambda rows: len(summaries_among(rows)) > before, with_ids=True)
        scope.reschedule(0)

    async with misbehaving(backends, "stall_after=5"):
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as scope, asyncio.TaskGroup() as group:
                group.create_task(hang_up_when_asked())
                await compact(client, input="x")
        rows = await backends.until(
            lambda rows: summaries_among(rows)[-1]["outcome"] == "disconnected", with_ids=True
        )
    assert len(summaries_among(rows)) == before + 1
