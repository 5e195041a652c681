"""What operators say of web search, and what is made of it."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr, ValidationError

from gateway.errors import StartupError
from gateway.settings import Settings
from gateway.settings.tools import Mcp, SearchProvider, Tools, Web
from gateway.store.postgres.database import Database
from gateway.telemetry.metrics import Metrics
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.wiring.web import browser_tools
from tests.fakes.cases import each

if TYPE_CHECKING:
    from gateway.tools.browser.browser import BrowserTools

KEY = SecretStr("secret")


def tools_of(mcp_call: Any = None, **web: Any) -> BrowserTools:
    settings = Settings(tools=Tools(web=Web(enabled=True, **web)))
    database = Database(
        "postgresql://u:p@127.0.0.1:9/d", pool_size_max=1, command_timeout_s=1, connect_timeout_s=1
    )
    return browser_tools(settings, database, Metrics(), mcp_call)


async def test_sources_are_asked_in_their_order() -> None:
    async def search(arguments: dict[str, Any]) -> str:
        return "[]"

    providers = (
        SearchProvider(kind="searxng", url="http://searxng:8080"),
        *(SearchProvider(kind=kind, api_key=KEY) for kind in ("brave", "exa", "tavily", "you")),
        SearchProvider(kind="brave", api_key=KEY, url="https://proxy.internal/brave"),
        SearchProvider(kind="index"),
        SearchProvider(kind="mcp"),
    )
    tools = tools_of(search, providers=providers)
    assert await tools.check() == (
        "web search by searxng, brave, exa, tavily, you, brave 2, index, mcp"
    )
    await tools.close()
    index = tools_of()
    assert await index.check() == "web search by index"
    await index.close()


async def test_mcp_server_needs_mcp() -> None:
    with pytest.raises(StartupError, match="MCP is off"):
        tools_of(providers=(SearchProvider(kind="mcp"),))


async def test_libraries_have_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tools.browser.extraction.LIBRARIES", ("no_such_library",))
    with pytest.raises(StartupError, match="not installed: no_such_library"):
        tools_of()


def test_pages_may_be_where_the_operator_says() -> None:
    web = Web(
        public=False, allowed_networks=("10.1.0.0/16",), allowed_hosts=("Wiki.internal:8080",)
    )
    policy = NetworkPolicy.to(web)
    assert policy.networks == (ip_network("10.1.0.0/16"),)
    assert policy.hosts == {("wiki.internal", 8080)}
    assert not policy.allows("1.1.1.1", 443)
    assert NetworkPolicy.to(Web(allowed_hosts=("[::1]:80",))).hosts == {("::1", 80)}
    assert NetworkPolicy.to(Web()).allows("1.1.1.1", 443)


def test_hosts_of_mcp_servers_are_in_ascii() -> None:
    assert Mcp(hosts=("B\u00fccher.example",)).hosts == ("xn--bcher-kva.example",)
    with pytest.raises(ValidationError, match="label empty"):
        Mcp(hosts=("a..example",))


def test_sites_are_told_whom_to_write_to() -> None:
    assert Web().agent == "HarmonyGateway/1.0"
    agent = Web(user_agent="Acme/2", contact="https://acme.example/bot").agent
    assert agent == "Acme/2 (+https://acme.example/bot)"


@each(
    ("setting", "told"),
    [
        ({"allowed_networks": ("10.1.2.3/8",)}, "expected a network"),
        ({"allowed_hosts": ("wiki",)}, "expected a host and a port"),
        ({"allowed_hosts": ("wiki:0",)}, "expected a host and a port"),
        ({"allowed_hosts": (":80",)}, "expected a host and a port"),
        ({"user_agent": "a\r\nb"}, "printable characters"),
        ({"contact": ""}, "printable characters"),
        ({"index_language": "english'"}, "text search configuration"),
        ({"providers": ({"kind": "searxng"},)}, "searxng needs a url"),
        ({"providers": ({"kind": "brave"},)}, "brave needs an api_key"),
        ({"providers": ({"kind": "searxng", "url": "ftp://x"},)}, "expected a URL such as http://"),
    ],
)
def test_mistakes_are_told(setting: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Web(**setting)
