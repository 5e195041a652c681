"""Pages of other origins call where an operator says so, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.requests import Request

from gateway.api.containers import download_response
from gateway.api.cross_origin import EXPOSED
from gateway.app import BrowserGateway, Gateway, create_app
from gateway.errors import StartupError
from gateway.services.containers import Download
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.observation import Backends

ORIGIN = "https://app.example.com"
CHATS = "/v1/chat/completions"
FOR_BROWSERS = {
    *("access-control-allow-origin", "access-control-expose-headers", "vary", "date"),
    *("content-length", "content-type", "content-security-policy", "x-content-type-options"),
}
"""Headers that are for the browser, or that every page can read."""
_HEAD = Request({"type": "http", "method": "HEAD", "headers": []})
ASKED = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os,x-stainless-new",
}


@pytest.mark.slow
async def test_a_browser_is_told_what_a_page_may_send_and_read(
    database_url: str, backends: Backends
) -> None:
    server = {"cors_origins": [ORIGIN]}
    settings = gateway_settings(database_url, backends.urls, server=server)
    async with running_gateway(settings) as gateway, http_client(gateway.url) as client:
        preflight = await client.options("/v1/responses", headers={"origin": ORIGIN, **ASKED})
        assert preflight.status_code == 200
        told = preflight.headers
        assert told["access-control-allow-origin"] == ORIGIN
        assert told["access-control-max-age"] == "600"
        allowed = told["access-control-allow-headers"].lower()
        assert all(name in allowed for name in ASKED["access-control-request-headers"].split(","))
        assert "access-control-allow-credentials" not in told
        assert told["x-request-id"].startswith("req_")
        foreign = {"origin": "https://elsewhere.example.com"}
        refused = await client.options("/v1/responses", headers={**foreign, **ASKED})
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        assert refused.json()["error"]["message"].startswith("Disallowed CORS origin. ")
        assert refused.headers["x-request-id"].startswith("req_")
        # It has no preflight's header, so it is any other request.
        other = await client.options("/v1/responses", headers={"origin": ORIGIN})
        assert other.status_code == 405
        # Refusals, health checks and answers alike, streams among them.
        key = {"authorization": f"Bearer {gateway.key}"}
        asked = {"model": "gpt-oss-20b", "input": "x", "stream": True}
        for answer in (
            await client.get("/v1/models", headers={"origin": ORIGIN}),
            await client.get("/healthz", headers={"origin": ORIGIN}),
            await client.post("/v1/responses", json=asked, headers={"origin": ORIGIN, **key}),
        ):
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "retry-after", "x-ratelimit-reset-tokens"} <= {*exposed}
            assert {*exposed} == {*EXPOSED}
            assert "origin" in answer.headers["vary"].lower()
        assert "response.completed" in answer.text
        # Others go on as before: it is the browser that keeps its pages from reading.
        answer = await client.get("/v1/models", headers={**foreign, **key})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.slow
async def test_a_page_can_read_every_header_that_says_something(
    database_url: str, backends: Backends
) -> None:
    settings = gateway_settings(database_url, backends.urls, server={"cors_origins": ["*"]})
    said = {*download_response(_HEAD, Download("a.txt", 0, _nothing())).headers}
    async with running_gateway(settings) as gateway, http_client(gateway.url) as client:
        headers = {"origin": ORIGIN, **gateway.headers}
        once = {**headers, "idempotency-key": "order-4711"}
        chat = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "x"}]}
        for answer in (
            *[await client.post(CHATS, json={**chat, "store": True}, headers=once) for _ in "12"],
            await client.put("/v1/responses", headers=headers),
            await client.post(CHATS, json=chat, headers={**headers, "content-encoding": "br"}),
        ):
            said |= answer.headers.keys()
    assert {"idempotent-replayed", "x-gateway-response-id", "allow", "accept-encoding"} <= said
    assert said - FOR_BROWSERS <= {*EXPOSED}


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


def test_without_origins_there_is_nothing_of_it(database_url: str) -> None:
    assert type(create_app(gateway_settings(database_url, []))) is Gateway
    allowed = gateway_settings(database_url, [], server={"cors_origins": ["*"]})
    assert type(create_app(allowed)) is BrowserGateway


@pytest.mark.parametrize(
    "origin", ["app.example.com", "https://app.example.com/", "ftp://x", "https://u@x", "HTTPS://x"]
)
def test_what_is_no_origin_is_refused(database_url: str, origin: str) -> None:
    with pytest.raises((StartupError, ValueError), match="expected an origin"):
        gateway_settings(database_url, [], server={"cors_origins": [origin]})


async def test_a_browser_that_may_not_ask_is_told_which_setting_lets_it(
    client: httpx2.AsyncClient,
) -> None:
    # A browser sends no key with it.
    del client.headers["authorization"]
    preflight = await client.options("/v1/responses", headers={"origin": ORIGIN, **ASKED})
    assert preflight.status_code == 405
    assert "`server.cors_origins`" in preflight.json()["error"]["message"]
    other = await client.put("/v1/responses")
    assert "cors_origins" not in other.json()["error"]["message"]
