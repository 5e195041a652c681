"""What operators get: log lines and metrics of requests, bounds on how many there are."""

from __future__ import annotations

import asyncio
import io
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway import __version__
from gateway.telemetry.logs import configure_logging
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.integration.api.bodies import MODEL, create, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
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
    # The line of a request that an earlier test hung up on may be among them.
    requests = [line for line in lines if line.get("path") == "/v1/responses"]
    (line,) = [line for line in requests if line["response_id"] == response["id"]]
    assert line["model"] == MODEL
    assert line["tenant"] == "acme"
    assert line["status"] == 200
    assert 0 < line["first_token_s"] <= line["seconds"]


async def test_durations_are_measured_by_model(client: httpx2.AsyncClient) -> None:
    await create(client, input="[[sim say=ok think=none]]")
    metrics = (await client.get("/metrics")).text
    assert f'gen_ai_server_request_duration_seconds_count{{model="{MODEL}"}}' in metrics


@pytest.mark.slow
async def test_metrics_name_the_tenants_that_the_setting_allows(
    shared_database_url: str, backends: Backends
) -> None:
    settings = gateway_settings(
        shared_database_url, backends.urls, telemetry={"tenant_label_max": 1}
    )
    async with (
        running_gateway(settings) as named,
        http_client(named.url, headers=named.headers) as client,
    ):
        response = await create(client, input="[[sim say=ok think=none]]")
        other = {"authorization": f"Bearer {await new_key(settings, 'other')}"}
        await client.get("/v1/models", headers=other)
        lines = (await client.get("/metrics", headers=other)).text.splitlines()
    used = response["usage"]
    for line in (
        'gateway_tenant_requests_total{status="200",tenant="acme"} 1.0',
        'gateway_tenant_requests_total{status="200",tenant="(other)"} 1.0',
        f'gateway_tenant_tokens_total{{tenant="acme",type="input"}} {used["input_tokens"]:.1f}',
        f'gateway_tenant_tokens_total{{tenant="acme",type="output"}} {used["output_tokens"]:.1f}',
        f"gateway_database_connections_max {settings.database.pool_size_max:.1f}",
        f'gateway_build_info{{version="{__version__}"}} 1.0',
    ):
        assert line in lines


@pytest.mark.slow
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
        refused = asyncio.Semaphore(0)

        async def ask(text: str) -> int:
            answer = await client.post("/v1/responses", json={"model": MODEL, "input": text})
            if answer.status_code == 429:
                refused.release()
            return answer.status_code

        async with asyncio.timeout(30):
            asking = [asyncio.create_task(ask("[[sim stall_after=4]] hello")) for _ in range(8)]
            for _ in range(6):
                await refused.acquire()
            counted = {"model": MODEL, "input": "hello"}
            answer = await client.post("/v1/responses/input_tokens", json=counted)
            assert answer.status_code == 429
        assert sum(task.done() for task in asking) == 6
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        async with asyncio.timeout(30):
            while await ask("hello") != 200:  # until both are known to have hung up
                pass


@pytest.mark.slow
async def test_a_tenant_with_slow_requests_leaves_connections_to_others(
    shared_database_url: str, backends: Backends
) -> None:
    server = {"connections_max": 10, "drain_grace_s": 1}
    settings = gateway_settings(shared_database_url, backends.urls, server=server)
    async with running_gateway(settings) as few, AsyncExitStack() as stack:
        host, port = few.url.removeprefix("http://").split(":")
        head = (
            f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {few.key}\r\n"
            "content-length: 100\r\n\r\n{"
        )
        others = await new_key(settings, "others")
        async with http_client(few.url, headers=few.headers) as client:
            assert (await client.get("/v1/models")).status_code == 200  # its key is looked up
        answers = []
        for _ in range(10):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(head.encode())
            answers.append(reader)
        for reader in answers[8:]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        async with http_client(few.url, headers={"authorization": f"Bearer {others}"}) as client:
            assert (await client.get("/v1/models")).status_code == 200


async def test_a_failure_told_as_an_http_status_is_stored_as_failed(
    gateway: RunningGateway, settings: Settings, postgres: PostgresServer, shared_database_url: str
) -> None:
    key = await new_key(settings, "failed-in-person")
    async with http_client(gateway.url, headers={"authorization": f"Bearer {key}"}) as client:
        await refused(client, 503, input="[[sim status=503]] hello", stream=True)
    query = (
        "SELECT status FROM responses JOIN tenants ON tenants.id = tenant_id"
        " WHERE tenants.name = 'failed-in-person'"
    )
    ((status,),) = await postgres.fetch(query, url=shared_database_url)
    assert status == "failed"


async def test_a_slash_too_many_is_no_route_and_no_redirect(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/responses/", json={"model": MODEL, "input": "x"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
