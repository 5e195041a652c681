"""All data of a tenant: erase a person, hold it, delete it, make an archive of it.

A deleted tenant loses its keys at once, and its data `RESTORE_S` later. Usage and the audit log
stay, without content.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.audit import BY_ITSELF, COMMAND_LINE
from gateway.errors import DataHeld, InvalidRequest
from gateway.metering import end_user_of
from gateway.retention.export import TenantArchive
from gateway.retention.person_erasure import Erasing
from gateway.retention.sweep import owns_partitions
from gateway.store import audit_log, holds, tenants
from gateway.store.periodic import run_periodically
from gateway.store.postgres.database import require_owner, turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.tables import TABLES as ALL_TABLES
from gateway.store.tables.columns import about, columns_of, metadata
from gateway.telemetry.logs import EventLog
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Table

    from gateway.audit import AuditEvent, Author
    from gateway.retention.person_erasure import Erased
    from gateway.store.postgres.database import Database, Row
    from gateway.store.tenant_keys import TenantKeys

_DAY_S: Final = 86_400
RESTORE_S: Final = 7 * _DAY_S
"""Seconds in which a deleted tenant can be restored."""
ROWS_AT_ONCE: Final = 500
EXPORTS_MAX: Final = 1
PURGE_INTERVAL_S: Final = 3600.0

_log = EventLog(__name__)


def _goes_with_another(table: Table) -> bool:
    return any(
        key.ondelete == "CASCADE" and not any(column.nullable for column in key.columns)
        for key in table.foreign_key_constraints
    )


_CHILDREN_FIRST: Final = metadata.sorted_tables[::-1]
TABLES: Final = tuple(
    str(table.name)
    for table in sorted(_CHILDREN_FIRST, key=lambda one: not about(one).is_log)
    if not about(table).lifetime.stays and not _goes_with_another(table)
)
"""Tables whose rows the removal of a tenant deletes; others follow by foreign keys. Logs first,
because a log belongs to nobody once its response is gone; a project after its accounts, because it
outlives them."""
SCRUBBED: Final = {
    name: scrubbed
    for name, table in ALL_TABLES.items()
    if (scrubbed := [one for one, of in columns_of(table).items() if of.info["scrubbed"]])
}
"""Columns, by table, that are set to null; the rows stay."""
_DELETE_SOME: Final = {
    table: Statement(f"""
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table} WHERE tenant_id = :tenant LIMIT :rows_max
    )) AND tenant_id = :tenant
    """)  # noqa: S608 - constants only
    for table in TABLES
} | {
    table: Statement(f"""
    UPDATE {table} SET {", ".join(f"{name} = NULL" for name in names)}
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table}
        WHERE tenant_id = :tenant AND ({" OR ".join(f"{name} IS NOT NULL" for name in names)})
        LIMIT :rows_max
    )) AND tenant_id = :tenant
    """)  # noqa: S608 - constants only
    for table, names in SCRUBBED.items()
}
_MARK: Final = Statement("""
UPDATE tenants SET deleted_at = coalesce(deleted_at, now()) WHERE id = :tenant RETURNING true
""")
_RESTORE: Final = Statement("""
UPDATE tenants SET deleted_at = NULL
WHERE id = :tenant AND deleted_at > now() - make_interval(secs => :window_s)
RETURNING true
""")
# Tenants whose data was removed are due for one more day, in case data arrived late.
_DUE: Final = Statement("""
SELECT id, name FROM tenants
WHERE deleted_at <= now() - make_interval(secs => :window_s) AND held_at IS NULL
  AND (purged_at IS NULL OR purged_at > now() - interval '1 day')
