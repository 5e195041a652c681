"""Two replicas, two backends and what they need, as processes that faults can end and begin anew,
under a steady load.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from gateway.store.migration.migrate import upgrade
from tests.chaos.database import ChaosPostgres
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.fakes.postgres import reachable_folder
from tests.fakes.processes import Child, GatewayProcess, reserved_port, until_healthy
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from starlette.requests import Request

MODEL: Final = "gpt-oss-20b"
TENANT: Final = "acme"
USERS: Final = 4
PAUSE_S: Final = 0.25
"""Between two requests of one user."""
BRIEF: Final = "[[sim tokens=10 think=none]] go on"
SLOTS: Final = 6
"""Of each backend."""
MCP_LABEL: Final = "effects"
SEARCHES: Final = {"results": [{"url": "https://example.org/", "title": "t", "content": "c"}]}


class Service:
    """A program on a port of its own. `ready` returns once it serves."""

    def __init__(self, begin: Callable[[], Child], ready: Callable[[Child], object]) -> None:
        self._begin = begin
        self._ready = ready
        self.child: Child | None = None

    def start(self) -> None:
        self.child = self._begin()
        self._ready(self.child)

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()


@dataclass
class Receivers:
    """What the gateways send to and ask: a billing system and a search engine, which may refuse."""

    takes_usage: bool = True
    takes_key: bool = True

    def app(self) -> Router:
        return Router(
            [Route("/usage", self._usage, methods=["POST"]), Route("/search", self._search)]
        )

    async def _usage(self, request: Request) -> Response:
        await request.body()
        return Response(status_code=202 if self.takes_usage else 503)

    async def _search(self, _request: Request) -> Response:
        return JSONResponse(SEARCHES) if self.takes_key else Response(status_code=401)


@dataclass
class Users:
    """Clients that ask one thing after the other. A fault may change what they ask for."""

    client: AsyncOpenAI
    text: str = BRIEF
    parameters: dict[str, Any] = field(default_factory=dict)
    answered: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def be_one(self) -> None:
        while True:
            await self.ask(self.text, **self.parameters)
            await asyncio.sleep(PAUSE_S)

    async def ask(self, text: str, **parameters: Any) -> None:
        with suppress(APIError):
            await self.client.responses.create(
                model=MODEL, input=f"{next(self._numbers)} {text}", **parameters
            )
            self.answered += 1

    @asynccontextmanager
    async def asking(self, text: str, **parameters: Any) -> AsyncIterator[None]:
        """All of them ask for this."""
        self.text, self.parameters = text, parameters
        try:
            yield
        finally:
            self.text, self.parameters = BRIEF, {}


@dataclass
class Deployment:
    """All of it, running."""

    postgres: ChaosPostgres
    backends: list[Service]
    replicas: list[Service]
    tool_server: Service
    receivers: Receivers
    users: Users
    others: AsyncOpenAI
    """A client of the second replica."""
    discovery: Path
    """The file that names backends."""
    targets: list[str]

    async def execute(self, statement: str) -> None:
        """One statement as the superuser."""
        async with self.connection() as connection:
            await connection.execute(statement)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        connection = await asyncpg.connect(self.postgres.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def command(self, *arguments: str) -> None:
        """Run a command of the operator."""
        environment = {"DATABASE_URL": self.postgres.url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
        child = Child(arguments, environment)
        code = await asyncio.to_thread(child.process.wait, 60)
        assert code == 0, child.output


@asynccontextmanager
async def deployment(folder: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as stack:
        reachable = stack.enter_context(reachable_folder())
        ports = [stack.enter_context(reserved_port()) for _ in range(6)]
        postgres = ChaosPostgres(reachable / "postgres", ports[0])
        postgres.start()
        stack.callback(postgres.stop)
        await upgrade(postgres.url)
        key = await new_key(gateway_settings(postgres.url, []), TENANT)
        receivers = Receivers()
        outside = await stack.enter_async_context(serving(receivers.app()))
        discovery = folder / "backends.yaml"
        discovery.write_text('{"backends": []}', encoding="utf-8")
        backends = [_backend(port) for port in ports[1:3]]
        effects = folder / "effects"
        effects.mkdir()
        tool_server = _tool_server(ports[3], effects)
        config = folder / "gateway.yaml"
        config.write_text(json.dumps(_settings(ports[1:3], outside, discovery)), encoding="utf-8")
        replicas = [_replica(config, port, postgres.url) for port in ports[4:]]
        _start_all(stack, [*backends, tool_server, *replicas])
        clients = [await stack.enter_async_context(_client(port, key)) for port in ports[4:]]
        users = Users(clients[0])
        running = Deployment(
            postgres,
            backends,
            replicas,
            tool_server,
            receivers,
            users,
            clients[1],
            discovery,
            [f"127.0.0.1:{port}" for port in ports[4:]],
        )
        url = f"http://127.0.0.1:{ports[3]}/mcp"
        await running.command("mcp", "add", MCP_LABEL, url)
        await running.command("limits", "set", TENANT, "--requests-per-minute", "1000000")
        asking = [asyncio.create_task(users.be_one()) for _ in range(USERS)]
        try:
            yield running
        finally:
            for task in asking:
                task.cancel()


def _start_all(stack: AsyncExitStack | ExitStack, services: list[Service]) -> None:
    for one in services:
        stack.callback(one.stop)
        one.start()


def _settings(backends: list[int], outside: str, discovery: Path) -> dict[str, Any]:
    search = {"kind": "searxng", "url": outside, "api_key": "key-of-the-search-engine"}
    return {
        "backends": [{"name": f"b{port}", "url": f"http://127.0.0.1:{port}"} for port in backends],
        "discovery": [{"name": "more", "kind": "file", "path": str(discovery)}],
        "admission": {"slots_max": SLOTS, "queue_length_max": SLOTS, "wait_max_s": 2},
        "background": {"lease_s": 3},
        "upstream": {"health_interval_s": 0.5},
        "database": {"command_timeout_s": 3},
        "log": {"format": "json"},
        "ledger": {"sinks": [{"name": "billing", "url": f"{outside}/usage"}]},
        "tools": {
            "web": {
                "enabled": True,
                "public": False,
                "allowed_hosts": [outside.removeprefix("http://")],
                "visit_interval_s": 0,
                "providers": [search],
            },
            "mcp": {"enabled": True, "url_networks": ["127.0.0.0/8"], "url_plain_http": True},
        },
    }


def _backend(port: int) -> Service:
    def begin() -> Child:
        return Child([str(port), "{}"], {}, module="tests.chaos.backend")

    return Service(begin, lambda child: until_healthy(port, child))


def _tool_server(port: int, effects: Path) -> Service:
    def begin() -> Child:
        return Child([str(port), str(effects)], {}, module="tests.fakes.tool_server")

    return Service(begin, lambda child: until_healthy(port, child))


def _replica(config: Path, port: int, database_url: str) -> Service:
    secrets = {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    arguments = ["serve", "--config", str(config), "--port", str(port)]

    def begin() -> Child:
        return Child(arguments, secrets, module="tests.alerts.hurried")

    return Service(begin, lambda child: GatewayProcess(child).url)


@asynccontextmanager
async def _client(port: int, key: str) -> AsyncIterator[AsyncOpenAI]:
    http_client = DefaultAsyncHttpxClient(trust_env=False)
    async with AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, http_client=http_client
    ) as client:
        yield client


async def until(condition: Callable[[], object], within_s: float, what: Callable[[], str]) -> None:
    """Return once the condition holds; fails with `what()` if it does not in time."""
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(LOOK_S)


LOOK_S: Final = 0.5
