"""One gateway with a simulated backend and a real database, shared by the tests of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.gateway import RunningGateway, gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.observation import Backends
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.postgres import PostgresServer


@pytest.fixture(scope="session")
async def shared_database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """A migrated database for all tests of the API."""
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="module")
async def own_database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """A migrated database for a gateway of a module that has other models or tools than the shared
    one, which would claim its background responses and could not run them.
    """
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="session")
async def backends() -> AsyncIterator[Backends]:
    """Two simulated backends, `b0` and `b1`."""
    one, two = (create_simulator(WaywardOptions(name=name)) for name in ("b0", "b1"))
    async with serving(one) as first, serving(two) as second, http_client() as client:
        yield Backends((first, second), client)


@pytest.fixture(scope="session")
def settings(shared_database_url: str, backends: Backends) -> Settings:
    """What the shared gateway runs with."""
    return gateway_settings(
        shared_database_url, backends.urls, models=[{"id": "gpt-oss-20b", "aliases": ["small"]}]
    )


@pytest.fixture(scope="session")
async def gateway(settings: Settings) -> AsyncIterator[RunningGateway]:
    """The shared gateway."""
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the first tenant."""
    async with http_client(gateway.url, headers=gateway.headers) as opened:
        yield opened


@pytest.fixture(scope="session")
async def second_gateway(settings: Settings) -> AsyncIterator[RunningGateway]:
    """Another replica on the same database."""
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture
async def second(
    second_gateway: RunningGateway, gateway: RunningGateway
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the first tenant at the other replica."""
    async with http_client(second_gateway.url, headers=gateway.headers) as opened:
        yield opened


@pytest.fixture
async def stranger(
    gateway: RunningGateway, settings: Settings
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of another tenant."""
    key = await new_key(settings, "globex")
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(gateway.url, headers=headers) as opened:
        yield opened
