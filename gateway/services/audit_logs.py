from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.audit import OPENAI_TYPES, OWN_TYPES, ChainCheck, Head, shown
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import SECOND_MAX, moment_of
from gateway.protocol.request_errors import mutually_exclusive, unknown_place
from gateway.store import audit_log
from gateway.store.periodic import run_periodically
from gateway.store.schema import AUDIT_LOG_KEPT_DAYS
from gateway.telemetry.logs import EventLog
from gateway.tenancy import ProjectId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Database


LIMIT_DEFAULT: Final = 20
LIMIT_MAX: Final = 100
VALUES_MAX: Final = 100
CHECKED_AT_ONCE: Final = 1_000
ANCHOR_S: Final = 3600.0
ANCHORED_MAX: Final = 1_000
KEPT: Final = timedelta(days=AUDIT_LOG_KEPT_DAYS - 1)
"""Entries must exist for this time: a day less than they are kept, because clocks differ."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Unvalidated query. `effective_at` has `gt`, `gte`, `lt`, `lte` in Unix seconds."""

    limit: int = LIMIT_DEFAULT
    after: str | None = None
    before: str | None = None
    event_types: Sequence[str] = ()
    actor_ids: Sequence[str] = ()
    actor_emails: Sequence[str] = ()
    resource_ids: Sequence[str] = ()
    projects: Sequence[UUID] | None = None
    effective_at: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ChainState:
    """State of a chain (nil tenant: the operator's); number, hash and time are the last entry's."""

    tenant_id: UUID
    count: int
    number: int
    head: str
    faults: Sequence[str]
    at: datetime | None = None


class AuditLogs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_entries(
        self, tenant_id: UUID | None, query: AuditQuery, *, names_operators: bool = False
    ) -> dict[str, Any]:
        """Return a page in OpenAI's form, newest first."""
        filters = _filters(query)
        places = {"after": _place(query.after, "after"), "before": _place(query.before, "before")}
        page = await audit_log.page(self._database, tenant_id, filters, limit=query.limit, **places)
        if page is None:
            raise unknown_place()
        entries, has_more = page
        named = {one.project_id for one in entries if one.project_id is not None}
        names: Mapping[UUID, str] = {}
        if tenant_id is not None and named:
            names = await audit_log.project_names(self._database, tenant_id, named)
        data = [
            shown(
                entry,
                entry_id=ids.audit_log_id(entry.id),
                project=_project(entry.project_id, names),
                names_operators=names_operators,
            )
            for entry in entries
        ]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": has_more,
        }

    async def verify(
        self, tenant_id: UUID | None = None, kept: Sequence[ChainState] = ()
    ) -> list[ChainState]:
        """Check one chain, or all of them (None), from the oldest entry on.

        The entries of the earlier states in `kept` must still exist unless retention may have
        removed them.
        """
        chains = {*await audit_log.chains(self._database), *(one.tenant_id for one in kept)}
        return [
            await self._state(
                chain,
                [
                    Head(one.number, bytes.fromhex(one.head), one.at)
                    for one in kept
                    if one.tenant_id == chain
                ],
            )
            for chain in sorted(chains)
            if tenant_id in {None, chain}
        ]

    async def run(self) -> None:
        # With its head in the process log a chain that was rebuilt can be detected later.
        failure = "the audit log was not read, it will be tried again"
        await run_periodically(self.anchor, ANCHOR_S, _log.warning, failure)

    async def anchor(self) -> None:
        heads = await audit_log.heads(self._database, since_s=2 * ANCHOR_S, rows_max=ANCHORED_MAX)
        for chain, number, digest in heads:
            _log.info("audit chain", tenant=str(chain), count=number, rule=digest.hex())

    async def _state(self, chain: UUID, kept: Sequence[Head]) -> ChainState:
        state = await self._check_chain(chain, kept)
        # Retention may have removed entries between two pages.
        return await self._check_chain(chain, kept) if state.faults else state

    async def _check_chain(self, chain: UUID, kept: Sequence[Head]) -> ChainState:
        checked = ChainCheck(kept, datetime.now(UTC) - KEPT)
        place: int | None = None
        while entries := await audit_log.since(
            self._database, chain, place, rows_max=CHECKED_AT_ONCE
        ):
            checked.add(entries)
            place = checked.number
        faults = tuple(checked.faults)
        head = checked.hash.hex()
        return ChainState(chain, checked.count, checked.number, head, faults, checked.at)


def _project(uuid: UUID | None, names: Mapping[UUID, str]) -> dict[str, str] | None:
    if uuid is None or uuid not in names:
        return None
    return {"id": ids.project_id(ProjectId(uuid)), "name": names[uuid]}


def _filters(query: AuditQuery) -> dict[str, Any]:
    if not 1 <= query.limit <= LIMIT_MAX:
        raise InvalidRequest(f"'limit' is a number from 1 to {LIMIT_MAX}.", param="limit")
    if query.after is not None and query.before is not None:
        raise mutually_exclusive("after", "before", param="before")
    for name in ("event_types", "actor_ids", "actor_emails", "resource_ids", "projects"):
        if len(getattr(query, name) or ()) > VALUES_MAX:
            raise InvalidRequest(f"'{name}' has at most {VALUES_MAX} values.", param=name)
    for one in query.event_types:
        if one not in OPENAI_TYPES and one not in OWN_TYPES:
            raise InvalidRequest(
                "There is no event of one of these types here.", param="event_types"
            )
    from_at, until_at = _bounds(query.effective_at or {})
    return {
        "types": list(query.event_types) or None,
        "targets": list(query.resource_ids) or None,
        "projects": None if query.projects is None else list(query.projects),
        "actors": list(query.actor_ids) or None,
        "emails": list(query.actor_emails) or None,
        "from_at": from_at,
        "until_at": until_at,
    }


def _bounds(range_: Mapping[str, int]) -> tuple[datetime | None, datetime | None]:
    # In whole seconds, the end exclusive.
    for name, second in range_.items():
        if name not in {"gt", "gte", "lt", "lte"} or not 0 <= second < SECOND_MAX:
            raise InvalidRequest(
                "'effective_at' has 'gt', 'gte', 'lt' and 'lte', in unix seconds.",
                param="effective_at",
            )
    begins = [range_[name] + more for name, more in (("gte", 0), ("gt", 1)) if name in range_]
    ends = [range_[name] + more for name, more in (("lt", 0), ("lte", 1)) if name in range_]
    return (moment_of(max(begins)) if begins else None, moment_of(min(ends)) if ends else None)


def _place(id_: str | None, param: str) -> UUID | None:
    if id_ is None:
        return None
    uuid = ids.parse_audit_log_id(id_)
    if uuid is None:
        raise InvalidRequest(f"'{param}' is no id of an entry of the audit log.", param=param)
    return uuid
