"""Exports page by page, reconciliation, and what is removed when."""

from __future__ import annotations

import asyncio
import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway import ids
from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.spend_limits import SpendLimits
from gateway.errors import InvalidRequest
from gateway.generation import TokenUsage
from gateway.ledger.jobs import SILENT_S, Adding, Reconciliation, correct_spending, forget_spending
from gateway.ledger.records import FIELDS, encoded, export, place_of
from gateway.retention.sweep import remove_expired
from gateway.settings.sections import Ledger
from gateway.store import endings, responses, tenants, usage_lines
from gateway.store.postgres.statements import Statement
from gateway.store.tenants import NewKey
from gateway.telemetry.metrics import Metrics
from tests.fakes.stored import finished, new_response
from tests.fakes.usage_lines import NOON, line

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

DAY_S = 86_400
WAITING = Statement("""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
""")
CORRECTED = Statement("SELECT amount FROM spend WHERE replica = '' FOR UPDATE")
SPENT_BY_GONE = Statement("""
INSERT INTO spend (tenant_id, meter, starts_at, replica, amount, at)
SELECT tenant_id, meter, starts_at, 'gone', 40,
       clock_timestamp() - make_interval(secs => :silent_s + 1)
FROM spend
""")
SPENT = Statement("SELECT CAST(sum(amount) AS bigint) FROM spend")
REPLACE = Statement("""
UPDATE api_keys SET replaced_by = :new WHERE tenant_id = :tenant AND id = :old
""")


async def exported(database: Database, cursor: str, *, lines_max: int) -> list[bytes]:
    pieces = [piece async for piece in export(database, cursor, "jsonl", lines_max=lines_max)]
    return b"".join(pieces).splitlines()


def test_a_record_is_one_line_to_every_reader() -> None:
    ends = "\u2028\u2029\x85"
    text = encoded([{"tenant": ends}], "jsonl", has_head=False).decode()
    (record,) = text.splitlines()
    assert orjson.loads(record) == {"tenant": ends}


async def test_an_export_goes_on_where_the_one_before_ended(
    database: Database, tenant: TenantId
) -> None:
    lines = [line(NOON + timedelta(seconds=number)) for number in range(7)]
    for one in lines:
        await usage_lines.record_all(database, [(tenant, one)])
    cursor, found = "", []
    for _ in range(4):
        *records, last = await exported(database, cursor, lines_max=3)
        found += [orjson.loads(record) for record in records]
        cursor = orjson.loads(last)["next_cursor"]
    assert [record["at"] for record in found] == [one.at.isoformat() for one in lines]
    assert {tuple(record) for record in found} == {FIELDS}
    await usage_lines.record_all(database, [(tenant, line(NOON))])
    assert len(await exported(database, cursor, lines_max=3)) == 2


async def test_csv_is_read_by_a_reader_of_csv(database: Database, tenant: TenantId) -> None:
    await usage_lines.record_all(database, [(tenant, line(model='=cmd|"x",')), (tenant, line())])
    text = b"".join([piece async for piece in export(database, None, "csv")]).decode()
    *rows, last = text.splitlines()
    assert last.startswith("# next_cursor=u1-")
    records = list(csv.DictReader(io.StringIO("\n".join(rows))))
    assert {record["model"] for record in records} == {'\'=cmd|"x",', "gpt-oss-20b"}
    assert records[0]["input_tokens"] == "10"


@pytest.mark.parametrize("junk", ["1", "u1-1-2-3-4", "u1-" + "9" * 19 + "-", "page_x"])
def test_no_cursor_but_our_own_is_taken(junk: str) -> None:
    with pytest.raises(InvalidRequest):
        place_of(junk)


async def test_reconciliation_finds_what_lacks_a_line_and_mends_sums(
    database: Database, tenant: TenantId
) -> None:
    metrics = Metrics()
    adding = Adding(database, interval_s=1, metrics=metrics)
    checks = Reconciliation(database, interval_s=1, metrics=metrics)
    now = datetime.now(UTC)
    hour_ago = now - timedelta(hours=1)
    new = new_response()
    await responses.insert(database, tenant, new)
    tokens = TokenUsage(input_tokens=3)
    end = replace(finished(new.uuid), completed_at=hour_ago, tokens=tokens)
    await endings.finish(database, tenant, end)
    await usage_lines.record_all(database, [(tenant, line(hour_ago)) for _ in range(3)])
    await adding.round()
    found = await checks.round()
    assert (found.unmetered, found.wrong_hours, found.behind_s) == ((), (), 0.0)
    async with database.runs_transaction() as connection:
        await connection.execute(Statement("UPDATE usage_hours SET output_tokens = 999"))
        await connection.execute(
            Statement("DELETE FROM usage WHERE response_id = :id"), {"id": new.uuid}
        )
    found = await checks.round()
    assert found.unmetered == ((tenant, new.uuid),)
    assert [tenant_id for tenant_id, _ in found.wrong_hours] == [tenant]
    found = await checks.round()
    assert found.wrong_hours == ()
    assert b'gateway_ledger_discrepancies{check="unmetered_responses"} 1.0' in metrics.exposition()


