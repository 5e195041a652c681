"""Needs of this release in a database, and how to restore what can be restored.

A dump that is restored without the cluster's roles loses their privileges, yet has the newest
revision, and people change databases by hand. A requirement is a line of text, which the catalog
either has or lacks. Every upgrade restores the access of roles. Columns and keys cannot be
restored, because there were rows in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from sqlalchemy import UniqueConstraint

from gateway.errors import StartupError
from gateway.store.migration.functions import FUNCTIONS
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE, EVERYONE, RUNS_ROLE
from gateway.store.tables import TABLES
from gateway.store.tables.columns import about

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Table

    from gateway.store.postgres.database import Database
    from gateway.store.tables.columns import Access

ROLES: Final = (APP_ROLE, RUNS_ROLE)
MEMBERSHIP: Final = "membership of the database's user in {role}"


_TABLES: Final = tuple(TABLES.values())
_PRIMARY: Final = {f"pk_{table.name}": about(table).is_upserted for table in _TABLES}
_UNIQUE: Final = {
    str(key.name): key.info.get("is_upserted", False)
    for table in _TABLES
    for key in table.constraints
    if isinstance(key, UniqueConstraint)
}
_INDEXES: Final = {str(one.name): one.unique for table in _TABLES for one in table.indexes}
INDEXES: Final = sorted(name for name, is_unique in _INDEXES.items() if not is_unique)
"""Indexes that only make the database fast."""
CONFLICTS: Final = {name for name, is_upserted in (_PRIMARY | _UNIQUE).items() if is_upserted}
KEYS: Final = (
    *_PRIMARY,
    *sorted(_UNIQUE),
    *sorted(name for name, is_unique in _INDEXES.items() if is_unique),
)
"""Keys and unique indexes by which the database detects rows that exist already."""

_CURRENT_TENANT: Final = "nullif(current_setting('app.tenant_id', true), '')::uuid"
_CURRENT_PROJECT: Final = "nullif(current_setting('app.project_id', true), '')::uuid"
GRANTS: Final = {
    role: {table.name: may for table in _TABLES if (may := getattr(about(table).access, name))}
    for role, name in ((APP_ROLE, "app"), (RUNS_ROLE, "runs"))
}
_COLUMN_WISE: Final = {
    table for tables in GRANTS.values() for table, privileges in tables.items() if "(" in privileges
}
_LET_INTO_SCHEMA: Final = (
    "DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO {role}', current_schema()); END $$"
)
_PRIVILEGE: Final = re.compile(r"(?P<verb>[A-Z]+)(?: \((?P<columns>[^)]*)\))?")


@dataclass(frozen=True, slots=True)
class Requirement:
    """Requirement on the schema, which the statements in `mend` restore. `cost` is what going
    without it costs; empty: requests fail. `is_of_owner`: only upgrades need it.
    """

    text: str
    mend: tuple[str, ...] = ()
    cost: str = ""
    is_of_owner: bool = False

    @property
    def stops(self) -> bool:
        # A requirement without a cost is one without which requests fail.
        return not self.cost


def _policy(
    table: str, name: str, condition: str, role: str | None = None, *, is_restrictive: bool = False
) -> Requirement:
    # `role` sees the rows that pass `condition`; None: every role with access. A restrictive policy
    # hides rows that do not pass, of those that other policies show.
    kind = " AS RESTRICTIVE" if is_restrictive else ""
    to = f" TO {role}" if role else ""
    return Requirement(
        policy_text(table, name + kind, role or "public", condition),
        (
            f"DROP POLICY IF EXISTS {name} ON {table}",
            f"CREATE POLICY {name} ON {table}{kind}{to} USING ({condition})",
        ),
    )


def policies() -> Iterator[Requirement]:
    for table in _TABLES:
        yield from _policies_of(table.name, about(table).access)


def _policies_of(table: str, access: Access) -> Iterator[Requirement]:
    tenant = "id" if table == "tenants" else "tenant_id"
    yield _policy(table, "own_tenant", f"{tenant} = {_CURRENT_TENANT}")
    if access.operated:
        yield _policy(table, "operator", f"current_user <> '{APP_ROLE}'")
    if access.shared:
        yield _policy(table, "shared", f"tenant_id = '{EVERYONE}'::uuid")
    if access.of_runs:
        # By name: `TO` the role alone would let in its members too, and the owner is one.
        yield _policy(table, "runs", f"current_user = '{RUNS_ROLE}'", RUNS_ROLE)
    if access.of_projects:
        # A file of a container is of the container's project, whatever `project_id` says.
        is_inside = "container_id IS NOT NULL OR " if table == "files" else ""
        condition = (
            f"{is_inside}{_CURRENT_PROJECT} IS NULL"
            f" OR COALESCE(project_id, tenant_id) = {_CURRENT_PROJECT}"
        )
        yield _policy(table, "one_project", condition, APP_ROLE, is_restrictive=True)
    if access.of_others:
        condition = f"{access.of_others} OR {_may_as_owner(table)}"
        yield _policy(table, "of_owner", condition, is_restrictive=True)


def _may_as_owner(table: str) -> str:
    # Spelled like the output of `pg_get_expr`, with which verification compares it. A user who
    # inherits the role of tenants has its privileges, so privileges cannot hide these rows from it.
    of_table = f"pg_class.oid = '{table}'::regclass::oid"
    owner = f"SELECT pg_class.relowner FROM pg_class WHERE {of_table}"  # noqa: S608 - a name of ours
    return f"pg_has_role(({owner}), 'USAGE')"


def policy_text(table: str, name: str, roles: str, condition: str) -> str:
    plain = re.sub(r"::(?:text|name)|[\s()]", "", condition).lower()
    return f"policy {name} on {table} to {roles}: {plain}"


def _column_requirements(table: Table) -> Iterator[Requirement]:
    # Rows are written without what may be null, so no column may have the constraint that should
    # not.
    for column in table.columns:
        place, kind = f"{table.name}.{column.name}", column.info["type"]
        spelled = {"timestamptz": "timestamp with time zone"}.get(kind, kind)
        yield Requirement(f"column {place} {spelled}")
        if column.nullable:
            yield Requirement(f"no NOT NULL on {place}")
        else:
            yield Requirement(f"NOT NULL on {place}", cost="rows may lack it")


def privilege_text(role: str, verb: str, what: str) -> str:
    # `what`: a table, a column (`table.column`) or a function.
    return f"privilege {verb} on {what} of {role}"


def requirements() -> Iterator[Requirement]:
    """Yield every requirement. Each can be repaired once those before it are met."""
    for role in ROLES:
        yield Requirement(f"role {role}")
        yield Requirement(MEMBERSHIP.format(role=role))
    for table in _TABLES:
        yield Requirement(f"table {table.name}")
        yield Requirement(f"ownership of {table.name}", is_of_owner=True)
        yield from _column_requirements(table)
    for name in KEYS:
        cost = "" if name in CONFLICTS else "the same may be written twice"
        yield Requirement(f"index {name}", cost=cost)
    yield from (Requirement(f"index {name}", cost="it works, but slowly") for name in INDEXES)
    yield from _isolation()
    yield from _access()


def _isolation() -> Iterator[Requirement]:
    for table in TABLES:
        yield Requirement(
            f"row-level security of {table}",
            (f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",),
            cost="only the statements keep tenants apart",
        )
    yield from policies()
    for function in FUNCTIONS:
        yield Requirement(f"function {function.name}")
        yield Requirement(
            f"no privilege EXECUTE on {function.name} of everybody",
            # The role of tenants may have had it by being one of everybody.
            (function.close, function.grant),
            cost="every user of the database may look up keys",
        )


def _access() -> Iterator[Requirement]:
    for role, tables in GRANTS.items():
        yield Requirement(
            privilege_text(role, "USAGE", "the schema"), (_LET_INTO_SCHEMA.format(role=role),)
        )
        for table, privileges in tables.items():
            for privilege in _PRIVILEGE.finditer(privileges):
                mend = f"GRANT {privilege[0]} ON {table} TO {role}"
                names = privilege["columns"]
                places = [f"{table}.{name}" for name in names.split(", ")] if names else [table]
                for place in places:
                    yield Requirement(privilege_text(role, privilege["verb"], place), (mend,))
    for function in FUNCTIONS:
        yield Requirement(privilege_text(APP_ROLE, "EXECUTE", function.name), (function.grant,))


NAMED_MAX: Final = 4


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_FUNCTIONS_TAKING: Final = ", ".join(
    f"('{one.name}', {len(one.parameters.split(', '))})" for one in FUNCTIONS
)
_ROLE_ROWS: Final = f"SELECT oid, rolname FROM pg_roles WHERE rolname IN ({_listed(ROLES)})"  # noqa: S608
_TABLE_ROWS: Final = f"""
SELECT * FROM pg_class WHERE relkind IN ('r', 'p') AND relname IN ({_listed(TABLES)})
  AND pg_table_is_visible(oid)
