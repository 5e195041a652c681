"""OpenAI's SDK asks what a tenant used: over HTTP, with its own types and pages."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from openai import AsyncOpenAI, BadRequestError
from starlette.routing import Router

from gateway import ids
from gateway.admin.routes import starlette_routes
from gateway.admin.usage import COST_BUCKETS_MAX, REPORTS, UsageReports, routes
from gateway.api.request_context import RequestContext
from gateway.generation import TokenUsage
from gateway.settings.sections import Ledger
from gateway.store import usage_lines
from gateway.store.ledger import rollup
from gateway.store.postgres.statements import Statement
from gateway.store.usage_lines import Metered
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import KeyTerms, Principal, ProjectId
from tests.conftest import new_tenant
from tests.fakes.serving import serving
from tests.fakes.usage_lines import KEYS, NOON, line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

START = int(NOON.timestamp())
DAY = 86_400


@asynccontextmanager
async def asking(database: Database, tenant: TenantId) -> AsyncIterator[Any]:
    """`usage` of an SDK's admin client, for which every request is the tenant's."""
    reports = UsageReports(database, Ledger(), rows_max=1_000)
    served = starlette_routes(routes(reports), cast("Any", None))
    router = Router(served)

    async def as_tenant(scope: Scope, receive: Receive, send: Send) -> None:
        scope["principal"] = Principal(tenant, "a tenant", KEYS[0], key=KeyTerms(kind="admin"))
        await router(scope, receive, send)

    async with serving(RequestContext(as_tenant, Metrics(), served)) as url:
        client = AsyncOpenAI(admin_api_key="any", api_key="any", base_url=f"{url}/v1")
        async with client:
            yield client.admin.organization.usage


async def lines_of(database: Database, tenant: TenantId) -> None:
    project = ProjectId(ids.new_uuid())
    searches = TokenUsage(input_tokens=7, output_tokens=3, web_searches=2, reasoning_tokens=1)
    lines = [
        line(),
        line(NOON + timedelta(days=1), model="gpt-oss-120b", background=True),
        line(NOON + timedelta(days=1, hours=2), project_id=project, key_id=KEYS[1]),
        line(NOON + timedelta(days=2), tokens=searches),
        line(
            NOON + timedelta(days=2),
            tokens=searches,
            metered=Metered(tools={"code_interpreter": 3}, service_tier="priority"),
        ),
        line(NOON, model="e5", metered=Metered(kind="embeddings")),
    ]
    await usage_lines.record_all(database, [(tenant, one) for one in lines[:3]])
    await rollup.advance(database)
    await usage_lines.record_all(database, [(tenant, one) for one in lines[3:]])


@pytest.mark.slow
async def test_completions_by_day_page_by_page(database: Database, tenant: TenantId) -> None:
    await lines_of(database, tenant)
    await lines_of(database, await new_tenant(database))
    async with asking(database, tenant) as reports:
        token: dict[str, str] = {}
        pages = []
        while True:
            page = await reports.completions(
                start_time=START, end_time=START + 3 * DAY, limit=2, **token
            )
            pages.append(page)
            if not page.has_more:
                break
            token = {"page": page.next_page}
    assert [len(page.data) for page in pages] == [2, 2]
    buckets = [bucket for page in pages for bucket in page.data]
    assert buckets[0].start_time == START
    assert buckets[-1].end_time == START + 3 * DAY
    told = [[result.num_model_requests for result in bucket.results] for bucket in buckets]
    assert told == [[1], [2], [2], []]
    (first,) = buckets[0].results
    assert (first.input_tokens, first.input_cached_tokens, first.output_tokens) == (10, 4, 5)
    assert first.input_uncached_tokens == 6
    assert (first.project_id, first.model, first.batch, first.api_source) == (None,) * 4
    (second,) = buckets[1].results
    assert second.model_extra is not None
    assert second.model_extra["harmony"]["background_requests"] == 1
    assert pages[-1].next_page is None


@pytest.mark.slow
async def test_groups_and_filters(database: Database, tenant: TenantId) -> None:
    await lines_of(database, tenant)
    async with asking(database, tenant) as reports:
        span = {"start_time": START, "end_time": START + 3 * DAY}
        by = await reports.completions(
            **span,
            group_by=["project_id", "model", "api_key_id", "batch", "service_tier", "api_source"],
        )
        of_key = await reports.completions(
            **span, api_key_ids=[ids.api_key_id(KEYS[1])], models=["gpt-oss-20b"]
        )
        of_nobody = await reports.completions(**span, project_ids=["proj_unknown"])
        batches = await reports.completions(**span, batch=True)
        priority = by.data[2].results
    default = ids.project_id(tenant)
    assert {(one.project_id == default, one.model) for one in by.data[1].results} == {
        (True, "gpt-oss-120b"),
        (False, "gpt-oss-20b"),
    }
    assert {one.service_tier for one in priority} == {"default", "priority"}
    assert {(one.batch, one.api_source) for one in priority} == {(False, "unlabeled")}
    assert [len(bucket.results) for bucket in of_key.data] == [0, 1, 0, 0]
    assert all(not bucket.results for bucket in [*of_nobody.data, *batches.data])


@pytest.mark.slow
async def test_keys_of_people_are_told_by_person(database: Database, tenant: TenantId) -> None:
    await lines_of(database, tenant)
    person = ids.new_uuid()
    async with database.owner_transaction() as connection:
        key = Statement(
            "INSERT INTO api_keys (tenant_id, id, name, hash, hint, created_at, kind, owner_type,"
            " owner_id) VALUES (:tenant, :id, 'k', :hash, 'abcd', now(), 'project', 'user', :owner)"
        )
        await connection.execute(
            key, {"tenant": tenant, "id": KEYS[1], "hash": b"h", "owner": person}
        )
    async with asking(database, tenant) as reports:
        span = {"start_time": START, "end_time": START + 3 * DAY}
        by = await reports.completions(**span, group_by=["user_id"])
        own = await reports.completions(**span, user_ids=[ids.user_id(person)])
    told = {one.user_id: one.num_model_requests for one in by.data[1].results}
    assert told == {None: 1, ids.user_id(person): 1}
    assert [len(bucket.results) for bucket in own.data] == [0, 1, 0, 0]


@pytest.mark.slow
async def test_tools_embeddings_and_what_there_is_none_of(
    database: Database, tenant: TenantId
) -> None:
    await lines_of(database, tenant)
    span: dict[str, Any] = {"start_time": START, "end_time": START + 3 * DAY}
    async with asking(database, tenant) as reports:
        searches = await reports.web_search_calls(**span, group_by=["model"])
        of_a_level = await reports.web_search_calls(**span, context_levels=["high"])
        sessions = await reports.code_interpreter_sessions(**span, group_by=["project_id"])
        embeddings = await reports.embeddings(**span)
        others = [
            await getattr(reports, name)(**span)
            for name in REPORTS
            if name not in {"completions", "costs", "embeddings"} and "_calls" not in name
            if name != "code_interpreter_sessions"
        ]
    (searched,) = searches.data[2].results
    assert (searched.num_requests, searched.num_model_requests) == (4, 2)
    assert not any(bucket.results for bucket in of_a_level.data), "nobody knows of what level"
    (session,) = sessions.data[2].results
    assert (session.num_sessions, session.project_id) == (1, ids.project_id(tenant))
    (embedded,) = embeddings.data[0].results
    assert (embedded.input_tokens, embedded.num_model_requests) == (10, 1)
    assert len(others) == 6
    for page in others:
        assert len(page.data) == 4
        assert all(bucket.results == [] for bucket in page.data)


@pytest.mark.slow
async def test_costs(database: Database, tenant: TenantId) -> None:
    await lines_of(database, tenant)
    async with database.runs_transaction() as connection:
        priced = Statement(
            "UPDATE usage_hours SET cost_nano = 30000000, input_cost_nano = 6000000,"
            " cached_cost_nano = 4000000, output_cost_nano = 20000000 WHERE tenant_id = :tenant"
        )
        await connection.execute(priced, {"tenant": tenant})
    async with asking(database, tenant) as reports:
        span = {"start_time": START, "end_time": START + 3 * DAY}
        whole = await reports.costs(**span)
        items = await reports.costs(**span, group_by=["line_item"])
        one = await reports.costs(**span, line_items=["gpt-oss-20b, output_tokens"])
        await reports.costs(start_time=START, limit=COST_BUCKETS_MAX)
    (first,) = whole.data[0].results
    assert first.amount is not None
    assert (first.amount.value, first.amount.currency, first.line_item) == (0.03, "usd", None)
    told = {
        result.line_item: (result.amount and result.amount.value, result.quantity)
        for result in items.data[0].results
    }
    assert told["gpt-oss-20b, input_tokens"] == (0.006, 6)
    assert told["gpt-oss-20b, cached_input_tokens"] == (0.004, 4)
    assert told["gpt-oss-20b, output_tokens"] == (0.02, 5)
    assert {result.quantity_unit for result in items.data[0].results} == {"tokens"}
    (output,) = one.data[0].results
    assert output.amount is not None
    assert output.amount.value == 0.02


@pytest.mark.slow
async def test_what_is_too_much_is_refused(database: Database, tenant: TenantId) -> None:
    await usage_lines.record_all(
        database, [(tenant, line(model=f"adapter-{number}")) for number in range(1_001)]
    )
    async with asking(database, tenant) as reports:
        with pytest.raises(BadRequestError) as many:
            await reports.completions(start_time=START, group_by=["model"])
        with pytest.raises(BadRequestError) as wide:
            await reports.completions(start_time=START, limit=32)
    assert (many.value.param, wide.value.param) == ("limit", "limit")
