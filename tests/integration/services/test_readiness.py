"""A gateway that starts before its backends: not ready, and worth another try."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from gateway.services.health import LATE
from tests.fakes.breaking_proxy import BreakingProxy
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.simulator import simulator_process
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.postgres import PostgresServer

READY_AGAIN_S = 60.0
"""Beyond the back-off of the backends and a few health checks."""
NOBODY_YET = "no backend has said yet what it serves"


@pytest.fixture
def unused_url() -> Iterator[str]:
    """Where nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("models", [[], [{"id": "m"}]])
async def test_it_is_not_ready_and_asks_to_try_again(
    database_url: str, unused_url: str, models: Any
) -> None:
    settings = gateway_settings(database_url, [unused_url], models=models)
    async with (
        running_gateway(settings) as running,
        http_client(running.url, headers=running.headers) as client,
    ):
        ready = await client.get("/readyz")
        created = await client.post("/v1/responses", json={"model": "m", "input": "x"})
    assert ready.status_code == 503
    assert NOBODY_YET in ready.json()["reasons"]
    assert [backend["healthy"] for backend in ready.json()["backends"]] == [None]
    assert created.status_code == 503
    assert created.json()["error"]["code"] == "server_is_overloaded"
    assert "retry-after" in created.headers


@pytest.mark.slow
async def test_a_database_that_cannot_serve_is_told_with_what_it_lacks(
    database_url: str, postgres: PostgresServer
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("ALTER TABLE responses DROP recoveries", database=name)
    async with (
        serving(create_simulator(WaywardOptions())) as backend,
        running_gateway(gateway_settings(database_url, [backend])) as running,
        http_client(running.url) as client,
    ):
        ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert any("column responses.recoveries" in reason for reason in ready.json()["reasons"])


@pytest.mark.slow
async def test_a_configured_context_length_does_not_stand_in_for_a_backend(
    database_url: str, unused_url: str
) -> None:
    models = [{"id": "m", "context_length": 1000}]
    settings = gateway_settings(database_url, [unused_url], models=models)
    async with (
        running_gateway(settings) as running,
        http_client(running.url, headers=running.headers) as client,
    ):
        ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["reasons"] in (["no backend has answered yet"], ["no backend is healthy"])


async def test_it_is_ready_again_with_its_backends_although_no_request_comes(
    database_url: str,
) -> None:
    async with (
        serving(create_simulator(WaywardOptions())) as backend,
        BreakingProxy(backend).serving() as one,
        BreakingProxy(backend).serving() as other,
        running_gateway(gateway_settings(database_url, [one.url, other.url])) as running,
        http_client(running.url, headers=running.headers) as client,
    ):
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        for way in (one, other):
            way.cut()
        while (ready := await client.get("/readyz")).status_code == 200:
            created = await client.post("/v1/responses", json={"model": model, "input": "x"})
            assert created.is_server_error
        assert ready.json()["reasons"] == ["no backend is healthy"]
        for way in (one, other):
            way.is_cut = False
        async with asyncio.timeout(READY_AGAIN_S):
            while ready.status_code != 200:
                ready = await client.get("/readyz")


@pytest.mark.slow
async def test_an_only_backend_whose_checks_are_late_is_used_until_it_is_gone(
    database_url: str,
) -> None:
    """To take the gateway away, and with it all others, would end what works."""
    upstream = {"health_interval_s": 0.01}
    with simulator_process() as backend:
        settings = gateway_settings(database_url, [backend.url], upstream=upstream)
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, "input": "x"}
            backend.set_faults("health_delay_s=3600")
            ready = await client.get("/readyz")
            while ready.json()["backends"][0]["healthy"]:
                ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["warnings"]) == (200, [LATE])
            created = await client.post("/v1/responses", json=body)
            assert created.json()["status"] == "completed"
            backend.kill()
            refused = await client.post("/v1/responses", json=body)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "server_is_overloaded"
            while (ready := await client.get("/readyz")).status_code == 200:
                pass
            assert ready.json()["reasons"] == ["no backend is healthy"]


@pytest.mark.slow
async def test_a_healthy_backend_that_is_drained_does_not_make_it_ready(
    database_url: str, unused_url: str
) -> None:
    async with serving(create_simulator(WaywardOptions())) as backend:
        settings = gateway_settings(database_url, [backend, unused_url])
        async with running_gateway(settings) as running, http_client(running.url) as client:
            running.process.foundation.pool.drain(["b0"])
            ready = await client.get("/readyz")
    assert ready.status_code == 503


UNSERVED = (
    "no backend serves the model 'm' (served_as 'inner'): b0 serves 'served'. "
    "Set served_as of this model to its name at the backend."
)


@pytest.mark.slow
@pytest.mark.parametrize("others", [[], [{"id": "served"}]], ids=["alone", "beside another"])
async def test_a_configured_model_that_no_backend_serves_is_named(
    database_url: str, others: Any
) -> None:
    models = [{"id": "m", "served_as": "inner", "aliases": ["alias"]}, *others]
    async with serving(create_simulator(WaywardOptions(models=("served",)))) as url:
        settings = gateway_settings(database_url, [url], models=models)
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            ready = (await client.get("/readyz")).json()
            for name in ("m", "alias"):
                created = await client.post("/v1/responses", json={"model": name, "input": "x"})
                assert created.status_code == 404
                error = created.json()["error"]
                assert (error["code"], error["param"]) == ("model_not_found", "model")
                assert f"'{name}' is set up here, but no model server serves it" in error["message"]
            unknown = await client.post("/v1/responses", json={"model": "never", "input": "x"})
    assert ready["warnings"] == [UNSERVED]
    assert ready["reasons"] == ([] if others else [UNSERVED])
    assert ready["status"] == ("ready" if others else "not ready")
    assert "set up" not in unknown.text


@pytest.mark.slow
async def test_a_backend_that_cannot_be_used_is_a_reason(database_url: str) -> None:
    options = WaywardOptions(engine="sglang", version="0.5.2")
    async with (
        serving(create_simulator(options)) as url,
        running_gateway(gateway_settings(database_url, [url])) as running,
        http_client(running.url) as client,
    ):
        ready = (await client.get("/readyz")).json()
    assert [backend["healthy"] for backend in ready["backends"]] == [False]
    assert any("Upgrade it to 0.5.3" in reason for reason in ready["reasons"])
