"""One simulated backend and two replicas on one database, as processes, and OpenAI's clients."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from tests.fakes.client_process import Clients
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.hosted_gateway import HostedGateway
from tests.fakes.hosted_gateway import hosted_gateway as started_with_tools
from tests.fakes.http_client import NO_TLS
from tests.fakes.processes import (
    gateway_process,
    output_of_children,
    reserved_port,
    simulator_process,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from tests.fakes.postgres import PostgresServer
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

HEADERS_WAIT_S = 0.2
PAGE_ORIGIN = "https://app.example.com"
"""The first replica sends a stream's headers after this long; the second with the first token."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the processes printed."""
    report = yield
    if report.failed:
        report.sections += output_of_children()
    return report


@pytest.fixture(scope="session")
async def replicas_database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """The database that the shared replicas share."""
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="session")
def simulator() -> Iterator[SimulatorProcess]:
    """The backend of the shared replicas."""
    with reserved_port() as port, simulator_process(port) as running:
        yield running


@pytest.fixture(scope="session")
def replicas(
    replicas_database_url: str,
    simulator: SimulatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """Two replicas that nobody kills; they end cleanly. Pages may call the second one."""
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                gateway_process(
                    tmp_path_factory.mktemp("replica"),
                    replicas_database_url,
                    [simulator.url],
                    stream={"start_grace_s": wait_s},
                    server={"cors_origins": origins},
                )
            )
            for wait_s, origins in ((HEADERS_WAIT_S, []), (60.0, [PAGE_ORIGIN]))
        )
        assert first.url != second.url  # both are ready
        yield first, second
        for replica in (first, second):
            replica.child.terminate()
        for replica in (first, second):
            assert replica.child.exit_code() == 0, replica.child.output
            assert "Traceback" not in replica.child.output


@pytest.fixture(scope="session")
def gateway(replicas: tuple[GatewayProcess, GatewayProcess]) -> GatewayProcess:
    """The first replica."""
    return replicas[0]


@pytest.fixture(scope="session")
async def key(replicas_database_url: str) -> str:
    """An API key for both replicas."""
    return await new_key(gateway_settings(replicas_database_url, []), "acme")


@pytest.fixture(scope="session")
def clients(gateway: GatewayProcess, key: str, tmp_path_factory: pytest.TempPathFactory) -> Clients:
    """Starts real clients of the first replica, in environments of their own."""
    return Clients(gateway.base_url, key, tmp_path_factory.mktemp("home"))


@pytest.fixture
def client(gateway: GatewayProcess, key: str) -> Iterator[OpenAI]:
    """OpenAI's client for the first replica; it does not retry."""
    http_client = DefaultHttpxClient(trust_env=False, verify=NO_TLS)
    with OpenAI(
        base_url=gateway.base_url, api_key=key, max_retries=0, http_client=http_client
    ) as opened:
        yield opened


@pytest.fixture
async def async_client(gateway: GatewayProcess, key: str) -> AsyncIterator[AsyncOpenAI]:
    """The same, for coroutines."""
    http_client = DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS)
    async with AsyncOpenAI(
        base_url=gateway.base_url, api_key=key, max_retries=0, http_client=http_client
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def hosted_simulator() -> Iterator[SimulatorProcess]:
    """The backend of the gateway with tools."""
    with reserved_port() as port, simulator_process(port) as running:
        yield running


@pytest.fixture(scope="session")
async def hosted_database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """The database of the gateway with tools."""
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="session")
def hosted_gateway(
    hosted_database_url: str,
    hosted_simulator: SimulatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[HostedGateway]:
    """A gateway whose tools are on."""
    folder = tmp_path_factory.mktemp("tools")
    with started_with_tools(folder, hosted_database_url, hosted_simulator.url) as started:
        yield started


@pytest.fixture(scope="session")
async def hosted_key(hosted_database_url: str) -> str:
    """An API key for it."""
    return await new_key(gateway_settings(hosted_database_url, []), "acme")


@pytest.fixture(scope="session")
def tools_clients(
    hosted_gateway: HostedGateway, hosted_key: str, tmp_path_factory: pytest.TempPathFactory
) -> Clients:
    """Starts real clients of it."""
    base_url = hosted_gateway.gateway.base_url
    return Clients(base_url, hosted_key, tmp_path_factory.mktemp("home"))


@pytest.fixture
def tools_client(hosted_gateway: HostedGateway, hosted_key: str) -> Iterator[OpenAI]:
    """OpenAI's client for it."""
    http_client = DefaultHttpxClient(trust_env=False, verify=NO_TLS)
    base_url = hosted_gateway.gateway.base_url
    with OpenAI(
        base_url=base_url, api_key=hosted_key, max_retries=0, http_client=http_client
    ) as opened:
        yield opened


@pytest.fixture
async def tools_async_client(
    hosted_gateway: HostedGateway, hosted_key: str
) -> AsyncIterator[AsyncOpenAI]:
    """The same, for coroutines."""
    http_client = DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS)
    base_url = hosted_gateway.gateway.base_url
    async with AsyncOpenAI(
        base_url=base_url, api_key=hosted_key, max_retries=0, http_client=http_client
    ) as opened:
        yield opened


@pytest.fixture
async def own_key(database_url: str) -> str:
    """An API key in the database of this test alone."""
    return await new_key(gateway_settings(database_url, []), "acme")
