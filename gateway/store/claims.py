"""Claims: which process goes on with which response, and for how long nobody else may.

A claim is (tenant, response, epoch). Every change of owner raises the epoch, and whatever is
written for a response is compared with it, so that of two processes that both believe to own it
only one can write. Only the database's clock counts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import ids
from gateway.entries import FOLD_VERSIONS
from gateway.errors import ContentSealed, StoreError, StoreUnavailable
from gateway.store import content, flushes
from gateway.store.events import day_of
from gateway.store.packing import unpack_ids
from gateway.store.postgres.statements import Statement
from gateway.store.replicas import shares
from gateway.store.replicas.shares import EndedResponse, Start
from gateway.store.schema import EVERYONE
from gateway.telemetry.logs import EventLog
from gateway.tenancy import ProjectId, TenantId

if TYPE_CHECKING:
    from array import array
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.keyring import Keyring
    from gateway.store.postgres.database import Database, Row

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write for a response, while `epoch` is its epoch."""

    tenant_id: TenantId
    uuid: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Terms on which a process claims responses.

    `lease_s` is how long others wait for a silent process, `attempts_max` how many processes may
    begin or take over one response. `tenant_running_max` bounds the background responses of a
    tenant that are generated at once, where the tenant has no bound of its own. A tenant of which
    nothing is generated goes before others once its first response has waited `promotion_s`. The
    process leaves responses of other `fold_versions` to processes that can continue them, except
    for those of `late_fold_versions`, which it continues less well than others: it takes them once
    no other process has for `late_s`.
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
    """A response that was claimed, with all that is needed to go on with it.

    `attempts` counts this claim. `was_queued`: nobody had begun. `counted` is what its tenant's
    share (`replicas.shares`) was charged for it. `request` is the JSON echo, `plan`
    what `insert` was given as that, `prompt_ids` the prompt of the first turn.
    """

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
    """Work that a process could claim: queued responses, and begun ones that nobody owns any more.

    `lapse_s`: seconds until the first lease in force lapses, unless it is renewed; None: no lease
    is in force.
    """

    is_queued: bool
    is_left: bool
    lapse_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogHead:
    """Head of a response's log: the epoch of its owner, its next entry's number, its status."""

    epoch: int
    next_entry: int
    status: str


_CONTENT: Final = ("request", "plan", "prompt")
LOCK_KEY: Final = 0x436C61696D  # "Claim", as the number of an advisory lock
_IN_LINE: Final = 2
"""The rank, in `_CLAIM`, of what goes in the order of shares."""
_TAKE_TURNS: Final = Statement("SELECT pg_advisory_xact_lock(:key)")

