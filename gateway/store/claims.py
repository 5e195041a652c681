"""Claims: the process that works on a response, and the time until another one may take it.

Every change of owner raises the epoch, with which every write is compared, so only one of two
processes that both believe to own a response can write. Only the database's clock counts.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import ids
from gateway.entries import FOLD_VERSIONS
from gateway.errors import ContentSealed, StoreError, StoreUnavailable
from gateway.store import claim_order, content, flushes, locks
from gateway.store.claim_order import (
    FreePlaces,
    QueuedKey,
    QueuedResponse,
    RunningCount,
    RunningLimit,
)
from gateway.store.events import day_of
from gateway.store.locks import Lock
from gateway.store.packing import unpack_ids
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.telemetry.logs import EventLog
from gateway.tenancy import ProjectId, TenantId

if TYPE_CHECKING:
    from array import array
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.keyring import Keyring
    from gateway.store.claim_order import EndedResponse, Start
    from gateway.store.postgres.database import Connection, Database, Row

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    tenant_id: TenantId
    uuid: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Terms on which a process claims responses.

    `attempts_max` bounds the processes that begin or take over one response; `tenant_running_max`
    holds where a tenant has no bound of its own. A tenant of which nothing is generated goes first
    once a response has waited `promotion_s`. Responses of `late_fold_versions`, which this process
    continues less well than others, are taken once no other process has for `late_s`.
    """

    lease_s: float
    attempts_max: int
    tenant_running_max: int
    fold_versions: tuple[int, ...] = FOLD_VERSIONS
    late_fold_versions: tuple[int, ...] = ()
    late_s: float = 30.0
    promotion_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A claimed response. `attempts` counts this claim; `was_queued`: no process had begun it."""

    claim: Claim
    next_entry: int
    attempts: int
    was_queued: bool
    key_id: UUID
    project_id: ProjectId | None
    tenant_name: str
    model: str
    created_at: datetime
    root_created_at: datetime
    parent: UUID | None
    background: bool
    streamed: bool
    request: bytes
    plan: bytes
    prompt_ids: array[int]
    counted: float = field(default=0.0, compare=False)


class ClaimableWork(NamedTuple):
    """Work for a claim: queued responses, and begun ones without an owner.

    `lapse_s`: seconds until the first lease lapses, unless renewed; None: none is in force.
    """

    is_queued: bool
    is_left: bool
    lapse_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogHead:
    epoch: int
    next_entry: int
    status: str


_CONTENT: Final = ("request", "plan", "prompt")

_IS_OURS: Final = """
    durable AND (
        fold_version = ANY (CAST(:fold_versions AS smallint[]))
        OR fold_version = ANY (CAST(:late_fold_versions AS smallint[]))
           AND coalesce(lease_until, created_at)
               < clock_timestamp() - make_interval(secs => :late_s)
    )
"""
_HAS_WAITED: Final = "created_at < clock_timestamp() - make_interval(secs => :promotion_s)"
# Nothing can be read of tenants whose keys are away: to claim would cost them an attempt, and what
# cannot be ended would keep others from being ended.
_IS_NOT_AWAY: Final = "tenant_id <> ALL (CAST(:away AS uuid[]))"

# Per key and project the number in background, and the oldest that may be taken over.
_BEGUN: Final = Statement(f"""
SELECT tenant_id, key_id, coalesce(project_id, tenant_id), count(*) FILTER (WHERE background),
       (array_agg(id ORDER BY id) FILTER (
           WHERE attempts < :attempts_max AND {_IS_OURS}
             AND (owner IS NULL OR CAST(:take_over AS boolean) AND lease_until < clock_timestamp())
       ))[:CAST(:row_limit AS integer)]