"""  # noqa: S608 - constants
_FUNCTION_ROWS: Final = f"""
SELECT * FROM pg_proc WHERE (proname, pronargs) IN ({_FUNCTIONS_TAKING}) AND prosecdef
  AND pg_function_is_visible(oid)
"""  # noqa: S608 - constants
_COLUMN_ROWS: Final = """
SELECT t.oid AS table_oid, t.relname, a.*
FROM tables AS t JOIN pg_attribute AS a ON a.attrelid = t.oid
WHERE a.attnum > 0 AND NOT a.attisdropped
"""
# From PostgreSQL 16 on a member of a role need not be able to take it.
_OBJECTS: Final = f"""
WITH roles AS ({_ROLE_ROWS}), tables AS ({_TABLE_ROWS}), columns AS ({_COLUMN_ROWS})
SELECT 'role ' || rolname FROM roles
UNION ALL
SELECT 'membership of the database''s user in ' || rolname FROM roles
WHERE pg_has_role(current_user, oid, CASE WHEN current_setting('server_version_num')::int >= 160000
                                          THEN 'SET' ELSE 'MEMBER' END)
UNION ALL
SELECT 'table ' || relname FROM tables
UNION ALL
SELECT 'ownership of ' || relname FROM tables WHERE pg_has_role(current_user, relowner, 'USAGE')
UNION ALL
SELECT 'column ' || relname || '.' || attname || ' ' || format_type(atttypid, atttypmod)
FROM columns
UNION ALL
SELECT CASE WHEN attnotnull THEN 'NOT NULL on ' ELSE 'no NOT NULL on ' END
       || relname || '.' || attname
