from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.entries import FOLD_VERSION
from gateway.errors import KeyTaken, RateLimited
from gateway.limits.rules import NO_TERMS
from gateway.store import content, conversations, events, flushes, holds, messages
from gateway.store.claims import Claim
from gateway.store.events import LogRow, day_of
from gateway.store.limits import counters
from gateway.store.locks import Lock
from gateway.store.packing import pack_ids
from gateway.store.postgres.database import turn_to, usable_groups
from gateway.store.postgres.statements import Batch, Rows, Statement
from gateway.store.schema import TERMINAL
from gateway.store.tables.responses import ACCEPTED
from gateway.store.tools import tool_calls

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence
    from datetime import date, datetime
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.limits.rules import Terms
    from gateway.protocol.context_item import ConversationPlace, StoredItem
    from gateway.store.postgres.database import Connection, Database
    from gateway.store.tools.tool_calls import Approvals
    from gateway.tenancy import ProjectId, TenantId


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response that is accepted. `request` is JSON: the echo that it is shown with.

    `root_created_at` is when the first response of its chain, or its `conversation`, was created;
    with a `conversation` there is no parent. With an `owner` it is claimed from the start, under
    epoch 1; without, its epoch is 0 and any process may claim it, if it is durable: from `plan`
    (the caller's bytes) and `prompt_ids`. `entries` are the first ones of its log: how many, and
    packed. `secrets` and `approvals` are for `insert` alone, `running_max` for `queue_all`.
    """

    uuid: UUID
    key_id: UUID
    model: str
    created_at: datetime
    root_created_at: datetime
    request: bytes
    parent: UUID | None = None
    conversation: ConversationPlace | None = None
    background: bool = False
    stored: bool = True
    status: str = "in_progress"
    durable: bool = False
    streamed: bool = False
    plan: bytes | None = None
    prompt_ids: array[int] | None = None
    owner: str | None = None
    lease_s: float | None = None
    items: Sequence[StoredItem] = ()
    entries: tuple[int, bytes] | None = None
    idempotency: IdempotencyKey | None = None
    queued_max: int | None = None
    queue_terms: Terms = NO_TERMS
    running_max: int | None = None
    fold_version: int = FOLD_VERSION
    secrets: bytes | None = None
    tool_state: bytes | None = None
    project_id: ProjectId | None = None
    approvals: Approvals = ()

    def __post_init__(self) -> None:
        if (self.owner is None) != (self.lease_s is None):
            raise ValueError("an owner needs a lease, and a lease an owner")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A row of `responses`. `body` is None until it has finished, `plan` from then on. `is_held`: a
    process held it, by the database's clock, when this was read.
    """

    uuid: UUID
    key_id: UUID
    model: str
    status: str
    created_at: datetime
    root_created_at: datetime
    completed_at: datetime | None
    parent: UUID | None
    background: bool
    stored: bool
    durable: bool
    streamed: bool
    fold_version: int
    epoch: int
    next_entry: int
    is_held: bool
    request: bytes
    plan: bytes | None
    body: bytes | None
    recoveries: bytes | None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def day(self) -> date:
        # The day of the partition that holds its log.
        return day_of(self.created_at)


class ResponseState(NamedTuple):
    status: str
    durable: bool

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


_FIND: Final = """
SELECT id AS uuid, key_id, model, status, created_at, root_created_at, completed_at,
       parent_id AS parent, background, stored, durable, streamed, fold_version, epoch, next_entry,
       coalesce(owner IS NOT NULL AND lease_until >= clock_timestamp(), false) AS is_held,
       request, plan, body, recoveries
FROM responses
WHERE tenant_id = :tenant AND id = :id
"""
_FINDS: Final = {False: Statement(_FIND), True: Statement(f"{_FIND}FOR NO KEY UPDATE")}

_CONTENT: Final = ("request", "plan", "body", "recoveries")
_ACCEPTED_COLUMNS: Final = ", ".join(ACCEPTED)
_INSERT: Final = Statement(f"""
INSERT INTO responses (tenant_id, {_ACCEPTED_COLUMNS}, lease_until)
VALUES (:tenant_id, {", ".join(f":{name}" for name in ACCEPTED)},
        clock_timestamp() + CAST(:lease AS interval))
""")  # noqa: S608 - constants only
_NEW: Final = Rows("new", {**ACCEPTED, "lease": "interval", "entries": "bytea"})
_NAMED: Final = ", ".join(
    name for name in ACCEPTED if name not in {"status", "owner", "epoch", "attempts"}
)
_INSERT_ALL: Final = Batch(
    f"""
WITH new AS MATERIALIZED (
    SELECT * FROM {{new}}
), begun AS (
    INSERT INTO responses (tenant_id, {_ACCEPTED_COLUMNS}, lease_until)
    SELECT CAST(:tenant AS uuid), {_ACCEPTED_COLUMNS}, clock_timestamp() + lease FROM new
), logged AS (
    INSERT INTO events (tenant_id, response_id, day, epoch, first_entry, entry_count, entries)
    SELECT CAST(:tenant AS uuid), id, CAST(created_at AT TIME ZONE 'UTC' AS date), epoch,
           0, next_entry, entries
    FROM new WHERE entries IS NOT NULL
)
INSERT INTO messages (tenant_id, {messages.ADDED.names})
SELECT CAST(:tenant AS uuid), item.* FROM {{item}}
""",  # noqa: S608 - constants only
    _NEW,
    messages.ADDED,
)
# Seen under the lock of those who claim, so the bound holds for all of them. Nobody is overtaken:
# as long as one of its tenant is queued, the next one is, too.
_QUEUE_ALL: Final = Batch(
    f"""
WITH standing AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued,
           count(*) FILTER (WHERE status = 'in_progress' AND background) AS running
    FROM responses
    WHERE tenant_id = :tenant AND status IN ('queued', 'in_progress')
), placed AS (
    SELECT new.*, row_number() OVER (ORDER BY id) AS place, standing.queued,
           CASE WHEN standing.queued = 0 AND current_setting('app.has_lock') = 'true'
                THEN greatest(CAST(:running_max AS integer) - standing.running, 0) ELSE 0
           END AS free
    FROM standing, {{new}}
), taken AS MATERIALIZED (
    SELECT *, place <= free AS begins
    FROM placed
    WHERE place <= free OR queued + place - free <= :queued_max
), accepted AS (
    INSERT INTO responses ({_NAMED}, tenant_id, status, owner, lease_until, epoch, attempts)
    SELECT {_NAMED}, CAST(:tenant AS uuid),
           CASE WHEN begins THEN 'in_progress' ELSE 'queued' END,
           CASE WHEN begins THEN owner END,
           CASE WHEN begins THEN clock_timestamp() + lease END,
           CAST(begins AS integer), CAST(begins AS integer)
    FROM taken
), logged AS (
    INSERT INTO events (tenant_id, response_id, day, epoch, first_entry, entry_count, entries)
    SELECT CAST(:tenant AS uuid), id, CAST(created_at AT TIME ZONE 'UTC' AS date),
           CAST(begins AS integer), 0, next_entry, entries
    FROM taken
), added AS (
    INSERT INTO messages (tenant_id, {messages.ADDED.names})
    SELECT CAST(:tenant AS uuid), item.*
    FROM {{item}} JOIN taken ON taken.id = item.response_id
)
SELECT id, begins FROM taken
""",  # noqa: S608 - constants only
    _NEW,
    messages.ADDED,
)
_STATE: Final = Statement("""
SELECT status, durable FROM responses WHERE tenant_id = :tenant AND id = :id
""")
_COUNT_QUEUED: Final = Statement("""
SELECT count(*) FROM (
    SELECT FROM responses WHERE tenant_id = :tenant AND status = 'queued' LIMIT :queued_max
) AS queued
""")
_DELETE: Final = Statement("""
DELETE FROM responses WHERE tenant_id = :tenant AND id = :id RETURNING created_at
""")
_DELETE_APPROVALS: Final = Statement("""
DELETE FROM tool_approvals USING (
    SELECT item_id FROM messages
    WHERE tenant_id = :tenant AND response_id = :id AND is_output AND kind = 'mcp_approval_request'
) AS asked
WHERE tool_approvals.tenant_id = :tenant AND tool_approvals.request_id = asked.item_id
""")
_DELETE_LOG: Final = Statement("""
DELETE FROM events WHERE tenant_id = :tenant AND response_id = :id AND day = :day
""")


async def insert(database: Database, tenant_id: TenantId, new: NewResponse) -> None:
    """Insert an accepted response with everything that comes with it, or nothing.

    Raises `StoreConflict` for a taken id, `KeyTaken`, `RateLimited`, what `insert_writer` raises,
    and `InvalidRequest` for its `approvals`.
    """
    async with database.transaction(tenant_id) as connection:
        if new.queued_max is not None:
            await _check_queue(connection, tenant_id, new.queued_max)
            await counters.check_queue(connection, tenant_id, new.queue_terms, in_turn=True)
        row = _row(tenant_id, new, connection.cipher(tenant_id))
        if new.conversation is None:
            await connection.execute(_INSERT, row)
        else:
            await conversations.insert_writer(connection, row)
        if new.idempotency is not None:
            await take_key(connection, tenant_id, new.uuid, new.idempotency)
        await messages.add(connection, tenant_id, new.uuid, new.items)
        if new.secrets is not None:
            secrets = {"tenant": tenant_id, "id": new.uuid, "sealed": new.secrets}
            await connection.execute(_ADD_SECRETS, secrets)
        await tool_calls.use_approvals(connection, tenant_id, new.approvals, new.uuid)
        if new.entries is not None:
            claim = Claim(tenant_id, new.uuid, 0 if new.owner is None else 1)
            await events.add(connection, claim, new.created_at, LogRow(0, *new.entries))


async def insert_all(
    database: Database, new: Sequence[tuple[TenantId, NewResponse]]
) -> dict[int, bool]:
    """Insert several responses, all or none; return True for the index of each
    (`usable_groups`).

    None has an idempotency key, a conversation, or a queue to check.
    """
    groups = await usable_groups(database, new)
    if not groups:
        return {}
    async with database.bulk_transaction(groups[0][0], is_only=len(groups) == 1) as connection:
        for tenant_id, group in groups:
            await turn_to(connection, tenant_id)
            cipher = connection.cipher(tenant_id)
            statement, rows = _INSERT_ALL.of(*_all_rows(tenant_id, group, cipher))
            await connection.execute(statement, rows | {"tenant": tenant_id})
    return {place: True for _, group in groups for place, _ in group}


async def queue_all(
    database: Database, new: Sequence[tuple[TenantId, NewResponse]]
) -> dict[int, bool]:
    """Accept several durable background responses, none with an idempotency key or a
    conversation.

    Return by index: True if the response has begun under its `owner`, as far as `running_max`
    allows; False if it is queued. Those whose queue is full, or whose tenant has no usable keys,
    are left out.
    """
    groups = await usable_groups(database, new)
    became: dict[int, bool] = {}
    if not groups:
        return became
    begin = database.transaction(groups[0][0], in_bulk=True, lock_key=Lock.CLAIMS)
    async with begin as connection:
        for tenant_id, group in groups:
            await turn_to(connection, tenant_id)
            # All are of one tenant, so the policy that was read last applies to all.
            last = group[-1][1]
            bounds = {"running_max": last.running_max, "queued_max": last.queued_max}
            cipher = connection.cipher(tenant_id)
            statement, rows = _QUEUE_ALL.of(*_all_rows(tenant_id, group, cipher))
            accepted = await connection.execute(statement, rows | bounds | {"tenant": tenant_id})
            begins = dict(map(tuple, accepted))
            for place, one in group:
                if one.uuid in begins:
                    became[place] = begins[one.uuid]
    return became


def _all_rows(
    tenant_id: TenantId, new: Iterable[tuple[int, NewResponse]], cipher: ContentCipher
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for _, one in new:
        rows.append(_row(tenant_id, one, cipher))
        if one.items:
            items += messages.rows_of(one.uuid, one.items, cipher)
    return rows, items


async def check(
    database: Database,
    tenant_id: TenantId,
    *,
    conversation: ConversationPlace | None,
    idempotency: IdempotencyKey | None,
    queued_max: int | None,
    queue_terms: Terms = NO_TERMS,
) -> None:
    """Raise what `insert` would raise now for such a response, without writing anything."""
    async with database.transaction(tenant_id) as connection:
        if queued_max is not None:
            await _check_queue(connection, tenant_id, queued_max)
            await counters.check_queue(connection, tenant_id, queue_terms, in_turn=False)
        if conversation is not None:
            await conversations.check_writer(connection, tenant_id, conversation)
        if idempotency is not None:
            await check_key(connection, tenant_id, idempotency)


async def _check_queue(connection: Connection, tenant_id: TenantId, queued_max: int) -> None:
    # Without a lock, so simultaneous requests may all get the last free slot.
    parameters = {"tenant": tenant_id, "queued_max": queued_max}
    if await connection.scalar(_COUNT_QUEUED, parameters) == queued_max:
        raise RateLimited(
            f"Too many background responses are waiting already (at most {queued_max} may). Try"
            " again when some of them have been generated.",
            code="rate_limit_exceeded",
        )


def _row(tenant_id: TenantId, new: NewResponse, cipher: ContentCipher) -> dict[str, Any]:
    epoch = 0 if new.owner is None else 1
    entries = None
    if new.entries is not None:
        entries = cipher.seal_entries(new.entries[1], new.uuid.bytes, epoch, 0)
    row = {
        "tenant_id": tenant_id,
        "id": new.uuid,
        "key_id": new.key_id,
        "status": new.status,
        "model": new.model,
        "background": new.background,
        "stored": new.stored,
        "durable": new.durable,
        "streamed": new.streamed,
        "created_at": new.created_at,
        "root_created_at": new.root_created_at,
        "parent_id": new.parent,
        "conversation_id": new.conversation and new.conversation.uuid,
        "conversation_end": new.conversation and new.conversation.end,
        "request": new.request,
        "plan": new.plan,
        "prompt": None if new.prompt_ids is None else pack_ids(new.prompt_ids),
        "owner": new.owner,
        "lease": None if new.lease_s is None else timedelta(seconds=new.lease_s),
        "epoch": epoch,
        "attempts": epoch,
        "next_entry": 0 if new.entries is None else new.entries[0],
        "entries": entries,
        "fold_version": new.fold_version,
        "tool_state": new.tool_state,
        "project_id": new.project_id,
    }
    return content.sealed(cipher, "responses", row)


async def load(database: Database, tenant_id: TenantId, uuid: UUID) -> StoredResponse | None:
    async with database.bulk_transaction(tenant_id) as connection:
        return await find(connection, tenant_id, uuid)


async def find(
    connection: Connection, tenant_id: TenantId, uuid: UUID, *, locked: bool = False
) -> StoredResponse | None:
    of_it = {"tenant": tenant_id, "id": uuid}
    row = (await connection.execute(_FINDS[locked], of_it)).one_or_none()
    if row is None:
        return None
    stored = StoredResponse(*row)
    cipher = connection.cipher(tenant_id)
    stored_values = {name: getattr(stored, name) for name in _CONTENT}
    opened = content.opened(cipher, "responses", {"id": uuid, **stored_values}, _CONTENT)
    return replace(stored, **opened) if opened != stored_values else stored


async def state(database: Database, tenant_id: TenantId, uuid: UUID) -> ResponseState | None:
    """Return the state without content, which may be sealed with a destroyed key."""
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_STATE, {"tenant": tenant_id, "id": uuid})
    row = rows.one_or_none()
    return None if row is None else ResponseState(*row)


async def delete(database: Database, tenant_id: TenantId, uuid: UUID) -> bool:
    """Erase a response with its items, its log and its approval requests.

    Its usage line and the audit of its tool calls stay. Raises `DataHeld`.
    """
    of_it = {"tenant": tenant_id, "id": uuid}
    async with database.transaction(tenant_id) as connection:
        await holds.check(connection, tenant_id)
        await connection.execute(_DELETE_APPROVALS, of_it)
        await flushes.settle_one(connection, tenant_id, uuid)
        created_at: datetime | None = await connection.scalar(_DELETE, of_it)
        if created_at is None:
            return False
        # Items go by their foreign key, so that one which a concurrent `finish` adds goes too.
        await connection.execute(_DELETE_LOG, of_it | {"day": day_of(created_at)})
        await flushes.erase(connection, tenant_id, uuid)
    return True


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """SHA-256 of a key, and of the body that came with it."""

    key_hash: bytes
    fingerprint: bytes
    ttl_s: float


class KeyUse(NamedTuple):
    fingerprint: bytes
    uuid: UUID


_FIND_KEY: Final = Statement("""
SELECT fingerprint, response_id
FROM idempotency_keys
WHERE tenant_id = :tenant AND key_hash = :key_hash
  AND created_at > clock_timestamp() - make_interval(secs => :ttl_s)
""")
_TAKE_KEY: Final = Statement("""
INSERT INTO idempotency_keys AS key (tenant_id, key_hash, fingerprint, response_id, created_at)
VALUES (:tenant, :key_hash, :fingerprint, :response, clock_timestamp())
ON CONFLICT (tenant_id, key_hash) DO UPDATE
SET fingerprint = excluded.fingerprint, response_id = excluded.response_id,
    created_at = excluded.created_at
WHERE key.created_at <= clock_timestamp() - make_interval(secs => :ttl_s)
RETURNING true
""")
_FREE_KEY: Final = Statement("""
DELETE FROM idempotency_keys WHERE tenant_id = :tenant AND response_id = :response
""")


async def find_key(
    database: Database, tenant_id: TenantId, key_hash: bytes, *, ttl_s: float
) -> KeyUse | None:
    parameters = {"tenant": tenant_id, "key_hash": key_hash, "ttl_s": ttl_s}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_FIND_KEY, parameters)).one_or_none()
    return None if row is None else KeyUse(*row)


