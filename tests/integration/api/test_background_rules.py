"""Background responses at the edges of their rules: waiting readers, expiry, takeover, refusals."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway.store import flushes
from gateway.store.postgres.statements import Statement
from gateway.tenancy import TenantId
from tests.conftest import opened
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events, parse_stream, texts
from tests.integration.api.bodies import MODEL, WEATHER, create
from tests.integration.api.following import (
    DONE,
    created,
    data_of,
    ended,
    id_in,
    is_delta,
    listed,
    resumed,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from gateway.tenancy.policy import PolicyChanges
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

BRIEF = "[[sim think=2 say=ok]] go"
SLOW = "[[sim tokens_per_s=200 tokens=60 think=none]] go"
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
BREAKS_OFF = "[[sim error_after=20 tokens=400 think=none]] go"
ECHOED: dict[str, Any] = {
    "metadata": {"schlüssel": "wert", "empty": ""},
    "user": 'a "user"',
    "instructions": "Be brief.",
    "prompt_cache_key": "cache",
    "safety_identifier": "safe",
    "temperature": 0.25,
    "top_p": 0.5,
    "reasoning": {"effort": "high"},
    "text": {"verbosity": "high"},
    "tools": [WEATHER],
    "max_output_tokens": 3000,
    "truncation": "auto",
}


@pytest.fixture
async def single(gateway: RunningGateway, settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a tenant that may run one background response, and let one wait."""
    policy: PolicyChanges = {"background_running_max": 1, "background_queued_max": 1}
    async with client_of(gateway, await new_key(settings, "single", policy)) as client:
        yield client


