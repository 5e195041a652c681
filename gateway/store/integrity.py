"""Invariants of stored data that no statement can enforce, checked in pages, read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway.entries import Finished, unpack
from gateway.errors import ContentSealed
from gateway.store.content import BOUND_BY, pages_by_key, place_of
from gateway.store.postgres.statements import Statement
from gateway.store.resealing import KEYS, SEALED, keys_in
from gateway.store.schema import RUNNING
from gateway.store.tables.columns import Kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

PAGE_ROWS: Final = 200
"""Rows of one statement, which must not take longer than one of a request, nor fill the memory."""
SETTLED: Final = timedelta(minutes=15)
"""Age from which an anomaly cannot be a transaction that is under way."""
_BILLED: Final = ("completed", "incomplete", "cancelled")


@dataclass(frozen=True, slots=True)
class Scope:
    """Bounds of a check; `rows_max` is of each table. Logs and lines are kept for `log_s` and
    `lines_s`.
    """

    since: datetime
    rows_max: int
    log_s: int
    lines_s: int


@dataclass(frozen=True, slots=True)
class Violation:
    """Fault in a row. `is_certain` False: a client may have caused it."""

    invariant: str
    tenant_id: TenantId
    row: str
    detail: str
    remedy: str
    is_certain: bool = True


@dataclass(slots=True)
class Page:
    rows: int
    violations: list[Violation] = field(default_factory=list)


_LOG: Final = """
SELECT count(*) AS rows, coalesce(sum(entry_count), 0) AS entries,
    coalesce(bool_or(is_apart), false) AS has_gap
FROM (
    SELECT e.entry_count,
        e.first_entry <> lag(e.first_entry + e.entry_count, 1, 0) OVER (ORDER BY e.first_entry)
        AS is_apart
    FROM events AS e
    WHERE e.tenant_id = r.tenant_id AND e.response_id = r.id
      AND e.day = CAST(r.created_at AT TIME ZONE 'UTC' AS date)
) AS pieces
"""
_RESPONSES: Final = Statement(f"""
SELECT r.id, r.status, r.durable, r.lease_until, r.completed_at, r.next_entry, r.parent_id,
    r.parent_id IS NULL OR EXISTS (
        SELECT FROM responses AS p WHERE p.tenant_id = r.tenant_id AND p.id = r.parent_id
    ) AS has_parent,
    EXISTS (
        SELECT FROM usage AS u WHERE u.tenant_id = r.tenant_id AND u.response_id = r.id
    ) AS has_line,
    (SELECT log_retention_s FROM tenants WHERE id = r.tenant_id) AS log_s, log.*, (
        SELECT e.entries FROM events AS e
        WHERE e.tenant_id = r.tenant_id AND e.response_id = r.id AND r.durable
          AND e.day = CAST(r.created_at AT TIME ZONE 'UTC' AS date)
        ORDER BY e.first_entry DESC LIMIT 1
    ) AS last_entries
FROM responses AS r LEFT JOIN LATERAL ({_LOG}) AS log ON r.durable
WHERE r.tenant_id = :tenant AND r.created_at >= :since
  AND r.id > CAST(:after AS uuid)
