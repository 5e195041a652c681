"""One gateway in this process, and the schemas that its bodies are held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from gateway.simulator.app import create_simulator
from gateway.simulator.options import SimulatorOptions
from tests.conformance.checking import Checker
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

SPECIFICATION = (
    Path(__file__).parents[2].parent / "shared" / "corpus" / "openresponses-2026-04-24.openapi.json"
)
CONTEXT_LENGTH = 4096


@pytest.fixture(scope="session")
def checker() -> Checker:
    """Checks bodies and events; skips where the specification is not at hand."""
    if not SPECIFICATION.exists():
        pytest.skip(f"needs {SPECIFICATION.name} beside the project")
    return Checker(json.loads(SPECIFICATION.read_text("utf-8")))


@pytest.fixture(scope="session")
async def gateway(postgres: PostgresServer, template: str) -> AsyncIterator[RunningGateway]:
    """With a simulated backend."""
    name = await postgres.create(template)
    backend = create_simulator(SimulatorOptions(context_length=CONTEXT_LENGTH))
    async with serving(backend) as url:
        settings = gateway_settings(postgres.database_url(name), [url])
        async with running_gateway(settings) as running:
            yield running
    await postgres.drop(name)


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of its tenant."""
    async with httpx2.AsyncClient(
        base_url=gateway.url, headers=gateway.headers, timeout=30
    ) as opened:
        yield opened
