"""Rows of the browser: pages that were shown, and documents that may be searched."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.errors import StoreError
from gateway.protocol.grants import EVERY_DOMAIN, DomainRules
from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.store.tools import web_pages
from gateway.store.tools.web_pages import StoredPage
from tests.fakes.rows import count

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

DAY = 86_400
KEEP = Retention.model_construct(log_s=1, response_s=30 * DAY, idempotency_key_s=1, traces_s=1)
PAGE = StoredPage("https://a.example/é", "T\0", "text \ud800", ("https://a.example/1", "x"))
SHORT = "https://a.example/short"


async def test_a_page_is_found_by_its_key_and_by_its_url(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    key = await web_pages.put_page(database, tenant, PAGE, requested_url=SHORT)
    assert await web_pages.put_page(database, tenant, PAGE, requested_url=SHORT) == key
    assert await count(database, tenant, "tool_pages") == 1
    assert await web_pages.get_page(database, tenant, key) == PAGE
    assert await web_pages.find_page(database, tenant, SHORT, age_max_s=60) == PAGE
    assert await web_pages.find_page(database, tenant, SHORT, age_max_s=0) is None
    assert await web_pages.find_page(database, tenant, PAGE.url, age_max_s=60) is None
    assert await web_pages.get_page(database, other_tenant, key) is None
    assert await web_pages.find_page(database, other_tenant, SHORT, age_max_s=60) is None
    newer = replace(PAGE, text="newer", links=())
    await web_pages.put_page(database, tenant, newer, requested_url=SHORT)
    assert await web_pages.find_page(database, tenant, SHORT, age_max_s=60) == newer
    assert await web_pages.get_page(database, tenant, key) == PAGE


async def test_pages_are_kept_as_long_as_responses(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await web_pages.put_page(database, tenant, PAGE, requested_url=SHORT)
    old = await web_pages.put_page(
        database, tenant, replace(PAGE, title="old"), requested_url=SHORT
    )
    theirs = await web_pages.put_page(database, other_tenant, PAGE, requested_url=SHORT)
    async with database.owner_transaction() as connection:
        for who, key, days in ((tenant, old, 31), (other_tenant, theirs, 2)):
            await connection.execute(
                Statement(
                    "UPDATE tool_pages SET fetched_at = now() - make_interval(days => :days)"
                    " WHERE tenant_id = :tenant AND key = :key"
                ),
                {"tenant": who, "key": key, "days": days},
            )
        await connection.execute(
            Statement("UPDATE tenants SET response_retention_s = 86400 WHERE id = :id"),
            {"id": other_tenant},
        )
    assert await sweep.delete_expired("tool_pages", database, KEEP, rows_max=10) == 2
    assert await sweep.delete_expired("tool_pages", database, KEEP, rows_max=10) == 0
    assert await count(database, tenant, "tool_pages") == 1


LIGHT = StoredPage(
    "https://docs.a.example/light",
    "The lighthouse",
    "URL: https://docs.a.example/light\n\nThe lighthouse burns 【0†rape oil†b.example】 at night.",
    ("https://b.example/oil",),
)
FERRY = StoredPage("https://b.example/ferry", "The ferry", "The ferry burns coal.")


async def found(
    database: Database, tenant: TenantId, query: str, *domains: str, number: int = 10
) -> list[str]:
    hits = await web_pages.search_documents(
        database, tenant, query, domains=DomainRules(domains), count=number, language="english"
    )
    return [hit.url for hit in hits]


async def test_documents_are_found_by_their_words(database: Database, tenant: TenantId) -> None:
    await web_pages.put_documents(database, tenant, [LIGHT, FERRY], language="english")
    assert await found(database, tenant, "lighthouses burning") == [LIGHT.url]
    assert await found(database, tenant, '"rape oil"') == [LIGHT.url]
    assert await found(database, tenant, "burn -coal") == [LIGHT.url]
    assert await found(database, tenant, "ferry whale") == [FERRY.url], "some words are enough"
    assert await found(database, tenant, "whale") == []
    assert await found(database, tenant, "the \0 & | ! (") == []
    assert set(await found(database, tenant, "burns")) == {LIGHT.url, FERRY.url}
    assert len(await found(database, tenant, "burns", number=1)) == 1
    assert await found(database, tenant, "burns", "a.example") == [LIGHT.url]
    assert await found(database, tenant, "burns", "b.example", "c.example") == [FERRY.url]
    assert await found(database, tenant, "burns", "le", "%") == []
    (hit,) = await web_pages.search_documents(
        database, tenant, "rape", domains=EVERY_DOMAIN, count=5, language="english"
    )
    assert "burns rape oil at night" in hit.snippet
    assert not set("【†】") & set(hit.snippet)
    assert hit.title == LIGHT.title


async def test_documents_are_of_one_tenant_or_of_all(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await web_pages.put_documents(database, None, [LIGHT], language="english")
    await web_pages.put_documents(database, tenant, [FERRY], language="english")
    assert set(await found(database, tenant, "burns")) == {LIGHT.url, FERRY.url}
    assert await found(database, other_tenant, "burns") == [LIGHT.url]
    assert await web_pages.get_document(database, other_tenant, FERRY.url) is None
    own = replace(LIGHT, text="Of its own: burns.")
    await web_pages.put_documents(database, tenant, [own], language="english")
    assert await web_pages.get_document(database, tenant, LIGHT.url) == own
    assert await web_pages.get_document(database, other_tenant, LIGHT.url) == LIGHT
    assert sorted(await found(database, tenant, "burns")) == [FERRY.url, LIGHT.url]
    listed = await web_pages.documents_of(database, None, rows_max=10)
    assert {(one.tenant_id, one.url) for one in listed} == {
        (None, LIGHT.url), (tenant, FERRY.url), (tenant, LIGHT.url),
    }  # fmt: skip
    shared = await web_pages.documents_of(database, EVERYONE, rows_max=10)
    assert [(one.url, one.chars) for one in shared] == [(LIGHT.url, len(LIGHT.text))]
    assert await web_pages.remove_documents(database, None, FERRY.url) == 0
    assert await web_pages.remove_documents(database, tenant, "https://b.example") == 1
    assert await web_pages.remove_documents(database, None, LIGHT.url) == 1
    assert await found(database, other_tenant, "burns") == []


async def test_a_tenant_writes_no_document(database: Database, tenant: TenantId) -> None:
    await web_pages.put_documents(database, tenant, [FERRY], language="english")
    for statement in ("DELETE FROM web_documents", "UPDATE web_documents SET title = ''"):
        with pytest.raises(StoreError, match="42501"):
            async with database.transaction(tenant) as connection:
                await connection.execute(Statement(statement))


async def test_a_language_that_is_not_there_is_an_error(
    database: Database, tenant: TenantId
) -> None:
    with pytest.raises(StoreError):
        await web_pages.put_documents(database, tenant, [FERRY], language="klingon")
