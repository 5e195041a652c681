"""`/admin/v1/responses`: stored responses of all tenants, and the timeline and content of one.

Without a reveal no statement reads a column with content. A reveal takes the permission
`content.read`, a reason, and that the tenant allows it (`content_access`). Its audit entry lets the
same operator read the response for `REVEAL_S`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
from pydantic import StringConstraints

from gateway import ids
from gateway.admin.data_controls import find_access
from gateway.admin.routes import PAGE, AdminRoute, audited, changed, read
from gateway.api.query import integer, list_body, several, values_of
from gateway.engine.run_spec import head_of
from gateway.entries import FOLD_VERSIONS, Singles, portions
from gateway.errors import InvalidRequest, PermissionDenied, RateLimited
from gateway.eventlog.fold.execution import PHASES, execution_of, unpacked_timeline
from gateway.eventlog.fold_slices import READ_BYTES_MAX, SLICE_S
from gateway.protocol.admin_bodies import NoBody, moment_of, seconds_of
from gateway.protocol.base import WireModel
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import wrong_value
from gateway.services.retrieval import ENDED, not_found
from gateway.services.token_view import LogView, TokenView
from gateway.store import audit_log, content, flushes, messages
from gateway.store import responses as rows
from gateway.store.events import day_of
from gateway.store.locks import TenantLock, take_turns
from gateway.store.packing import unpack_ids
from gateway.store.postgres.statements import Statement
from gateway.store.schema import RUNNING, TERMINAL
from gateway.store.tables.ledger import COUNTS
from gateway.tenancy import ProjectId, TenantId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from uuid import UUID

    from starlette.datastructures import QueryParams

    from gateway.admin.data_controls import OperatorAccess
    from gateway.admin.routes import AdminCall
    from gateway.audit import AuditEvent, Author
    from gateway.entries import Portion
    from gateway.eventlog.feed import Feed
    from gateway.eventlog.fold.execution import Execution, Moment
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.live_log import LiveLogRegistry
    from gateway.models.format import FormatOf
    from gateway.protocol.admin_bodies import Json
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.protocol.stream_events import Event
    from gateway.store.postgres.database import Database, Row
    from gateway.store.responses import StoredResponse

    Cancel = Callable[[TenantId, UUID], Awaitable[StoredResponse | None]]

STATUSES: Final = (*RUNNING, *TERMINAL)
SPAN_MAX: Final = timedelta(days=31)
_CLOCKS_DIFFER_S: Final = 3600
PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
QUERY: Final = (
    *(*PAGE, "before", "id", "tenant", "project_id", "api_key_id", "conversation_id", "model"),
    *("created_at[gte]", "created_at[lt]", *several("status")),
)

_NAMES: Final = (
    *("tenant_id", "id", "project_id", "key_id", "model", "status", "background", "streamed"),
    *("created_at", "completed_at", "parent_id", "conversation_id", "owner", "attempts"),
)
COLUMNS: Final = ", ".join(("t.name AS tenant_name", *(f"r.{name}" for name in _NAMES)))
"""Columns for `record_body`; none has content."""
OUTER_COLUMNS: Final = ", ".join(f"one.{name}" for name in ("tenant_name", *_NAMES))
"""The same of a subquery `one`."""
# No index has `created_at`. Ids begin with the time at which they were made, so that the primary
# key finds the newest ones of a range of time, tenant by tenant.
_SEARCH: Final = Statement(f"""
SELECT {OUTER_COLUMNS} FROM tenants AS t CROSS JOIN LATERAL (
    SELECT {COLUMNS} FROM responses AS r
    WHERE r.tenant_id = t.id AND r.id > :above AND r.id < :below
      AND (CAST(:id AS uuid) IS NULL OR r.id = CAST(:id AS uuid))
      AND (CAST(:project AS uuid) IS NULL
           OR coalesce(r.project_id, r.tenant_id) = CAST(:project AS uuid))
      AND (CAST(:key AS uuid) IS NULL OR r.key_id = CAST(:key AS uuid))
      AND (CAST(:conversation AS uuid) IS NULL OR r.conversation_id = CAST(:conversation AS uuid))
      AND (CAST(:model AS text) IS NULL OR r.model = CAST(:model AS text))
      AND (CAST(:statuses AS text[]) IS NULL OR r.status = ANY (CAST(:statuses AS text[])))
      AND r.created_at >= :from_at AND r.created_at < :until_at
    ORDER BY r.id DESC
    LIMIT :rows_max
) AS one
WHERE CAST(:tenant AS text) IS NULL OR t.name = CAST(:tenant AS text)
ORDER BY one.id DESC
LIMIT :rows_max
""")  # noqa: S608 - constants only


async def search(database: Database, query: QueryParams) -> Json:
    limit = integer(query, "limit", minimum=1, maximum=PAGE_MAX) or PAGE_DEFAULT
    parameters = {**_parameters(query), "rows_max": limit + 1}
    # The role that may not read content.
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_SEARCH, parameters)
    return list_body([record_body(row) for row in rows[:limit]], has_more=len(rows) > limit)


def _parameters(query: QueryParams) -> Json:
    # Raises `InvalidRequest`, also for a longer period than `SPAN_MAX`, the default.
    statuses = values_of(query, "status")
    for status in statuses:
        if status not in STATUSES:
            raise wrong_value("status", status, STATUSES)
    until_s = integer(query, "created_at[lt]", minimum=0)
    from_s = integer(query, "created_at[gte]", minimum=0)
    until = datetime.now(UTC) + timedelta(minutes=1) if until_s is None else moment_of(until_s)
    begin = until - SPAN_MAX if from_s is None else moment_of(from_s)
    if until - begin > SPAN_MAX:
        raise InvalidRequest(
            f"Ask for {SPAN_MAX.days} days at most.", code="invalid_value", param="created_at[gte]"
        )
    after, before = (_parsed(query, name, ids.parse_response_id) for name in ("after", "before"))
    above = ids.first_uuid(begin.timestamp() - _CLOCKS_DIFFER_S)
    below = ids.first_uuid(until.timestamp() + _CLOCKS_DIFFER_S)
    return {
        "above": above if before is None else max(above, before),
        "below": below if after is None else min(below, after),
        "from_at": begin,
        "until_at": until,
        "tenant": query.get("tenant"),
        "id": _parsed(query, "id", ids.parse_response_id),
        "project": _parsed(query, "project_id", ids.parse_project_id),
        "key": _parsed(query, "api_key_id", ids.parse_api_key_id),
        "conversation": _parsed(query, "conversation_id", ids.parse_conversation_id),
        "model": query.get("model"),
        "statuses": list(statuses) or None,
    }


def _parsed(query: QueryParams, name: str, parse: Callable[[str], UUID | None]) -> UUID | None:
    if (text := query.get(name)) is None:
        return None
    if (id_ := parse(text)) is None:
        raise InvalidRequest(f"'{name}' is no such id.", code="invalid_value", param=name)
    return id_


def record_body(row: Row) -> Json:
    tenant_id = TenantId(row.tenant_id)
    return {
        "id": ids.response_id(row.id),
        "object": "response.record",
        "tenant": {"id": ids.tenant_id(tenant_id), "name": row.tenant_name},
        "project_id": ids.project_id(ProjectId(row.project_id or row.tenant_id)),
        "api_key_id": ids.api_key_id(row.key_id),
        "model": row.model,
        "status": row.status,
        "background": row.background,
        "stream": row.streamed,
        "created_at": seconds_of(row.created_at),
        "completed_at": seconds_of(row.completed_at),
        "previous_response_id": row.parent_id and ids.response_id(row.parent_id),
        "conversation_id": row.conversation_id and ids.conversation_id(row.conversation_id),
        "replica": row.owner,
        "attempts": row.attempts,
    }


ONE: Final = "/responses/{response_id}"
REVEALED: Final = "harmony.content.revealed"
CANCELLED: Final = "harmony.response.cancelled_by_operator"
REVEAL_S: Final = 15 * 60
"""Seconds that a revealed response stays readable for the operator."""
REVEALS_MAX: Final = 20
"""Reveals per operator and tenant within an hour."""
TOKENS_DEFAULT: Final = 2048
TOKENS_MAX: Final = 16_384
KEPT_S: Final = 60.0
"""Seconds that a view of a log waits for its next page."""
WAIT_S: Final = 10.0
"""Seconds to wait for more tokens."""
EVENTS_DEFAULT: Final = 100
EVENTS_MAX: Final = 1000
ITEMS_MAX: Final = 100
"""Input items of a page, and output items whose ids are read."""
RELATIVES_MAX: Final = 50
LOG_ROWS_MAX: Final = 1000
LOG_BYTES_MAX: Final = 64 * 1024 * 1024

# Tenant by tenant, because the primary key begins with it. Without the limit the planner would read
# all of the key.
_FIND: Final = Statement(f"""
SELECT {OUTER_COLUMNS}, one.durable, one.epoch, one.next_entry, one.fold_version, one.timeline
FROM tenants AS t CROSS JOIN LATERAL (
    SELECT {COLUMNS}, r.durable, r.epoch, r.next_entry, r.fold_version, r.timeline
    FROM responses AS r WHERE r.tenant_id = t.id AND r.id = :id
    LIMIT 1
) AS one
""")  # noqa: S608 - constants only
_USED: Final = Statement(f"""
SELECT service_tier, {", ".join(COUNTS)}
FROM usage WHERE tenant_id = :tenant AND response_id = :id AND seq = 0
""")  # noqa: S608 - constants only
_CALLS: Final = Statement("""
SELECT ordinal, attempt, kind, outcome, duration_ms, result_ids, replica, at FROM tool_calls
WHERE tenant_id = :tenant AND response_id = :id
ORDER BY ordinal, attempt
LIMIT :rows_max
""")
_ROWS: Final = Statement("""
SELECT first_entry, entry_count, epoch FROM events
WHERE tenant_id = :tenant AND response_id = :id AND day = :day
ORDER BY first_entry
LIMIT :rows_max
""")
_TURN: Final = f"""
SELECT {COLUMNS}, u.input_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens
FROM responses AS r JOIN tenants AS t ON t.id = r.tenant_id
LEFT JOIN usage AS u ON u.tenant_id = r.tenant_id AND u.response_id = r.id AND u.seq = 0
"""  # noqa: S608 - constants only
_CHAIN: Final = Statement(f"""
WITH RECURSIVE ancestors AS (
    SELECT id, parent_id, 0 AS distance FROM responses WHERE tenant_id = :tenant AND id = :id
    UNION ALL
    SELECT r.id, r.parent_id, one.distance + 1
    FROM ancestors AS one JOIN responses AS r ON r.tenant_id = :tenant AND r.id = one.parent_id
    WHERE one.distance < :rows_max
), children AS (
    SELECT id FROM responses WHERE tenant_id = :tenant AND parent_id = :id LIMIT :rows_max
)
{_TURN}
WHERE r.tenant_id = :tenant
  AND r.id IN (SELECT id FROM ancestors UNION SELECT id FROM children)
