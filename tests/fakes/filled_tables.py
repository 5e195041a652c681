"""A row in every table there is, derived from the schema, with a word in each column that may have
content: what is to remove all of a tenant, or of a person, is tried with these.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

from gateway import ids
from gateway.store.content import CONTENT
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.tables.columns import Kept, metadata, types
from tests.fakes.rows import add_rows

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

OF_ALL: Final = {
    *("operator_keys", "placements", "backend_drains", "drain_reports", "usage_cursors"),
    *("console_sessions", "replica_snapshots", "tenants"),
}
"""Tables that have no row of a tenant's own but the one that it is."""
LEFT_OUT: Final = {("usage", "tx"), ("reseals", "place")}
"""They have defaults, or are no content whatever stands in them."""
WORDS: Final = {
    *((Kept.SEALED, Kept.NAME, Kept.LOG, Kept.ELSEWHERE)),
    *((Kept.DIGEST, Kept.ID, Kept.DECLARED, Kept.OPERATOR)),
}
CHOSEN: Final = {
    ("responses", "status"): "completed",
    ("api_keys", "dialect"): "openai",
    ("api_keys", "kind"): "project",
    ("api_keys", "owner_type"): "user",
    ("identity_providers", "tenants"): None,
    ("projects", "models_mode"): None,
    ("service_accounts", "role"): "member",
    ("traces", "kind"): "trace",
    ("files", "source"): None,
    ("messages", "kind"): "mcp_approval_request",
    ("flushes", "owner"): "me",
    ("writers", "owner"): "me",
}
"""Where a check, or another row, wants something."""
REFERS: Final = {
    "response_id": "responses",
    "conversation_id": "conversations",
    "file_id": "files",
    "provider_id": "identity_providers",
    "service_account_id": "service_accounts",
    "project_id": "projects",
}
"""Columns that name rows, and of which table."""


@dataclass
class Filled:
    """The rows of one tenant: `at` is the time of all of them, `person` for whom they are."""

    tenant: TenantId
    word: str
    person: str = "grace"
    digest: bytes = bytes(16)
    at: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(days=800))

    def id(self, table: str) -> UUID:
        """Of the row of a table; that of a response begins with its time."""
        made = uuid5(self.tenant, table)
        if table != "responses":
            return made
        return UUID(int=int(self.at.timestamp() * 1000) << 80 | made.int & ((1 << 80) - 1))

    def _page(self) -> bytes:
        return f"page {self.word}".encode()

    def _content(self) -> dict[tuple[str, str], Any]:
        """What is read as something, so that a word alone would not do."""
        shown = {
            "cursor": 0, "key": self._page().hex(), "kind": "page", "url": self.word,
            "title": self.word,
        }  # fmt: skip
        asked = {
            "user": self.person,
            "instructions": self.word,
            "tools": [
                {"type": "code_interpreter", "container": ids.container_id(self.id("containers"))}
            ],
        }
        named = {"type": "input_file", "file_id": ids.file_id(self.id("files")), "x": self.word}
        return {
            ("responses", "request"): json.dumps(asked).encode(),
            ("responses", "tool_state"): json.dumps({"pages": [shown]}).encode(),
            ("messages", "item"): json.dumps({"content": [named]}).encode(),
            ("conversation_items", "item"): json.dumps({"content": [named]}).encode(),
            ("messages", "item_id"): self.word.encode(),
            ("messages", "is_output"): True,
            ("tool_approvals", "request_id"): self.word.encode(),
            ("tool_pages", "key"): self._page(),
            ("usage", "end_user"): self.digest,
            ("usage_end_user_days", "end_user"): self.digest,
            ("files", "container_id"): None,
            ("containers", "handle"): None,
            ("reseals", "of_table"): None,
            ("responses", "owner"): None,
            ("responses", "durable"): True,
            ("responses", "parent_id"): None,
            ("responses", "created_at"): self.at,
        }

    def row(self, table: str) -> dict[str, Any]:
        content, kept = self._content(), CONTENT.get(table, {})
        row: dict[str, Any] = {}
        for name, kind in types(metadata.tables[table]).items():
            place = (table, name)
            if place in LEFT_OUT:
                continue
            if place in content:
                row[name] = content[place]
            elif place in CHOSEN:
                row[name] = CHOSEN[place]
            elif name == "tenant_id":
                row[name] = self.tenant
            elif name == "id":
                row[name] = self.id(table)
            elif name in REFERS:
                row[name] = self.id(REFERS[name])
            else:
                word = self.word if kept.get(name) in WORDS else f"w{self.tenant.hex}"
                row[name] = self._value(kind, word)
        return row

    def _value(self, kind: str, word: str) -> Any:
        return {
            "uuid": uuid5(self.tenant, word),
            "text": word,
            "bytea": word.encode(),
            "text[]": [word],
            "jsonb": json.dumps({"team": word}),
            "timestamptz": self.at,
            "date": self.at.date(),
            "boolean": False,
            "tsvector": "",
            "double precision": 1.0,
            "cidr[]": [],
            **dict.fromkeys(("smallint", "integer", "bigint"), 1),
        }[kind]


def _before(table: str) -> int:
    """Rows that others refer to come first."""
    first = ["projects", "service_accounts", "identity_providers", "responses", "conversations"]
    first += ["containers", "files"]
    return first.index(table) if table in first else len(first)


async def fill(database: Database, filled: Filled) -> None:
    """A row in every table that has rows of tenants, as it is stored where nothing is sealed."""
    async with database.owner_transaction() as connection:
        await turn_to(connection, filled.tenant)
        for table in sorted(metadata.tables.keys() - OF_ALL, key=_before):
            await add_rows(connection, table, filled.row(table))


async def counts(database: Database, tenant: TenantId) -> dict[str, int]:
    """How many rows a tenant has in each table."""
    found = {}
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant)
        for table in sorted(metadata.tables.keys() - OF_ALL):
            asked = Statement(f"SELECT count(*) FROM {table} WHERE tenant_id = :tenant")
            found[table] = await connection.scalar(asked, {"tenant": tenant})
    return found


async def told_by(database: Database, tenant: TenantId, word: str) -> set[str]:
    """The tables of a tenant in which a word stands, as text, bytes, or in hex."""
    found, shapes = set(), (word, word.encode().hex())
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant)
        for table in metadata.tables.keys() - OF_ALL:
            asked = Statement(f"SELECT one::text FROM {table} AS one WHERE tenant_id = :tenant")
            for row in await connection.scalars(asked, {"tenant": tenant}):
                if any(shape in row for shape in shapes):
                    found.add(table)
    return found