def client_of(gateway: RunningGateway, key: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return http_client(gateway.url, headers=headers)


def path_of(response_id: str) -> str:
    return f"/v1/responses/{response_id}"


async def cancel(client: httpx2.AsyncClient, response_id: str) -> None:
    assert (await client.post(f"{path_of(response_id)}/cancel")).status_code == 200


@pytest.fixture
def change(postgres: PostgresServer, shared_database_url: str) -> Any:
    """`await change(response_id, "column = value")`, behind the gateway's back."""

    async def apply(response_id: str, assignment: str) -> None:
        uuid = response_id.removeprefix("resp_")
        statement = f"UPDATE responses SET {assignment} WHERE id = '{uuid}' RETURNING id"
        assert await postgres.fetch(statement, url=shared_database_url)

    return apply


@pytest.fixture
def lose(shared_database_url: str) -> Any:
    """`await lose(response_id)`: another replica takes it over, as they do, and is gone."""
    of_tenant = Statement("SELECT tenant_id FROM responses WHERE id = CAST(:id AS uuid)")
    take_over = Statement(
        "UPDATE responses SET owner = 'gone', epoch = epoch + 1,"
        " lease_until = clock_timestamp() - interval '1 s' WHERE id = CAST(:id AS uuid)"
    )

    async def apply(response_id: str) -> None:
        uuid = UUID(response_id.removeprefix("resp_"))
        async with opened(shared_database_url) as database, database.runs_transaction() as runs:
            tenant_id = TenantId(await runs.scalar(of_tenant, {"id": uuid}))
            await flushes.settle_one(runs, tenant_id, uuid)
            await runs.execute(take_over, {"id": uuid})

    return apply


def without_identity(response: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on how a response was asked for, nor on where it was generated."""
    own = {"id", "created_at", "completed_at", "background"}
    return {name: value for name, value in response.items() if name not in own} | {
        "output": [item | {"id": None} for item in response["output"]],
        "usage": response["usage"] | {"input_tokens_details": None},
    }


@pytest.mark.requirement("background.same-as-foreground")
async def test_its_body_is_that_of_a_foreground_response(client: httpx2.AsyncClient) -> None:
    text = "[[sim think=8 tokens=24 call=none]] go"
    foreground = await create(client, input=text, **ECHOED)
    queued = await create(client, input=text, background=True, **ECHOED)
    background = await ended(client, queued["id"])
    assert list(background) == list(queued) == list(foreground)
    assert without_identity(background) == without_identity(foreground)
    assert (foreground["background"], background["background"]) == (False, True)
    changing = {"status", "completed_at", "output", "usage"}
    assert {name for name in queued if queued[name] != background[name]} == changing


@pytest.mark.slow
async def test_what_another_replica_goes_on_with_is_the_same_response(
    client: httpx2.AsyncClient, lose: Any
) -> None:
    fields: dict[str, Any] = {"input": SLOW, "tool_choice": "none", **ECHOED}
    first = await taken(created(client, **fields), is_delta)
    response_id = id_in(first)
    await lose(response_id)
    whole = await listed(resumed(client, response_id))
    assert whole[: len(first)] == first
    events = parse_stream("".join(whole))
    check_stream(as_events(events))
    begun, over = events[0]["response"], events[-1]["response"]
    assert over == (await client.get(path_of(response_id))).json()
    assert over["metadata"] == ECHOED["metadata"]
    assert over["user"] == ECHOED["user"]
    changing = {"status", "completed_at", "output", "usage"}
    assert {name for name in begun if begun[name] != over[name]} == changing
    assert texts(over) == texts(await create(client, **fields))


@pytest.mark.slow
@pytest.mark.requirement("replay.waits")
async def test_a_reader_ahead_of_what_was_said_waits_for_it(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    seen = await taken(created(client, input=SLOW), is_delta)
    response_id, ahead = id_in(seen), len(seen) + 1
    near, far, other = await asyncio.gather(
        listed(resumed(client, response_id, ahead)),
        listed(resumed(client, response_id, 10**30)),
        listed(resumed(second, response_id, ahead)),
    )
    assert data_of(near[0])["sequence_number"] == ahead + 1
    assert near[-2].startswith("event: response.completed\n")
    assert near == other
    assert far == [DONE]


async def test_a_reader_far_ahead_is_let_go_when_it_is_cancelled(
    client: httpx2.AsyncClient,
) -> None:
    response_id = id_in(await taken(created(client, input=ENDLESS), is_delta))
    waiting = resumed(client, response_id, 10**9)
    rest, _ = await asyncio.gather(listed(waiting), cancel(client, response_id))
    assert rest == [DONE]


@pytest.mark.slow
async def test_the_stream_of_what_is_cancelled_while_it_waits_never_says_that_it_began(
    single: httpx2.AsyncClient,
) -> None:
    running = id_in(await taken(created(single, input=ENDLESS), is_delta))
    waiting = created(single, input=BRIEF)
    async with aclosing(waiting):  # type: ignore[type-var]
        frames = [await anext(waiting), await anext(waiting)]
        await cancel(single, id_in(frames))
        frames += [frame async for frame in waiting]
    said = [(event["type"], event["response"]["status"]) for event in parse_stream("".join(frames))]
    assert said == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.failed", "cancelled"),
    ]
    await cancel(single, running)


@pytest.mark.requirement("stream-error.replay")
@pytest.mark.requirement("status.failed")
@pytest.mark.requirement("context.ended-otherwise")
@pytest.mark.requirement("stream-error.after")
async def test_a_failure_is_an_error_and_an_end_and_is_replayed_as_it_was(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    whole = await listed(created(client, input=BREAKS_OFF))
    response_id = id_in(whole)
    *_, error, end = parse_stream("".join(whole))
    assert (error["type"], end["type"]) == ("error", "response.failed")
    failed = end["response"]
    assert (failed["status"], failed["completed_at"]) == ("failed", None)
    assert failed["error"] == {"code": error["code"], "message": error["error"]["message"]}
    assert failed["usage"]["output_tokens"] > 0
    assert await listed(resumed(second, response_id)) == whole
    answer = await client.post(f"{path_of(response_id)}/cancel")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Cannot cancel a failed response. ")
    continued = await create(client, input=BRIEF, previous_response_id=response_id)
    assert texts(continued) == ["ok"]


@pytest.mark.slow
@pytest.mark.requirement("replay.expires")
async def test_a_stream_expires_and_the_response_stays(
    gateway: RunningGateway, settings: Settings, change: Any
) -> None:
    key = await new_key(settings, "forgetful", {"log_retention_s": 90})
    async with client_of(gateway, key) as client:
        named = {"idempotency-key": "once"}
        response_id = id_in(await listed(created(client, named, input=BRIEF)))
        await change(response_id, "completed_at = completed_at - interval '91 s'")
        body = {"model": MODEL, "background": True, "stream": True, "input": BRIEF}
        for answer in (
            await client.get(path_of(response_id), params={"stream": "true"}),
            await client.get(f"{path_of(response_id)}?stream=true&starting_after=9999"),
            await client.post("/v1/responses", json=body, headers=named),
        ):
            assert answer.status_code == 400
            assert answer.json()["error"] == {
                "message": "This response can no longer be streamed because its log is kept for "
                f"90 seconds after the end. Retrieve '{response_id}' without `stream`.",
                "type": "invalid_request_error",
                "param": "stream",
                "code": None,
            }
        assert texts((await client.get(path_of(response_id))).json()) == ["ok"]


@pytest.mark.requirement("cancel.not-there-yet")
@pytest.mark.requirement("retrieve.not-found")
async def test_what_is_generated_for_a_waiting_client_is_not_there_yet(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    frames = created(client, input=ENDLESS, background=False)
    async with aclosing(frames):  # type: ignore[type-var]
        path = path_of(id_in([await anext(frames)]))
        answers = [
            await second.get(path),
            await second.get(path, params={"stream": "true"}),
            await second.get(f"{path}/input_items"),
            await second.post(f"{path}/cancel"),
            await second.delete(path),
        ]
    assert [answer.status_code for answer in answers] == [404] * 5
    for answer in answers:
        assert "once they have ended" in answer.json()["error"]["message"]


@pytest.mark.requirement("background.input-items")
async def test_its_input_is_paged_while_it_runs(client: httpx2.AsyncClient) -> None:
    said = [{"role": "user", "content": f"message {number}"} for number in range(44)]
    said.append({"role": "user", "content": ENDLESS})
    response_id = id_in(await taken(created(client, input=said), is_delta))
    found: list[str] = []
    params = {"limit": "20", "order": "asc"}
    while True:
        page = (await client.get(f"{path_of(response_id)}/input_items", params=params)).json()
        found += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        params["after"] = page["last_id"]
    assert found == [item["content"] for item in said]
    await cancel(client, response_id)


@pytest.mark.requirement("retrieve.query")
@pytest.mark.requirement("http.booleans-in-queries")
@pytest.mark.requirement("replay.place-is-checked")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=maybe", "stream"),
        ("stream=1", "stream"),
        ("stream=", "stream"),
        ("stream=true&starting_after=1e3", "starting_after"),
        ("stream=true&starting_after=", "starting_after"),
        ("stream=true&starting_after=%2B5", "starting_after"),
        ("stream=true&starting_after=1_0", "starting_after"),
        ("stream=true&starting_after=" + "9" * 5000, "starting_after"),
        ("stream=true&include_obfuscation=no", "include_obfuscation"),
        ("include[]=everything", "include[0]"),
    ],
)
async def test_a_query_that_says_nothing_sensible_is_refused(
    client: httpx2.AsyncClient, query: str, param: str
) -> None:
    response_id = (await create(client, input=BRIEF))["id"]
    answer = await client.get(f"{path_of(response_id)}?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert len(answer.content) < 1000


@pytest.mark.requirement("replay.place-without-stream")
async def test_a_place_without_a_stream_means_nothing(client: httpx2.AsyncClient) -> None:
    response = await create(client, input=BRIEF)
    answer = await client.get(path_of(response["id"]), params={"starting_after": "x"})
    assert answer.json() == response


async def test_the_head_of_a_stream_tells_no_length(client: httpx2.AsyncClient) -> None:
    response_id = id_in(await listed(created(client, input=BRIEF)))
    answer = await client.head(path_of(response_id), params={"stream": "true"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in answer.headers
    whole = await client.get(path_of(response_id))
    head = await client.head(path_of(response_id))
    assert head.headers["content-length"] == whole.headers["content-length"]


@pytest.mark.slow
async def test_a_full_queue_takes_no_key(single: httpx2.AsyncClient) -> None:
    running = id_in(await taken(created(single, input=ENDLESS), is_delta))
    waiting = await create(single, input=BRIEF, background=True)
    body = {"model": MODEL, "input": BRIEF, "background": True, "stream": True}
    headers = {"idempotency-key": "patient"}
    for _ in range(2):
        refused = await single.post("/v1/responses", json=body, headers=headers)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
    assert texts(await create(single, input=BRIEF)) == ["ok"]
    await cancel(single, running)
    await ended(single, waiting["id"])
    frames = await listed(created(single, headers, input=BRIEF))
    assert texts(parse_stream("".join(frames))[-1]["response"]) == ["ok"]


async def test_a_tenant_is_counted_by_its_share_where_requests_wait(
    gateway: RunningGateway, settings: Settings
) -> None:
    """With four times the usual share a token counts a quarter, in person and in background."""
    admission = gateway.process.foundation.pool.admission
    assert admission is not None
    key = await new_key(settings, "with-a-share", {"share_weight": 400})
    async with client_of(gateway, key) as client:
        tenant = (await gateway.process.access.authenticate(key)).tenant_id.hex
        asked = {"model": MODEL, "input": "x"}
        for more, counted in (({}, 4.0), ({"background": True}, 2.0)):
            (await client.post("/v1/responses", json={**asked, "store": False})).raise_for_status()
            before = admission.shares.account(tenant).served
            made = (await client.post("/v1/responses", json=asked | more)).json()
            while made["status"] in {"queued", "in_progress"}:
                made = (await client.get(path_of(made["id"]))).json()
            usage = made["usage"]
            cost = usage["input_tokens"] + 4 * usage["output_tokens"]
            while admission.shares.account(tenant).running:
                await client.get(path_of(made["id"]))
            served = admission.shares.account(tenant).served - before
            assert served == pytest.approx(cost / counted)
