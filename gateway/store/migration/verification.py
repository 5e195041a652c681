"""Has the database what `blueprint` says? One query, which reads nothing but the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.migration.blueprint import FUNCTIONS, ROLES, Fact, facts, policy_text
from gateway.store.postgres.statements import Statement
from gateway.store.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.store.postgres.database import Database

TOLD_MAX: Final = 4
"""Facts that are named; there are hundreds."""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# From PostgreSQL 16 on a member of a role need not be able to take it.
CATALOG: Final = f"""
WITH roles AS (
    SELECT oid, rolname FROM pg_roles WHERE rolname IN ({_listed(ROLES)})
), tables AS (
    SELECT * FROM pg_class
    WHERE relkind IN ('r', 'p') AND relname IN ({_listed(COLUMNS)}) AND pg_table_is_visible(oid)
), functions AS (
    SELECT * FROM pg_proc
    WHERE proname IN ({_listed(FUNCTIONS)}) AND pronargs = 1 AND prosecdef
      AND pg_function_is_visible(oid)
), columns AS (
    SELECT t.oid AS table_oid, t.relname, a.*
    FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid
    WHERE a.attnum > 0 AND NOT a.attisdropped
)
SELECT 'role ' || rolname, '', '', '' FROM roles
UNION ALL
SELECT 'membership of the database''s user in ' || rolname, '', '', '' FROM roles
WHERE pg_has_role(current_user, oid, CASE WHEN current_setting('server_version_num')::int >= 160000
                                          THEN 'SET' ELSE 'MEMBER' END)
UNION ALL
SELECT 'table ' || relname, '', '', '' FROM tables
UNION ALL
SELECT 'ownership of ' || relname, '', '', '' FROM tables
WHERE pg_has_role(current_user, relowner, 'USAGE')
UNION ALL
SELECT 'column ' || relname || '.' || attname || ' ' || format_type(atttypid, atttypmod),
       '', '', ''
FROM columns
UNION ALL
SELECT CASE WHEN attnotnull THEN 'NOT NULL on ' ELSE 'no NOT NULL on ' END
       || relname || '.' || attname, '', '', ''
FROM columns
UNION ALL
SELECT 'index ' || i.relname, '', '', ''
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN tables t ON t.oid = x.indrelid
WHERE x.indisvalid
UNION ALL
SELECT 'row-level security of ' || relname, '', '', '' FROM tables
WHERE relrowsecurity AND relforcerowsecurity
UNION ALL
SELECT t.relname, p.polname, pg_get_expr(p.polqual, p.polrelid),
       coalesce((SELECT string_agg(r.rolname, ' ' ORDER BY r.rolname)
                 FROM pg_roles r WHERE r.oid = ANY (p.polroles)), 'public')
FROM pg_policy p JOIN tables t ON t.oid = p.polrelid
WHERE p.polcmd = '*' AND p.polpermissive AND p.polwithcheck IS NULL
UNION ALL
SELECT 'privilege USAGE on the schema of ' || rolname, '', '', '' FROM roles
WHERE has_schema_privilege(oid, current_schema(), 'USAGE')
UNION ALL
SELECT 'privilege ' || verb || ' on ' || relname || ' of ' || rolname, '', '', ''
FROM roles, tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS verbs (verb)
WHERE has_table_privilege(roles.oid, tables.oid, verb)
UNION ALL
SELECT 'privilege ' || verb || ' on ' || relname || '.' || attname || ' of ' || rolname, '', '', ''
FROM roles, columns, unnest(ARRAY['SELECT', 'UPDATE']) AS verbs (verb)
WHERE relname IN ('responses', 'traces')
  AND has_column_privilege(roles.oid, table_oid, attnum, verb)
UNION ALL
SELECT 'function ' || proname, '', '', '' FROM functions
UNION ALL
SELECT 'privilege EXECUTE on ' || proname || ' of ' || rolname, '', '', '' FROM roles, functions
WHERE has_function_privilege(roles.oid, functions.oid, 'EXECUTE')
UNION ALL
SELECT 'no privilege EXECUTE on ' || proname || ' of everybody', '', '', '' FROM functions
WHERE NOT has_function_privilege('public', oid, 'EXECUTE')
"""  # noqa: S608 - constants
_CATALOG: Final = Statement(CATALOG)
# A server from PostgreSQL 17 on tells a policy's condition only when nobody has the table locked.
_HURRY: Final = "SET LOCAL lock_timeout = '200ms'"


async def missing(database: Database, *, is_patient: bool = True) -> list[Fact]:
    """What the database lacks to be served from. Raises `StoreUnavailable`, unless `is_patient`
    soon where somebody has a table locked.

    Who serves need not own the tables (`deploy/roles.sql`): only an upgrade has to.
    """
    async with database.owner_transaction() as connection:
        if not is_patient:
            await connection.script(_HURRY)
        lacking = missing_from([tuple(row) for row in await connection.execute(_CATALOG)])
    return [fact for fact in lacking if not fact.is_of_owner]


def missing_from(rows: Iterable[Sequence[str]]) -> list[Fact]:
    """The facts that are not among the rows of `CATALOG`, in the order of `facts`."""
    found = {
        policy_text(text, name, roles, condition) if name else text
        for text, name, condition, roles in rows
    }
    return [fact for fact in facts() if fact.text not in found]


def told(lacking: Sequence[Fact]) -> str:
    """One line that names the first of them and counts the rest."""
    shown = "; ".join(fact.text.partition(": ")[0] for fact in lacking[:TOLD_MAX])
    more = len(lacking) - TOLD_MAX
    return f"{shown}; and {more} more" if more > 0 else shown
