"""A gateway that starts before its backends: not ready, and worth another try."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway.simulator.app import create_simulator
from gateway.simulator.options import SimulatorOptions
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.postgres import PostgresServer

NOBODY_YET = "no backend has said yet what it serves"


@pytest.fixture
def unused_url() -> Iterator[str]:
    """Where nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("models", [[], [{"id": "m"}]])
async def test_it_is_not_ready_and_asks_to_try_again(
    database_url: str, unused_url: str, models: Any
) -> None:
    settings = gateway_settings(database_url, [unused_url], models=models)
    async with (
        running_gateway(settings) as running,
        httpx2.AsyncClient(base_url=running.url, headers=running.headers) as client,
    ):
        ready = await client.get("/readyz")
        created = await client.post("/v1/responses", json={"model": "m", "input": "x"})
    assert ready.status_code == 503
    assert NOBODY_YET in ready.json()["reasons"]
    assert created.status_code == 503
    assert created.json()["error"]["code"] == "server_is_overloaded"
    assert "retry-after" in created.headers


async def test_a_database_that_cannot_serve_is_told_with_what_it_lacks(
    database_url: str, postgres: PostgresServer
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("ALTER TABLE responses DROP recoveries", database=name)
    async with (
        serving(create_simulator(SimulatorOptions())) as backend,
        running_gateway(gateway_settings(database_url, [backend])) as running,
        httpx2.AsyncClient(base_url=running.url) as client,
    ):
        ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert any("column responses.recoveries" in reason for reason in ready.json()["reasons"])


async def test_a_configured_context_length_does_not_stand_in_for_a_backend(
    database_url: str, unused_url: str
) -> None:
    models = [{"id": "m", "context_length": 1000}]
    settings = gateway_settings(database_url, [unused_url], models=models)
    async with (
        running_gateway(settings) as running,
        httpx2.AsyncClient(base_url=running.url, headers=running.headers) as client,
    ):
        ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["reasons"] in (["no backend has answered yet"], ["no backend is healthy"])
