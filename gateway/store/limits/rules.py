"""Limits, budgets and alerts: for operators, and as they are looked up with a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.limits.terms import NO_TERMS, Budget, Limit, Meter, Terms, meter_of
from gateway.store import audit_log
from gateway.store.postgres.statements import Statement
from gateway.tenancy import default_project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.governance.audit import AuditEvent
    from gateway.limits.terms import Interval, Scope, Unit
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import Principal, ProjectId, TenantId

_LIMIT: Final = "scope, scope_id, what, value, window_s, model, mode"
_BUDGET: Final = "id, scope, scope_id, unit, span, cap, mode"
_ALERT: Final = "id, scope, scope_id, unit, span, threshold, channel, created_at"
# What a key was set goes on for the one that takes its place: they share buckets and meters.
_OWN: Final = """
    tenant_id = :tenant AND (
        scope IN ('tenant', 'organization') OR scope = 'project' AND scope_id = :project
        OR scope = 'key' AND scope_id IN (
            WITH RECURSIVE line AS (
                SELECT CAST(:key AS uuid) AS id
                UNION
                SELECT older.id FROM api_keys AS older JOIN line ON older.replaced_by = line.id
                WHERE older.tenant_id = :tenant
            )
            SELECT id FROM line
        )
    )
"""
_OF_SCOPE: Final = """
    tenant_id = :tenant AND scope = CAST(:scope AS text) AND scope_id = :scope_id
"""
_HAS_TERMS: Final = Statement(f"""
SELECT EXISTS (SELECT FROM limits WHERE {_OWN}) OR EXISTS (SELECT FROM budgets WHERE {_OWN})
       OR EXISTS (SELECT FROM spend_alerts WHERE {_OWN})
""")  # noqa: S608 - constants only
_LIMITS_OF_KEY: Final = Statement(f"SELECT {_LIMIT} FROM limits WHERE {_OWN} ORDER BY 1, 3, 5")  # noqa: S608
_BUDGETS_OF_KEY: Final = Statement(f"SELECT {_BUDGET} FROM budgets WHERE {_OWN} ORDER BY id")  # noqa: S608
_METERS_OF_KEY: Final = Statement(f"""
SELECT DISTINCT scope, scope_id, unit, span FROM spend_alerts WHERE {_OWN}
""")  # noqa: S608 - constants only
_LIMITS: Final = Statement(f"""
SELECT {_LIMIT} FROM limits WHERE tenant_id = :tenant
ORDER BY scope, scope_id, model, what, window_s
""")  # noqa: S608 - constants only
_PROJECT_OF_KEY: Final = Statement("""
SELECT project_id FROM api_keys WHERE tenant_id = :tenant AND id = :key
""")
_IS_KEY: Final = Statement("""
SELECT EXISTS (SELECT FROM api_keys WHERE tenant_id = :tenant AND id = :key)
    OR EXISTS (SELECT FROM federation_rules
               WHERE tenant_id = :tenant AND id = :key AND deleted_at IS NULL)
    OR EXISTS (SELECT FROM identity_providers
               WHERE id = :key AND tenants IS NOT NULL AND deleted_at IS NULL)
""")
_SET: Final = Statement("""
INSERT INTO limits (tenant_id, scope, scope_id, model, what, window_s, value, mode, updated_at)
VALUES (:tenant, :scope, :scope_id, :model, :what, :window_s, :value, :mode, now())
ON CONFLICT (tenant_id, scope, scope_id, model, what, window_s)
DO UPDATE SET value = excluded.value, mode = excluded.mode, updated_at = excluded.updated_at
""")
_UNSET: Final = Statement(f"""
DELETE FROM limits
WHERE {_OF_SCOPE} AND model = CAST(:model AS text) AND what = CAST(:what AS text)
  AND window_s = :window_s
""")  # noqa: S608 - constants only
_BUDGETS: Final = Statement(f"""
SELECT {_BUDGET} FROM budgets WHERE tenant_id = :tenant ORDER BY scope, scope_id, unit, span
""")  # noqa: S608 - constants only
# The one that others took the place of, one after the other.
_FIRST_OF_LINE: Final = Statement("""
WITH RECURSIVE line AS (
    SELECT CAST(:key AS uuid) AS id, 0 AS older
    UNION ALL
    SELECT k.id, line.older + 1 FROM api_keys AS k JOIN line ON k.replaced_by = line.id
    WHERE k.tenant_id = :tenant
)
SELECT id FROM line ORDER BY older DESC LIMIT 1
""")
_UNSET_BUDGET: Final = Statement(f"""
DELETE FROM budgets WHERE {_OF_SCOPE} AND unit = CAST(:unit AS text) AND span = CAST(:span AS text)
""")  # noqa: S608 - constants only
_SET_BUDGET: Final = Statement("""
INSERT INTO budgets (tenant_id, id, scope, scope_id, unit, span, cap, mode, created_at)
VALUES (:tenant, :id, :scope, :scope_id, :unit, :span, :cap, :mode, now())
ON CONFLICT (tenant_id, scope, scope_id, unit, span)
DO UPDATE SET id = excluded.id, cap = excluded.cap, mode = excluded.mode
""")
_ALERTS: Final = Statement(f"""
SELECT {_ALERT} FROM spend_alerts WHERE {_OF_SCOPE} ORDER BY created_at, id
""")  # noqa: S608 - constants only
_SET_ALERT: Final = Statement(f"""
INSERT INTO spend_alerts
    (tenant_id, id, scope, scope_id, unit, span, threshold, channel, created_at)