_IS_OURS: Final = """
    durable AND (
        fold_version = ANY (CAST(:fold_versions AS smallint[]))
        OR fold_version = ANY (CAST(:late_fold_versions AS smallint[]))
           AND coalesce(lease_until, created_at)
               < clock_timestamp() - make_interval(secs => :late_s)
    )
"""
_BOUNDS_RUNNING: Final = """
    l.model = '*' AND l.what = 'background_running' AND l.window_s = 0 AND l.mode = 'enforce'
"""
_HAS_WAITED: Final = "created_at < clock_timestamp() - make_interval(secs => :promotion_s)"
# Nothing can be read of tenants whose keys are away: to claim would cost them an attempt.
_IS_NOT_AWAY: Final = "tenant_id <> ALL (CAST(:away AS uuid[]))"
# Keys that have something queued are found one after the other, each by a step in the index; then,
# of the tenants that come first, as many of each key as can be wanted: with one of each tenant
# there are enough, so that nothing counts that stands behind the last of these. It does not matter
# how many wait. `room` is how many more may run; null is any number. Places count within what has
# room so far, so that what is passed over takes nobody's place. `start` is where a response stands
# in the line of all tenants: `store.replicas.shares`. Where nothing of a tenant runs, and its first
# has waited for long, that goes before.
# What is chosen was seen unlocked, so its state is compared again once it is locked.
_CLAIM: Final = Statement(f"""
WITH RECURSIVE lanes AS (
    (SELECT tenant_id, key_id FROM responses WHERE status = 'queued'
     ORDER BY tenant_id, key_id LIMIT 1)
    UNION ALL
    SELECT next.* FROM lanes CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.key_id FROM responses AS r
        WHERE r.status = 'queued' AND (r.tenant_id, r.key_id) > (lanes.tenant_id, lanes.key_id)
        ORDER BY r.tenant_id, r.key_id LIMIT 1
    ) AS next
), lines AS (
    SELECT l.tenant_id, l.scope_id AS root, l.scope_id AS key_id, l.value
    FROM (SELECT DISTINCT tenant_id FROM lanes) AS t JOIN limits AS l
        ON l.tenant_id = t.tenant_id AND l.scope = 'key' AND {_BOUNDS_RUNNING}
    UNION ALL
    SELECT older.tenant_id, older.root, k.replaced_by, older.value
    FROM lines AS older JOIN api_keys AS k
        ON k.tenant_id = older.tenant_id AND k.id = older.key_id AND k.replaced_by IS NOT NULL
), begun AS MATERIALIZED (
    SELECT tenant_id, id, key_id, coalesce(project_id, tenant_id) AS project_id, background,
           {_IS_OURS} AND attempts < :attempts_max AND (
               owner IS NULL OR CAST(:take_over AS boolean) AND lease_until < clock_timestamp()
           ) AS is_left
    FROM responses
    WHERE status = 'in_progress' AND durable AND {_IS_NOT_AWAY}
), of_tenants AS (
    SELECT tenant_id, count(*) AS running FROM begun WHERE background GROUP BY 1
), of_projects AS (
    SELECT tenant_id, project_id, count(*) AS running FROM begun WHERE background GROUP BY 1, 2
), keys AS (
    SELECT DISTINCT ON (tenant_id, key_id) tenant_id, key_id, root, value - (
               SELECT count(*) FROM lines AS same JOIN begun AS b
                   ON b.tenant_id = same.tenant_id AND b.key_id = same.key_id AND b.background
               WHERE same.tenant_id = lines.tenant_id AND same.root = lines.root
           ) AS room
    FROM lines ORDER BY tenant_id, key_id, room
), heads AS MATERIALIZED (
    SELECT lanes.tenant_id, lanes.key_id, one.project_id, one.has_waited, keys.root, keys.room
    FROM lanes LEFT JOIN keys
        ON keys.tenant_id = lanes.tenant_id AND keys.key_id = lanes.key_id
    CROSS JOIN LATERAL (
        SELECT coalesce(project_id, tenant_id) AS project_id, {_HAS_WAITED} AS has_waited
        FROM responses
        WHERE status = 'queued' AND tenant_id = lanes.tenant_id AND key_id = lanes.key_id
          AND {_IS_OURS} AND {_IS_NOT_AWAY}
        ORDER BY id LIMIT 1
    ) AS one
    WHERE keys.room IS NULL OR keys.room > 0
), projects AS MATERIALIZED (
    SELECT h.tenant_id, h.project_id, l.value - coalesce(p.running, 0) AS room
    FROM (SELECT DISTINCT tenant_id, project_id FROM heads) AS h
    LEFT JOIN of_projects AS p ON p.tenant_id = h.tenant_id AND p.project_id = h.project_id
    LEFT JOIN limits AS l
        ON l.tenant_id = h.tenant_id AND l.scope = 'project' AND l.scope_id = h.project_id
           AND {_BOUNDS_RUNNING}
), next_tenants AS MATERIALIZED (
    SELECT * FROM (
        SELECT t.id AS tenant_id, coalesce(n.running, 0) AS running, h.has_waited,
               least(
                   coalesce(t.background_running_max, :tenant_running_max),
                   (SELECT min(l.value) FROM limits AS l
                    WHERE l.tenant_id = t.id AND l.scope IN ('tenant', 'organization')
                      AND l.scope_id = t.id AND {_BOUNDS_RUNNING})
               ) AS running_max,
               coalesce(s.expected, CAST(:expected AS double precision)) AS expected,
               greatest(
                   coalesce(s.served, last.served, 0),
                   coalesce(last.served, 0) - coalesce(s.expected, :expected)
               ) AS served
        FROM (
            SELECT heads.tenant_id, bool_or(has_waited) AS has_waited
            FROM heads JOIN projects USING (tenant_id, project_id)
            WHERE projects.room IS NULL OR projects.room > 0
            GROUP BY heads.tenant_id
        ) AS h
        JOIN tenants AS t ON t.id = h.tenant_id
        LEFT JOIN of_tenants AS n ON n.tenant_id = t.id
        LEFT JOIN background_shares AS s ON s.tenant_id = t.id
        LEFT JOIN background_shares AS last ON last.tenant_id = CAST(:everyone AS uuid)
    ) AS one
    WHERE running < running_max
    ORDER BY has_waited AND running = 0 DESC, served, tenant_id
    LIMIT :row_limit
), queued AS (
    SELECT one.*, heads.root, heads.room
    FROM (
        SELECT tenant_id, least(:row_limit, CASE WHEN count(*) OVER () < :row_limit
                   THEN :row_limit ELSE 1 + floor((max(served) OVER () - served) / expected)
               END) AS wanted
        FROM next_tenants
    ) AS next JOIN heads ON heads.tenant_id = next.tenant_id
    CROSS JOIN LATERAL (
        SELECT tenant_id, id, coalesce(project_id, tenant_id) AS project_id,
               {_HAS_WAITED} AS has_waited
        FROM responses
        WHERE status = 'queued' AND tenant_id = heads.tenant_id AND key_id = heads.key_id
          AND {_IS_OURS} AND {_IS_NOT_AWAY}
        ORDER BY id LIMIT CAST(least(next.wanted, heads.room) AS integer)
    ) AS one
), of_keys AS (
    SELECT *, row_number() OVER (PARTITION BY tenant_id, root ORDER BY id) AS key_place
    FROM queued
), in_projects AS (
    SELECT one.tenant_id, one.id, one.has_waited, projects.room,
           row_number() OVER (PARTITION BY one.tenant_id, one.project_id ORDER BY one.id)
               AS project_place
    FROM of_keys AS one JOIN projects
        ON projects.tenant_id = one.tenant_id AND projects.project_id = one.project_id
    WHERE one.root IS NULL OR one.key_place <= one.room
), in_tenants AS MATERIALIZED (
    SELECT tenant_id, id, has_waited,
           row_number() OVER (PARTITION BY tenant_id ORDER BY id) AS place
    FROM in_projects WHERE room IS NULL OR project_place <= room
), claimable AS (
    SELECT tenant_id, id, 0 AS rank, CAST(0 AS double precision) AS start,
           CAST(:expected AS double precision) AS expected
    FROM begun WHERE is_left
    UNION ALL
    SELECT w.tenant_id, w.id,
           CASE WHEN w.place = 1 AND w.has_waited AND t.running = 0 THEN 1 ELSE 2 END,
           t.served + (w.place - 1) * t.expected, t.expected
    FROM in_tenants AS w JOIN next_tenants AS t ON t.tenant_id = w.tenant_id
    WHERE w.place <= t.running_max - t.running
    ORDER BY rank, start, id
    LIMIT :row_limit
), locked AS (
    SELECT one.*, claimable.rank, claimable.start, claimable.expected
    FROM claimable, LATERAL (
        SELECT tenant_id, id, status = 'queued' AS was_queued, owner AS left_by
        FROM responses
        WHERE tenant_id = claimable.tenant_id AND id = claimable.id
          AND (status = 'queued' OR status = 'in_progress'
                                    AND (owner IS NULL OR lease_until < clock_timestamp()))
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS one
)
UPDATE responses AS one
SET status = 'in_progress', owner = :owner, epoch = epoch + 1, attempts = attempts + 1,
    lease_until = clock_timestamp() + make_interval(secs => :lease_s)
FROM locked JOIN tenants ON tenants.id = locked.tenant_id
WHERE one.tenant_id = locked.tenant_id AND one.id = locked.id
RETURNING one.tenant_id, one.id, one.epoch, one.next_entry, one.attempts, locked.was_queued,
          one.key_id, one.project_id, tenants.name, one.model, one.created_at,
          one.root_created_at, one.parent_id, one.background, one.streamed, one.request, one.plan,
          one.prompt, locked.left_by, locked.rank, locked.start, locked.expected
""")  # noqa: S608 - constants only