ORDER BY r.id
""")  # noqa: S608 - constants only
_CONVERSATION: Final = Statement(f"""
{_TURN}
WHERE r.conversation_id = :id AND (CAST(:after AS uuid) IS NULL OR r.id > CAST(:after AS uuid))
ORDER BY r.id
LIMIT :rows_max
""")
_REVEALED: Final = """
SELECT {counted} FROM audit_log
WHERE tenant_id = :tenant AND type = :type
  AND at > clock_timestamp() - make_interval(secs => :within_s)
  AND convert_from(actor, 'UTF8')::jsonb ->> 'key_id' = CAST(:actor AS text)
"""
_GRANT: Final = Statement(_REVEALED.format(counted="max(at)") + "  AND target = :target")
_REVEALS: Final = Statement(_REVEALED.format(counted="count(*)"))
_OUTPUT_IDS: Final = Statement("""
SELECT position, item_id, ids FROM messages
WHERE tenant_id = :tenant AND response_id = :id AND is_output
ORDER BY position
LIMIT :rows_max
""")


class Reveal(WireModel):
    """`POST …/reveal`: the reason, for the tenant's audit log."""

    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=1000)]


def routes(stored: StoredResponses, database: Database) -> list[AdminRoute]:
    reads: Final = "responses.read"
    reads_content: Final = "content.read"

    async def listed(call: AdminCall) -> Json:
        return await search(database, call.request.query_params)

    async def one(call: AdminCall) -> Json:
        return await stored.get(call.author, call.path["response_id"])

    async def events(call: AdminCall) -> Json:
        bounds = place_of(call.request.query_params, EVENTS_DEFAULT, EVENTS_MAX)
        return await stored.events(call.author, call.path["response_id"], **bounds)

    async def items(call: AdminCall) -> Json:
        query = call.request.query_params
        limit = integer(query, "limit", minimum=1, maximum=ITEMS_MAX) or ITEMS_MAX
        page = PageParams(limit=limit, after=query.get("after"), order="asc")
        return await stored.items(call.author, call.path["response_id"], page)

    async def conversation(call: AdminCall) -> Json:
        after = call.request.query_params.get("after")
        return await stored.conversation(call.path["conversation_id"], after=after)

    async def tokens(call: AdminCall) -> Json:
        query = call.request.query_params
        bounds = place_of(query, TOKENS_DEFAULT, TOKENS_MAX)
        seen = integer(query, "seen", minimum=0)
        return await stored.tokens(call.author, call.path["response_id"], **bounds, seen=seen)

    page, turns = ("after", "limit"), "/conversations/{conversation_id}/responses"
    return [
        AdminRoute("GET", "/responses", reads, listed, query=QUERY),
        AdminRoute("GET", ONE, reads, one),
        read(f"{ONE}/execution", reads, stored.execution, dict),
        read(f"{ONE}/log", reads, stored.log, dict),
        read(f"{ONE}/chain", reads, stored.chain, dict),
        AdminRoute("GET", turns, reads, conversation, query=("after",)),
        changed(f"{ONE}/cancel", "responses.cancel", stored.cancel, dict, NoBody),
        changed(f"{ONE}/reveal", reads_content, stored.reveal, dict, Reveal),
        AdminRoute("GET", f"{ONE}/items", reads_content, items, query=page),
        AdminRoute("GET", f"{ONE}/tokens", reads_content, tokens, query=(*page, "seen")),
        AdminRoute("GET", f"{ONE}/events", reads_content, events, query=page),
    ]


