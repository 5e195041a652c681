"""What is one tenant's does not exist for another, whichever way it asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.stream import parse_stream
from tests.integration.api.bodies import MODEL, create
from tests.integration.api.following import created, id_in, is_delta, listed, taken

if TYPE_CHECKING:
    import httpx2

CANARY = "canary-6f1c"
ENDLESS = f"[[sim tokens_per_s=100 tokens=100000 think=none]] {CANARY}"
BRIEF = f"[[sim think=2 say=ok]] {CANARY}"
MARKED: dict[str, Any] = {"metadata": {CANARY: CANARY}, "user": CANARY, "instructions": CANARY}
UNKNOWN = "resp_" + "0" * 32
USES = [
    ("GET", ""),
    ("HEAD", ""),
    ("GET", "?stream=true"),
    ("GET", "?stream=true&starting_after=0"),
    ("GET", "?include[]=reasoning.encrypted_content"),
    ("DELETE", ""),
    ("POST", "/cancel"),
    ("GET", "/input_items"),
    ("GET", "/input_items?order=asc&limit=1"),
]


@dataclass(frozen=True)
class Belongings:
    """Ids of responses of the first tenant, all with the canary in them, and of their items."""

    finished: str
    synchronous: str
    running: str
    items: tuple[str, ...]


@pytest.fixture
async def belongings(client: httpx2.AsyncClient) -> Any:
    finished = await listed(created(client, {"idempotency-key": CANARY}, input=BRIEF, **MARKED))
    running = id_in(await taken(created(client, input=ENDLESS, **MARKED), is_delta))
    synchronous = await create(client, input=BRIEF, **MARKED)
    listing = await client.get(f"/v1/responses/{id_in(finished)}/input_items")
    output = parse_stream("".join(finished))[-1]["response"]["output"]
    yield Belongings(
        id_in(finished),
        synchronous["id"],
        running,
        tuple(item["id"] for item in (*listing.json()["data"], *output)),
    )
    # Two for the next test: the key, and the place that the running one takes.
    assert (await client.post(f"/v1/responses/{running}/cancel")).status_code == 200
    assert (await client.delete(f"/v1/responses/{id_in(finished)}")).status_code == 200


def shown(answer: httpx2.Response, response_id: str) -> tuple[int, str, dict[str, str]]:
    """All that an answer says, but for the id that was asked for and what is new every time."""
    new = {"date", "x-request-id", "openai-processing-ms"}
    headers = {name: text for name, text in answer.headers.items() if name not in new}
    return answer.status_code, answer.text.replace(response_id, "ID"), headers


@pytest.mark.slow
@pytest.mark.requirement("tenants.walls")
async def test_another_tenants_response_looks_like_none(
    stranger: httpx2.AsyncClient, belongings: Belongings
) -> None:
    for method, use in USES:
        answer = await stranger.request(method, f"/v1/responses/{UNKNOWN}{use}")
        unknown = shown(answer, UNKNOWN)
        assert unknown[0] == 404
        for one in (belongings.finished, belongings.synchronous, belongings.running):
            theirs = await stranger.request(method, f"/v1/responses/{one}{use}")
            assert shown(theirs, one) == unknown
            assert CANARY not in theirs.text


@pytest.mark.slow
@pytest.mark.requirement("tenants.walls")
async def test_another_tenants_response_cannot_be_continued(
    stranger: httpx2.AsyncClient, belongings: Belongings
) -> None:
    body: dict[str, Any] = {"model": MODEL, "input": "x"}
    for one in (belongings.finished, belongings.synchronous, belongings.running):
        for background in (False, True):
            answer, unknown = [
                await stranger.post(
                    "/v1/responses",
                    json={**body, "background": background, "previous_response_id": previous},
                )
                for previous in (one, UNKNOWN)
            ]
            assert answer.status_code == 400
            assert shown(answer, one) == shown(unknown, UNKNOWN)


@pytest.mark.slow
@pytest.mark.requirement("tenants.walls")
async def test_another_tenants_items_cannot_be_referred_to(
    stranger: httpx2.AsyncClient, belongings: Belongings
) -> None:
    for item in belongings.items:
        reference = {"type": "item_reference", "id": item}
        body = {"model": MODEL, "input": [reference]}
        answer = await stranger.post("/v1/responses", json=body)
        assert answer.status_code == 404
        assert CANARY not in answer.text


@pytest.mark.slow
@pytest.mark.requirement("tenants.walls")
async def test_the_same_key_with_the_same_body_is_another_request_of_another_tenant(
    stranger: httpx2.AsyncClient, belongings: Belongings
) -> None:
    headers = {"idempotency-key": CANARY}
    theirs = await listed(created(stranger, headers, input=BRIEF, **MARKED))
    assert id_in(theirs) != belongings.finished
    again = await listed(created(stranger, headers, input=BRIEF, **MARKED))
    assert again == theirs


@pytest.mark.slow
async def test_no_header_makes_another_tenant_of_the_caller(
    stranger: httpx2.AsyncClient, belongings: Belongings
) -> None:
    path = f"/v1/responses/{belongings.finished}"
    for name in ("x-tenant-id", "x-forwarded-user"):
        assert (await stranger.get(path, headers={name: "acme"})).status_code == 404
    for name in ("openai-organization", "openai-project"):
        assert (await stranger.get(path, headers={name: "acme"})).status_code == 401
    for credentials in ("Bearer wrong", "Basic YTpi", "Bearer", ""):
        answer = await stranger.get(path, headers={"authorization": credentials})
        assert answer.status_code == 401
        assert CANARY not in answer.text


async def test_what_operators_read_names_no_response_and_no_content(
    client: httpx2.AsyncClient, belongings: Belongings
) -> None:
    metrics = (await client.get("/metrics")).text
    assert CANARY not in metrics
    assert belongings.running not in metrics
