"""One gateway in this process, and the schemas that its bodies are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.checking import Checker, Document, read_specification
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.tenancy import Dialect
    from tests.conformance.checking import Json
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

CONTEXT_LENGTH = 4096


BASE_PATHS: dict[Dialect, str] = {"openai": "", "openresponses": "/openresponses"}


@pytest.fixture(scope="session")
def specification() -> Json:
    """The OpenAPI document of Open Responses; skips where it is not at hand."""
    return read_specification()


@pytest.fixture
def dialect() -> Dialect:
    """What the client of a test is answered in; some modules take each in turn."""
    return "openai"


@pytest.fixture(scope="session")
def checkers(specification: Json) -> dict[Dialect, Document]:
    """One for each dialect."""
    return {"openai": Checker(specification), "openresponses": Document(specification)}


@pytest.fixture
def checker(checkers: dict[Dialect, Document], dialect: Dialect) -> Document:
    """Checks bodies and events."""
    return checkers[dialect]


@pytest.fixture(scope="session")
async def gateway(postgres: PostgresServer, template: str) -> AsyncIterator[RunningGateway]:
    """With a simulated backend."""
    name = await postgres.create(template)
    backend = create_simulator(WaywardOptions(context_length=CONTEXT_LENGTH))
    async with serving(backend) as url:
        settings = gateway_settings(postgres.database_url(name), [url])
        async with running_gateway(settings) as running:
            yield running
    await postgres.drop(name)


@pytest.fixture
async def client(gateway: RunningGateway, dialect: Dialect) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of its tenant."""
    async with http_client(gateway.url + BASE_PATHS[dialect], headers=gateway.headers) as opened:
        yield opened