def place_of(query: QueryParams, default: int, most: int) -> dict[str, int]:
    after = integer(query, "after", minimum=-1)
    limit = integer(query, "limit", minimum=1, maximum=most) or default
    return {"after": -1 if after is None else after, "limit": limit}


@dataclass(frozen=True, slots=True)
class Timed:
    """Execution of a response. Without `has_timeline` it runs elsewhere, and its timeline is stored
    when it ends.
    """

    row: Row
    execution: Execution
    moments: Sequence[Moment]
    has_timeline: bool


class StoredResponses:
    def __init__(
        self,
        database: Database,
        live_logs: LiveLogRegistry,
        feed: Feed,
        *,
        cancel: Cancel,
        new_fold_for: Callable[[ResponseHead], Callable[[], Fold]],
        format_of: FormatOf,
    ) -> None:
        self._database = database
        self._cancel = cancel
        self._live_logs = live_logs
        self._feed = feed
        self._new_fold_for = new_fold_for
        self._format_of = format_of
        self._viewing = asyncio.Lock()
        self._kept: tuple[UUID | None, LogView | None] = None, None
        """Last view of a log; `_forgetting` drops it."""
        self._forgetting: asyncio.TimerHandle | None = None

    async def get(self, author: Author, response_id: str) -> Json:
        row = await self._find(response_id)
        tenant_id = TenantId(row.tenant_id)
        of_it = {"tenant": tenant_id, "id": row.id}
        async with self._database.transaction(tenant_id) as connection:
            used = (await connection.execute(_USED, of_it)).one_or_none()
            calls = await connection.execute(_CALLS, {**of_it, "rows_max": RELATIVES_MAX})
            access = await find_access(connection, tenant_id)
            until = await self._revealed_until(connection, author, row, access)
        timed = self._timed(row)
        return {
            **record_body(row),
            "durable": row.durable,
            "epoch": row.epoch,
            "entries": row.next_entry,
            "usage": None
            if used is None
            else dict(zip(("service_tier", *COUNTS), used, strict=True)),
            "tool_calls": [_call_body(call) for call in calls],
            "sentence": timed.execution.sentence if timed.has_timeline else None,
            "content": {
                "operator_content_access": access.policy,
                "may_be_revealed": access.is_open,
                "revealed_until": None if until is None else int(until.timestamp()),
            },
        }

    async def execution(self, response_id: str) -> Json:
        timed = self._timed(await self._find(response_id))
        execution = timed.execution
        lanes = ("phases", "replicas", "attempts", "messages", "tools", "commits")
        return {
            "id": response_id,
            "object": "response.execution",
            "begin_ms": _begin_ms(timed.row),
            "is_known": timed.has_timeline,
            "is_over": execution.is_over,
            "duration_ms": execution.duration_ms,
            "first_token_ms": execution.first_token_ms,
            "sentence": execution.sentence if timed.has_timeline else None,
            "totals": [
                {"phase": phase, "words": PHASES[phase], "ms": ms}
                for phase, ms in execution.totals.items()
            ],
            "lanes": {
                name: [span._asdict() for span in getattr(execution, name)] for name in lanes
            },
            "points": [point._asdict() for point in execution.points],
        }

    async def log(self, response_id: str) -> Json:
        row = await self._find(response_id)
        timed, begin_ms = self._timed(row), _begin_ms(row)
        log_rows = []
        if row.durable:
            parameters = {"tenant": row.tenant_id, "id": row.id, "rows_max": LOG_ROWS_MAX}
            parameters["day"] = day_of(row.created_at)
            async with self._database.runs_transaction() as connection:
                log_rows = list(await connection.execute(_ROWS, parameters))
        return {
            "id": response_id,
            "object": "response.log",
            "steps": [
                {**moment._asdict(), "at_ms": max(0, moment.at_ms - begin_ms)}
                for moment in timed.moments
            ],
            "entries": row.next_entry,
            "rows": [
                {"first_entry": one.first_entry, "count": one.entry_count, "epoch": one.epoch}
                for one in log_rows
            ],
        }

    async def chain(self, response_id: str) -> Json:
        """Return ancestors, the response and its children, the oldest first."""
        row = await self._find(response_id)
        parameters = {"tenant": row.tenant_id, "id": row.id, "rows_max": RELATIVES_MAX}
        async with self._database.runs_transaction() as connection:
            rows = await connection.execute(_CHAIN, parameters)
        return list_body(map(_turn_body, rows), has_more=False)

    async def conversation(self, conversation_id: str, *, after: str | None = None) -> Json:
        uuid = ids.parse_conversation_id(conversation_id)
        behind = None if after is None else ids.parse_response_id(after)
        if uuid is None or (after is not None and behind is None):
            raise InvalidRequest("This is no such id.", code="invalid_value")
        parameters = {"id": uuid, "after": behind, "rows_max": RELATIVES_MAX + 1}
        async with self._database.runs_transaction() as connection:
            rows = list(await connection.execute(_CONVERSATION, parameters))
        shown = map(_turn_body, rows[:RELATIVES_MAX])
        return list_body(shown, has_more=len(rows) > RELATIVES_MAX)

    async def cancel(self, author: Author, response_id: str) -> Json:
        row = await self._find(response_id)
        tenant_id = TenantId(row.tenant_id)
        if row.status not in RUNNING:
            raise InvalidRequest(ENDED.get(row.status, "The response is cancelled already."))
        stored = await self._cancel(tenant_id, row.id)
        if stored is None:
            raise not_found(response_id)
        if stored.status != "cancelled":
            raise InvalidRequest(
                ENDED.get(
                    stored.status, "Its client waits for the response, and ends it by leaving."
                )
            )
        async with self._database.transaction(tenant_id) as connection:
            await audit_log.record(connection, tenant_id, _event(author, row, CANCELLED))
        return await self.get(author, response_id)

    async def note(self, author: Author, response_id: str, type_: str, data: Json) -> None:
        row = await self._find(response_id)
        tenant_id = TenantId(row.tenant_id)
        async with self._database.transaction(tenant_id) as connection:
            await audit_log.record(connection, tenant_id, _event(author, row, type_, data=data))

    async def reveal(self, author: Author, response_id: str, body: Reveal) -> Json:
        row = await self._find(response_id)
        tenant_id = TenantId(row.tenant_id)
        parameters = _reveals(author, row, within_s=3600.0)
        async with self._database.transaction(tenant_id) as connection:
            (await find_access(connection, tenant_id)).check()
            # As `record` does, but before the count: reveals at once would exceed the bound.
            await take_turns(connection, tenant_id, TenantLock.AUDIT_LOG)
            if await connection.scalar(_REVEALS, parameters) >= REVEALS_MAX:
                raise RateLimited(
                    f"You have revealed {REVEALS_MAX} responses of this tenant within an hour.",
                    code="rate_limit_exceeded",
                )
            event = _event(author, row, REVEALED, data=audited(body))
            entry = await audit_log.record(connection, tenant_id, event)
        until = entry.at + timedelta(seconds=REVEAL_S)
        return {
            "id": response_id,
            "object": "response.reveal",
            "revealed_until": int(until.timestamp()),
        }

    async def items(self, author: Author, response_id: str, page: PageParams) -> Json:
        tenant_id, stored = await self.open(author, response_id)
        body: Any = None
        if stored.body is not None:
            body = orjson.loads(stored.body)
        elif _has_log(stored):
            body = await self._feed.snapshot(tenant_id, head_of(stored))
        page_rows = await messages.input_items(self._database, tenant_id, stored.uuid, page)
        return {
            "id": response_id,
            "object": "response.content",
            "response": body,
            "input": [] if page_rows is None else list(map(orjson.loads, page_rows.rows)),
            "has_more": page_rows is not None and page_rows.has_more,
        }

    async def tokens(
        self,
        author: Author,
        response_id: str,
        *,
        after: int = -1,
        limit: int = TOKENS_DEFAULT,
        seen: int | None = None,
    ) -> Json:
        """Return runs of tokens behind `after`; with `seen` wait until there are more than that."""
        tenant_id, stored = await self.open(author, response_id)
        view = await self.view(tenant_id, stored)
        if seen is not None and len(view) <= seen and not _is_over(view):
            await self._until_more(tenant_id, stored, view)
            view = await self.view(tenant_id, stored)
        page: Json = {
            "id": response_id,
            "object": "response.tokens",
            "source": "log" if isinstance(view, LogView) else "items",
            "is_over": _is_over(view),
            "count": len(view),
            "data": view.page(after, limit),
            "has_more": after + 1 + limit < len(view),
        }
        damage = view.damage if isinstance(view, LogView) else ""
        return {**page, "damage": damage} if damage else page

    async def events(
        self, author: Author, response_id: str, *, after: int = -1, limit: int = EVENTS_DEFAULT
    ) -> Json:
        """Return the events behind number `after`; none if the log is gone."""
        tenant_id, stored = await self.open(author, response_id)
        shown: list[Json] = []
        if _has_log(stored):
            fold = self._new_fold_for(head_of(stored))()
            # Those before the damage of a damaged log.
            with suppress(ValueError):
                async for portion in self._portions(tenant_id, stored):
                    events = fold.replay(portion, after)
                    shown += [_event_body(one) for one in events if one.sequence_number > after]
                    if len(shown) > limit:
                        break
        return {
            "id": response_id,
            "object": "list",
            "data": shown[:limit],
            "has_more": len(shown) > limit,
        }

    async def _find(self, response_id: str) -> Row:
        uuid = ids.parse_response_id(response_id)
        if uuid is not None:
            # The role that may not read content.
            async with self._database.runs_transaction() as connection:
                row = (await connection.execute(_FIND, {"id": uuid})).one_or_none()
            if row is not None:
                return row
        raise not_found(response_id)

    def _timed(self, row: Row) -> Timed:
        live = self._live_logs.get(row.id)
        uuid, followed = self._kept
        moments: Sequence[Moment] = ()
        if row.timeline is not None:
            moments = unpacked_timeline(row.timeline)
        elif live is not None:
            moments = live.fold.timeline.moments
        elif followed is not None and uuid == row.id:
            # Somebody reads its log, wherever it is generated.
            moments = followed.fold.timeline.moments
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        execution = execution_of(moments, begin_ms=_begin_ms(row), now_ms=now_ms)
        return Timed(row, execution, moments, has_timeline=bool(moments))

    async def _revealed_until(
        self, connection: Any, author: Author, row: Row, access: OperatorAccess
    ) -> datetime | None:
        if not access.is_open:
            return None
        parameters = _reveals(author, row, within_s=float(REVEAL_S))
        target = {"target": ids.response_id(row.id)}
        at: datetime | None = await connection.scalar(_GRANT, {**parameters, **target})
        return None if at is None else at + timedelta(seconds=REVEAL_S)

    async def open(self, author: Author, response_id: str) -> tuple[TenantId, StoredResponse]:
        row = await self._find(response_id)
        tenant_id = TenantId(row.tenant_id)
        async with self._database.transaction(tenant_id) as connection:
            access = await find_access(connection, tenant_id)
            access.check()
            if await self._revealed_until(connection, author, row, access) is None:
                raise PermissionDenied(
                    "This response is not revealed to you, or no longer. Reveal it, with a reason.",
                    code="content_not_revealed",
                )
            stored = await rows.find(connection, tenant_id, row.id)
        if stored is None:
            raise not_found(response_id)
        return tenant_id, stored

    async def view(self, tenant_id: TenantId, stored: StoredResponse) -> TokenView:
        """Return the tokens of a response: of its log, or where that is gone of its items.

        It is kept for a while: a reader takes page after page of the same, growing log.
        """
        async with self._viewing:
            uuid, kept = self._kept
            view = kept if kept is not None and uuid == stored.uuid else self._new_view(stored)
            if _has_log(stored) and not view.damage:
                try:
                    async for portion in self._portions(tenant_id, stored, view.next_entry):
                        view.add(portion)
                except ValueError as error:
                    # Who looks at a damaged log wants to see it.
                    view.damage = str(error)
            if not view and stored.is_terminal:
                return await self._view_of_items(tenant_id, stored)
            self._kept = stored.uuid, view
            if self._forgetting is not None:
                self._forgetting.cancel()
            self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self._forget)
            return view

    async def _until_more(
        self, tenant_id: TenantId, stored: StoredResponse, view: TokenView
    ) -> None:
        # The follower that clients use: it wakes when the log goes on, whoever writes it.
        def wake(events: Sequence[Event]) -> None:
            if events:
                raise _Awake

        after = max(view.events, default=-1)
        with suppress(TimeoutError, _Awake):
            async with asyncio.timeout(WAIT_S):
                await self._feed.stream(tenant_id, head_of(stored), wake, after=after)

    def _forget(self) -> None:
        self._kept = None, None

    def _new_view(self, stored: StoredResponse) -> LogView:
        return LogView(self._format_of(stored.model), self._new_fold_for(head_of(stored))())

    async def _view_of_items(self, tenant_id: TenantId, stored: StoredResponse) -> TokenView:
        view = TokenView(self._format_of(stored.model))
        parameters = {"tenant": tenant_id, "id": stored.uuid, "rows_max": ITEMS_MAX}
        async with self._database.transaction(tenant_id) as connection:
            rows = await connection.execute(_OUTPUT_IDS, parameters)
            cipher = connection.cipher(tenant_id)
        for index, row in enumerate(rows):
            packed = content.opened(cipher, "messages", row, ("ids",))["ids"]
            view.add_item(index, () if packed is None else unpack_ids(packed))
        return view

    async def _portions(
        self, tenant_id: TenantId, stored: StoredResponse, entries: int = 0
    ) -> AsyncIterator[Portion]:
        # Reads the committed log after its first entries, with a pause for other work after each
        # slice of time.
        read_bytes = 0
        until = monotonic() + SLICE_S
        while read_bytes < LOG_BYTES_MAX:
            before = entries
            for row in await flushes.read(
                self._database, tenant_id, stored.uuid, stored.day,
                from_entry=entries, bytes_max=READ_BYTES_MAX,
            ):  # fmt: skip
                if row.first_entry > entries:
                    break
                read_bytes += len(row.entries)
                for portion in portions(row.entries, entries - row.first_entry):
                    yield portion
                    entries += len(portion) if isinstance(portion, Singles) else 1
                    if monotonic() >= until:
                        await asyncio.sleep(0)
                        until = monotonic() + SLICE_S
            if entries == before:
                return