ORDER BY deleted_at
""")
_IS_DUE: Final = Statement("""
SELECT count(*) > 0 FROM tenants
WHERE id = :tenant AND deleted_at <= now() - make_interval(secs => :window_s) AND held_at IS NULL
""")
_PURGED: Final = Statement("""
UPDATE tenants SET purged_at = now(), disabled_at = coalesce(disabled_at, now())
WHERE id = :tenant AND (purged_at IS NULL OR CAST(:is_more AS boolean))
RETURNING true
""")


@dataclass(frozen=True, slots=True)
class Removed:
    tenant: str
    rows: dict[str, int]
    keys: int


class TenantData:
    def __init__(
        self,
        database: Database,
        keys: TenantKeys | None = None,
        *,
        end_user_secret: bytes | None = None,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> None:
        # Without `end_user_secret`, persons are found only by the identifiers in stored requests.
        # `on_rows` is called repeatedly with the number of rows that were read or removed.
        self._on_rows = on_rows
        self._database = database
        self._keys = keys
        self._end_user_secret = end_user_secret
        self._exporting = asyncio.Semaphore(EXPORTS_MAX)

    async def erase_person(
        self, name: str, person: str, *, author: Author = COMMAND_LINE
    ) -> Erased:
        """Delete all stored responses for this person, and what goes with them (`person_erasure`).

        The audit log has usage's digest of the identifier, which cannot be guessed without the
        secret, if there is one. Raises `InvalidRequest` and `DataHeld`.
        """
        if not person:
            raise InvalidRequest("Say whom to erase.", param="end_user")
        await require_owner(self._database)
        tenant = await tenants.tenant_named(self._database, name)
        async with holds.unheld(self._database, tenant.id):
            pass
        metered, target = None, str(tenant.id)
        if self._end_user_secret is not None:
            metered = end_user_of(self._end_user_secret, tenant.id, person)
            target = metered.hex()
        await self._record(tenant.id, author.event("harmony.erasure.requested", target))
        erased = await Erasing(
            self._database, tenant.id, person, metered, on_rows=self._on_rows
        ).run()
        data = asdict(erased)
        del data["seen"]
        await self._record(tenant.id, author.event("harmony.erasure.completed", target, data=data))
        return erased

    async def delete(self, name: str, *, author: Author = COMMAND_LINE) -> None:
        tenant_id = (await tenants.tenant_named(self._database, name)).id
        event = author.event("harmony.tenant.deleted", str(tenant_id))
        await self._change(_MARK, tenant_id, event)

    async def restore(self, name: str, *, author: Author = COMMAND_LINE) -> None:
        tenant_id = (await tenants.tenant_named(self._database, name, is_purged=True)).id
        event = author.event("harmony.tenant.restored", str(tenant_id))
        if not await self._change(_RESTORE, tenant_id, event, window_s=RESTORE_S):
            raise InvalidRequest(
                f"Tenant {name!r} was not deleted within the last {RESTORE_S // _DAY_S} days.",
                code="tenant_not_deleted",
                param="name",
            )

    async def hold(self, name: str, *, is_held: bool, author: Author = COMMAND_LINE) -> None:
        """Put a tenant's data under legal hold: nothing expires or is erased, shredded or purged.

        On return the change is in effect at all replicas.
        """
        tenant_id = (await tenants.tenant_named(self._database, name, is_purged=True)).id
        event = author.event(
            "harmony.tenant.updated", str(tenant_id), changes_requested={"held": is_held}
        )
        await holds.hold(self._database, tenant_id, event, is_held=is_held)

    async def purge(
        self, *, window_s: float = RESTORE_S, author: Author = COMMAND_LINE
    ) -> list[Removed]:
        """Remove the data of deleted tenants that are not held.

        First the keys, which makes content unreadable wherever it is, then the rows. After an error
        the next call continues.
        """
        await require_owner(self._database)
        async with self._database.owner_transaction() as connection:
            due: Sequence[Row] = await connection.execute(_DUE, {"window_s": window_s})
        removed = []
        for row in due:
            # The removal of the tenants before it may have taken hours.
            if not await is_due(self._database, TenantId(row.id), window_s=window_s):
                continue
            with suppress(DataHeld):
                one = await self._remove(TenantId(row.id), row.name, author)
                removed += [one] if one is not None else []
        return removed

    async def run(self) -> None:
        """Purge again and again, if this process owns the tables; else `harmony-gateway data purge`
        does.
        """
        failure = "deleted tenants were not removed, will be tried again"
        await run_periodically(self.round, PURGE_INTERVAL_S, _log.warning, failure)

    async def round(self, *, window_s: float = RESTORE_S) -> list[Removed]:
        # Raises `StoreError`; the next round continues.
        if not await owns_partitions(self._database):
            return []
        removed = await self.purge(window_s=window_s, author=BY_ITSELF)
        for one in removed:
            count = sum(one.rows.values())
            _log.info("a deleted tenant is removed", tenant=one.tenant, count=count)
        return removed

    async def _remove(self, tenant_id: TenantId, name: str, author: Author) -> Removed | None:
        # None: everything was removed before. Raises `DataHeld` under a legal hold.
        keys = 0
        if self._keys is not None:
            async with holds.unheld(self._database, tenant_id):
                keys = await self._keys.destroy(tenant_id)
        counts = {table: await self._empty(tenant_id, table) for table in _DELETE_SOME}
        data = {"keys": keys, "rows": {table: count for table, count in counts.items() if count}}
        event = author.event("harmony.tenant.purged", str(tenant_id), data=data)
        is_more = bool(keys or any(counts.values()))
        if not await self._change(_PURGED, tenant_id, event, is_more=is_more):
            return None
        return Removed(name, counts, keys)

    async def export(
        self, name: str, *, author: Author = COMMAND_LINE, with_content: bool = True
    ) -> TenantArchive:
        """Make an archive of all data of a tenant; without content it has what operators see
        anyway.

        The audit log records it before anything can be read.
        """
        tenant = await tenants.tenant_named(self._database, name, is_purged=True)
        await self._database.keyring.ready([tenant.id])
        data = {"content": with_content}
        await self._record(
            tenant.id, author.event("harmony.export.begun", str(tenant.id), data=data)
        )
        return TenantArchive(
            self._database, tenant, author, self._exporting, with_content=with_content
        )

    async def _empty(self, tenant_id: TenantId, table: str) -> int:
        total = 0
        while True:
            async with self._database.owner_transaction() as connection:
                await turn_to(connection, tenant_id)
                await holds.check(connection, tenant_id)
                bounds = {"tenant": tenant_id, "rows_max": ROWS_AT_ONCE}
                count = await connection.count(_DELETE_SOME[table], bounds)
            if not count:
                return total
            self._on_rows(count)
            total += count

    async def _change(
        self, statement: Statement, tenant_id: TenantId, event: AuditEvent, **parameters: Any
    ) -> bool:
        async with self._database.owner_transaction() as connection:
            if not await connection.scalar(statement, {"tenant": tenant_id, **parameters}):
                return False
            await audit_log.record(connection, tenant_id, event)
        return True

    async def _record(self, tenant_id: TenantId, event: AuditEvent) -> None:
        async with self._database.owner_transaction() as connection:
            await audit_log.record(connection, tenant_id, event)


async def is_due(database: Database, tenant_id: TenantId, *, window_s: float) -> bool:
    async with database.owner_transaction() as connection:
        parameters = {"tenant": tenant_id, "window_s": window_s}
        return bool(await connection.scalar(_IS_DUE, parameters))
