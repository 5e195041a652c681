"""Background responses of a real vLLM: followed, left, resumed, cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, parse_stream
from tests.integration.api.following import (
    created,
    data_of,
    ended,
    id_in,
    is_delta,
    listed,
    resumed,
    taken,
)
from tests.vllm.asking import (
    ENDED_WELL,
    ENDLESS,
    LONG_ASKED,
    OUTPUT_TOKENS_MAX,
    WEATHER,
    WEATHER_ASKED,
)

if TYPE_CHECKING:
    import httpx2

    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

Json = dict[str, Any]

SAMPLED: Json = {"temperature": 1, "max_output_tokens": OUTPUT_TOKENS_MAX}


@pytest.mark.parametrize("text", [LONG_ASKED, WEATHER_ASKED])
async def test_a_stream_that_is_left_is_resumed_where_it_was(
    client: httpx2.AsyncClient, model: str, text: str
) -> None:
    fields = {"model": model, "input": text, "tools": [WEATHER], **SAMPLED}
    begun = await taken(created(client, **fields), is_delta)
    response_id, seen = id_in(begun), data_of(begun[-1])["sequence_number"]
    rest = await listed(resumed(client, response_id, seen, include_obfuscation="false"))
    whole = await listed(resumed(client, response_id, include_obfuscation="false"))
    events = parse_stream("".join(whole))
    response = check_stream(as_events(events)).response
    assert "".join(whole[seen + 1 :]) == "".join(rest)
    assert as_events([data_of(frame) for frame in begun]) == as_events(events[: seen + 1])
    assert response["status"] in ENDED_WELL
    assert await ended(client, response_id) == response


async def test_one_that_nobody_follows_ends_all_the_same(
    client: httpx2.AsyncClient, model: str
) -> None:
    fields = {"model": model, "input": LONG_ASKED, **SAMPLED}
    first = await taken(created(client, **fields), lambda _: True)
    response = await ended(client, id_in(first))
    assert response["status"] in ENDED_WELL
    frames = await listed(resumed(client, response["id"]))
    assert check_stream(as_events(parse_stream("".join(frames)))).response == response


async def test_one_without_a_stream_is_waited_for(client: httpx2.AsyncClient, model: str) -> None:
    body = {"model": model, "input": LONG_ASKED, "background": True, **SAMPLED}
    queued = (await client.post("/v1/responses", json=body)).json()
    assert queued["status"] == "queued"
    response = await ended(client, queued["id"])
    assert response["status"] in ENDED_WELL
    assert response["output"]


async def test_one_that_is_cancelled_frees_the_server(
    blunt_client: httpx2.AsyncClient, vllm: Vllm
) -> None:
    client = blunt_client
    await vllm.until_idle()
    begun = await taken(created(client, model=vllm.model, **ENDLESS), is_delta)
    cancelled = await client.post(f"/v1/responses/{id_in(begun)}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    await vllm.until_idle()
    frames = await listed(resumed(client, id_in(begun)))
    events = parse_stream("".join(frames))
    assert check_stream(as_events(events)).response["status"] == "cancelled"
