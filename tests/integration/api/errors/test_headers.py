"""Headers of every answer: who answered, how long it took, whether to try again."""

from __future__ import annotations

import asyncio
import io
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.telemetry.logs import configure_logging
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.integration.api.bodies import MODEL, create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")
JSON = {"model": MODEL, "input": "x"}


def assert_signed(answer: httpx2.Response, *, tenant: str | None = "acme") -> str:
    """All that is on every answer; returns its id."""
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["openai-version"] == "2020-10-01"
    assert int(answer.headers["openai-processing-ms"]) >= 0
    assert answer.headers.get("openai-organization") == tenant
    assert not [name for name in answer.headers if name.startswith("x-ratelimit-")]
    return str(answer.headers["x-request-id"])


@pytest.mark.requirement("header.request-id")
@pytest.mark.requirement("header.processing-ms")
@pytest.mark.requirement("header.version")
@pytest.mark.requirement("header.organization")
@pytest.mark.requirement("header.rate-limits")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/v1/models/small", 200),
        ("GET", "/v1/models/gpt-9", 404),
        ("HEAD", "/v1/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/responses/resp_x", 404),
        ("POST", "/v1/responses", 400),
        ("PATCH", "/v1/responses", 405),
        ("OPTIONS", "/v1/models", 405),
    ],
)
async def test_every_answer_to_a_key_is_signed(
    client: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    first, second = assert_signed(answer), assert_signed(await client.request(method, path))
    assert first != second


@pytest.mark.requirement("header.request-id")
async def test_an_answer_to_nobody_is_signed_too(gateway: RunningGateway) -> None:
    async with http_client(gateway.url) as anybody:
        refused = await anybody.post("/v1/responses", json=JSON)
        public = await anybody.get("/healthz")
    for answer, status in ((refused, 401), (public, 200)):
        assert answer.status_code == status
        assert_signed(answer, tenant=None)
    assert refused.headers["www-authenticate"] == "Bearer"


@pytest.mark.requirement("header.of-the-post")
@pytest.mark.requirement("header.request-id")
async def test_streams_and_bodies_are_signed(client: httpx2.AsyncClient) -> None:
    assert_signed(await client.post("/v1/responses", json=JSON))
    stream = await client.post("/v1/responses", json={**JSON, "stream": True})
    assert_signed(stream)
    body = {**JSON, "stream": True, "background": True}
    created = await client.post("/v1/responses", json=body)
    first = assert_signed(created)
    response_id = re.findall(r"resp_[0-9a-f]{32}", created.text)[0]
    again = await client.get(f"/v1/responses/{response_id}", params={"stream": "true"})
    assert assert_signed(again) != first


async def test_a_body_of_too_many_bytes_is_signed(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/responses", content=b"x" * (16 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    assert_signed(answer)


@pytest.mark.requirement("header.ignored")
@pytest.mark.requirement("http.accept-is-not-asked")
async def test_what_a_client_says_it_is_counts_for_nothing(client: httpx2.AsyncClient) -> None:
    headers = {
        "OpenAI-Beta": "assistants=v2, responses_websockets=2026-02-06",
        "X-Stainless-Retry-Count": "2",
        "X-OpenWebUI-User-Id": "7",
        "Accept": "image/png",
    }
    answer = await client.post("/v1/responses", json=JSON, headers=headers)
    assert answer.status_code == 200
    assert_signed(answer)
    assert "openai-project" not in answer.headers


@pytest.mark.requirement("header.project")
async def test_a_project_or_organization_that_is_not_the_keys_is_refused(
    client: httpx2.AsyncClient,
) -> None:
    for name, other in (("OpenAI-Organization", "org-other"), ("OpenAI-Project", "proj_other")):
        answer = await client.get("/v1/models", headers={name: other})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == f"mismatched_{name[7:].lower()}"


@pytest.mark.requirement("header.client-request-id")
async def test_a_clients_own_request_id_is_in_the_log(client: httpx2.AsyncClient) -> None:
    own = "!" + "a" * 511
    asked = client.get("/v1/models", headers={"X-Client-Request-Id": own})
    assert (await logged(client, asked))["client_request_id"] == own


async def logged(client: httpx2.AsyncClient, asked: Awaitable[httpx2.Response]) -> dict[str, Any]:
    """The log line of a request that is answered well."""
    log = io.StringIO()
    configure_logging("info", "json", stream=log)
    answer = await asked
    await client.get("/v1/models")  # of a request that was asked before, all is done then
    configure_logging("error", "json")
    assert answer.status_code == 200, answer.text
    request_id = assert_signed(answer)
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.getvalue().splitlines()]
    (line,) = [
        one for one in lines if one["event"] == "request" and one["request_id"] == request_id
    ]
    return line


@pytest.mark.requirement("header.client-request-id")
@pytest.mark.parametrize("own", [b"a" * 513, "é".encode(), b"a\tb"])
async def test_a_request_id_that_no_log_should_have_is_refused(
    client: httpx2.AsyncClient, own: bytes
) -> None:
    answer = await client.get("/v1/models", headers={b"X-Client-Request-Id": own})
    assert answer.status_code == 400
    assert_signed(answer, tenant=None)
    assert answer.json()["error"] == {
        "message": "Invalid 'X-Client-Request-Id': expected at most 512 printable ASCII "
        "characters. Send another, or leave the header out.",
        "type": "invalid_request_error",
        "param": "X-Client-Request-Id",
        "code": "invalid_value",
    }


@pytest.mark.requirement("error.method")
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/responses/resp_x", {"GET", "HEAD", "DELETE"}),
        ("/v1/responses/resp_x/cancel", {"POST"}),
        ("/v1/responses/resp_x/input_items", {"GET", "HEAD"}),
        ("/v1/models", {"GET", "HEAD"}),
        ("/v1/models/openai/gpt-oss-20b", {"GET", "HEAD"}),
        ("/v1/traces/ingest", {"POST"}),
        ("/healthz", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    client: httpx2.AsyncClient, path: str, allowed: set[str]
) -> None:
    answer = await client.request("PATCH", path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed


@asynccontextmanager
async def lone_client(
    database_url: str, urls: tuple[str, ...], **sections: object
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway of its own."""
    settings = gateway_settings(database_url, urls, **sections)
    async with (
        running_gateway(settings) as gateway,
        http_client(gateway.url, headers=gateway.headers) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.requirement("error.rate-limit")
@pytest.mark.requirement("header.retry-after")
async def test_too_much_at_once_says_when_to_try_again(
    own_database_url: str, backends: Backends
) -> None:
    limits = {"responses_in_flight_max": 1}
    async with lone_client(own_database_url, backends.urls, limits=limits) as client:
        slow = {**JSON, "input": "[[sim tokens_per_s=20 tokens=400]]", "stream": True}
        async with client.stream("POST", "/v1/responses", json=slow) as running:
            assert running.status_code == 200
            answer = await client.post("/v1/responses", json=JSON)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert "x-should-retry" not in answer.headers
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "requests",
        "rate_limit_exceeded",
        None,
    )
    assert_signed(answer)


@pytest.mark.slow
@pytest.mark.requirement("error.overloaded")
@pytest.mark.requirement("retry.delay")
async def test_no_backend_says_when_to_try_again(own_database_url: str) -> None:
    nowhere = ("http://127.0.0.1:9",)
    models = [{"id": MODEL, "context_length": 1000}]
    async with lone_client(own_database_url, nowhere, models=models) as client:
        answer = await client.post("/v1/responses", json=JSON)
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "server_is_overloaded")
    assert_signed(answer)


@pytest.mark.slow
async def test_a_body_that_does_not_come_is_answered_in_time(
    own_database_url: str, backends: Backends
) -> None:
    limits = {"body_timeout_s": 0.05}
    async with lone_client(own_database_url, backends.urls, limits=limits) as client:
        key = client.headers["authorization"]
        head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\n"
        port = client.base_url.port
        reader, writer = await asyncio.open_connection(client.base_url.host, port)
        writer.write(f"{head}content-length: 9\r\nconnection: close\r\n\r\n{{".encode())
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith("HTTP/1.1 400 ")
    assert "did not arrive within 0.05 seconds" in answer
    assert REQUEST_ID.search(answer)


@pytest.mark.requirement("create.unknown-parameters")
@pytest.mark.requirement("create.image")
async def test_parameters_that_mean_nothing_here_are_listed(client: httpx2.AsyncClient) -> None:
    body = {**JSON, "client_metadata": {}, "reasoning_effort": "low", "image": {}}
    answer = await client.post("/v1/responses", json=body)
    assert answer.headers["x-ignored-parameters"] == "client_metadata, reasoning_effort, image"


@pytest.mark.requirement("create.unknown-parameters")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
async def test_they_are_in_the_log_too(client: httpx2.AsyncClient, path: str) -> None:
    line = await logged(
        client, client.post(path, json={**JSON, "client_metadata": {}, "my_own": 1, "image": {}})
    )
    # What a client made up may be anything.
    assert line["ignored_parameters"] == "client_metadata, image, 1 unknown"


@pytest.mark.requirement("create.metadata")
@pytest.mark.requirement("response.metadata")
async def test_metadata_comes_back_as_it_was(client: httpx2.AsyncClient) -> None:
    metadata = {"a": "", "é": "\U0001f600\n\0", "ignored": "x"}
    assert (await create(client, input="x", metadata=metadata))["metadata"] == metadata
