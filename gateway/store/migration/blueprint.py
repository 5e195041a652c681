"""What a database must have for this release to serve from it, as facts of its catalog.

The migrations make all of it; but a dump that is restored without the cluster's roles loses what
was granted to them, and people change databases by hand. A fact is a line of text, which the
catalog either has or lacks: a missing one is told as it is written. What lets roles in can be made
again by a statement; columns and keys cannot, because there were rows in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.store.schema import APP_ROLE, COLUMNS, RUNS_ROLE, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROLES: Final = (APP_ROLE, RUNS_ROLE)
MEMBERSHIP: Final = "membership of the database's user in {role}"
"""The fact that it may take the role."""


INDEXES: Final = (
    "ix_responses_running",
    "ix_responses_tenant_id_parent_id",
    "ix_messages_tenant_id_item_id",
    "ix_conversation_items_tenant_id_item_id",
    "ix_idempotency_keys_tenant_id_response_id",
    "ix_traces_tenant_id_received_at",
    "ix_traces_tenant_id_trace_id",
    "ix_usage_tenant_id_at",
)
"""Those that make it fast."""
CONFLICTS: Final = ("pk_traces", "pk_idempotency_keys", "pk_writers")
"""The keys that statements name (`ON CONFLICT`)."""
KEYS: Final = (*(f"pk_{table}" for table in COLUMNS), "uq_tenants_name", "uq_api_keys_hash")
"""Those by which it is seen what is there already."""
FUNCTIONS: Final = ("find_api_key", "find_principal")
"""Of a key's hash; the role of tenants may execute them, and nobody else but the owner."""

_CURRENT_TENANT: Final = "nullif(current_setting('app.tenant_id', true), '')::uuid"
_OF_RUNS: Final = (
    "responses",
    "events",
    "tenants",
    "idempotency_keys",
    "traces",
    "writers",
    "flushes",
)
_OPERATED: Final = ("tenants", "api_keys")
_EVERYTHING: Final = "SELECT, INSERT, UPDATE, DELETE"
_CLAIM: Final = "status, owner, epoch, lease_until, next_entry, attempts"
_SEEN: Final = (
    "tenant_id, id, key_id, model, background, durable, streamed, created_at, root_created_at,"
    " completed_at, parent_id, request, plan, prompt, fold_version, conversation_id,"
    f" conversation_end, {_CLAIM}"
)
GRANTS: Final = {
    APP_ROLE: {
        "tenants": "SELECT",
        "responses": _EVERYTHING,
        "messages": _EVERYTHING,
        "idempotency_keys": _EVERYTHING,
        "events": "SELECT, INSERT, DELETE",
        "writers": "SELECT, UPDATE",
        "flushes": "SELECT, UPDATE",
        "conversations": _EVERYTHING,
        "conversation_items": "SELECT, INSERT, DELETE",
        "traces": _EVERYTHING,
        "usage": "SELECT, INSERT",
    },
    RUNS_ROLE: {
        "tenants": "SELECT",
        "responses": f"SELECT ({_SEEN}), UPDATE ({_CLAIM}), DELETE",
        "idempotency_keys": "SELECT, DELETE",
        "events": "SELECT, INSERT, DELETE",
        "writers": _EVERYTHING,
        "flushes": _EVERYTHING,
        "traces": "SELECT (tenant_id, key, received_at), DELETE",
    },
}
"""What each role may do to each table, or to some of its columns."""
_LET_INTO_SCHEMA: Final = (
    "DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO {role}', current_schema()); END $$"
)
_PRIVILEGE: Final = re.compile(r"(?P<verb>[A-Z]+)(?: \((?P<columns>[^)]*)\))?")


@dataclass(frozen=True, slots=True)
class Fact:
    """Statements that `mend` it make it so. `cost` is what going without it costs; empty: requests
    fail. `is_of_owner`: only who upgrades needs it.
    """

    text: str
    mend: tuple[str, ...] = ()
    cost: str = ""
    is_of_owner: bool = False

    @property
    def stops(self) -> bool:
        """Without it, requests fail."""
        return not self.cost


