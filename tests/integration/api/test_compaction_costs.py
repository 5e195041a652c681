"""What summaries cost, whatever becomes of the responses that they were made for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
import pytest

from gateway.store.postgres.statements import Statement
from tests.conftest import opened
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client
from tests.fakes.raw_http import request_bytes, reset
from tests.integration.api.bodies import MODEL, create, refused
from tests.integration.api.following import created, id_in, is_delta, taken
from tests.integration.api.summaries import misbehaving, summary_requests, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import httpx2

    from gateway.settings import Settings
    from gateway.tenancy.policy import PolicyChanges
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer

    Bill = Callable[[], Awaitable[tuple[int, int]]]

Json = dict[str, Any]

TRIGGER = {"type": "compaction_trigger"}
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
POLICY: PolicyChanges = {"background_running_max": 1, "background_queued_max": 1}


@pytest.fixture
async def payer(
    request: pytest.FixtureRequest, gateway: RunningGateway, settings: Settings
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a tenant that nobody else is."""
    key = await new_key(settings, request.node.name, POLICY)
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(gateway.url, headers=headers) as opened:
        yield opened


@pytest.fixture
def bill(
    request: pytest.FixtureRequest, postgres: PostgresServer, shared_database_url: str
) -> Bill:
    """How many lines the payer's bill has, and the output tokens of all of them."""

    async def read() -> tuple[int, int]:
        (row,) = await postgres.fetch(
            "SELECT count(*), coalesce(sum(output_tokens), 0) FROM usage"
            " JOIN tenants ON tenants.id = tenant_id"
            f" WHERE tenants.name = '{request.node.name}'",
            url=shared_database_url,
        )
        return int(row[0]), int(row[1])

    return read


async def begun(client: httpx2.AsyncClient) -> str:
    """The id of a conversation that can be compacted."""
    items = [user("My name is Ada."), {"role": "assistant", "content": "Hello."}]
    answer = await client.post("/v1/conversations", json={"items": items})
    return str(answer.json()["id"])


@pytest.mark.slow
async def test_of_turns_that_race_all_summaries_are_billed(
    payer: httpx2.AsyncClient, second: httpx2.AsyncClient, backends: Backends, bill: Bill
) -> None:
    before = len(await summary_requests(backends))
    conversation = await begun(payer)
    other = http_client(second.base_url, headers=payer.headers)
    body = {"model": MODEL, "input": [TRIGGER], "conversation": conversation}
    async with other:
        answers = await asyncio.gather(
            *(
                one.post("/v1/responses", json={**body, "stream": streamed}, headers=headers)
                for one in (payer, other)
                for streamed in (False, True)
                for headers in ({}, {"idempotency-key": f"{conversation}-{streamed}"})
            )
        )
    refusals = [answer.json()["error"] for answer in answers if answer.status_code != 200]
    assert {refusal["code"] for refusal in refusals} <= {"conversation_locked"}
    listed = await payer.get(f"/v1/conversations/{conversation}/items")
    kinds = [item["type"] for item in listed.json()["data"]]
    fresh = [answer for answer in answers if "idempotent-replayed" not in answer.headers]
    assert kinds.count("compaction") == sum(answer.status_code == 200 for answer in fresh)
    asked = (await summary_requests(backends))[before:]
    while (await bill())[0] < len(asked):
        """What is not stored is booked after it was answered."""
    assert await bill() == (len(asked), sum(row["sent_tokens"] for row in asked))


@pytest.mark.slow
async def test_what_finds_no_place_in_the_queue_is_not_summarised(
    payer: httpx2.AsyncClient, backends: Backends, bill: Bill
) -> None:
    running = id_in(await taken(created(payer, input=ENDLESS), is_delta))
    waiting = await create(payer, input="Hi", background=True)
    before = len(await summary_requests(backends))
    history = [user("Hello"), {"role": "assistant", "content": "Hi."}, TRIGGER]
    error = await refused(payer, 429, input=history, background=True)
    assert error["code"] == "rate_limit_exceeded"
    assert len(await summary_requests(backends)) == before
    assert await bill() == (0, 0)
    for one in (waiting["id"], running):
        await payer.post(f"/v1/responses/{one}/cancel")


@pytest.mark.slow
async def test_a_locked_conversation_is_not_summarised(
    payer: httpx2.AsyncClient, backends: Backends
) -> None:
    conversation = await begun(payer)
    running = id_in(await taken(created(payer, input=ENDLESS, conversation=conversation), is_delta))
    before = len(await summary_requests(backends))
    error = await refused(payer, 400, input=[TRIGGER], conversation=conversation)
    assert error["code"] == "conversation_locked"
    assert len(await summary_requests(backends)) == before
    await payer.post(f"/v1/responses/{running}/cancel")


@pytest.mark.slow
async def test_a_summary_of_nothing_is_billed_and_changes_nothing(
    payer: httpx2.AsyncClient, backends: Backends, bill: Bill
) -> None:
    conversation = await begun(payer)
    async with misbehaving(backends, "attack=mute grammar_ids=none"):
        error = await refused(payer, 502, input=[TRIGGER], conversation=conversation)
    assert "no summary" in error["message"]
    while not (await bill())[0]:
        """What is not stored is booked after it was answered."""
    lines, tokens = await bill()
    assert lines == 1
    assert tokens > 0
    compacted = await create(payer, input=[TRIGGER], conversation=conversation)
    assert [item["type"] for item in compacted["output"]] == ["compaction"]


WAITING = Statement("""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
  AND query LIKE '%WITH new AS MATERIALIZED%'
""")


async def test_a_summary_is_billed_once_though_its_client_leaves_while_the_response_is_accepted(
    gateway: RunningGateway, settings: Settings, postgres: PostgresServer, shared_database_url: str
) -> None:
    key = await new_key(settings, "leaver", {"on_disconnect": "continue"})
    history = [user("Hello"), {"role": "assistant", "content": "Hi."}, TRIGGER]
    lines = (
        "SELECT kind FROM usage JOIN tenants ON tenants.id = tenant_id"
        " WHERE tenants.name = 'leaver'"
    )
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with http_client(gateway.url, headers=headers) as client:
        async with opened(shared_database_url) as database, database.owner_transaction() as other:
            await other.script("LOCK TABLE responses IN SHARE MODE")
            body = orjson.dumps({"model": MODEL, "input": history})
            _, leaving = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
            leaving.write(request_bytes("POST", "/v1/responses", body, headers))
            while not await other.scalar(WAITING):
                # The row is not about to be inserted yet.
                await other.script("SELECT pg_stat_clear_snapshot()")
            reset(leaving)
            await client.get("/v1/models")
        while not (billed := await postgres.fetch(lines, url=shared_database_url)):
            """It goes on without its client."""
        await client.get("/v1/models")
    assert [row[0] for row in billed] == ["response"]
    assert len(await postgres.fetch(lines, url=shared_database_url)) == 1
