"""Claims: which process goes on with which response, and for how long nobody else may.

A claim is (tenant, response, epoch). Every change of owner raises the epoch, and whatever is
written for a response is compared with it, so that of two processes that both believe to own it
only one can write. Only the database's clock counts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import ids
from gateway.entries import FOLD_VERSIONS
from gateway.errors import ContentSealed, StoreError, StoreUnavailable
from gateway.store import content, flushes
from gateway.store.events import day_of
from gateway.store.packing import unpack_ids
from gateway.store.postgres.statements import Statement
from gateway.telemetry.logs import EventLog
from gateway.tenancy import ProjectId, TenantId

if TYPE_CHECKING:
    from array import array
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.encryption.keyring import Keyring
    from gateway.store.postgres.database import Database, Row

_log = EventLog("gateway.runs")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write for a response, while `epoch` is its epoch."""

    tenant_id: TenantId
    uuid: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """On what terms a process claims.

    `lease_s` is how long others wait for one that is silent, `attempts_max` how many processes may
    begin or take over one response. `tenant_running_max` bounds the background responses of a
    tenant that are generated at once, where the tenant has no bound of its own. Responses of
    other `fold_versions` are left to processes that know how to go on with them, but for those of
    `late_fold_versions`, which this process can go on with less well than others: it takes them
    once nobody has for `late_s`.
    """

    lease_s: float
    attempts_max: int
    tenant_running_max: int
    fold_versions: tuple[int, ...] = FOLD_VERSIONS
    late_fold_versions: tuple[int, ...] = ()
    late_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A response that was claimed, with all that is needed to go on with it.

    `attempts` counts this claim. `was_queued`: nobody had begun. `request` is the JSON echo, `plan`
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


class ClaimableWork(NamedTuple):
    """Is anything queued? Has anybody left one that had begun, or fallen silent?

    `lapse_s`: so many seconds until the first lease lapses that holds now, unless it is renewed;
    None: no such lease is held.
    """

    is_queued: bool
    is_left: bool
    lapse_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogHead:
    """Where the log of a response stands: whose it is, its next entry's number, its status."""

    epoch: int
    next_entry: int
    status: str


_CONTENT: Final = ("request", "plan", "prompt")
LOCK_KEY: Final = 0x436C61696D  # "Claim", as the number of an advisory lock
_TAKE_TURNS: Final = Statement("SELECT pg_advisory_xact_lock(:key)")

