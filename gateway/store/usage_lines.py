"""Metering: one line per response, kept when the response is deleted or was never stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.metering import NOBODY, Metering
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Batch, Rows, Statement, by_tenant, insert_into
from gateway.store.tables.columns import typed
from gateway.store.tables.ledger import COUNTS, METERED, usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.generation import TokenUsage
    from gateway.metering import LineKind
    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import ProjectId, TenantId

_LINE: Final = {
    **typed(usage, "response_id key_id project_id model at status background"),
    **METERED,
    **COUNTS,
}
_SMALLINT_MAX: Final = 32_767
_counts_of: Final = attrgetter(*COUNTS)
_ADD: Final = Statement(f"{insert_into('usage', ['tenant_id', *_LINE])} ON CONFLICT DO NOTHING")
_LINES: Final = Rows("line", _LINE)
_ADD_ALL: Final = Batch(
    f"""
INSERT INTO usage (tenant_id, {_LINES.names})
SELECT CAST(:tenant AS uuid), line.* FROM {{line}}
ON CONFLICT DO NOTHING
""",  # noqa: S608 - constants only
    _LINES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """Details of a line. `attempts` counts the backends and replicas that generated it; `tools`
    calls of hosted tools by type.
    """

    kind: LineKind = "response"
    service_tier: str = "default"
    attempts: int = 1
    who: Metering = NOBODY
    tools: Mapping[str, int] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        # The columns of `METERED`.
        return {
            "kind": self.kind,
            "service_tier": self.service_tier,
            "attempts": min(self.attempts, _SMALLINT_MAX),
            "end_user": self.who.end_user,
            "tags": orjson.dumps(self.who.tags).decode() if self.who.tags else None,
            "tools": orjson.dumps(self.tools).decode() if self.tools else None,
        }


UNKNOWN: Final = Metered()


@dataclass(frozen=True, slots=True)
class UsageLine:
    response: UUID
    key_id: UUID
    model: str
    at: datetime
    tokens: TokenUsage
    status: str = "completed"
    background: bool = False
    metered: Metered = UNKNOWN
    project_id: ProjectId | None = None


async def record_all(database: Database, lines: Sequence[tuple[TenantId, UsageLine]]) -> None:
    """Write at least one line, all or none. A second line for a response changes nothing."""
    groups = by_tenant(lines)
    async with database.bulk_transaction(groups[0][0], is_only=len(groups) == 1) as connection:
        for tenant_id, group in groups:
            await turn_to(connection, tenant_id)
            statement, parameters = _ADD_ALL.of([_row(line) for _, line in group])
            await connection.execute(statement, {"tenant": tenant_id, **parameters})


async def add(connection: Connection, tenant_id: TenantId, line: UsageLine) -> None:
    await connection.execute(_ADD, {"tenant_id": tenant_id, **_row(line)})


def _row(line: UsageLine) -> dict[str, Any]:
    return {
        "response_id": line.response,
        "key_id": line.key_id,
        "project_id": line.project_id,
        "model": line.model,
        "at": line.at,
        "status": line.status,
        "background": line.background,
        **line.metered.row(),
        **counts(line.tokens),
    }


def counts(tokens: TokenUsage | None) -> dict[str, int | None]:
    if tokens is None:
        return dict.fromkeys(COUNTS)
    return dict(zip(COUNTS, _counts_of(tokens), strict=True))