FROM columns
UNION ALL
SELECT 'index ' || i.relname
FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN tables ON tables.oid = x.indrelid
WHERE x.indisvalid
UNION ALL
SELECT 'row-level security of ' || relname FROM tables
WHERE relrowsecurity AND relforcerowsecurity
UNION ALL
SELECT 'function ' || proname FROM ({_FUNCTION_ROWS}) AS functions
"""  # noqa: S608 - constants
_PRIVILEGES: Final = f"""
WITH roles AS ({_ROLE_ROWS}), tables AS ({_TABLE_ROWS}), columns AS ({_COLUMN_ROWS}),
     functions AS ({_FUNCTION_ROWS})
SELECT 'privilege USAGE on the schema of ' || rolname FROM roles
WHERE has_schema_privilege(oid, current_schema(), 'USAGE')
UNION ALL
SELECT 'privilege ' || verb || ' on ' || relname || ' of ' || rolname
FROM roles, tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS verbs (verb)
WHERE has_table_privilege(roles.oid, tables.oid, verb)
UNION ALL
SELECT 'privilege ' || verb || ' on ' || relname || '.' || attname || ' of ' || rolname
FROM roles, columns, unnest(ARRAY['SELECT', 'UPDATE']) AS verbs (verb)
WHERE relname IN ({_listed(sorted(_COLUMN_WISE))})
  AND has_column_privilege(roles.oid, table_oid, attnum, verb)
UNION ALL
SELECT 'privilege EXECUTE on ' || proname || ' of ' || rolname FROM roles, functions
WHERE has_function_privilege(roles.oid, functions.oid, 'EXECUTE')
UNION ALL
SELECT 'no privilege EXECUTE on ' || proname || ' of everybody' FROM functions
WHERE NOT has_function_privilege('public', oid, 'EXECUTE')
"""  # noqa: S608 - constants
_POLICIES: Final = f"""
SELECT t.relname, p.polname || CASE WHEN p.polpermissive THEN '' ELSE ' AS RESTRICTIVE' END,
       coalesce((SELECT string_agg(r.rolname, ' ' ORDER BY r.rolname)
                 FROM pg_roles AS r WHERE r.oid = ANY (p.polroles)), 'public'),
       pg_get_expr(p.polqual, p.polrelid)
FROM pg_policy AS p JOIN ({_TABLE_ROWS}) AS t ON t.oid = p.polrelid
WHERE p.polcmd = '*' AND p.polwithcheck IS NULL
"""  # noqa: S608 - constants
CATALOG: Final = (_OBJECTS, _PRIVILEGES, _POLICIES)
# From PostgreSQL 17 on, reading a policy's condition waits for locks of its table.
_HURRY: Final = "SET LOCAL lock_timeout = '200ms'"


async def missing(database: Database, *, is_patient: bool = True) -> list[Requirement]:
    """Return what the database lacks to be served from.

    Unless `is_patient`, a locked table raises `StoreUnavailable` soon. The serving login need not
    own the tables (`deploy/roles.sql`).
    """
    rows: list[Sequence[str]] = []
    async with database.owner_transaction() as connection:
        if not is_patient:
            await connection.script(_HURRY)
        for query in CATALOG:
            rows += await connection.execute(Statement(query))
    return [requirement for requirement in _missing_from(rows) if not requirement.is_of_owner]


def _missing_from(rows: Iterable[Sequence[str]]) -> list[Requirement]:
    there = {row[0] if len(row) == 1 else policy_text(*row) for row in rows}
    return [requirement for requirement in requirements() if requirement.text not in there]


def summary(lacking: Sequence[Requirement]) -> str:
    shown = "; ".join(map(_word, lacking[:NAMED_MAX]))
    more = len(lacking) - NAMED_MAX
    return f"{shown}; and {more} more" if more > 0 else shown


# Another database's migration may do the same at the same moment, as another owner. From PostgreSQL
# 16 on, being a member (as the creator of a role is) no longer implies that one may take it.
MAKE_ROLE: Final = """
DO $$
DECLARE
    needed text := CASE WHEN current_setting('server_version_num')::int >= 160000
                        THEN 'SET' ELSE 'MEMBER' END;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
    IF NOT pg_has_role(current_user, '{role}', needed) THEN
        GRANT {role} TO CURRENT_USER;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation OR internal_error OR insufficient_privilege THEN
    NULL; -- made or granted by another, or not ours to make: looked at afterwards