ORDER BY r.id LIMIT :rows_max
""")  # noqa: S608 - constants only
_CONVERSATIONS: Final = Statement("""
SELECT c.id, c.next_position, (
    SELECT coalesce(max(i.position), -1) FROM conversation_items AS i
    WHERE i.tenant_id = c.tenant_id AND i.conversation_id = c.id
) AS last_position
FROM conversations AS c
WHERE c.tenant_id = :tenant AND c.created_at >= :since AND c.id > CAST(:after AS uuid)
ORDER BY c.id LIMIT :rows_max
""")
_PAGES: Final = {
    table: pages_by_key(table, [*keys, *SEALED[table]]) for table, keys in KEYS.items()
}


async def check_responses(
    database: Database, tenant_id: TenantId, scope: Scope
) -> AsyncIterator[Page]:
    async for rows, cipher in _by_id(database, tenant_id, _RESPONSES, scope):
        violations = [
            Violation(name, tenant_id, str(row.id), *words)
            for row in rows
            for name, *words in _of_response(row, scope, cipher)
        ]
        yield Page(len(rows), violations)


async def _by_id(
    database: Database, tenant_id: TenantId, statement: Statement, scope: Scope
) -> AsyncIterator[tuple[list[Row], ContentCipher]]:
    after, left = UUID(int=0), scope.rows_max
    while left > 0:
        rows_max = min(PAGE_ROWS, left)
        words = {"tenant": tenant_id, "since": scope.since, "after": after, "rows_max": rows_max}
        async with database.transaction(tenant_id) as connection:
            rows = await connection.execute(statement, words)
            cipher = connection.reading_cipher(tenant_id)
        yield rows, cipher
        if len(rows) < rows_max:
            return
        after, left = rows[-1].id, left - len(rows)


def _of_response(
    row: Row, scope: Scope, cipher: ContentCipher
) -> Iterator[tuple[str, str, str] | tuple[str, str, str, bool]]:
    # Names of invariants that do not hold, with detail and remedy.
    now = datetime.now(UTC)
    is_running = row.status in RUNNING
    if is_running == (row.completed_at is not None):
        yield "state", f"{row.status}, completed_at {row.completed_at}", "Report it as a defect."
        return
    if is_running:
        if row.lease_until is not None and row.lease_until < now - SETTLED:
            remedy = "Run a gateway: it takes over what can be continued, and ends the rest."
            yield "claim", f"claimed by nobody since {row.lease_until:%Y-%m-%d %H:%M}", remedy
        return
    age = now - row.completed_at
    if not row.has_parent:
        remedy = "Nothing, if the response it continues was deleted by its client."
        yield "chain", f"the response it continues, {row.parent_id}, is gone", remedy, False
    if age < SETTLED:
        return
    if row.status in _BILLED and not row.has_line and age < timedelta(seconds=scope.lines_s):
        yield "usage", "it has no usage line", "Run: harmony-gateway usage reconcile"
    kept_s = scope.log_s if row.log_s is None else row.log_s
    if row.durable and age < timedelta(seconds=kept_s):
        remedy = "The response itself is whole; only a stream of it cannot be had again."
        if why := _fault_of_log(row, cipher):
            yield "log", why, remedy


def _fault_of_log(row: Row, cipher: ContentCipher) -> str:
    if row.has_gap or row.entries != row.next_entry:
        gap = ", with a gap" if row.has_gap else ""
        return f"{row.entries} of {row.next_entry} entries are there{gap}"
    if not row.rows:
        return ""
    try:
        *_, last = unpack(cipher.open_entries(row.last_entries, row.id.bytes))
    except ContentSealed:
        return ""  # `check_content` says why
    except ValueError as error:
        return f"its last entries cannot be read: {error}"
    return "" if isinstance(last, Finished) else "it does not end with a terminal event"


async def check_conversations(
    database: Database, tenant_id: TenantId, scope: Scope
) -> AsyncIterator[Page]:
    remedy = "Nothing can be added to it: its client has to begin another."
    async for rows, _ in _by_id(database, tenant_id, _CONVERSATIONS, scope):
        wrong = (row for row in rows if row.next_position <= row.last_position)
        violations = [
            Violation(
                "positions",
                tenant_id,
                str(row.id),
                f"the next position is {row.next_position}, the last one {row.last_position}",
                remedy,
            )
            for row in wrong
        ]
        yield Page(len(rows), violations)


async def check_content(
    database: Database, tenant_id: TenantId, scope: Scope
) -> AsyncIterator[Page]:
    destroyed = await database.keyring.destroyed(tenant_id)
    for table, keys in KEYS.items():
        place: Mapping[str, Any] = {}
        left = scope.rows_max
        while left > 0:
            rows_max = min(PAGE_ROWS, left)
            words = {"tenant": tenant_id, "rows_max": rows_max, **place}
            async with database.transaction(tenant_id) as connection:
                rows = await connection.execute(_PAGES[table][bool(place)], words)
                cipher = connection.reading_cipher(tenant_id)
            violations = [
                Violation(
                    name, tenant_id, f"{table} {', '.join(str(row[one]) for one in keys)}", *words
                )
                for row in rows
                for name, *words in _of_content(cipher, table, row, destroyed)
            ]
            yield Page(len(rows), violations)
            if len(rows) < rows_max:
                break
            place = {f"after_{name}": rows[-1][name] for name in keys}
            left -= len(rows)


def _of_content(
    cipher: ContentCipher, table: str, row: Row, destroyed: frozenset[int]
) -> Iterator[tuple[str, str, str] | tuple[str, str, str, bool]]:
    remedy = "See: harmony-gateway encryption status TENANT, and whether its provider refuses."
    stored = {name: row[name] for name in SEALED[table] if row[name] is not None}
    try:
        lost = {name for name in stored if destroyed & keys_in(SEALED[table][name], stored[name])}
        for name in stored.keys() - lost:
            _open(cipher, table, row, name)
    except (ContentSealed, ValueError) as error:
        yield "sealed", str(error), remedy
        return
    if lost:
        remedy = "Nothing: it is removed when it expires."
        yield "destroyed", "its key was destroyed", remedy, False


def _open(cipher: ContentCipher, table: str, row: Row, name: str) -> None:
    if SEALED[table][name] is Kept.LOG:
        cipher.open_entries(row[name], row["response_id"].bytes)
    else:
        cipher.open(row[name], place_of(table, name), *(row[one] for one in BOUND_BY[table]))


TenantCheck = Callable[["Database", "TenantId", Scope], AsyncIterator[Page]]
CHECKS: Final[Mapping[str, TenantCheck]] = {
    "responses": check_responses,
    "conversations": check_conversations,
    "content": check_content,
}
