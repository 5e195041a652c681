"""The audit log in a database: it is only added to, and says what was committed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.audit import Actor, AuditEvent, entry_of, trimmed
from gateway.errors import InvalidRequest, StoreError
from gateway.retention import sweep
from gateway.services.audit_logs import AuditLogs, AuditQuery
from gateway.settings.sections import Retention
from gateway.store import audit_log
from gateway.store.audit_log import _ADD, _NAMES
from gateway.store.postgres.statements import Statement
from tests.fakes.logs import captured_logs

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

KEEP = Retention.model_construct(log_s=1, response_s=1, idempotency_key_s=1, traces_s=1)
ADMIN = Actor("api_key", "key_1", "user", "user_1", "a@b.example")


async def record(database: Database, tenant: TenantId | None, *events: AuditEvent) -> None:
    for event in events:
        async with database.owner_transaction() as connection:
            await audit_log.record(connection, tenant, event)


async def test_entries_are_there_if_their_change_is(database: Database, tenant: TenantId) -> None:
    class Failed(Exception):
        pass

    async def fail() -> None:
        async with database.transaction(tenant) as connection:
            await audit_log.record(connection, tenant, AuditEvent("project.created", "p0"))
            raise Failed

    with pytest.raises(Failed):
        await fail()
    async with database.transaction(tenant) as connection:
        await audit_log.record(connection, tenant, AuditEvent("project.created", "p1"))
        await audit_log.record(connection, tenant, AuditEvent("project.updated", "p1"))
    found = await audit_log.since(database, tenant, 0, rows_max=10)
    assert [(one.number, one.target) for one in found] == [(1, "p1"), (2, "p1")]


async def test_many_at_once_make_one_chain(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await asyncio.gather(
        *(
            record(database, who, AuditEvent("project.created", f"p{n}"))
            for n in range(8)
            for who in (tenant, other_tenant, None)
        )
    )
    states = await AuditLogs(database).verify()
    assert [(state.count, state.faults) for state in states] == [(8, ())] * 3
    assert [state.count for state in await AuditLogs(database).verify(tenant)] == [8]


async def test_entries_that_were_cut_off_are_missed_by_who_kept_the_heads(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    for who in (tenant, other_tenant):
        await record(database, who, *(AuditEvent("project.created", f"p{n}") for n in range(3)))
    logs = AuditLogs(database)
    kept = await logs.verify()
    await record(database, tenant, AuditEvent("project.created", "p3"))
    assert all(not state.faults for state in await logs.verify(kept=kept))
    cut = "DELETE FROM audit_log WHERE tenant_id = :tenant AND number > :number"
    async with database.owner_transaction() as connection:
        await connection.execute(Statement("ALTER TABLE audit_log DISABLE TRIGGER USER"))
        for who, number in ((tenant, 2), (other_tenant, 0)):
            await connection.execute(Statement(cut), {"tenant": who, "number": number})
        await connection.execute(Statement("ALTER TABLE audit_log ENABLE TRIGGER USER"))
    assert all(not state.faults for state in await logs.verify())
    found = {state.tenant_id: state.faults for state in await logs.verify(kept=kept)}
    assert found == {
        tenant: ("entries 3 to 3 are gone",), other_tenant: ("entries 1 to 3 are gone",),
    }  # fmt: skip


async def test_a_removal_that_is_told_but_was_not_due_is_missed_by_who_kept_the_heads(
    database: Database, tenant: TenantId
) -> None:
    logs = AuditLogs(database)
    kept = []
    for n in range(4):
        await record(database, tenant, AuditEvent("project.created", f"p{n}"))
        kept += await logs.verify()
    removed, _ = (await audit_log.since(database, tenant, 1, rows_max=2))[:2]
    await record(database, tenant, trimmed(tenant, removed.number, removed.hash))
    async with database.owner_transaction() as connection:
        await connection.script("ALTER TABLE audit_log DISABLE TRIGGER USER")
        await connection.script("DELETE FROM audit_log WHERE number <= 2")
        await connection.script("ALTER TABLE audit_log ENABLE TRIGGER USER")
    (state,) = await logs.verify()
    assert state.faults == ()
    (state,) = await logs.verify(kept=kept)
    assert state.faults == ("entry 2 was removed before its time",)
    # What retention may have removed by now is not missed.
    old = [replace(one, at=one.at and one.at - timedelta(days=401)) for one in kept]
    (state,) = await logs.verify(kept=old)
    assert state.faults == ()


async def test_no_role_changes_or_removes_an_entry(
    database: Database, tenant: TenantId, postgres: PostgresServer, database_url: str
) -> None:
    await record(database, tenant, AuditEvent("project.created", "p1"))
    for statement in (
        "UPDATE audit_log SET target = 'p2'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
    ):
        for begin in (database.transaction(tenant), database.owner_transaction()):
            with pytest.raises(StoreError):
                async with begin as connection:
                    await connection.script(statement)
        with pytest.raises(Exception, match="only added to"):
            await postgres.fetch(statement, url=database_url)
    # Who may switch triggers off is found out by the chain.
    await postgres.fetch("ALTER TABLE audit_log DISABLE TRIGGER USER", url=database_url)
    await postgres.fetch("UPDATE audit_log SET target = 'p2'", url=database_url)
    (state,) = await AuditLogs(database).verify(tenant)
    assert state.faults == ("entry 1 was changed",)


async def test_what_is_old_enough_goes_and_the_rest_holds(
    database: Database, tenant: TenantId
) -> None:
    await record(database, tenant, *[AuditEvent("project.created", f"p{n}") for n in range(3)])
    async with database.owner_transaction() as connection:
        await connection.script("ALTER TABLE audit_log DISABLE TRIGGER USER")
        await connection.execute(
            Statement("UPDATE audit_log SET at = at - interval '401 days' WHERE number = 1")
        )
        await connection.script("ALTER TABLE audit_log ENABLE TRIGGER USER")
    assert await sweep.delete_audit(database, KEEP, rows_max=10) == 1
    assert await sweep.delete_audit(database, KEEP, rows_max=10) == 0
    (state,) = await AuditLogs(database).verify(tenant)
    assert (state.count, state.number, state.faults) == (3, 4, ())
    # In steps, each of which says so; and what is held stays.
    await let_entries_age(database, 3)
    await hold(database, tenant, is_held=True)
    assert await sweep.delete_audit(database, KEEP, rows_max=1) == 0
    await hold(database, tenant, is_held=False)
    assert [await sweep.delete_audit(database, KEEP, rows_max=1) for _ in range(3)] == [1, 1, 0]
    (state,) = await AuditLogs(database).verify(tenant)
    assert state.faults == ()
    # More than retention did.
    await let_entries_age(database, 4)
    async with database.owner_transaction() as connection:
        await connection.script("DELETE FROM audit_log WHERE number = 4")
    (state,) = await AuditLogs(database).verify(tenant)
    assert state.faults == ("entries 4 to 4 are gone",)


async def let_entries_age(database: Database, upto: int) -> None:
    older = "UPDATE audit_log SET at = at - interval '401 days' WHERE number <= :upto"
    async with database.owner_transaction() as connection:
        await connection.script("ALTER TABLE audit_log DISABLE TRIGGER USER")
        await connection.execute(Statement(older), {"upto": upto})
        await connection.script("ALTER TABLE audit_log ENABLE TRIGGER USER")


async def hold(database: Database, tenant: TenantId, *, is_held: bool) -> None:
    statement = "UPDATE tenants SET held_at = CASE WHEN CAST(:held AS boolean) THEN now() END"
    async with database.owner_transaction() as connection:
        await connection.execute(Statement(statement), {"held": is_held})


async def test_pages_go_both_ways_and_end(database: Database, tenant: TenantId) -> None:
    await record(database, tenant, *[AuditEvent("project.created", f"p{n}") for n in range(5)])
    logs = AuditLogs(database)

    async def targets(**query: object) -> tuple[list[str], bool, str]:
        page = await logs.list_entries(tenant, AuditQuery(**query))  # type: ignore[arg-type]
        told = [one["project.created"]["id"] for one in page["data"]]
        return told, page["has_more"], page["last_id"]

    first, more, last = await targets(limit=2)
    assert (first, more) == (["p4", "p3"], True)
    second, more, last_of_second = await targets(limit=2, after=last)
    assert (second, more) == (["p2", "p1"], True)
    assert (await targets(limit=2, after=last_of_second))[:2] == (["p0"], False)
    assert (await targets(limit=1, before=last_of_second))[:2] == (["p2"], True)
    assert (await logs.list_entries(None, AuditQuery()))["data"] == []


async def test_filters(database: Database, tenant: TenantId, other_tenant: TenantId) -> None:
    await record(
        database,
        tenant,
        AuditEvent("project.created", "p1", ADMIN),
        AuditEvent("project.archived", "p1", project_id=tenant),
        AuditEvent("api_key.created", "k1", Actor("api_key", "key_2", "service_account", "sa_1")),
    )
    logs = AuditLogs(database)

    async def types(**query: object) -> list[str]:
        page = await logs.list_entries(tenant, AuditQuery(**query))  # type: ignore[arg-type]
        return [one["type"] for one in page["data"]]

    assert await types(event_types=["project.created"]) == ["project.created"]
    assert await types(actor_ids=["key_1"]) == await types(actor_ids=["user_1"])
    assert await types(actor_ids=["sa_1", "key_9"]) == ["api_key.created"]
    assert await types(actor_emails=["a@b.example"]) == ["project.created"]
    assert await types(resource_ids=["p1"]) == ["project.archived", "project.created"]
    assert await types(projects=[tenant]) == ["project.archived"]
    assert await types(projects=[other_tenant]) == []
    now = int(datetime.now(UTC).timestamp())
    assert len(await types(effective_at={"gte": now - 60, "lte": now + 60})) == 3
    assert await types(effective_at={"gt": now + 60}) == []
    assert await types(effective_at={"lt": now - 60}) == []


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 101},
        {"after": "x"},
        {"after": "audit_log-" + 32 * "0"},
        {"after": "audit_log-" + 32 * "0", "before": "audit_log-" + 32 * "0"},
        {"event_types": ["project.exploded"]},
        {"effective_at": {"gt": -1}},
        {"effective_at": {"gt": 10**18}},
        {"effective_at": {"over": 1}},
        {"actor_ids": ["x"] * 101},
    ],
)
async def test_what_cannot_be_asked_for_is_refused(
    database: Database, tenant: TenantId, query: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        await AuditLogs(database).list_entries(tenant, AuditQuery(**query))  # type: ignore[arg-type]


async def test_heads_are_written_to_the_process_log(database: Database, tenant: TenantId) -> None:
    await record(database, tenant, *[AuditEvent("project.created", f"p{n}") for n in range(3)])
    (head,) = await audit_log.heads(database, since_s=60, rows_max=9)
    (state,) = await AuditLogs(database).verify(tenant)
    assert head == (tenant, 3, bytes.fromhex(state.head))
    with captured_logs(of="gateway.services.audit_logs") as logged:
        await AuditLogs(database).anchor()
    assert [(one["tenant"], one["count"], one["rule"]) for one in logged] == [
        (str(tenant), 3, state.head)
    ]


async def test_no_chain_is_left_out_each_time(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    for one in (tenant, other_tenant):
        await record(database, one, AuditEvent("project.created", "p"))
    heads = [await audit_log.heads(database, since_s=3600, rows_max=1) for _ in range(64)]
    assert {chain for ((chain, _, _),) in heads} == {tenant, other_tenant}


async def test_a_chain_is_verified_to_its_end(
    database: Database, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.services.audit_logs.CHECKED_AT_ONCE", 2)
    await record(database, tenant, *[AuditEvent("project.created", f"p{n}") for n in range(5)])
    (state,) = await AuditLogs(database).verify(tenant)
    assert (state.count, state.number, state.faults) == (5, 5, ())
    async with database.owner_transaction() as connection:
        await connection.script("ALTER TABLE audit_log DISABLE TRIGGER USER")
        await connection.script("UPDATE audit_log SET target = 'x' WHERE number = 5")
    (state,) = await AuditLogs(database).verify(tenant)
    assert state.faults == ("entry 5 was changed",)


async def test_heads_are_told_until_the_round_after_the_next(
    database: Database, tenant: TenantId
) -> None:
    """A round may be late: none of them is left out."""
    await record(database, tenant, AuditEvent("project.created", "p"))
    for minutes, told in ((100, 1), (30, 0)):
        older = f"UPDATE audit_log SET at = at - interval '{minutes} minutes'"
        async with database.owner_transaction() as connection:
            await connection.script("ALTER TABLE audit_log DISABLE TRIGGER USER")
            await connection.script(older)
        with captured_logs(of="gateway.services.audit_logs") as logged:
            await AuditLogs(database).anchor()
        assert len(logged) == told


async def test_entries_are_kept_for_400_days(database: Database, tenant: TenantId) -> None:
    await record(database, tenant, AuditEvent("project.created", "p"))
    for days, removed in ((399, 0), (2, 1)):
        async with database.owner_transaction() as connection:
            await connection.script("ALTER TABLE audit_log DISABLE TRIGGER USER")
            older = f"UPDATE audit_log SET at = at - interval '{days} days'"
            await connection.script(older)
            await connection.script("ALTER TABLE audit_log ENABLE TRIGGER USER")
        assert await sweep.delete_audit(database, KEEP, rows_max=10) == removed


async def test_an_entry_below_the_first_one_is_told(database: Database, tenant: TenantId) -> None:
    await record(database, tenant, AuditEvent("project.created", "p1"))
    event = AuditEvent("project.deleted", "forged")
    put_in = entry_of(event, tenant, 0, ids.new_uuid(), datetime.now(UTC), bytes(32))
    async with database.transaction(tenant) as connection:
        await connection.execute(_ADD, {name: getattr(put_in, name) for name in _NAMES})
    (state,) = await AuditLogs(database).verify(tenant)
    assert "entry 0 was put in before the first one" in state.faults