FROM responses
WHERE status = 'in_progress' AND durable AND {_IS_NOT_AWAY}
GROUP BY 1, 2, 3
""")  # noqa: S608 - constants only
# Keys that have something queued are found one after the other, each by a step in the index: it
# does not matter how many responses wait.
_QUEUED_KEYS: Final = Statement(f"""
WITH RECURSIVE keys AS (
    (SELECT tenant_id, key_id FROM responses WHERE status = 'queued'
     ORDER BY tenant_id, key_id LIMIT 1)
    UNION ALL
    SELECT next.* FROM keys CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.key_id FROM responses AS r
        WHERE r.status = 'queued' AND (r.tenant_id, r.key_id) > (keys.tenant_id, keys.key_id)
        ORDER BY r.tenant_id, r.key_id LIMIT 1
    ) AS next
)
SELECT keys.tenant_id, keys.key_id, first.id, first.project_id, first.has_waited,
       coalesce(tenants.background_running_max, :tenant_running_max),
       -- No tenant begins further back than one response behind the tenant that went last.
       greatest(coalesce(s.served, last.served, 0),
                last.served - coalesce(s.expected, CAST(:expected AS double precision))) AS served,
       coalesce(s.expected, :expected) AS expected
FROM keys CROSS JOIN LATERAL (
    SELECT id, coalesce(project_id, tenant_id) AS project_id, {_HAS_WAITED} AS has_waited
    FROM responses
    WHERE status = 'queued' AND tenant_id = keys.tenant_id AND key_id = keys.key_id
      AND {_IS_OURS} AND {_IS_NOT_AWAY}
    ORDER BY id LIMIT 1
) AS first
JOIN tenants ON tenants.id = keys.tenant_id
LEFT JOIN background_shares AS s ON s.tenant_id = keys.tenant_id
LEFT JOIN background_shares AS last ON last.tenant_id = CAST(:everyone AS uuid)
""")  # noqa: S608 - constants only
_LIMITS: Final = Statement("""
WITH RECURSIVE bounds AS (
    SELECT tenant_id, scope, scope_id, scope_id AS member_id, value FROM limits
    WHERE tenant_id = ANY (CAST(:tenants AS uuid[])) AND model = '*' AND what = 'background_running'
      AND window_s = 0 AND mode = 'enforce'
    UNION
    SELECT b.tenant_id, b.scope, b.scope_id, k.replaced_by, b.value
    FROM bounds AS b JOIN api_keys AS k ON k.tenant_id = b.tenant_id AND k.id = b.member_id
    WHERE b.scope = 'key' AND k.replaced_by IS NOT NULL
)
SELECT * FROM bounds
""")
_WAITING: Final = Statement(f"""
SELECT one.*
FROM unnest(CAST(:tenants AS uuid[]), CAST(:keys AS uuid[]), CAST(:numbers AS integer[]))
     AS keys (tenant_id, key_id, number)