VALUES (:tenant, :id, :scope, :scope_id, :unit, :span, :threshold, :channel, now())
RETURNING {_ALERT}
""")  # noqa: S608 - constants only
_CHANGE_ALERT: Final = Statement(f"""
UPDATE spend_alerts
SET unit = :unit, span = :span, threshold = :threshold, channel = :channel
WHERE {_OF_SCOPE} AND id = :id
RETURNING {_ALERT}
""")  # noqa: S608 - constants only
_UNSET_ALERT: Final = Statement(f"DELETE FROM spend_alerts WHERE {_OF_SCOPE} AND id = :id")  # noqa: S608
OPERATORS: Final = "operator"
"""The type of the channel of alerts that the operator set beside a budget, at a `percent` of it."""


@dataclass(frozen=True, slots=True)
class SpendAlert:
    """Alert when so much is spent. `channel` says who is told and how, as its JSON was given."""

    id: UUID
    scope: Scope
    scope_id: UUID
    unit: Unit
    interval: Interval
    threshold: int
    channel: dict[str, Any]
    created_at: datetime | None = None

    @property
    def meter(self) -> str:
        return meter_of(self.scope, self.scope_id, self.unit, self.interval)

    @property
    def percent(self) -> int | None:
        # A percentage of the budget for operators' alerts, None for administrators'.
        return self.channel["percent"] if self.channel.get("type") == OPERATORS else None


async def terms_of(database: Database, principal: Principal) -> Terms:
    """Return the limits and budgets of a key, its project and its tenant, mostly `NO_TERMS`."""
    tenant_id, project = principal.tenant_id, principal.project
    own = {"tenant": tenant_id, "project": project, "key": principal.key_id}
    async with database.transaction(tenant_id) as connection:
        if not await connection.scalar(_HAS_TERMS, own):
            return NO_TERMS
        limits = [_limit(row) for row in await connection.execute(_LIMITS_OF_KEY, own)]
        budgets = [_budget(row) for row in await connection.execute(_BUDGETS_OF_KEY, own)]
        alerts = await connection.execute(_METERS_OF_KEY, own)
        meters = [
            Meter(meter_of(row.scope, row.scope_id, row.unit, row.span), row.unit, row.span)
            for row in alerts
        ]
    return Terms(
        tuple(limits),
        tuple(budgets),
        tuple(meters),
        organization=principal.tenant_name,
        project=ids.project_id(project),
    )


async def limits(connection: Connection, tenant_id: TenantId) -> list[Limit]:
    """Return every limit of a tenant, its projects and keys."""
    return [_limit(row) for row in await connection.execute(_LIMITS, {"tenant": tenant_id})]


async def project_of_key(
    connection: Connection, tenant_id: TenantId, key_id: UUID
) -> ProjectId | None:
    """Return the project of a key, or None if there is no such key."""
    place = {"tenant": tenant_id, "key": key_id}
    for row in await connection.execute(_PROJECT_OF_KEY, place):
        return row.project_id or default_project(tenant_id)
    return None


async def is_key(connection: Connection, tenant_id: TenantId, key_id: UUID) -> bool:
    """Return True if requests of the tenant can carry this id as their key's.

    It may be a key of the tenant, one of its federation rules, or an issuer of the operator.
    """
    found: bool = await connection.scalar(_IS_KEY, {"tenant": tenant_id, "key": key_id})
    return found


async def first_of_line(connection: Connection, tenant_id: TenantId, key_id: UUID) -> UUID:
    """Return the first key of a chain of replacements, which holds what is set for all of them.

    A key that replaced none is the first itself.
    """
    found: UUID = await connection.scalar(_FIRST_OF_LINE, {"tenant": tenant_id, "key": key_id})
    return found


async def set_limits(
    connection: Connection,
    tenant_id: TenantId,
    new: Sequence[Limit],
    event: AuditEvent,
    *,
    gone: Sequence[Limit] = (),
) -> None:
    """Write and remove limits, and write `event` to the audit log, in the caller's transaction.

    A limit replaces the one of the same name.
    """
    for limit in gone:
        await connection.execute(_UNSET, _row(tenant_id, limit))
    for limit in new:
        await connection.execute(
            _SET, {**_row(tenant_id, limit), "value": limit.value, "mode": limit.mode}
        )
    await audit_log.record(connection, tenant_id, event)


async def budgets(database: Database, tenant_id: TenantId) -> list[Budget]:
    """Return every budget of a tenant, its projects and keys."""
    async with database.transaction(tenant_id) as connection:
        return [_budget(row) for row in await connection.execute(_BUDGETS, {"tenant": tenant_id})]


async def set_budget(
    connection: Connection,
    tenant_id: TenantId,
    budget: Budget,
    event: AuditEvent,
    *,
    is_gone: bool = False,
) -> bool:
    """Write a budget in place of the one of the same scope, unit and interval, with `event`.

    With `is_gone` it is only removed. Return True if that changed anything.
    """
    place = _place(tenant_id, budget.scope, budget.scope_id)
    place |= {"unit": budget.unit, "span": budget.interval}
    if is_gone:
        changed = await connection.count(_UNSET_BUDGET, place)
    else:
        new = {"id": budget.id, "cap": budget.cap, "mode": budget.mode}
        changed = await connection.count(_SET_BUDGET, {**place, **new})
    if changed:
        await audit_log.record(connection, tenant_id, event)
    return bool(changed)


async def alerts(
    connection: Connection, tenant_id: TenantId, scope: Scope, scope_id: UUID
) -> list[SpendAlert]:
    """Return the spend alerts of one scope, oldest first."""
    place = _place(tenant_id, scope, scope_id)
    return [alert_of(row) for row in await connection.execute(_ALERTS, place)]


async def add_alert(
    connection: Connection, tenant_id: TenantId, alert: SpendAlert, event: AuditEvent
) -> SpendAlert:
    """Add a spend alert, with its entry in the audit log."""
    made = alert_of((await connection.execute(_SET_ALERT, _alert(tenant_id, alert))).one())
    await audit_log.record(connection, tenant_id, event)
    return made


async def change_alert(
    database: Database, tenant_id: TenantId, alert: SpendAlert, event: AuditEvent
) -> SpendAlert | None:
    """Change the alert with this id. Return None if its scope has none."""
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_CHANGE_ALERT, _alert(tenant_id, alert))
        if (row := rows.one_or_none()) is not None:
            await audit_log.record(connection, tenant_id, event)
    return None if row is None else alert_of(row)


async def remove_alert(
    connection: Connection,
    tenant_id: TenantId,
    scope: Scope,
    scope_id: UUID,
    alert_id: UUID,
    event: AuditEvent,
) -> bool:
    """Remove an alert. Return False if it is unknown."""
    place = {**_place(tenant_id, scope, scope_id), "id": alert_id}
    is_gone = bool(await connection.count(_UNSET_ALERT, place))
    if is_gone:
        await audit_log.record(connection, tenant_id, event)
    return is_gone


def alert_of(row: Row) -> SpendAlert:
    # `row` is one of `spend_alerts`.
    return SpendAlert(
        id=row.id,
        scope=row.scope,
        scope_id=row.scope_id,
        unit=row.unit,
        interval=row.span,
        threshold=row.threshold,
        channel=orjson.loads(row.channel),
        created_at=row.created_at,
    )


def _place(tenant_id: TenantId, scope: Scope, scope_id: UUID) -> dict[str, Any]:
    return {"tenant": tenant_id, "scope": scope, "scope_id": scope_id}


def _row(tenant_id: TenantId, limit: Limit) -> dict[str, Any]:
    place = _place(tenant_id, limit.scope, limit.scope_id)
    return {**place, "model": limit.model, "what": limit.what, "window_s": limit.window_s}


def _alert(tenant_id: TenantId, alert: SpendAlert) -> dict[str, Any]:
    return {
        **_place(tenant_id, alert.scope, alert.scope_id),
        "id": alert.id,
        "unit": alert.unit,
        "span": alert.interval,
        "threshold": alert.threshold,
        "channel": orjson.dumps(alert.channel),
    }


def _limit(row: Row) -> Limit:
    return Limit(
        scope=row.scope,
        scope_id=row.scope_id,
        what=row.what,
        value=row.value,
        window_s=row.window_s,
        model=row.model,
        mode=row.mode,
    )


def _budget(row: Row) -> Budget:
    return Budget(
        id=row.id,
        scope=row.scope,
        scope_id=row.scope_id,
        unit=row.unit,
        interval=row.span,
        cap=row.cap,
        mode=row.mode,
    )
