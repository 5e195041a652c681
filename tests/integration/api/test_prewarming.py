"""`prompt_cache_options.prewarm`: a context is prepared over HTTP, and nothing is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, stream, texts
from tests.integration.api.bodies import MODEL, WEATHER, create, refused
from tests.integration.api.chat.bodies import asked, chat
from tests.integration.api.following import created, data_of, ended, id_in, listed, resumed

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

PREWARM: dict[str, Any] = {"prompt_cache_options": {"prewarm": True}}
QUESTION = "Who are you?"


def check_warm(response: dict[str, Any]) -> None:
    assert (response["status"], response["output"]) == ("completed", [])
    assert response["usage"]["total_tokens"] == 0


@pytest.mark.parametrize("store", [True, False])
async def test_no_backend_is_asked(
    client: httpx2.AsyncClient, backends: Backends, store: bool
) -> None:
    response = await create(client, input=QUESTION, store=store, **PREWARM)
    check_warm(response)
    assert await backends.of_response(response["id"]) == []
    kept = await client.get(f"/v1/responses/{response['id']}")
    assert kept.status_code == (200 if store else 404)


async def test_what_continues_it_has_the_prompt_of_one_request(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    body: dict[str, Any] = {"instructions": "Be brief.", "tools": [WEATHER]}
    warm = await create(client, **body, **PREWARM)
    check_warm(warm)
    continued = await create(client, input=QUESTION, previous_response_id=warm["id"], **body)
    alone = await create(client, input=QUESTION, **body)
    (one,), (other,) = [await backends.of_response(r["id"]) for r in (continued, alone)]
    assert one["prompt_ids"] == other["prompt_ids"]
    asked_before = await create(client, input=QUESTION, **PREWARM)
    answer = await create(client, input=[], previous_response_id=asked_before["id"])
    assert QUESTION in texts(answer)[-1]


async def test_its_stream_begins_and_completes(client: httpx2.AsyncClient) -> None:
    events = await stream(client, {"model": MODEL, "input": QUESTION, **PREWARM})
    check_stream(as_events(events))
    check_warm(events[-1]["response"])


async def test_in_the_background_it_completes_and_is_replayed(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    live = await listed(created(client, input=QUESTION, **PREWARM))
    check_warm(data_of(live[-2])["response"])
    response_id = id_in(live)
    assert await listed(resumed(client, response_id)) == live
    assert await backends.of_response(response_id) == []
    queued = await create(client, input=QUESTION, background=True, **PREWARM)
    assert queued["status"] == "queued"
    check_warm(await ended(client, queued["id"]))


async def test_the_same_idempotency_key_is_answered_with_the_same_response(
    client: httpx2.AsyncClient,
) -> None:
    body = {"model": MODEL, "input": QUESTION, **PREWARM}
    headers = {"idempotency-key": "a-prewarmed-one"}
    first, again = [
        await client.post("/v1/responses", json=body, headers=headers) for _ in range(2)
    ]
    check_warm(first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()


async def test_a_chat_is_prepared_alike(client: httpx2.AsyncClient) -> None:
    completion = await chat(client, asked(QUESTION, **PREWARM))
    (choice,) = completion["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert completion["usage"]["total_tokens"] == 0


async def test_what_has_to_generate_is_refused(client: httpx2.AsyncClient) -> None:
    items = [{"role": "user", "content": QUESTION}, {"type": "compaction_trigger"}]
    error = await refused(client, 400, input=items, **PREWARM)
    assert (error["code"], error["param"]) == ("invalid_value", "input")
    assert "'prompt_cache_options.prewarm' set to true generates nothing" in error["message"]
    body = {"model": MODEL, "input": QUESTION, **PREWARM}
    answer = await client.post("/v1/responses/compact", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_cache_options.prewarm"
    error = await refused(client, 400, input="x", prompt_cache_options={"prewarm": "yes"})
    assert (error["code"], error["param"]) == ("invalid_type", "prompt_cache_options.prewarm")