async def check_key(connection: Connection, tenant_id: TenantId, key: IdempotencyKey) -> None:
    parameters = {"tenant": tenant_id, "key_hash": key.key_hash, "ttl_s": key.ttl_s}
    if (await connection.execute(_FIND_KEY, parameters)).one_or_none() is not None:
        raise KeyTaken


async def take_key(
    connection: Connection, tenant_id: TenantId, uuid: UUID, key: IdempotencyKey
) -> None:
    """Bind the key to a response, in the transaction that inserts it. Raises `KeyTaken`."""
    parameters = {
        "tenant": tenant_id,
        "key_hash": key.key_hash,
        "fingerprint": key.fingerprint,
        "response": uuid,
        "ttl_s": key.ttl_s,
    }
    if not await connection.scalar(_TAKE_KEY, parameters):
        raise KeyTaken


async def free_key(connection: Connection, tenant_id: TenantId, uuid: UUID) -> None:
    await connection.execute(_FREE_KEY, {"tenant": tenant_id, "response": uuid})


_ADD_SECRETS: Final = Statement("""
INSERT INTO run_secrets (tenant_id, response_id, sealed) VALUES (:tenant, :id, :sealed)
""")
_FIND_SECRETS: Final = Statement("""
SELECT sealed FROM run_secrets WHERE tenant_id = :tenant AND response_id = :id
""")
_ERASE_SECRETS: Final = Statement("""
DELETE FROM run_secrets WHERE tenant_id = :tenant AND response_id = :id
""")


async def load_secrets(database: Database, tenant_id: TenantId, response: UUID) -> bytes | None:
    async with database.transaction(tenant_id) as connection:
        sealed: bytes | None = await connection.scalar(
            _FIND_SECRETS, {"tenant": tenant_id, "id": response}
        )
        return sealed


async def erase_secrets(connection: Connection, tenant_id: TenantId, response: UUID) -> None:
    await connection.execute(_ERASE_SECRETS, {"tenant": tenant_id, "id": response})