async def test_lines_are_removed_once_they_are_added_up(
    database: Database, tenant: TenantId
) -> None:
    keep = Ledger.model_construct(
        lines_s=5 * DAY_S,
        minutes_s=2 * DAY_S,
        hours_s=30 * DAY_S,
        days_s=400 * DAY_S,
        end_user_days_s=5 * DAY_S,
    )
    now = datetime.now(UTC)
    await usage_lines.record_all(
        database, [(tenant, line(now - timedelta(days=days))) for days in (1, 6, 7, 31)]
    )
    assert await remove_expired(database, keep, rows_max=10) == 0
    await Adding(database, interval_s=1, metrics=Metrics()).round()
    # Three lines, and the hour of the oldest, which is part of a day now.
    assert await remove_expired(database, keep, rows_max=2) == 4
    assert await remove_expired(database, keep, rows_max=2) == 0


async def test_sums_outlive_lines_that_are_kept_as_briefly_as_may_be(
    database: Database, tenant: TenantId
) -> None:
    now = datetime.now(UTC)
    hour = (now - timedelta(days=2, hours=1)).replace(minute=0, second=0, microsecond=0)
    half_past = hour + timedelta(minutes=30)
    keep = Ledger(lines_s=round((now - half_past).total_seconds()))
    lines = [(tenant, line(hour)), (tenant, line(hour + timedelta(hours=1, microseconds=-1)))]
    await usage_lines.record_all(database, lines)
    await Adding(database, interval_s=1, metrics=Metrics()).round()
    assert await remove_expired(database, keep, rows_max=10) == 1
    found = await Reconciliation(database, interval_s=1, metrics=Metrics()).round()
    assert found.wrong_hours == ()
    async with database.runs_transaction() as connection:
        assert await connection.scalar(Statement("SELECT sum(requests) FROM usage_hours")) == 2


async def test_keys_that_took_each_other_s_place_spend_together(
    database: Database, tenant: TenantId
) -> None:
    old, new = [
        await tenants.insert_key(database, NewKey(ids.new_uuid(), tenant, "k", "hint", hash_))
        for hash_ in (b"old", b"new")
    ]
    async with database.transaction(tenant) as connection:
        await connection.execute(REPLACE, {"new": new.id, "old": old.id, "tenant": tenant})
    place = await Limits(database).key(tenant, new.id)
    await SpendLimits(database).set_budget(place, 10**9, unit="tokens", interval="none")
    async with database.owner_transaction() as connection:
        older = "UPDATE budgets SET created_at = created_at - interval '1 hour'"
        await connection.execute(Statement(older))
    now = datetime.now(UTC)
    at = now - timedelta(minutes=2)
    await usage_lines.record_all(
        database, [(tenant, line(at, key_id=one.id)) for one in (old, new)]
    )
    (corrected,) = await correct_spending(database, now)
    assert (corrected.recorded, corrected.truth) == (0, 30)


async def set_endless_budget(database: Database, tenant: TenantId) -> None:
    """An hour ago."""
    await SpendLimits(database).set_budget(
        LimitOwner.of_tenant(tenant), 10**9, unit="tokens", interval="none"
    )
    async with database.owner_transaction() as connection:
        older = "UPDATE budgets SET created_at = created_at - interval '1 hour'"
        await connection.execute(Statement(older))


@pytest.mark.slow
async def test_what_replicas_are_about_to_tell_is_not_told_for_them(
    database: Database, tenant: TenantId
) -> None:
    await set_endless_budget(database, tenant)
    now = datetime.now(UTC)
    await usage_lines.record_all(database, [(tenant, line(now))])
    assert await correct_spending(database, now) == []
    await usage_lines.record_all(database, [(tenant, line(now - timedelta(minutes=2)))])
    (corrected,) = await correct_spending(database, now)
    assert (corrected.recorded, corrected.truth) == (0, 15), (
        "the one that nobody will tell any more"
    )
    assert await correct_spending(database, now) == []


async def waiting(database: Database) -> int:
    async with database.owner_transaction() as connection:
        count: int = await connection.scalar(WAITING)
        return count


@pytest.mark.slow
async def test_what_a_gone_process_spent_is_not_lost_to_a_correction_at_the_same_time(
    database: Database, tenant: TenantId
) -> None:
    await set_endless_budget(database, tenant)
    now = datetime.now(UTC)
    at = now - timedelta(minutes=2)
    await usage_lines.record_all(database, [(tenant, line(at))])
    await correct_spending(database, now)
    async with database.runs_transaction() as connection:
        await connection.execute(SPENT_BY_GONE, {"silent_s": SILENT_S})
    await usage_lines.record_all(database, [(tenant, line(at)) for _ in range(4)])
    jobs: list[asyncio.Task[object]] = []
    async with database.owner_transaction() as connection:
        await connection.execute(CORRECTED)
        for job in (forget_spending, correct_spending):
            jobs.append(asyncio.create_task(job(database, now)))
            while await waiting(database) < len(jobs):
                assert not jobs[-1].done()
    await asyncio.gather(*jobs)
    async with database.runs_transaction() as connection:
        assert await connection.scalar(SPENT) >= 55
    await correct_spending(database, now)
    async with database.runs_transaction() as connection:
        assert await connection.scalar(SPENT) == 75
