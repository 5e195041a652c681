"""Sending a request again with its Idempotency-Key: the same response, generated once."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.stream import parse_stream, texts
from tests.integration.api.bodies import MODEL
from tests.integration.api.following import created, ended, id_in, is_delta, listed, resumed, taken

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer

BRIEF = "[[sim think=2 say=ok]] go"
SLOW = "[[sim tokens_per_s=200 tokens=60 think=none]] go"
KEYS = (f"key-{number}" for number in itertools.count())


@pytest.fixture
def key() -> dict[str, str]:
    """The header, with a key that nobody has used."""
    return {"idempotency-key": next(KEYS)}


async def post(
    client: httpx2.AsyncClient, headers: dict[str, str], **fields: Any
) -> httpx2.Response:
    return await client.post("/v1/responses", json={"model": MODEL, **fields}, headers=headers)


async def usage_lines(postgres: PostgresServer, url: str, response_id: str) -> int:
    query = "SELECT count(*) FROM usage WHERE response_id = $1"
    ((count,),) = await postgres.fetch(
        query.replace("$1", f"'{response_id.removeprefix('resp_')}'"), url=url
    )
    return int(count)


@pytest.mark.requirement("retry.repeats")
@pytest.mark.requirement("idempotency.same-response")
async def test_a_repeat_is_answered_with_the_same_response(
    client: httpx2.AsyncClient, key: dict[str, str], backends: Backends
) -> None:
    first = await post(client, key, input=BRIEF)
    again = await post(client, key, input=BRIEF)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len(await backends.of_response(first.json()["id"])) == 1


@pytest.mark.requirement("idempotency.same-response")
async def test_a_repeated_stream_begins_at_the_first_event(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    first = await listed(created(client, key, input=BRIEF, background=False))
    again = await listed(created(client, key, input=BRIEF, background=False))
    assert again == first
    assert await listed(resumed(client, id_in(first))) == first


@pytest.mark.slow
@pytest.mark.requirement("idempotency.running")
@pytest.mark.parametrize("background", [False, True])
async def test_a_repeat_follows_what_still_runs(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, key: dict[str, str], background: bool
) -> None:
    cut_off = await taken(created(client, key, input=SLOW, background=background), is_delta)
    again = await listed(created(second, key, input=SLOW, background=background))
    assert again[: len(cut_off)] == cut_off
    assert parse_stream("".join(again))[-1]["type"] == "response.completed"


@pytest.mark.slow
@pytest.mark.requirement("idempotency.running")
async def test_a_repeat_waits_for_the_body_of_what_still_runs(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    first, again = await asyncio.gather(
        post(client, key, input=SLOW), post(second, key, input=SLOW)
    )
    assert first.content == again.content
    assert first.json()["status"] == "completed"


async def test_a_repeat_of_a_background_response_tells_how_far_it_is(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    queued = (await post(client, key, input=BRIEF, background=True)).json()
    assert queued["status"] == "queued"
    finished = await ended(client, queued["id"])
    again = await post(client, key, input=BRIEF, background=True)
    assert again.json() == finished


@pytest.mark.slow
@pytest.mark.requirement("idempotency.concurrent")
@pytest.mark.parametrize("background", [False, True])
async def test_of_many_at_once_on_two_replicas_one_is_generated(
    client: httpx2.AsyncClient,
    second: httpx2.AsyncClient,
    key: dict[str, str],
    postgres: PostgresServer,
    shared_database_url: str,
    background: bool,
) -> None:
    answers = await asyncio.gather(
        *(post(one, key, input=BRIEF, background=background) for one in (client, second) * 4)
    )
    assert {answer.status_code for answer in answers} == {200}
    (response_id,) = {answer.json()["id"] for answer in answers}
    assert [answer.headers.get("idempotent-replayed") for answer in answers].count(None) == 1
    await ended(client, response_id)
    assert await usage_lines(postgres, shared_database_url, response_id) == 1


@pytest.mark.requirement("idempotency.other-body")
async def test_a_key_is_not_taken_for_another_body(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    await post(client, key, input=BRIEF)
    answer = await post(client, key, input="something else")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")


async def test_tenants_do_not_share_keys(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    mine = await post(client, key, input=BRIEF)
    theirs = await post(stranger, key, input="something else")
    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert mine.json()["id"] != theirs.json()["id"]


@pytest.mark.requirement("idempotency.failure-frees-the-key")
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_failed_before_it_said_anything_may_be_tried_again(
    client: httpx2.AsyncClient, key: dict[str, str], streamed: bool
) -> None:
    text = f"[[sim status=503 times=1 think=none]] {key} [[sim say=ok]]"
    body = {"input": text, "stream": streamed}
    failed = await post(client, key, **body)
    assert failed.status_code == 503
    again = await post(client, key, **body)
    assert again.status_code == 200
    assert "idempotent-replayed" not in again.headers
    response = parse_stream(again.text)[-1]["response"] if streamed else again.json()
    assert texts(response) == ["ok"]


async def test_what_failed_after_it_said_something_stays_that_way(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    body = {"input": "[[sim error_after=20 tokens=400 think=none]] go"}
    failed = await post(client, key, **body)
    assert failed.status_code == 502
    again = await post(client, key, **body)
    assert (again.status_code, again.json()["status"]) == (200, "failed")


async def test_a_refused_request_takes_no_key(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    assert (await post(client, key, input="word " * 140_000)).status_code == 400
    assert (await post(client, key, input=BRIEF)).status_code == 200


async def test_a_deleted_response_frees_its_key(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    first = (await post(client, key, input=BRIEF)).json()
    assert (await client.delete(f"/v1/responses/{first['id']}")).status_code == 200
    again = await post(client, key, input=BRIEF)
    assert again.status_code == 200
    assert again.json()["id"] != first["id"]


@pytest.mark.requirement("idempotency.key-is-checked")
@pytest.mark.parametrize(
    ("header", "fields"), [("with space", {}), ("k" * 256, {}), ("key", {"store": False})]
)
async def test_a_key_that_cannot_be_kept_is_refused(
    client: httpx2.AsyncClient, header: str, fields: dict[str, Any]
) -> None:
    answer = await post(client, {"idempotency-key": header}, input=BRIEF, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"
