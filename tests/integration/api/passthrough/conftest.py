"""A gateway in front of servers without token ids, one of each dialect, and two of one of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.text_server import DIALECTS, TextServer, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

LOOPBACK = ["127.0.0.0/8"]
TOOLS = {
    "mcp": {
        "enabled": True,
        "url_networks": LOOPBACK,
        "networks": LOOPBACK,
        "url_plain_http": True,
        "servers": "any",
        "connect_timeout_s": 60,
        "list_timeout_s": 60,
    }
}
PAIR = "toy-pair"
"""The model that two servers have."""
BLIND = "toy-tgi"
"""The one that sees no images."""


@dataclass
class Passing:
    """A client of the gateway, and the servers behind it, by the names of their models."""

    client: httpx2.AsyncClient
    gateway: RunningGateway
    servers: dict[str, TextServer]
    settings: Settings
    pair: list[TextServer] = field(default_factory=list)

    def of(self, model: str) -> list[TextServer]:
        return self.pair if model == PAIR else [self.servers[model]]


def model(name: str, **fields: Any) -> dict[str, Any]:
    sees = {} if name == BLIND else {"modalities": ["text", "image"]}
    return {"id": name, "format": "passthrough", "context_length": 8192, **sees, **fields}


@pytest.fixture(scope="package")
async def gateway(postgres: PostgresServer, template: str) -> AsyncIterator[Passing]:
    """One for the tests of this folder."""
    servers = {f"toy-{one}": TextServer(lambda _: [], one, f"toy-{one}") for one in DIALECTS}
    pair = [TextServer(lambda _: [], "vllm", PAIR) for _ in range(2)]
    name = await postgres.create(template)
    database_url = postgres.database_url(name)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(postgres.drop, name)
        backends = []
        for number, server in enumerate((*servers.values(), *pair)):
            url = await stack.enter_async_context(serving(server.app))
            backends.append({"name": f"b{number}", "url": url, "models": [server.model]})
        settings = gateway_settings(
            database_url,
            [],
            models=[model(name) for name in (*servers, PAIR)],
            tools=TOOLS,
            images={"allowed_networks": LOOPBACK},
        ).model_dump(exclude_unset=True) | {"backends": backends}
        made = type(gateway_settings(database_url, [])).model_validate(settings)
        running = await stack.enter_async_context(running_gateway(made))
        client = http_client(running.url, headers=running.headers)
        yield Passing(await stack.enter_async_context(client), running, servers, made, pair)


@pytest.fixture
def passing(gateway: Passing) -> Passing:
    """The same, with nothing asked yet and nothing out of order."""
    for server in (*gateway.servers.values(), *gateway.pair):
        server.asked.clear()
        server.script = lambda _: text("Hello.")
        server.finish = server.breaks_after = server.refuses = server.fails_with = None
        server.breaks_always, server.tells_usage, server.holds = False, True, None
        server.tells_logprobs = True
    return gateway