@dataclass(frozen=True, slots=True)
class Policy:
    """Rows that pass `condition` are there for `role`; None: for everybody who is let in."""

    table: str
    name: str
    condition: str
    role: str | None = None

    def fact(self) -> Fact:
        """It is there, and it is the one that the migrations made."""
        to = f" TO {self.role}" if self.role else ""
        return Fact(
            policy_text(self.table, self.name, self.role or "public", self.condition),
            (
                f"DROP POLICY IF EXISTS {self.name} ON {self.table}",
                f"CREATE POLICY {self.name} ON {self.table}{to} USING ({self.condition})",
            ),
        )


def policies() -> Iterator[Policy]:
    """Every policy of every table."""
    for table in COLUMNS:
        tenant = "id" if table == "tenants" else "tenant_id"
        yield Policy(table, "own_tenant", f"{tenant} = {_CURRENT_TENANT}")
    for table in _OPERATED:
        yield Policy(table, "operator", f"current_user <> '{APP_ROLE}'")
    for table in _OF_RUNS:
        # By name: `TO` the role alone would let in its members too, and the owner is one.
        yield Policy(table, "runs", f"current_user = '{RUNS_ROLE}'", RUNS_ROLE)


def policy_text(table: str, name: str, roles: str, condition: str) -> str:
    """The fact that a policy is there, whatever parentheses and casts the server puts into it."""
    plain = re.sub(r"::(?:text|name)|[\s()]", "", condition).lower()
    return f"policy {name} on {table} to {roles}: {plain}"


def column_facts(table: str, columns: Iterable[tuple[str, str]]) -> Iterator[Fact]:
    """These columns, with their types, are there; `!` behind a type: not null.

    Rows are written without what may be null, so no column may have the constraint that should not.
    """
    for name, kind in columns:
        plain = kind.removesuffix("!").replace("timestamptz", "timestamp with time zone")
        yield Fact(f"column {table}.{name} {plain}")
        if kind.endswith("!"):
            yield Fact(f"NOT NULL on {table}.{name}", cost="rows may lack it")
        else:
            yield Fact(f"no NOT NULL on {table}.{name}")


def privilege_text(role: str, verb: str, what: str) -> str:
    """The fact that a role may do that to a table, a column (`table.column`) or a function."""
    return f"privilege {verb} on {what} of {role}"


def facts() -> Iterator[Fact]:
    """All there are; each can be mended once those before it are there."""
    for role in ROLES:
        yield Fact(f"role {role}")
        yield Fact(MEMBERSHIP.format(role=role))
    for table in COLUMNS:
        yield Fact(f"table {table}")
        yield Fact(f"ownership of {table}", is_of_owner=True)
        yield from column_facts(table, columns_of(table).items())
    for name in KEYS:
        cost = "" if name in CONFLICTS else "the same may be written twice"
        yield Fact(f"index {name}", cost=cost)
    yield from (Fact(f"index {name}", cost="it works, but slowly") for name in INDEXES)
    yield from _walls()
    yield from _doors()


def _walls() -> Iterator[Fact]:
    for table in COLUMNS:
        yield Fact(
            f"row-level security of {table}",
            (f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",),
            cost="only the statements keep tenants apart",
        )
    yield from (policy.fact() for policy in policies())
    for function in FUNCTIONS:
        yield Fact(f"function {function}")
        yield Fact(
            f"no privilege EXECUTE on {function} of everybody",
            # The role of tenants may have had it by being one of everybody.
            (f"REVOKE ALL ON FUNCTION {function}(bytea) FROM PUBLIC", _let_execute(function)),
            cost="every user of the database may look up keys",
        )


def _doors() -> Iterator[Fact]:
    for role, tables in GRANTS.items():
        yield Fact(
            privilege_text(role, "USAGE", "the schema"),
            (_LET_INTO_SCHEMA.format(role=role),),
        )
        for table, privileges in tables.items():
            for found in _PRIVILEGE.finditer(privileges):
                mend = f"GRANT {found[0]} ON {table} TO {role}"
                names = found["columns"]
                places = [f"{table}.{name}" for name in names.split(", ")] if names else [table]
                for place in places:
                    yield Fact(privilege_text(role, found["verb"], place), (mend,))
    for function in FUNCTIONS:
        yield Fact(
            privilege_text(APP_ROLE, "EXECUTE", function),
            (_let_execute(function),),
        )


def _let_execute(function: str) -> str:
    return f"GRANT EXECUTE ON FUNCTION {function}(bytea) TO {APP_ROLE}"
