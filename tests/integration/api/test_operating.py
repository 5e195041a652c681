"""What operators get: log lines and metrics of requests, bounds on how many there are."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.telemetry.logs import configure_logging
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.integration.api.bodies import MODEL, create, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is logged."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    yield stream
    configure_logging("error", "json")


async def test_the_log_line_of_a_request_leads_to_its_response(
    client: httpx2.AsyncClient, log: io.StringIO
) -> None:
    response = await create(client, input="[[sim say=ok think=none]]")
    await client.get("/healthz")  # a request's line is written after its answer
    lines = [orjson.loads(line) for line in log.getvalue().splitlines()]
    (line,) = [line for line in lines if line.get("path") == "/v1/responses"]
    assert line["response_id"] == response["id"]
    assert line["model"] == MODEL
    assert line["tenant"] == "acme"
    assert line["status"] == 200
    assert 0 < line["first_token_s"] <= line["seconds"]


async def test_durations_are_measured_by_model(client: httpx2.AsyncClient) -> None:
    await create(client, input="[[sim say=ok think=none]]")
    metrics = (await client.get("/metrics")).text
    assert f'gen_ai_server_request_duration_seconds_count{{model="{MODEL}"}}' in metrics


async def test_requests_that_arrive_together_cannot_pass_the_bound_together(
    shared_database_url: str, backends: Backends
) -> None:
    settings = gateway_settings(
        shared_database_url, backends.urls, limits={"responses_in_flight_max": 2}
    )
    async with (
        running_gateway(settings) as narrow,
        http_client(narrow.url, headers=narrow.headers) as client,
    ):
        body = {"model": MODEL, "input": "[[sim first_token_delay_s=0.2]] hello"}
        posts = [client.post("/v1/responses", json=body) for _ in range(8)]
        statuses = [answer.status_code for answer in await asyncio.gather(*posts)]
        assert statuses.count(200) == 2
        assert statuses.count(429) == 6
        assert (await client.post("/v1/responses", json=body)).status_code == 200


async def test_a_failure_told_as_an_http_status_is_stored_as_failed(
    client: httpx2.AsyncClient, postgres: PostgresServer, shared_database_url: str
) -> None:
    query = "SELECT count(*) FROM responses WHERE status = 'failed'"
    ((before,),) = await postgres.fetch(query, url=shared_database_url)
    await refused(client, 503, input="[[sim status=503]] hello", stream=True)
    ((after,),) = await postgres.fetch(query, url=shared_database_url)
    assert after == before + 1


async def test_a_slash_too_many_is_no_route_and_no_redirect(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/responses/", json={"model": MODEL, "input": "x"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
