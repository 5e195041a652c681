"""Keys that come twice, malformed, too early or too late."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.api.bodies import MODEL
from tests.integration.api.following import created, id_in, listed

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.postgres import PostgresServer

BRIEF = "[[sim think=2 say=ok]] go"
KEYS = (f"edge-{number}" for number in itertools.count())


@pytest.fixture
def key() -> dict[str, str]:
    """The header, with a key that nobody has used."""
    return {"idempotency-key": next(KEYS)}


async def post(client: httpx2.AsyncClient, headers: Any, **fields: Any) -> httpx2.Response:
    return await client.post(
        "/v1/responses", json={"model": MODEL, "input": BRIEF, **fields}, headers=headers
    )


@pytest.mark.requirement("idempotency.key-is-checked")
@pytest.mark.parametrize(
    "headers",
    [
        [(b"idempotency-key", b"")],
        [(b"idempotency-key", "schlüssel".encode())],
        [(b"idempotency-key", b"a"), (b"Idempotency-Key", b"a")],
    ],
)
async def test_what_is_no_single_key_is_refused(
    client: httpx2.AsyncClient, headers: list[tuple[bytes, bytes]]
) -> None:
    answer = await post(client, headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "Idempotency-Key")


async def test_the_longest_key_is_a_key(client: httpx2.AsyncClient) -> None:
    longest = {"idempotency-key": "k" * 255}
    first, again = await post(client, longest), await post(client, longest)
    assert (first.status_code, again.content) == (200, first.content)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"temperature": "warm"}),
        (404, {"model": "nobody-knows-it"}),
        (400, {"previous_response_id": "resp_unknown"}),
    ],
)
async def test_a_mistake_takes_no_key(
    client: httpx2.AsyncClient, key: dict[str, str], status: int, fields: dict[str, Any]
) -> None:
    assert (await post(client, key, **fields)).status_code == status
    mended = await post(client, key)
    assert mended.status_code == 200
    assert "idempotent-replayed" not in mended.headers


@pytest.mark.requirement("idempotency.other-body")
@pytest.mark.parametrize("streamed", [False, True])
async def test_with_and_without_a_stream_are_two_requests(
    client: httpx2.AsyncClient, key: dict[str, str], streamed: bool
) -> None:
    assert (await post(client, key, stream=streamed)).status_code == 200
    answer = await post(client, key, stream=not streamed)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "idempotency_key_reused"


@pytest.mark.slow
async def test_a_background_stream_is_repeated_byte_for_byte(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    first = await listed(created(client, key, input=BRIEF))
    assert await listed(created(second, key, input=BRIEF)) == first


async def test_a_key_that_has_expired_stands_for_nothing(
    client: httpx2.AsyncClient,
    key: dict[str, str],
    postgres: PostgresServer,
    shared_database_url: str,
) -> None:
    first = (await post(client, key)).json()["id"]
    aged = (
        "UPDATE idempotency_keys SET created_at = created_at - interval '30 days'"
        f" WHERE response_id = '{first.removeprefix('resp_')}' RETURNING true"
    )
    assert await postgres.fetch(aged, url=shared_database_url)
    other = await post(client, key, metadata={"another": "body"})
    assert other.status_code == 200
    assert other.json()["id"] != first
    assert (await post(client, key)).json()["error"]["code"] == "idempotency_key_reused"
    assert (await client.get(f"/v1/responses/{first}")).status_code == 200


async def test_a_repeat_of_what_was_cancelled_says_so(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    endless = {"input": "[[sim tokens_per_s=100 tokens=100000 think=none]]", "background": True}
    accepted = (await post(client, key, **endless)).json()["id"]
    cancelled = await client.post(f"/v1/responses/{accepted}/cancel")
    again = await post(client, key, **endless)
    assert (again.status_code, again.content) == (200, cancelled.content)


async def test_the_key_is_the_header_of_one_route(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    frames = await listed(created(client, input=BRIEF))
    path = f"/v1/responses/{id_in(frames)}"
    assert (await client.get(path, headers=key)).status_code == 200
    assert (await client.delete(path, headers=key)).status_code == 200
    assert (await client.delete(path, headers=key)).status_code == 404


async def test_a_key_is_refused_where_a_request_would_be_done_twice(
    client: httpx2.AsyncClient, key: dict[str, str]
) -> None:
    items = {"items": [{"role": "user", "content": "x"}]}
    made = (await client.post("/v1/conversations", json={})).json()
    places = {
        "/v1/conversations": {},
        f"/v1/conversations/{made['id']}/items": items,
        "/v1/responses/compact": {"model": MODEL, "input": "x"},
    }
    for path, body in places.items():
        answer = await client.post(path, json=body, headers=key)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "Idempotency-Key"), path
        assert "POST /v1/responses" in error["message"]
    # What is the same however often it is done does not need one.
    counted = {"model": MODEL, "input": "x"}
    answer = await client.post("/v1/responses/input_tokens", json=counted, headers=key)
    assert answer.status_code == 200
    listed_items = await client.get(f"/v1/conversations/{made['id']}/items", headers=key)
    assert listed_items.json()["data"] == []
