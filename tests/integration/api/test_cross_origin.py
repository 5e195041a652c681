"""Pages of other origins call where an operator says so, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.api.cross_origin import EXPOSED
from gateway.app import BrowserGateway, Gateway, create_app
from gateway.errors import StartupError
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

ORIGIN = "https://app.example.com"
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
        foreign = {"origin": "https://elsewhere.example.com"}
        refused = await client.options("/v1/responses", headers={**foreign, **ASKED})
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
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
    preflight = await client.options("/v1/responses", headers={"origin": ORIGIN, **ASKED})
    assert preflight.status_code == 405
    assert "`server.cors_origins`" in preflight.json()["error"]["message"]
    other = await client.put("/v1/responses")
    assert "cors_origins" not in other.json()["error"]["message"]
