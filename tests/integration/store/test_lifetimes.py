"""Rows in every table of the schema: what goes of them with a response, a person, a tenant, by age,
and what of it a hold stops.
"""

from __future__ import annotations

import asyncio
import io
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.errors import DataHeld
from gateway.metering import end_user_of
from gateway.retention import export, sweep
from gateway.retention.sweep import Housekeeping, remove_expired
from gateway.retention.tenant_data import TenantData
from gateway.services.audit_logs import AuditLogs
from gateway.settings.sections import Ledger, Retention
from gateway.store import claim_order, conversations, flushes, holds, responses
from gateway.store.locks import Lock, removing, take
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.tables.columns import about, metadata
from gateway.store.tools import containers, files
from tests.fakes.filled_tables import Filled, counts, fill, told_by
from tests.fakes.rows import add_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

LIFETIMES = {table.name: about(table).lifetime for table in metadata.tables.values()}
WORD = "canaryword"
SECRET = b"secret of end users"
KEEP = Retention.model_construct(
    log_s=86_400, response_s=86_400, idempotency_key_s=86_400, traces_s=86_400, tool_calls_s=86_400
)
LEDGER = Ledger.model_construct(lines_s=1, minutes_s=1, hours_s=1, days_s=1, end_user_days_s=1)
REMOVALS = (
    partial(remove_expired, keep=LEDGER, rows_max=9),
    partial(flushes.remove_left, silent_s=1),
    claim_order.forget_shares,
)


def name(tenant: TenantId) -> str:
    return f"tenant-{tenant}"


def data(database: Database) -> TenantData:
    return TenantData(database, end_user_secret=SECRET)


@pytest.fixture
async def filled(database: Database, tenant: TenantId) -> Filled:
    made = Filled(tenant, WORD, digest=end_user_of(SECRET, tenant, "grace"))
    await fill(database, made)
    assert set((await counts(database, tenant)).values()) == {1}
    return made


@pytest.fixture
async def others(database: Database, other_tenant: TenantId) -> Filled:
    made = Filled(other_tenant, "otherword")
    await fill(database, made)
    return made


@pytest.mark.slow
async def test_a_deleted_response_takes_with_it_what_is_its_own(
    database: Database, filled: Filled, others: Filled
) -> None:
    before = await counts(database, filled.tenant)
    assert await responses.delete(database, filled.tenant, filled.id("responses"))
    after = await counts(database, filled.tenant)
    gone = {table for table, count in after.items() if count < before[table]}
    expected = {
        table
        for table, one in LIFETIMES.items()
        if one.deleted == "its response" or table == "responses"
    }
    # The entries of a flush are zeros, with those of others left in their places.
    assert gone == expected - {"flushes"}
    assert set((await counts(database, others.tenant)).values()) == {1}


async def test_a_person_is_erased_from_every_table(
    database: Database, filled: Filled, others: Filled
) -> None:
    erased = await data(database).erase_person(name(filled.tenant), "grace")
    assert (erased.responses, erased.conversations) == (1, 1)
    after = await counts(database, filled.tenant)
    gone = {table for table, one in LIFETIMES.items() if one.erased} - {"usage", "flushes"}
    assert {table for table, count in after.items() if not count} == gone
    told = await told_by(database, filled.tenant, WORD)
    assert told & {table for table, one in LIFETIMES.items() if one.erased} == {"flushes"}
    assert set((await counts(database, others.tenant)).values()) == {1}
    assert (await data(database).erase_person(name(filled.tenant), "grace")).responses == 0


@pytest.mark.slow
async def test_a_removed_tenant_leaves_no_word(
    database: Database, filled: Filled, others: Filled
) -> None:
    await data(database).delete(name(filled.tenant))
    (removed,) = await data(database).purge(window_s=0)
    assert removed.tenant == name(filled.tenant)
    after = await counts(database, filled.tenant)
    stayed = {table for table, count in after.items() if count}
    assert stayed == {table for table in after if LIFETIMES[table].stays}
    # What the audit log says are ids; a test put the word there.
    assert await told_by(database, filled.tenant, WORD) == {"audit_log"}
    assert set((await counts(database, others.tenant)).values()) == {1}
    assert await data(database).purge(window_s=0) == []
    (row,) = await of_tenant(database, filled.tenant)
    assert row.purged_at is not None
    page = await AuditLogs(database).list_entries(filled.tenant, _purges())
    (entry,) = page["data"]
    assert entry["harmony.tenant.purged"]["data"]["rows"]["responses"] == 1
    assert WORD not in str(entry)


def _purges() -> Any:
    from gateway.services.audit_logs import AuditQuery

    return AuditQuery(event_types=["harmony.tenant.purged"])


async def of_tenant(database: Database, tenant: TenantId) -> Any:
    asked = Statement("SELECT held_at, purged_at FROM tenants WHERE id = :tenant")
    async with database.owner_transaction() as connection:
        return await connection.execute(asked, {"tenant": tenant})


async def expire(database: Database) -> None:
    async with database.runs_transaction() as connection:
        # Lines stay until they are added up: say that they were.
        done = (
            "INSERT INTO usage_cursors (tenant_id, name, tx, of_tenant, response_id, seq, batch,"
            " lines, moved_at) SELECT '00000000-0000-0000-0000-000000000000', 'rollup',"
            " (SELECT max(tx)::text::bigint + 1 FROM usage)::text::xid8, gen_random_uuid(),"
            " gen_random_uuid(), 0, 0, 0, now() ON CONFLICT DO NOTHING"
        )
        await connection.script(done)
    await Housekeeping(database, KEEP, interval_s=60, batch_rows_max=100).round()
    await remove_expired(database, LEDGER, rows_max=100)