_ASKED: Final = """
    SELECT * FROM unnest(
        CAST(:tenants AS uuid[]), CAST(:responses AS uuid[]), CAST(:epochs AS integer[])
    ) AS asked (tenant_id, id, epoch)
    ORDER BY tenant_id, id
"""
# Locked one by one in this order, as an append does it: the two never wait for each other's rows.
_HELD: Final = """
WITH held AS (
    SELECT one.*
    FROM ({asked}) AS claim, LATERAL (
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
        asked=_ASKED,
        condition="owner = :owner",
        change="lease_until = clock_timestamp() + make_interval(secs => :lease_s)",
    )
)
_GIVEN_UP: Final = Statement(f"""
SELECT one.*
FROM ({_ASKED}) AS claim, LATERAL (
    SELECT tenant_id, id, owner, epoch, next_entry, CAST(created_at AT TIME ZONE 'UTC' AS date)
    FROM responses
    WHERE tenant_id = claim.tenant_id AND id = claim.id AND epoch = claim.epoch
      AND status = 'in_progress' AND owner IS NOT NULL AND durable
    FOR NO KEY UPDATE
) AS one
""")  # noqa: S608 - constants only
# Nobody's from now on; when that began is kept, for `abandoned`.
_RELEASE: Final = Statement(
    _HELD.format(
        asked=_ASKED,
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

_ABANDONED: Final = Statement("""
SELECT tenant_id, id
FROM responses
WHERE status IN ('queued', 'in_progress') AND CASE
    WHEN NOT durable AND lease_until IS NOT NULL THEN lease_until < clock_timestamp()
    WHEN NOT durable OR fold_version <> ALL (CAST(:fold_versions AS smallint[]))
        THEN coalesce(lease_until, created_at)
             < clock_timestamp() - make_interval(secs => :orphan_s)
    ELSE status = 'in_progress' AND attempts >= :attempts_max
         AND (owner IS NULL OR lease_until < clock_timestamp())