END $$
"""
_NOT_OWNER: Final = (
    "Run it with the URL of the user who owns the tables. Should another own them than is meant to,"
    " an administrator has to run ALTER TABLE … OWNER TO."
)
_LOST: Final = "No migration removes that: bring it back from a backup."
_TRIES: Final = 3
"""Attempts: if another process creates a role at the same moment, the error undoes what this
process did in the same block."""


def make_roles(connection: Connection) -> None:
    """Create the roles that are missing and let the user take them.

    Raises `StartupError`, with what an administrator has to do.
    """
    if any(_have_made_roles(connection) for _ in range(_TRIES)):
        return
    lacking = {requirement.text for requirement in _lacking(connection)}
    absent = [role for role in ROLES if f"role {role}" in lacking]
    barred = [role for role in ROLES if MEMBERSHIP.format(role=role) in lacking]
    user = connection.exec_driver_sql("SELECT quote_ident(current_user)").scalar_one()
    connection.commit()
    raise _needs_administrator(str(user), absent, barred)


def _have_made_roles(connection: Connection) -> bool:
    for role in ROLES:
        connection.exec_driver_sql(MAKE_ROLE.format(role=role))
    lacking = {requirement.text for requirement in _lacking(connection)}
    return all(MEMBERSHIP.format(role=role) not in lacking for role in ROLES)


def _needs_administrator(user: str, absent: list[str], barred: list[str]) -> StartupError:
    what = [f"there is no role {role}" for role in absent]
    what += [f"it may not take the role {role}" for role in barred if role not in absent]
    statements = [f"CREATE ROLE {role} NOLOGIN;" for role in absent]
    statements += [f"GRANT {role} TO {user};" for role in barred]
    return StartupError(
        f"the database's user {user} may not create roles or grant them: {', '.join(what)}",
        remedy="An administrator of the database (such as postgres) has to run this once; then run "
        "`harmony-gateway db upgrade` again:\n    " + "\n    ".join(statements),
    )


@dataclass(frozen=True, slots=True)
class Repaired:
    """Requirements that an upgrade found missing at the newest revision."""

    mended: tuple[str, ...]
    lacking: tuple[str, ...]
    """Missing parts, with their cost, that requests do not need."""


def repair_access(connection: Connection) -> Repaired:
    """Restore missing row-level security and privileges of the roles.

    Raises `StartupError` for what no statement can restore.
    """
    lacking = _lacking(connection)
    unmendable = [requirement for requirement in lacking if not requirement.mend]
    if any(requirement.stops for requirement in unmendable):
        is_of_owner = all(
            requirement.is_of_owner for requirement in unmendable if requirement.stops
        )
        raise StartupError(
            f"the schema lacks: {summary(unmendable)}", remedy=_NOT_OWNER if is_of_owner else _LOST
        )
    for statement in dict.fromkeys(
        chain.from_iterable(requirement.mend for requirement in lacking)
    ):
        connection.exec_driver_sql(statement)
    connection.commit()
    left = _lacking(connection)
    stopping = [requirement for requirement in left if requirement.stops]
    if stopping:
        raise StartupError(
            f"the schema lacks, though its owner has just made it again: {summary(stopping)}",
            remedy="Who owns the tables and the schema? That user has to run: db upgrade.",
        )
    mended = tuple(_word(requirement) for requirement in lacking if requirement not in left)
    return Repaired(
        mended, tuple(f"{_word(requirement)}: {requirement.cost}" for requirement in left)
    )


def _word(requirement: Requirement) -> str:
    # The text without the condition that policies have.
    return requirement.text.partition(": ")[0]


def _lacking(connection: Connection) -> list[Requirement]:
    rows = [tuple(row) for query in CATALOG for row in connection.exec_driver_sql(query)]
    connection.commit()
    return _missing_from(rows)
