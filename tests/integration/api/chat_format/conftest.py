"""A gateway in front of two servers of a model with a chat template, and of gpt-oss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.fakes.chat_server import MODEL, ChatServer, chatml, write_model
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import httpx2

    from gateway.wiring.process import Process
    from tests.fakes.observation import Backends

    Template = Callable[[dict[str, Any]], str]


LOOPBACK: Final = ["127.0.0.0/8"]
TOOLS: Final = {
    "mcp": {
        "enabled": True,
        "url_networks": LOOPBACK,
        "networks": LOOPBACK,
        "url_plain_http": True,
        "servers": "any",
        "connect_timeout_s": 60,
        "list_timeout_s": 60,
    },
    "python": {"enabled": True},
}


@dataclass
class Chatting:
    """A client of the gateway, and the server behind it."""

    client: httpx2.AsyncClient
    server: ChatServer
    process: Process


@pytest.fixture(scope="module")
async def gateway(
    own_database_url: str, backends: Backends, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Chatting]:
    """One for the tests of a module."""
    server = ChatServer(lambda _: "")
    folder = write_model(tmp_path_factory.mktemp("model"))
    async with serving(server.app) as url:
        settings = gateway_settings(
            own_database_url,
            [url, *backends.urls],
            models=[
                {
                    "id": MODEL,
                    "format": "chat",
                    "tokenizer": str(folder),
                    "reasoning": "think",
                    "calls": "hermes",
                },
                {"id": "gpt-oss-20b"},
            ],
            tools=TOOLS,
        )
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            yield Chatting(client, server, running.process)


@pytest.fixture
def chatting(gateway: Chatting) -> Chatting:
    """The same, with nothing asked yet and nothing out of order."""
    gateway.server.asked.clear()
    gateway.server.rendered.clear()
    gateway.server.is_deaf = False
    gateway.server.goes_on = lambda _: ""
    gateway.server.breaks_after = None
    return gateway


@pytest.fixture
def of_template(chatting: Chatting) -> Iterator[Callable[[Template], Chatting]]:
    """Has the template of the model be another one."""
    formats = chatting.process.foundation.formats

    def change(template: Template) -> Chatting:
        chatting.server.template = template
        formats.relearn(MODEL)
        return chatting

    yield change
    change(chatml)