async def exported(database: Database, tenant: TenantId) -> dict[str, list[bytes]]:
    """The lines of an archive by table."""
    file = io.BytesIO()
    archive = await data(database).export(name(tenant))
    async for piece in archive.pieces():
        file.write(piece)
    with zipfile.ZipFile(file) as zipped:
        assert set(orjson.loads(zipped.read("manifest.json"))["files"]) == set(
            zipped.namelist()
        ) - {"manifest.json"}
        return {
            one.removesuffix(".jsonl"): zipped.read(one).splitlines()
            for one in zipped.namelist()
            if one.endswith(".jsonl")
        }


async def test_an_archive_has_all_that_is_the_tenant_s(
    database: Database, filled: Filled, others: Filled
) -> None:
    there = await counts(database, filled.tenant)
    found = await exported(database, filled.tenant)
    # The archive itself is told of before it is read.
    assert {table: len(lines) for table, lines in found.items()} == {
        table: there[table] + (table == "audit_log") for table in export.TABLES
    }
    everything = b"".join(line for lines in found.values() for line in lines)
    assert others.word.encode() not in everything
    for table in ("api_keys", "mcp_servers"):
        (line,) = found[table]
        assert not orjson.loads(line).keys() & {"hash", "secret"}


@pytest.mark.slow
async def test_pages_of_an_archive_end_between_any_two_rows(
    database: Database, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "ROWS_FIRST", 1)
    monkeypatch.setattr(export, "ROWS_MAX", 1)
    more = [filled.row("usage") | {"seq": number} for number in (2, 3)]
    async with database.owner_transaction() as connection:
        await turn_to(connection, filled.tenant)
        await add_rows(connection, "usage", *more)
    found = await exported(database, filled.tenant)
    assert [orjson.loads(line)["seq"] for line in found["usage"]] == [1, 2, 3]


@pytest.mark.slow
async def test_a_hold_stops_everything_and_a_release_lets_it_go_on(
    database: Database, filled: Filled
) -> None:
    use, tenant = data(database), filled.tenant
    await use.delete(name(tenant))
    await use.hold(name(tenant), is_held=True)
    before = await counts(database, tenant)
    for removal in (
        use.erase_person(name(tenant), "grace"),
        responses.delete(database, tenant, filled.id("responses")),
        conversations.delete_conversation(database, tenant, filled.id("conversations")),
        conversations.delete_item(database, tenant, filled.id("conversations"), WORD),
        containers.delete(database, tenant, filled.id("containers")),
        files.delete(database, tenant, filled.id("files")),
    ):
        with pytest.raises(DataHeld, match="held"):
            await removal
    await expire(database)
    assert await use.purge(window_s=0) == []
    assert await counts(database, tenant) == before
    await use.hold(name(tenant), is_held=False)
    await expire(database)
    expired = {table for table, one in LIFETIMES.items() if one.expires}
    after = await counts(database, tenant)
    assert {table for table, count in after.items() if not count} == expired - {"audit_log"}
    (removed,) = await use.purge(window_s=0)
    assert removed.rows["conversations"] == 1


@pytest.mark.slow
async def test_a_hold_waits_for_what_is_being_removed(database: Database, filled: Filled) -> None:
    """And nothing is removed behind its back: it counts for all when it is there."""
    async with holds.unheld(database, filled.tenant):
        holding = asyncio.create_task(data(database).hold(name(filled.tenant), is_held=True))
        waiting = Statement("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        async with database.owner_transaction() as connection:
            while not await connection.scalar(waiting):
                assert not holding.done()
    await holding
    with pytest.raises(DataHeld):
        async with holds.unheld(database, filled.tenant):
            raise AssertionError("it is held")


@pytest.mark.slow
@pytest.mark.parametrize("begin", [sweep.is_alone, removing])
async def test_a_hold_waits_for_whoever_removes_what_has_expired(
    database: Database, filled: Filled, begin: Callable[[Connection], Awaitable[object]]
) -> None:
    """Their statements may have looked at who is held before."""
    async with database.runs_transaction() as connection:
        await begin(connection)
        holding = asyncio.create_task(data(database).hold(name(filled.tenant), is_held=True))
        waiting = Statement("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        async with database.owner_transaction() as other:
            while not await other.scalar(waiting):
                assert not holding.done()
        assert (await of_tenant(database, filled.tenant))[0].held_at is None
    await holding
    assert (await of_tenant(database, filled.tenant))[0].held_at is not None


@pytest.mark.parametrize("remove", REMOVALS, ids=["usage", "flushes", "shares"])
async def test_nothing_is_removed_while_somebody_begins_to_hold(
    database: Database, remove: Callable[[Database], Awaitable[object]]
) -> None:
    async with database.owner_transaction() as connection:
        await take(connection, Lock.REMOVALS)
        task = asyncio.ensure_future(remove(database))
        waiting = Statement("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        while not await connection.scalar(waiting):
            assert not task.done()
    await task


@pytest.mark.slow
async def test_files_of_a_container_that_has_expired_are_held_too(
    database: Database, filled: Filled
) -> None:
    inside = (
        "UPDATE files SET container_id = :container, expires_at = NULL WHERE tenant_id = :tenant"
    )
    asked = {"container": filled.id("containers"), "tenant": filled.tenant}
    async with database.owner_transaction() as connection:
        await turn_to(connection, filled.tenant)
        await connection.execute(Statement(inside), asked)
    for is_held, removed in ((True, 0), (False, 1)):
        await data(database).hold(name(filled.tenant), is_held=is_held)
        assert await sweep.delete_expired("files", database, KEEP, rows_max=9) == removed
