"""`console login-link` on the command line, and what it needs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.console.login_sessions import Session, Sessions
from gateway.errors import InvalidRequest, StartupError
from gateway.services.access import Access
from gateway.settings import load_settings
from tests.conftest import opened
from tests.fakes.gateway import PEPPER

if TYPE_CHECKING:
    from typer.testing import Result


@pytest.fixture
def environ(database_url: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", PEPPER)
    monkeypatch.setenv("GATEWAY_LOG__LEVEL", "error")
    return monkeypatch


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ("console", "login-link", *arguments))


async def linked(database_url: str, token: str) -> Session | None:
    async with opened(database_url) as database:
        sessions = Sessions(database, Access(database, PEPPER.encode(), 5).peppers)
        return await sessions.linked(token)


def test_a_link_is_printed_that_the_gateway_knows(
    environ: pytest.MonkeyPatch, database_url: str
) -> None:
    environ.setenv("GATEWAY_ADMIN__PORT", "9100")
    environ.setenv("GATEWAY_CONSOLE__ENABLED", "true")
    result = ran("--name", "Grace Hopper", "--role", "auditor", "--json")
    printed = json.loads(result.stdout)
    assert printed["expires_in_s"] == 600
    url = urlsplit(printed["url"])
    assert (url.netloc, url.path) == ("127.0.0.1:9100", "/console/login")
    session = asyncio.run(linked(database_url, parse_qs(url.query)["token"][0]))
    assert session is not None
    assert (session.name, session.role) == ("Grace Hopper", "auditor")


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")]
)
def test_the_origin_follows_the_address_of_the_listener(
    environ: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    environ.setenv("GATEWAY_ADMIN__HOST", host)
    environ.setenv("GATEWAY_ADMIN__PORT", "9100")
    environ.setenv("GATEWAY_CONSOLE__ENABLED", "true")
    assert ran().stdout.startswith(f"http://{shown}:9100/console/login?token=")


def test_the_origin_is_the_one_that_browsers_see(environ: pytest.MonkeyPatch) -> None:
    elsewhere = ran("--url", "https://other.example/")
    assert elsewhere.stdout.startswith("https://other.example/console/login?token=")
    environ.setenv("GATEWAY_ADMIN__PORT", "0")
    environ.setenv("GATEWAY_CONSOLE__ENABLED", "true")
    assert isinstance(ran().exception, StartupError)
    environ.setenv("GATEWAY_CONSOLE__PUBLIC_URL", "https://console.example")
    assert ran().stdout.startswith("https://console.example/console/login?token=")


def test_where_the_console_is_off_there_is_no_link(environ: pytest.MonkeyPatch) -> None:
    assert isinstance(ran().exception, StartupError)
    odd = ran("--url", "https://x", "--name", "a\nb")
    assert isinstance(odd.exception, InvalidRequest)


def test_an_origin_that_the_console_would_refuse_is_refused_here(
    environ: pytest.MonkeyPatch,
) -> None:
    for url, mistake in {
        "http://[x": "Invalid IPv6 URL",
        "foo": ": expected a URL such as",
        "http://console.example": ": sessions need https outside of this machine",
    }.items():
        refused = ran("--url", url)
        assert (refused.exit_code, mistake in " ".join(refused.output.split())) == (2, True)
    environ.setenv("GATEWAY_ADMIN__HOST", "192.0.2.7")
    environ.setenv("GATEWAY_ADMIN__PORT", "9100")
    environ.setenv("GATEWAY_CONSOLE__ENABLED", "true")
    assert "http://192.0.2.7:9100" in str(ran().exception)


@pytest.mark.parametrize(
    "sections",
    [
        {"console": {"enabled": True}},
        {"admin": {"port": 0}, "console": {"public_url": "http://console.example"}},
        {"admin": {"port": 0}, "console": {"public_url": "https://console.example/console"}},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(sections: dict[str, object]) -> None:
    with pytest.raises(StartupError):
        load_settings(arguments=sections, environ={})