END
ORDER BY id
LIMIT :row_limit
""")

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
    """Claim up to `limit` durable responses for `owner`: first those begun, then those queued.

    Of those begun: released ones, and with `take_over` those with a lapsed lease. Of those queued:
    the oldest of the tenants that were served least (`replicas.shares`); a response whose tenant,
    project or key may run no more is skipped. `ended` is what this process has generated since its
    last claim.

    Processes claim one after the other, so two cannot pass a bound at once. Responses of tenants
    whose keys are away are skipped, or released if that shows too late. Raises `StoreUnavailable`;
    what was claimed by then is taken over when its lease lapses.
    """
    parameters = {
        "owner": owner,
        "lease_s": terms.lease_s,
        "attempts_max": terms.attempts_max,
        "tenant_running_max": terms.tenant_running_max,
        "fold_versions": terms.fold_versions,
        "late_fold_versions": terms.late_fold_versions,
        "late_s": terms.late_s,
        "row_limit": limit,
        "take_over": take_over,
        "away": database.keyring.away(),
        "promotion_s": terms.promotion_s,
        "expected": shares.EXPECTED_AT_FIRST,
        "everyone": EVERYONE,
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_TAKE_TURNS, {"key": LOCK_KEY})
        await shares.settle(connection, ended)
        rows = list(await connection.execute(_CLAIM, parameters))
        await shares.serve(connection, [_start(row) for row in rows if row.was_queued])
        heads = await flushes.settle(
            connection, [_locked_response(row) for row in rows if row.left_by]
        )
    await database.keyring.try_ready({TenantId(row.tenant_id) for row in rows})
    runs, spare = [], []
    for row in rows:
        try:
            run = await _open_run(database.keyring, row, heads.get(row.id, row.next_entry))
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
    """Return what a process with these terms could claim, read without the lock of claimants.

    Some queued responses may have to wait for others of their tenant. Raises `StoreUnavailable`.
    """
    parameters = {
        "attempts_max": terms.attempts_max,
        "fold_versions": terms.fold_versions,
        "late_fold_versions": terms.late_fold_versions,
        "late_s": terms.late_s,
        "take_over": take_over,
        "away": database.keyring.away(),
    }
    async with database.runs_transaction() as connection:
        return ClaimableWork(*(await connection.execute(_WORK, parameters)).one())


def _start(row: Row) -> Start:
    return Start(TenantId(row.tenant_id), row.start, row.expected, promoted=row.rank < _IN_LINE)


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


async def _open_run(keyring: Keyring, row: Row, next_entry: int) -> ClaimedRun:
    # Raises `StoreUnavailable`, `ContentSealed`, and `ValueError` for content of no known release.
    tenant_id = TenantId(row.tenant_id)
    sealed = [value for name in _CONTENT if (value := row[name]) is not None]
    if keyring.is_on:
        await keyring.renew(tenant_id, lambda cipher: any(map(cipher.lacks, sealed)))
    found = content.opened(keyring.of(tenant_id), "responses", row, _CONTENT)
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
        request=found["request"],
        plan=found["plan"],
        prompt_ids=unpack_ids(found["prompt"]),
        counted=row.expected,
    )


async def heartbeat(
    database: Database, owner: str, claims: Sequence[Claim], *, lease_s: float
) -> frozenset[UUID]:
    """Renew leases, lapsed ones included.

    Return the responses that `owner` still holds and runs.
    """
    parameters = _columns(claims) | {"owner": owner, "lease_s": lease_s}
    async with database.runs_transaction() as connection:
        return frozenset(await connection.scalars(_HEARTBEAT, parameters))


async def release(database: Database, claims: Sequence[Claim]) -> None:
    """Give claims up, so that any process may take them at once.

    It counts as no attempt, keeps what was appended before, and skips claims that are not held any
    more.
    """
    async with database.runs_transaction() as connection:
        given_up = await connection.execute(_GIVEN_UP, _columns(claims))
        await flushes.settle(connection, list(map(flushes.taken, given_up)))
        await connection.execute(_RELEASE, _columns(claims))


def _columns(claims: Sequence[Claim]) -> dict[str, Any]:
    return {
        "tenants": [claim.tenant_id for claim in claims],
        "responses": [claim.uuid for claim in claims],
        "epochs": [claim.epoch for claim in claims],
    }


async def abandoned(
    database: Database,
    *,
    limit: int,
    attempts_max: int,
    orphan_s: float,
    fold_versions: tuple[int, ...] = FOLD_VERSIONS,
) -> list[tuple[TenantId, UUID]]:
    """Return responses that no process will continue, oldest first; `endings.conclude` ends them.

    They have a lapsed lease and no durable log, or `attempts_max` attempts. Those of other
    `fold_versions`, and those without lease or log, are left for `orphan_s` seconds to processes
    that may be able to continue them.
    """
    parameters = {
        "attempts_max": attempts_max,
        "fold_versions": fold_versions,
        "orphan_s": orphan_s,
        "row_limit": limit,
    }
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_ABANDONED, parameters)
        return [(TenantId(tenant_id), uuid) for tenant_id, uuid in rows]


async def heads(
    database: Database, responses: Collection[tuple[TenantId, UUID]]
) -> dict[UUID, LogHead]:
    """Return the state of the logs by response; unknown and deleted responses are absent.

    What is only in flushes does not count: see `store.remote_logs`.
    """
    tenants, uuids = zip(*responses, strict=True) if responses else ((), ())
    asked = {"tenants": tenants, "responses": uuids}
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_HEADS, asked)
        return {uuid: LogHead(*head) for uuid, *head in rows}