CROSS JOIN LATERAL (
    SELECT tenant_id, id, key_id, coalesce(project_id, tenant_id), {_HAS_WAITED}
    FROM responses
    WHERE status = 'queued' AND tenant_id = keys.tenant_id AND key_id = keys.key_id AND {_IS_OURS}
    ORDER BY id LIMIT keys.number
) AS one
""")  # noqa: S608 - constants only
# The chosen rows were read without locks, so their state is compared again under the lock.
_CLAIM: Final = Statement("""
WITH locked AS (
    SELECT one.*
    FROM unnest(CAST(:tenants AS uuid[]), CAST(:responses AS uuid[])) AS chosen (tenant_id, id),
    LATERAL (
        SELECT tenant_id, id, status = 'queued' AS was_queued, owner AS left_by
        FROM responses
        WHERE tenant_id = chosen.tenant_id AND id = chosen.id
          AND (status = 'queued' OR status = 'in_progress'
                                    AND (owner IS NULL OR lease_until < clock_timestamp()))
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS one
)
UPDATE responses AS one
SET status = 'in_progress', owner = :owner, epoch = epoch + 1, attempts = attempts + 1,
    lease_until = clock_timestamp() + make_interval(secs => :lease_s)
FROM locked
WHERE one.tenant_id = locked.tenant_id AND one.id = locked.id
RETURNING one.tenant_id, one.id, one.epoch, one.next_entry, one.attempts, locked.was_queued,
          one.key_id, one.project_id, (SELECT name FROM tenants WHERE id = one.tenant_id) AS name,
          one.model, one.created_at, one.root_created_at, one.parent_id, one.background,
          one.streamed, one.request, one.plan, one.prompt, locked.left_by
""")

_CLAIM_ROWS: Final = """
    SELECT * FROM unnest(
        CAST(:tenants AS uuid[]), CAST(:responses AS uuid[]), CAST(:epochs AS integer[])
    ) AS asked (tenant_id, id, epoch)
    ORDER BY tenant_id, id
"""
# Locked one by one in this order, as an append does it: the two never wait for each other's rows.
_HELD: Final = """
WITH held AS (
    SELECT one.*
    FROM ({claims_sql}) AS claim, LATERAL (
        SELECT tenant_id, id
        FROM responses
        WHERE tenant_id = claim.tenant_id AND id = claim.id AND epoch = claim.epoch
          AND status = 'in_progress' AND {condition}
        FOR NO KEY UPDATE
    ) AS one
)
UPDATE responses AS one SET {change}
FROM held
WHERE one.tenant_id = held.tenant_id AND one.id = held.id
RETURNING one.id
"""
_HEARTBEAT: Final = Statement(
    _HELD.format(
        claims_sql=_CLAIM_ROWS,
        condition="owner = :owner",
        change="lease_until = clock_timestamp() + make_interval(secs => :lease_s)",
    )
)
_SELECT_HELD: Final = Statement(f"""
SELECT one.*
FROM ({_CLAIM_ROWS}) AS claim, LATERAL (
    SELECT tenant_id, id, owner, epoch, next_entry, CAST(created_at AT TIME ZONE 'UTC' AS date)
    FROM responses
    WHERE tenant_id = claim.tenant_id AND id = claim.id AND epoch = claim.epoch
      AND status = 'in_progress' AND owner IS NOT NULL AND durable
    FOR NO KEY UPDATE
) AS one
""")  # noqa: S608 - constants only
# The response has no owner from now on; `lease_until` keeps the time, for `abandoned`.
_RELEASE: Final = Statement(
    _HELD.format(
        claims_sql=_CLAIM_ROWS,
        condition="owner IS NOT NULL",
        change="owner = NULL, lease_until = clock_timestamp(), attempts = one.attempts - 1",
    )
)

_WORK: Final = Statement(f"""
SELECT (
           -- In the order of the index: for EXISTS the planner may read the table to the first.
           SELECT true FROM responses WHERE status = 'queued' AND {_IS_OURS} AND {_IS_NOT_AWAY}
           ORDER BY tenant_id, key_id LIMIT 1
       ) IS NOT NULL,
       coalesce(bool_or(
           owner IS NULL OR CAST(:take_over AS boolean) AND lease_until < clock_timestamp()
       ), false),
       CAST(EXTRACT(EPOCH FROM min(lease_until) FILTER (
           WHERE owner IS NOT NULL AND lease_until >= clock_timestamp()
       ) - clock_timestamp()) AS double precision)
FROM responses
WHERE status = 'in_progress' AND attempts < :attempts_max AND {_IS_OURS} AND {_IS_NOT_AWAY}
""")  # noqa: S608 - constants only

_ABANDONED: Final = Statement(f"""
SELECT tenant_id, id
FROM responses
WHERE status IN ('queued', 'in_progress') AND {_IS_NOT_AWAY} AND CASE
    WHEN NOT durable AND lease_until IS NOT NULL THEN lease_until < clock_timestamp()
    WHEN NOT durable OR fold_version <> ALL (CAST(:fold_versions AS smallint[]))
        THEN coalesce(lease_until, created_at)
             < clock_timestamp() - make_interval(secs => :orphan_s)
    ELSE status = 'in_progress' AND attempts >= :attempts_max
         AND (owner IS NULL OR lease_until < clock_timestamp())
END
ORDER BY id
LIMIT :row_limit
""")  # noqa: S608 - constants only

_HEADS: Final = Statement("""
SELECT one.id, one.epoch, one.next_entry, one.status
FROM unnest(CAST(:tenants AS uuid[]), CAST(:responses AS uuid[])) AS asked (tenant_id, id)
JOIN responses AS one ON one.tenant_id = asked.tenant_id AND one.id = asked.id
""")


async def claim(
    database: Database,
    owner: str,
    terms: ClaimTerms,
    *,
    limit: int,
    take_over: bool,
    ended: Sequence[EndedResponse] = (),
) -> list[ClaimedRun]:
    """Claim up to `limit` durable responses: first those begun, then those queued.

    Of those begun: released ones, and with `take_over` those with a lapsed lease. Processes claim
    one after the other, so two cannot pass a bound at once. Responses of tenants whose keys are
    away are skipped, or released if that shows too late. What was claimed before an error is taken
    over when its lease lapses.
    """
    parameters = _parameters(database, terms, take_over=take_over) | {
        "promotion_s": terms.promotion_s,
        "tenant_running_max": terms.tenant_running_max,
    }
    async with database.runs_transaction() as connection:
        await locks.take(connection, Lock.CLAIMS)
        await claim_order.settle_costs(connection, ended)
        begun = await connection.execute(_BEGUN, parameters | {"row_limit": limit})
        left = ((uuid, tenant_id) for tenant_id, *_, uuids in begun for uuid in uuids or ())
        chosen = sorted(left)[:limit]
        running = [RunningCount(*one) for *one, _ in begun if one[-1]]
        starts = await _next_queued(connection, parameters, running, limit=limit - len(chosen))
        chosen += [(uuid, start.tenant_id) for uuid, start in starts.items()]
        rows: list[Row] = []
        if chosen:
            locked = {
                "responses": [uuid for uuid, _ in chosen],
                "tenants": [one for _, one in chosen],
            }
            lease = {"owner": owner, "lease_s": terms.lease_s}
            rows = await connection.execute(_CLAIM, locked | lease)
        await claim_order.charge_starts(
            connection, [starts[row.id] for row in rows if row.was_queued]
        )
        heads = await flushes.settle(
            connection, [_locked_response(row) for row in rows if row.left_by]
        )
    await database.keyring.try_ready({TenantId(row.tenant_id) for row in rows})
    runs, spare = [], []
    for row in rows:
        try:
            start = starts.get(row.id)
            counted = claim_order.EXPECTED_AT_FIRST if start is None else start.expected
            next_entry = heads.get(row.id, row.next_entry)
            run = await _open_run(database.keyring, row, next_entry, counted)
        except StoreUnavailable:
            spare.append(Claim(TenantId(row.tenant_id), row.id, row.epoch))
        except (ContentSealed, ValueError) as error:
            # It stays claimed until its lease lapses; others reap it in the end.
            _log.warning(
                "a claimed response cannot be opened",
                response_id=ids.response_id(row.id),
                error=error,
            )
        else:
            runs.append(run)
    if spare:
        with suppress(StoreError):  # then their leases lapse
            await release(database, spare)
    return sorted(runs, key=lambda run: (run.was_queued, run.claim.uuid))


async def work(database: Database, terms: ClaimTerms, *, take_over: bool) -> ClaimableWork:
    parameters = _parameters(database, terms, take_over=take_over)
    async with database.runs_transaction() as connection:
        return ClaimableWork(*(await connection.execute(_WORK, parameters)).one())


def _parameters(database: Database, terms: ClaimTerms, *, take_over: bool) -> dict[str, Any]:
    return {
        "attempts_max": terms.attempts_max,
        "fold_versions": terms.fold_versions,
        "late_fold_versions": terms.late_fold_versions,
        "late_s": terms.late_s,
        "take_over": take_over,
        "away": database.keyring.away(),
    }


async def _next_queued(
    connection: Connection, parameters: dict[str, Any], running: list[RunningCount], *, limit: int
) -> dict[UUID, Start]:
    # Under the claimants' lock no other process begins background responses, so counts of several
    # statements can only become smaller until the claim.
    if limit <= 0:
        return {}
    shared = {"expected": claim_order.EXPECTED_AT_FIRST, "everyone": EVERYONE}
    key_rows = await connection.execute(_QUEUED_KEYS, parameters | shared)
    keys = [QueuedKey(*row) for row in key_rows]
    if not keys:
        return {}
    of_tenants = {"tenants": list({one.tenant_id for one in keys})}
    limits = await connection.execute(_LIMITS, parameters | of_tenants)
    places = FreePlaces(keys, itertools.starmap(RunningLimit, limits), running)
    read = claim_order.keys_to_read(keys, places, limit=limit)
    if not read:
        return {}
    of_keys = dict(zip(("tenants", "keys", "numbers"), zip(*read, strict=True), strict=True))
    waiting = await connection.execute(_WAITING, parameters | of_keys)
    return claim_order.choose(keys, itertools.starmap(QueuedResponse, waiting), places, limit=limit)


def _locked_response(row: Row) -> flushes.LockedResponse:
    # `row` is one of `_CLAIM`; the response is still under its former owner.
    return flushes.LockedResponse(
        TenantId(row.tenant_id),
        row.id,
        row.left_by,
        row.epoch - 1,
        row.next_entry,
        day_of(row.created_at),
    )


async def _open_run(keyring: Keyring, row: Row, next_entry: int, counted: float) -> ClaimedRun:
    # Raises `StoreUnavailable`, `ContentSealed`, and `ValueError` for content of no known release.
    tenant_id = TenantId(row.tenant_id)
    sealed = [value for name in _CONTENT if (value := row[name]) is not None]
    if keyring.is_on:
        await keyring.renew(tenant_id, lambda cipher: any(map(cipher.lacks, sealed)))
    values = content.opened(keyring.of(tenant_id), "responses", row, _CONTENT)
    return ClaimedRun(
        claim=Claim(tenant_id, row.id, row.epoch),
        next_entry=next_entry,
        attempts=row.attempts,
        was_queued=row.was_queued,
        key_id=row.key_id,
        project_id=row.project_id and ProjectId(row.project_id),
        tenant_name=row.name,
        model=row.model,
        created_at=row.created_at,
        root_created_at=row.root_created_at,
        parent=row.parent_id,
        background=row.background,
        streamed=row.streamed,
        request=values["request"],
        plan=values["plan"],
        prompt_ids=unpack_ids(values["prompt"]),
        counted=counted,
    )


async def heartbeat(
    database: Database, owner: str, claims: Sequence[Claim], *, lease_s: float
) -> frozenset[UUID]:
    """Renew leases, lapsed ones included; return the responses that `owner` still runs."""
    parameters = _columns(claims) | {"owner": owner, "lease_s": lease_s}
    async with database.runs_transaction() as connection:
        return frozenset(await connection.scalars(_HEARTBEAT, parameters))


async def release(database: Database, claims: Sequence[Claim]) -> None:
    """Release claims, so that any process may take the responses at once; it counts as no
    attempt.
    """
    async with database.runs_transaction() as connection:
        released = await connection.execute(_SELECT_HELD, _columns(claims))
        await flushes.settle(connection, list(map(flushes.taken, released)))
        await connection.execute(_RELEASE, _columns(claims))


def _columns(claims: Sequence[Claim]) -> dict[str, Any]:
    return {
        "tenants": [claim.tenant_id for claim in claims],
        "responses": [claim.uuid for claim in claims],
        "epochs": [claim.epoch for claim in claims],
    }


async def abandoned(
    database: Database, *, limit: int, attempts_max: int, orphan_s: float
) -> list[tuple[TenantId, UUID]]:
    """Return responses that no process will continue, oldest first.

    They have a lapsed lease and no durable log, or `attempts_max` attempts. Those of other fold
    versions, and those without lease or log, are left for `orphan_s` to processes that may
    continue them. Those of tenants whose keys are away are left out.
    """
    parameters = {
        "attempts_max": attempts_max,
        "fold_versions": FOLD_VERSIONS,
        "orphan_s": orphan_s,
        "row_limit": limit,
        "away": database.keyring.away(),
    }
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_ABANDONED, parameters)
        return [(TenantId(tenant_id), uuid) for tenant_id, uuid in rows]


async def heads(
    database: Database, responses: Collection[tuple[TenantId, UUID]]
) -> dict[UUID, LogHead]:
    """Return the heads of logs, without entries that are only in flushes."""
    tenants, uuids = zip(*responses, strict=True) if responses else ((), ())
    parameters = {"tenants": tenants, "responses": uuids}
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_HEADS, parameters)
        return {uuid: LogHead(*head) for uuid, *head in rows}