class _Awake(Exception):
    """Signal that a followed log has gone on."""


def _is_over(view: TokenView) -> bool:
    return not isinstance(view, LogView) or view.fold.shown.is_finished or bool(view.damage)


def _has_log(stored: StoredResponse) -> bool:
    return stored.durable and stored.fold_version in FOLD_VERSIONS


def _begin_ms(row: Row) -> int:
    # An id begins with the millisecond in which it was made, of which the row has the second.
    begin_ms: int = row.id.int >> 80
    second_ms = int(row.created_at.timestamp()) * 1000
    return begin_ms if second_ms <= begin_ms < second_ms + 1000 else second_ms


def _event(author: Author, row: Row, type_: str, **details: Json) -> AuditEvent:
    project = ProjectId(row.project_id or row.tenant_id)
    return author.event(type_, ids.response_id(row.id), project, **details)


def _reveals(author: Author, row: Row, *, within_s: float) -> Json:
    return {
        "tenant": row.tenant_id,
        "type": REVEALED,
        "actor": author.actor.key_id,
        "within_s": within_s,
    }


def _call_body(row: Row) -> Json:
    names = ("ordinal", "attempt", "kind", "outcome", "duration_ms", "result_ids", "replica")
    return {**{name: getattr(row, name) for name in names}, "at": int(row.at.timestamp())}


def _turn_body(row: Row) -> Json:
    names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    usage = None if row.input_tokens is None else {name: getattr(row, name) for name in names}
    return {**record_body(row), "usage": usage}


def _event_body(event: Event) -> Json:
    return {
        "sequence_number": event.sequence_number,
        "type": event.type,
        "bytes": len(event.data),
        "data": orjson.loads(event.data),
    }
