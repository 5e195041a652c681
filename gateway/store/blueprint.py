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

from gateway.store.schema import APP_ROLE, RUNS_ROLE
from gateway.tenancy import POLICY_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROLES: Final = (APP_ROLE, RUNS_ROLE)
MEMBERSHIP: Final = "membership of the database's user in {role}"
"""The fact that it may take the role."""

_ITEM: Final = (
    "kind text!, role text, phase text, item_id bytea!, call_id bytea, name bytea,"
    " complete boolean!, item bytea!, ids bytea"
)
COLUMNS: Final = {
    "tenants": "id uuid!, name text!, created_at timestamptz!, disabled_at timestamptz, "
    + ", ".join(f"{value.name} {value.column_type}" for value in POLICY_VALUES.values()),
    "api_keys": "tenant_id uuid!, id uuid!, name text!, hash bytea!, hint text!,"
    " created_at timestamptz!, disabled_at timestamptz, dialect text",
    "responses": "tenant_id uuid!, id uuid!, key_id uuid!, status text!, model text!,"
    " background boolean!, stored boolean!, created_at timestamptz!, root_created_at timestamptz!,"
    " completed_at timestamptz, parent_id uuid, conversation_id uuid, conversation_end bigint,"
    " request bytea!, body bytea, recoveries bytea, durable boolean!, streamed boolean!,"
    " plan bytea, prompt bytea, owner text, epoch integer!, lease_until timestamptz,"
    " next_entry integer!, attempts smallint!, fold_version smallint!",
    "messages": "tenant_id uuid!, response_id uuid!, position integer!, is_output boolean!,"
    f" {_ITEM}",
    "idempotency_keys": "tenant_id uuid!, key_hash bytea!, fingerprint bytea!, response_id uuid!,"
    " created_at timestamptz!",
    "events": "tenant_id uuid!, response_id uuid!, first_entry integer!, day date!, epoch integer!,"
    " entry_count integer!, entries bytea!",
    "writers": "tenant_id uuid!, owner text!, fence bigint!, number bigint!, used_at timestamptz!",
    "flushes": "tenant_id uuid!, owner text!, number bigint!, members bytea!, entries bytea!",
    "conversations": "tenant_id uuid!, id uuid!, created_at timestamptz!, metadata bytea!,"
    " next_position bigint!, writer uuid",
    "conversation_items": f"tenant_id uuid!, conversation_id uuid!, position bigint!, {_ITEM}",
    "traces": "tenant_id uuid!, key bytea!, kind text!, trace_id bytea!, record_id bytea!,"
    " response_id uuid, received_at timestamptz!, record bytea!",
    "usage": "tenant_id uuid!, response_id uuid!, key_id uuid!, model text!, at timestamptz!,"
    " input_tokens integer!, cached_tokens integer!, output_tokens integer!,"
    " reasoning_tokens integer!, recomputed_tokens integer!",
}
"""The columns of every table with their types; `!`: not null."""
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
KEYS: Final = (*(f"pk_{table}" for table in COLUMNS), "uq_tenants_name", "uq_api_keys_hash")
"""Those that statements rely on."""
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
    """Statements that `mend` it make it so. Without a fact that `stops`, requests fail.
    `is_of_owner`: only who upgrades needs it.
    """

    text: str
    mend: tuple[str, ...] = ()
    stops: bool = True
    is_of_owner: bool = False


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


def column_texts(table: str, columns: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The facts that these columns, with their types, are there; `!` behind a type: not null."""
    for name, kind in columns:
        plain = kind.removesuffix("!").replace("timestamptz", "timestamp with time zone")
        yield f"column {table}.{name} {plain}{' NOT NULL' if kind.endswith('!') else ''}"


def privilege_text(role: str, verb: str, what: str) -> str:
    """The fact that a role may do that to a table, a column (`table.column`) or a function."""
    return f"privilege {verb} on {what} of {role}"


def facts() -> Iterator[Fact]:
    """All there are; each can be mended once those before it are there."""
    for role in ROLES:
        yield Fact(f"role {role}")
        yield Fact(MEMBERSHIP.format(role=role))
    for table, columns in COLUMNS.items():
        yield Fact(f"table {table}")
        yield Fact(f"ownership of {table}", is_of_owner=True)
        pairs = (column.strip().split(" ", 1) for column in columns.split(","))
        for text in column_texts(table, ((name, kind) for name, kind in pairs)):
            yield Fact(text)
    yield from (Fact(f"index {name}") for name in KEYS)
    yield from (Fact(f"index {name}", stops=False) for name in INDEXES)
    yield from _walls()
    yield from _doors()


def _walls() -> Iterator[Fact]:
    for table in COLUMNS:
        yield Fact(
            f"row-level security of {table}",
            (f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",),
        )
    yield from (policy.fact() for policy in policies())
    for function in FUNCTIONS:
        yield Fact(f"function {function}")
        yield Fact(
            f"no privilege EXECUTE on {function} of everybody",
            (f"REVOKE ALL ON FUNCTION {function}(bytea) FROM PUBLIC",),
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
            (f"GRANT EXECUTE ON FUNCTION {function}(bytea) TO {APP_ROLE}",),
        )
