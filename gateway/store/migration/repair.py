"""What migrations cannot be relied on for: roles, which belong to the cluster, and what they may.

A dump has no roles in it, and where they are missing it is restored without what was granted to
them, yet with the newest revision. So this is done by every upgrade, before and after it migrates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from gateway.errors import StartupError
from gateway.store.migration.blueprint import MEMBERSHIP, ROLES
from gateway.store.migration.verification import CATALOG, missing_from, told

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.store.migration.blueprint import Fact

# Another database's migration may do the same at the same moment, as another owner. From PostgreSQL
# 16 on, being a member (as the creator of a role is) no longer implies that one may take it.
_MAKE_ROLE: Final = """
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
"""What another makes at the same moment undoes what this one did before in the same block."""


def make_roles(connection: Connection) -> None:
    """See that the roles are there and may be taken.

    Raises `StartupError`, with what an administrator has to do, where the user may not see to it.
    """
    if any(_have_made_roles(connection) for _ in range(_TRIES)):
        return
    lacking = {fact.text for fact in _lacking(connection)}
    absent = [role for role in ROLES if f"role {role}" in lacking]
    barred = [role for role in ROLES if MEMBERSHIP.format(role=role) in lacking]
    user = connection.exec_driver_sql("SELECT quote_ident(current_user)").scalar_one()
    connection.commit()
    raise _needs_administrator(str(user), absent, barred)


def _have_made_roles(connection: Connection) -> bool:
    for role in ROLES:
        connection.exec_driver_sql(_MAKE_ROLE.format(role=role))
    lacking = {fact.text for fact in _lacking(connection)}
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
    """What an upgrade found missing at the newest revision, as `blueprint` words it."""

    mended: tuple[str, ...]
    lacking: tuple[str, ...]
    """What is missing still, and what that costs: requests do not need it."""


def let_in(connection: Connection) -> Repaired:
    """Make again what keeps tenants apart and lets roles in, where it is missing.

    Raises `StartupError` when something is missing that no statement can bring back.
    """
    lacking = _lacking(connection)
    unmendable = [fact for fact in lacking if not fact.mend]
    if any(fact.stops for fact in unmendable):
        is_of_owner = all(fact.is_of_owner for fact in unmendable if fact.stops)
        raise StartupError(
            f"the schema lacks: {told(unmendable)}", remedy=_NOT_OWNER if is_of_owner else _LOST
        )
    for statement in dict.fromkeys(chain.from_iterable(fact.mend for fact in lacking)):
        connection.exec_driver_sql(statement)
    connection.commit()
    left = _lacking(connection)
    stopping = [fact for fact in left if fact.stops]
    if stopping:
        raise StartupError(
            f"the schema lacks, though its owner has just made it again: {told(stopping)}",
            remedy="Who owns the tables and the schema? That user has to run: db upgrade.",
        )
    mended = tuple(_word(fact) for fact in lacking if fact not in left)
    return Repaired(mended, tuple(f"{_word(fact)}: {fact.cost}" for fact in left))


def _word(fact: Fact) -> str:
    return fact.text.partition(": ")[0]


def _lacking(connection: Connection) -> list[Fact]:
    found = missing_from([tuple(row) for row in connection.exec_driver_sql(CATALOG)])
    connection.commit()
    return found
