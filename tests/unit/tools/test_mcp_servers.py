"""Registered servers: what may be registered, what is shown of them, whose counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.sealing import SealBroken, Sealer, SealingSecret
from gateway.tenancy import TenantId
from gateway.tools.mcp import servers
from gateway.tools.mcp.servers import (
    ANY_URL,
    Registry,
    check_url,
    checked_purposes,
    identity_of,
    named_identity,
    sealed_headers,
    server_json,
    unsealed_headers,
)
from tests.fakes.mcp_peers import IDENTITY_KEY, SEALER, TENANT, resolver_of, row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.store.tools.mcp_servers import McpServerRow

URL = "https://mcp.example/mcp"


@pytest.mark.parametrize("url", ["http://a.example", "https://a.example:8443/x?y=1"])
def test_urls_of_servers(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "a", "ftp://a.example", "https://", "https://u:p@a.example", "https://a/#b"),
        *("https://a/\x01", "https://a:0/", "https://a:99999/", "https://\u2460/"),
    ],
)
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(ValueError, match=r"https://|[Ii]nvalid|out of range"):
        check_url(url)


def test_purposes_are_a_few_words() -> None:
    assert checked_purposes(["search", "mcp", "search"]) == "mcp search"
    with pytest.raises(ValueError, match="browser"):
        checked_purposes(["mcp", "magic"])


def test_credentials_are_of_one_row_under_one_key() -> None:
    one = row(URL)
    given = {"authorization": "Bearer secret"}
    sealed = sealed_headers(SEALER, one.tenant_id, one.id, given)
    assert sealed_headers(SEALER, one.tenant_id, one.id, {}) == ""
    assert unsealed_headers(SEALER, replace(one, secret=sealed)) == given
    assert unsealed_headers(SEALER, one) == {}
    foreign = [replace(one, id=ids.new_uuid()), replace(one, tenant_id=TENANT)]
    for other in foreign:
        with pytest.raises(SealBroken):
            unsealed_headers(SEALER, replace(other, secret=sealed))
    with pytest.raises(SealBroken):
        unsealed_headers(Sealer([SealingSecret("new", b"x" * 32)]), replace(one, secret=sealed))


async def test_server_is_shown_without_its_secrets_and_found_by_what_it_is() -> None:
    one = row(URL, "crm", trusted=True, allowed_tools=b'["b","a"]', call_timeout_s=9)
    sealed = sealed_headers(SEALER, one.tenant_id, one.id, {"x-key": "secret"})
    resolver = resolver_of(replace(one, secret=sealed))
    found = await resolver.granted(TENANT, identity_of(one.id), {})
    assert found is not None
    assert "secret" not in str(server_json(found)) + repr(found)
    assert server_json(found)["allowed_tools"] == ["a", "b"]
    assert await resolver.granted(TENANT, identity_of(ids.new_uuid()), {}) is None
    peer = found.peer(TENANT, {"x-key": "mine", "x-own": "1"})
    assert dict(peer.headers) == {"x-key": "secret", "x-own": "1"}
    assert peer.is_registered
    assert "secret" not in repr(peer)


async def test_registry_is_read_once_in_a_while_for_each_tenant() -> None:
    read: list[TenantId] = []
    rows: dict[str, McpServerRow] = {}

    async def load_rows(tenant: TenantId) -> Mapping[str, McpServerRow]:
        read.append(tenant)
        return dict(rows)

    lasting, fleeting = Registry(load_rows, SEALER), Registry(load_rows, SEALER, ttl_s=0)
    for registry, count in ((lasting, 2), (fleeting, 3)):
        read.clear()
        for tenant in (TENANT, TENANT, TenantId(ids.new_uuid())):
            await registry.servers(tenant)
        assert len(read) == count
    rows["crm"] = row(URL, "crm")
    assert await lasting.for_purpose(TENANT, "mcp") is None
    await asyncio.sleep(0)
    found = await fleeting.for_purpose(TENANT, "mcp")
    assert found is not None


async def test_what_grants_know_a_request_by_is_keyed() -> None:
    """Whoever reads the database cannot try paths and tokens until one fits."""
    resolver = resolver_of()
    url, sent = "http://127.0.0.1/mcp/s3cret", {"x-token": "1234"}
    asked = await resolver.resolve(TENANT, "a", url, terms=ANY_URL, param="tools[0]")
    assert asked.identity == named_identity(url, IDENTITY_KEY)
    assert asked.identity != named_identity(url, b"another key")
    assert asked.identity.endswith("@127.0.0.1")
    assert sha256(url.encode()).hexdigest() not in asked.identity
    found = await resolver.granted(TENANT, asked.identity, {servers.URL: url})
    assert found is not None
    assert found.identity == asked.identity
    assert (
        await resolver.granted(TENANT, named_identity(url, b"another"), {servers.URL: url}) is None
    )

    stored = resolver.credential(sent)
    assert stored not in {servers.headers_digest(sent), resolver.credential({"x-token": "1235"})}
    assert resolver.credential({}) == ""
