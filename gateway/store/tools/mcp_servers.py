"""MCP servers that operators registered, for all tenants (rows of `OPERATOR`) or for one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from gateway.audit import COMMAND_LINE
from gateway.store import audit_log
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.audit import Author
    from gateway.store.postgres.database import Database, Row

OPERATOR: Final = TenantId(EVERYONE)
SERVERS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class McpServerRow:
    """A server. `secret` are the headers that it is sent, sealed; empty: none. `allowed_tools` is a
    JSON list; None: all. `purposes` are separated by spaces: `mcp`, `browser`, `python`, `search`.
    `call_timeout_s` None: the setting's.
    """

    tenant_id: TenantId
    id: UUID
    label: str
    url: str
    secret: str = ""
    trusted: bool = False
    always_asks: bool = False
    allowed_tools: bytes | None = None
    purposes: str = "mcp"
    call_timeout_s: int | None = None


_NAMES: Final = tuple(field.name for field in fields(McpServerRow))
_COLUMNS: Final = ", ".join(_NAMES)
_PUT: Final = Statement(f"""
INSERT INTO mcp_servers ({_COLUMNS}, created_at)
VALUES ({", ".join(f":{name}" for name in _NAMES)}, now())
""")  # noqa: S608 - constants only
_REMOVE: Final = Statement("""
DELETE FROM mcp_servers WHERE tenant_id = :tenant AND label = :label
""")
_ALL: Final = Statement(f"""
SELECT {_COLUMNS} FROM mcp_servers WHERE tenant_id = :tenant ORDER BY label LIMIT :rows_max
""")  # noqa: S608 - constants only


def _row(row: Row) -> McpServerRow:
    return McpServerRow(TenantId(row[0]), *row[1:])


async def insert(database: Database, server: McpServerRow, author: Author = COMMAND_LINE) -> None:
    """Insert a server. Raises `StoreConflict` (uq_mcp_servers_tenant_id_label)."""
    async with database.transaction(server.tenant_id) as connection:
        await connection.execute(_PUT, asdict(server))
        event = author.event("harmony.mcp_server.added", server.label)
        await audit_log.record(connection, server.tenant_id, event)


async def remove(
    database: Database, tenant_id: TenantId, label: str, author: Author = COMMAND_LINE
) -> bool:
    async with database.transaction(tenant_id) as connection:
        is_gone = await connection.count(_REMOVE, {"tenant": tenant_id, "label": label}) > 0
        if is_gone:
            event = author.event("harmony.mcp_server.removed", label)
            await audit_log.record(connection, tenant_id, event)
        return is_gone


async def of_tenant(database: Database, tenant_id: TenantId) -> list[McpServerRow]:
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_ALL, {"tenant": tenant_id, "rows_max": SERVERS_MAX})
    return [_row(row) for row in rows]


async def visible_to(database: Database, tenant_id: TenantId) -> dict[str, McpServerRow]:
    """Return the servers that a tenant may name, by label. Its own hide those of all tenants."""
    rows: list[Row] = []
    async with database.transaction(OPERATOR) as connection:
        for one in (OPERATOR, tenant_id):
            await turn_to(connection, one)
            rows += await connection.execute(_ALL, {"tenant": one, "rows_max": SERVERS_MAX})
    return {server.label: server for server in map(_row, rows)}
