"""Facts about the server for `doctor` and support bundles, without any row of a tenant."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from gateway.encryption.certificates import expiry
from gateway.store.limits.counters import FRESH_S, PRESENT
from gateway.store.postgres.driver import driver_url
from gateway.store.postgres.statements import Statement
from gateway.store.schema import APP_ROLE, EVERYONE, RUNS_ROLE

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database

CERTIFICATE_TIMEOUT_S: Final = 5.0
_SSL_REQUEST: Final = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
"""SSLRequest, which the server answers with S or N (PostgreSQL's protocol, 54.2.10)."""
_FACTS: Final = Statement(f"""
SELECT clock_timestamp() AS now, current_setting('server_version') AS version,
    me.rolname AS login, pg_get_userbyid(tables.relowner) AS owner, me.rolsuper AS is_superuser,
    me.rolbypassrls AS bypasses_rls, me.rolconnlimit AS login_max, db.datconnlimit AS database_max,
    (SELECT bool_or(rolsuper OR rolbypassrls OR rolcanlogin) FROM pg_roles
     WHERE rolname IN ('{APP_ROLE}', '{RUNS_ROLE}')) AS roles_may_more,
    CAST(current_setting('max_connections') AS integer)
    - CAST(current_setting('superuser_reserved_connections') AS integer)
    - coalesce(CAST(current_setting('reserved_connections', true) AS integer), 0)
    AS connections_max,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS is_encrypted,
    (SELECT count(*) FROM limit_reports WHERE tenant_id = '{EVERYONE}' AND name = '{PRESENT}'
     AND at > clock_timestamp() - {FRESH_S} * interval '1 second') AS replicas
FROM pg_roles AS me, pg_database AS db, pg_class AS tables
WHERE me.rolname = session_user AND db.datname = current_database()
  AND tables.oid = 'responses'::regclass
""")  # noqa: S608 - constants only


class ServerFacts(NamedTuple):
    """State of the server. `skew_s` is how far its clock is ahead of ours. A bound of -1 is
    none.
    """

    skew_s: float
    version: str
    login: str
    owner: str
    is_superuser: bool
    bypasses_rls: bool
    roles_may_more: bool
    connections_max: int
    connections: int
    login_max: int
    database_max: int
    is_encrypted: bool
    replicas: int
    is_direct: bool


async def server_facts(database: Database) -> ServerFacts:
    async with database.owner_transaction() as connection:
        sent_at = datetime.now(UTC)
        row = (await connection.execute(_FACTS)).one()
        answered_at = datetime.now(UTC)
        is_direct = connection.state.is_direct
    skew = row.now - (sent_at + (answered_at - sent_at) / 2)
    facts = {name: row[name] for name in ServerFacts._fields[1:-1]}
    return ServerFacts(skew_s=skew.total_seconds(), is_direct=is_direct, **facts)


_SIZES: Final = Statement("""
SELECT c.relname AS name, CAST(greatest(c.reltuples, 0) AS bigint) AS rows,
    pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes,
    coalesce(s.n_dead_tup, 0) AS dead_rows, CAST(s.last_autovacuum AS text) AS autovacuumed_at
FROM pg_class AS c LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace =
    (SELECT relnamespace FROM pg_class WHERE oid = 'responses'::regclass)
ORDER BY 3 DESC
""")
# Numbers and words of a closed set: a text, such as a connection to a primary, may be a secret.
_SETTINGS: Final = Statement("""
SELECT name, setting, unit, source FROM pg_settings
WHERE vartype IN ('bool', 'integer', 'real', 'enum') AND source <> 'default' ORDER BY name
""")
_HAS_STATEMENTS: Final = Statement("SELECT to_regclass('pg_stat_statements') IS NOT NULL")
# Others, such as those that make roles, are kept with the values that they have.
_STATEMENTS: Final = Statement("""
SELECT query, calls, total_exec_time AS total_ms, mean_exec_time AS mean_ms, rows
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query ~* '^\\s*(select|insert|update|delete|with)\\M'
ORDER BY total_exec_time DESC LIMIT 50
""")
_LITERAL: Final = re.compile(r"'(?:[^']|'')*'")


async def table_sizes(database: Database) -> list[dict[str, Any]]:
    async with database.owner_transaction() as connection:
        return [dict(row.items()) for row in await connection.execute(_SIZES)]


async def server_report(database: Database) -> dict[str, list[dict[str, Any]]]:
    async with database.owner_transaction() as connection:
        report = {
            "tables": await connection.execute(_SIZES),
            "settings": await connection.execute(_SETTINGS),
        }
        if await connection.scalar(_HAS_STATEMENTS):
            report["statements"] = await connection.execute(_STATEMENTS)
    tables = {name: [dict(row.items()) for row in rows] for name, rows in report.items()}
    for one in tables.get("statements", ()):
        one["query"] = without_literals(one["query"])
    return tables


def without_literals(sql: str) -> str:
    return _LITERAL.sub("'?'", " ".join(sql.split()))


class Endpoint(NamedTuple):
    host: str | None
    port: int
    sslmode: str


def endpoint(url: str) -> Endpoint:
    """Return the first server of a database URL. Raises `StartupError`."""
    parts = urlsplit(driver_url(url))
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    place = parts.netloc.rpartition("@")[2].partition(",")[0]
    host, _, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not host and not port.isdecimal():
        host, port = port, ""
    host = (host or options.get("host", "")).strip("[]")
    is_local = not host or host.startswith("/")
    number = int(port or options.get("port", "5432").partition(",")[0])
    return Endpoint(None if is_local else host, number, options.get("sslmode", "prefer"))


async def certificate_expiry(host: str, port: int) -> datetime | None:
    """Return when the server's certificate expires; None: it speaks no TLS. Raises `OSError`."""
    der = await asyncio.to_thread(_certificate, host, port)
    return None if der is None else expiry(der)


def _certificate(host: str, port: int) -> bytes | None:
    # It is not verified: only its date is read.
    with socket.create_connection((host, port), CERTIFICATE_TIMEOUT_S) as plain:
        plain.sendall(_SSL_REQUEST)
        if plain.recv(1) != b"S":
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain, server_hostname=host) as secured:
            return secured.getpeercert(binary_form=True)
