"""Signing in at an OpenID provider, which is a process of its own."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from gateway.console.application import CALLBACK, TO_PROVIDER
from gateway.services.sign_in import Attempt, name_of
from gateway.tenancy.permissions import OPERATOR_ROLES
from tests.console.conftest import ORIGIN, console_site
from tests.fakes.gateway import gateway_settings
from tests.fakes.issuer import running_issuer
from tests.fakes.processes import Child, reserved_port, stopped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from gateway.tenancy.permissions import OperatorRole
    from tests.console.conftest import Site

GROUPS = {
    "ada": ["staff", "gateway-owners", "gateway-support"],
    "sam": ["gateway-support"],
    "eve": ["staff"],
}
LOOPBACK = {"allowed_networks": ["127.0.0.0/8"], "plain_http": True, "public": False}


@dataclass
class Provider:
    """A running provider. It lets in whoever comes as one of `GROUPS`."""

    issuer: str

    async def visit(self, url: str, user: str, **fields: str) -> str:
        """What an operator does on its page; returns where that sends the browser."""
        async with httpx2.AsyncClient() as client:
            answer = await client.post(url, data={"sub": user, **fields})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]


@contextmanager
def provider_of(groups: Mapping[str, Sequence[str]], host: str = "127.0.0.1") -> Iterator[Provider]:
    """A provider that knows these users and their groups."""
    with reserved_port() as port:
        arguments = ["--port", str(port), "--require-nonce"]
        for user, own in groups.items():
            claims = {"sub": user, "email": f"{user}@example.com", "groups": own}
            arguments += ["--user-claims", json.dumps(claims)]
        child = Child(arguments, {"PYTHONWARNINGS": "ignore"}, module="oidc_provider_mock")
        with stopped(child):
            child.until("Uvicorn running")
            yield Provider(f"http://{host}:{port}")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with provider_of(GROUPS) as running:
        yield running


@asynccontextmanager
async def signing_in(url: str, issuer: str, **changes: Any) -> AsyncIterator[Site]:
    chosen = {
        "issuer": issuer,
        "client_id": "console",
        "client_secret": "s3cret/+",
        "roles": {"gateway-owners": "owner", "gateway-support": "support"},
    }
    settings = gateway_settings(
        url,
        ["http://127.0.0.1:9"],
        models=[{"id": "gpt-oss-20b"}],
        admin={"port": 9000},
        federation=LOOPBACK,
        console={"enabled": True, "sign_in": {**chosen, **changes}},
    )
    site = console_site(settings)
    try:
        yield site
    finally:
        await site.process.federation.key_sets.close()
        await site.process.foundation.close()


@pytest.fixture
async def with_provider(console_database_url: str, provider: Provider) -> AsyncIterator[Site]:
    async with signing_in(console_database_url, provider.issuer) as site:
        yield site


async def leave(client: httpx2.AsyncClient) -> str:
    page = await client.get("/console/login")
    assert f'href="{TO_PROVIDER}"' in page.text
    answer = await client.get(TO_PROVIDER)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def path_of(url: str) -> str:
    assert url.startswith(f"{ORIGIN}{CALLBACK}?"), url
    return url.removeprefix(ORIGIN)


@pytest.mark.parametrize(("user", "role"), [("ada", "owner"), ("sam", "support")])
async def test_groups_decide_about_the_role(
    with_provider: Site, provider: Provider, user: str, role: OperatorRole
) -> None:
    async with with_provider.client() as client:
        back = path_of(await provider.visit(await leave(client), user))
        answer = await client.get(back)
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")
        account = (await client.get("/console/account")).text
        assert f"{user}@example.com" in account
        assert all(permission in account for permission in OPERATOR_ROLES[role])
        # The attempt is over: its address signs nobody in again.
        assert (await client.get(back)).headers["location"] == "/console/login"


async def test_what_the_provider_is_sent_binds_the_answer_to_this_browser(
    with_provider: Site,
) -> None:
    async with with_provider.client() as client:
        query = parse_qs(urlsplit(await leave(client)).query)
        attempt = Attempt.parse(client.cookies["gateway-console-sign-in"])
    assert attempt is not None
    assert query["state"] == [attempt.state]
    assert query["nonce"] == [attempt.nonce]
    assert query["code_challenge"] == [attempt.challenge]
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"] == [f"{ORIGIN}{CALLBACK}"]
    assert attempt.verifier not in str(query)


async def test_who_has_no_listed_group_may_not_in(with_provider: Site, provider: Provider) -> None:
    async with with_provider.client() as client:
        answer = await client.get(path_of(await provider.visit(await leave(client), "eve")))
        assert "eve@example.com" in answer.text
        assert answer.status_code == 403
        assert (await client.get("/console/account")).status_code == 303


async def test_who_denies_is_told_so(with_provider: Site, provider: Provider) -> None:
    async with with_provider.client() as client:
        url = await provider.visit(await leave(client), "ada", action="deny")
        answer = await client.get(path_of(url))
    assert answer.status_code == 403
    assert "access_denied" in answer.text


async def test_an_answer_of_another_browser_signs_nobody_in(
    with_provider: Site, provider: Provider
) -> None:
    async with with_provider.client() as one, with_provider.client() as other:
        back = path_of(await provider.visit(await leave(one), "ada"))
        assert (await other.get(back)).headers["location"] == "/console/login"
        await leave(other)
        assert (await other.get(back)).status_code == 403
        assert (await other.get("/console/account")).status_code == 303


async def test_an_answer_for_another_attempt_of_the_browser_is_refused(
    with_provider: Site, provider: Provider
) -> None:
    async with with_provider.client() as client:
        code = parse_qs(urlsplit(await provider.visit(await leave(client), "ada")).query)["code"]
        await leave(client)
        attempt = Attempt.parse(client.cookies["gateway-console-sign-in"])
        assert attempt is not None
        params = {"code": code[0], "state": attempt.state}
        answer = await client.get(CALLBACK, params=params)
    assert answer.status_code == 403
    assert "another sign-in" in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "code=x",
        "state=x",
        "state={state}",
        "code=made-up&state={state}",
        "code=%00&state={state}",
        "error=%3Cb%3E",
        "code=x&state={state}&iss=https://other",
    ],
)
async def test_made_up_answers_are_refused(with_provider: Site, query: str) -> None:
    async with with_provider.client() as client:
        await leave(client)
        attempt = Attempt.parse(client.cookies["gateway-console-sign-in"])
        assert attempt is not None
        answer = await client.get(f"{CALLBACK}?{query.format(state=attempt.state)}")
    assert answer.status_code == 403, answer.text


async def test_a_token_for_another_client_is_refused(
    console_database_url: str, provider: Provider
) -> None:
    async with (
        signing_in(console_database_url, provider.issuer, client_id="other") as other,
        signing_in(console_database_url, provider.issuer) as site,
        site.client() as client,
    ):
        await leave(client)
        cookie = client.cookies["gateway-console-sign-in"]
        attempt = Attempt.parse(cookie)
        assert attempt is not None
        sign_in = other.console._sign_in
        assert sign_in is not None
        url = await sign_in.redirect(attempt, f"{ORIGIN}{CALLBACK}")
        answer = await client.get(path_of(await provider.visit(url, "ada")))
    assert answer.status_code in {401, 403}, answer.text


async def test_a_provider_that_does_not_answer_is_named(console_database_url: str) -> None:
    with reserved_port() as port:
        issuer = f"http://127.0.0.1:{port}"
        async with signing_in(console_database_url, issuer) as site, site.client() as client:
            answer = await client.get(TO_PROVIDER)
    assert answer.status_code == 503
    assert "Please try again" in answer.text


async def test_an_issuer_may_end_with_a_slash(console_database_url: str) -> None:
    async with running_issuer() as issuer:
        name = f"{issuer.url}/"
        issuer.configuration = {"issuer": name, "authorization_endpoint": f"{name}authorize"}
        async with signing_in(console_database_url, name) as site, site.client() as client:
            assert (await leave(client)).startswith(f"{name}authorize?")


@pytest.mark.parametrize("url", ["http://[", "ftp://a.example", None])
async def test_a_provider_with_an_address_that_cannot_be_used_is_named(
    console_database_url: str, url: str | None
) -> None:
    async with running_issuer() as issuer:
        issuer.configuration = {"issuer": issuer.url, "authorization_endpoint": url}
        async with signing_in(console_database_url, issuer.url) as site, site.client() as client:
            answer = await client.get(TO_PROVIDER)
    assert answer.status_code == 503


async def test_without_a_provider_there_is_no_way_to_it(site: Site) -> None:
    async with site.client() as client:
        assert TO_PROVIDER not in (await client.get("/console/login")).text
        assert (await client.get(TO_PROVIDER)).status_code == 404
        assert (await client.get(CALLBACK)).status_code == 404


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"sub": "1", "email": "a@example.com"}, "a@example.com"),
        ({"sub": "1", "email": "a@example.com", "email_verified": False}, "1"),
        ({"sub": "1", "preferred_username": "ada\u202e"}, "ada"),
        ({"sub": "x" * 1000}, "x" * 128),
    ],
)
def test_names_are_those_that_the_provider_stands_for(claims: dict[str, Any], name: str) -> None:
    assert name_of(claims) == name