_IS_OURS: Final = """
    durable AND (
        fold_version = ANY (CAST(:fold_versions AS smallint[]))
        OR fold_version = ANY (CAST(:late_fold_versions AS smallint[]))
           AND coalesce(lease_until, created_at)
               < clock_timestamp() - make_interval(secs => :late_s)
    )
"""
# Nothing can be read of tenants whose keys are away: to claim would cost them an attempt.
_IS_NOT_AWAY: Final = "tenant_id <> ALL (CAST(:away AS uuid[]))"
# `place` is how many of its tenant would be running with it: 1, 2, ... from the fewest running on.
# What is chosen was seen unlocked, so its state is compared again once it is locked.
_CLAIM: Final = Statement(f"""
WITH seen AS (
    SELECT tenant_id, id, status, attempts, owner, lease_until,
           {_IS_OURS} AS is_ours,
           count(*) FILTER (WHERE status = 'in_progress' AND background)
               OVER (PARTITION BY tenant_id)
           + count(*) FILTER (WHERE status = 'queued' AND {_IS_OURS})
               OVER (PARTITION BY tenant_id ORDER BY id) AS place
    FROM responses
    WHERE status IN ('queued', 'in_progress') AND {_IS_NOT_AWAY}
), claimable AS (
    SELECT tenant_id, id
    FROM seen
    WHERE is_ours AND CASE status
        WHEN 'queued' THEN place <= coalesce(
            (SELECT background_running_max FROM tenants WHERE tenants.id = seen.tenant_id),
            :tenant_running_max
        )
        ELSE attempts < :attempts_max
             AND (owner IS NULL OR CAST(:take_over AS boolean) AND lease_until < clock_timestamp())
    END
    ORDER BY CASE status WHEN 'queued' THEN place ELSE 0 END, id
    LIMIT :row_limit
), locked AS (
    SELECT one.*
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
          one.prompt, locked.left_by
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
SELECT coalesce(bool_or(status = 'queued'), false),
       coalesce(bool_or(
           status = 'in_progress' AND attempts < :attempts_max
           AND (owner IS NULL OR CAST(:take_over AS boolean) AND lease_until < clock_timestamp())
       ), false),
       CAST(EXTRACT(EPOCH FROM min(lease_until) FILTER (
           WHERE status = 'in_progress' AND attempts < :attempts_max
           AND owner IS NOT NULL AND lease_until >= clock_timestamp()
       ) - clock_timestamp()) AS double precision)
FROM responses
WHERE status IN ('queued', 'in_progress') AND {_IS_OURS} AND {_IS_NOT_AWAY}
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
    database: Database, owner: str, terms: ClaimTerms, *, limit: int, take_over: bool
) -> list[ClaimedRun]:
    """Claim up to `limit` durable responses for `owner`: first those begun, then those queued.

    Of those begun, what was released, and with `take_over` what has a lapsed lease. Of those
    queued, the oldest of the tenants that have the fewest running, as far as each may run more.
    Processes claim one after the other, so no bound is passed by two at once. Those of tenants
    whose keys are away are left alone, and released where that is found out too late. Raises
    `StoreUnavailable`; what was claimed then, if anything, is taken over when its lease lapses.
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
    }
    async with database.runs_transaction() as connection:
        await connection.execute(_TAKE_TURNS, {"key": LOCK_KEY})
        rows = await connection.execute(_CLAIM, parameters)
        heads = await flushes.settle(connection, [_left(row) for row in rows if row.left_by])
    await database.keyring.try_ready({TenantId(row.tenant_id) for row in rows})
    runs, spare = [], []
    for row in rows:
        try:
            run = await _claimed(database.keyring, row, heads.get(row.id, row.next_entry))
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
    """What there is for a process with these terms, seen without a turn among those who claim.

    Of what is queued some may have to wait for others of its tenant. Raises `StoreUnavailable`.
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


def _left(row: Row) -> flushes.LockedResponse:
    """The response of a row of `_CLAIM` under its former owner, for `flushes.settle`."""
    return flushes.LockedResponse(
        TenantId(row.tenant_id),
        row.id,
        row.left_by,
        row.epoch - 1,
        row.next_entry,
        day_of(row.created_at),
    )


async def _claimed(keyring: Keyring, row: Row, next_entry: int) -> ClaimedRun:
    """Raises `StoreUnavailable` and `ContentSealed`, and `ValueError` for what no release wrote."""
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
    )


async def heartbeat(
    database: Database, owner: str, claims: Sequence[Claim], *, lease_s: float
) -> frozenset[UUID]:
    """Renew leases, lapsed ones included; the responses that are still the owner's and running."""
    parameters = _columns(claims) | {"owner": owner, "lease_s": lease_s}
    async with database.runs_transaction() as connection:
        return frozenset(await connection.scalars(_HEARTBEAT, parameters))


async def release(database: Database, claims: Sequence[Claim]) -> None:
    """Give claims up, so that any process may take them at once; it counts as no attempt.

    Those that are not held any more are left alone. What was appended before stays.
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
    """Responses that nobody will go on with, the oldest first; `endings.conclude` ends them.

    They have a lapsed lease and no durable log, or `attempts_max` attempts behind them. Those of
    other `fold_versions`, and those without lease or log (made by an older release), are left
    for `orphan_s` to processes that may know better.
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
    """Where their logs stand; unknown and deleted ones are absent.

    What is in flushes just now counts for nothing: see `store.remote_logs`.
    """
    tenants, uuids = zip(*responses, strict=True) if responses else ((), ())
    asked = {"tenants": tenants, "responses": uuids}
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_HEADS, asked)
        return {uuid: LogHead(*head) for uuid, *head in rows}
