"""Sessions of the console, the links that begin them, and a bound on wrong links.

A row is a link until its one use, which gives it the hash of a new secret: so a link works once,
and the session's secret was in no address.
"""

from __future__ import annotations

import base64
import hmac
import os
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from gateway import ids
from gateway.audit import Actor, Author
from gateway.console import BASE
from gateway.errors import RateLimited
from gateway.store import audit_log
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any
    from uuid import UUID

    from gateway.services.access import Peppers
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy.permissions import OperatorRole

LOGIN: Final = f"{BASE}/login"
LINK_S: Final = 600
SESSION_S: Final = 12 * 3600
"""However much it is used."""
IDLE_S: Final = 3600
"""Without a request."""
SEEN_EVERY_S: Final = 60
"""Between two notes that a session is used."""
SECRET_BYTES: Final = 32
AGENT_CHARS_MAX: Final = 200
_PURPOSE: Final = "console:"
_NOBODY: Final = TenantId(EVERYONE)

_INSERT: Final = Statement("""
INSERT INTO console_sessions (tenant_id, id, name, role, hash, created_at, expires_at)
VALUES (:nobody, :id, :name, :role, :hash, now(), now() + make_interval(secs => :link_s))
""")
_LINK: Final = Statement("""
SELECT id, name, role FROM console_sessions
WHERE tenant_id = :nobody AND hash = :hash AND opened_at IS NULL AND expires_at > now()
""")
_OPEN: Final = Statement("""
UPDATE console_sessions
SET hash = :new_hash, opened_at = now(), seen_at = now(), address = :address, agent = :agent,
    expires_at = now() + make_interval(secs => :session_s)
WHERE tenant_id = :nobody AND hash = :hash AND opened_at IS NULL AND expires_at > now()
RETURNING id, name, role
""")
_FIND: Final = Statement("""
SELECT id, name, role, seen_at < now() - make_interval(secs => :seen_every_s) AS is_aged
FROM console_sessions
WHERE tenant_id = :nobody AND hash = :hash AND opened_at IS NOT NULL AND expires_at > now()
  AND seen_at > now() - make_interval(secs => :idle_s)
""")
_NOTE: Final = Statement("""
UPDATE console_sessions SET seen_at = now() WHERE tenant_id = :nobody AND id = :id
""")
_KEEP: Final = Statement("""
UPDATE console_sessions SET seen_at = now()
WHERE tenant_id = :nobody AND hash = ANY (CAST(:hashes AS bytea[])) AND opened_at IS NOT NULL
  AND expires_at > now() AND seen_at > now() - make_interval(secs => :idle_s)
RETURNING hash
""")
_OWN: Final = Statement("""
SELECT id, opened_at, seen_at, address, agent FROM console_sessions
WHERE tenant_id = :nobody AND name = :name AND opened_at IS NOT NULL AND expires_at > now()
  AND seen_at > now() - make_interval(secs => :idle_s)
ORDER BY opened_at DESC
LIMIT :rows_max
""")
_END: Final = Statement("""
DELETE FROM console_sessions WHERE tenant_id = :nobody AND id = :id AND name = :name
""")
_CLEAN: Final = Statement("""
DELETE FROM console_sessions
WHERE tenant_id = :nobody
  AND (expires_at < now() OR seen_at < now() - make_interval(secs => :idle_s))
""")


@dataclass(frozen=True, slots=True)
class Visitor:
    address: str | None = None
    agent: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Session of an operator; each of its forms has `form_token`."""

    id: UUID
    name: str
    role: OperatorRole
    form_token: str = ""

    @property
    def actor(self) -> Actor:
        return Actor("operator", str(self.id), None, self.name)


class Sessions:
    def __init__(self, database: Database, peppers: Peppers) -> None:
        self._database = database
        self._peppers = peppers

    async def create_link(self, name: str, role: OperatorRole) -> str:
        """Return the token of a new link."""
        token = _new_secret()
        new = {"id": ids.new_uuid(), "name": name, "role": role, "link_s": float(LINK_S)}
        async with self._database.transaction(_NOBODY) as connection:
            await _count(connection, _CLEAN, {"idle_s": float(IDLE_S)})
            await _count(connection, _INSERT, {**new, "hash": self._hash(token)})
        return token

    async def linked(self, token: str) -> Session | None:
        """Return the session that a link would begin."""
        async with self._database.transaction(_NOBODY) as connection:
            row = await _one(connection, _LINK, {"hash": self._hash(token)})
        return None if row is None else Session(row.id, row.name, row.role)

    async def open(self, token: str, visitor: Visitor) -> str | None:
        """Use a link. Return the secret of its session."""
        secret = _new_secret()
        parameters = {
            "hash": self._hash(token),
            "new_hash": self._hash(secret),
            "address": visitor.address,
            "agent": visitor.agent and visitor.agent[:AGENT_CHARS_MAX],
            "session_s": float(SESSION_S),
        }
        async with self._database.transaction(_NOBODY) as connection:
            row = await _one(connection, _OPEN, parameters)
            if row is None:
                return None
            session = Session(row.id, row.name, row.role)
            await self._note(connection, "login.succeeded", session, visitor)
        return secret

    async def begin(self, name: str, role: OperatorRole, visitor: Visitor) -> str:
        """Return the secret of a new session."""
        secret = await self.open(await self.create_link(name, role), visitor)
        assert secret is not None, "nobody else has the link"
        return secret

    async def find(self, secret: str) -> Session | None:
        bounds = {"idle_s": float(IDLE_S), "seen_every_s": float(SEEN_EVERY_S)}
        async with self._database.transaction(_NOBODY) as connection:
            row = await _one(connection, _FIND, {"hash": self._hash(secret), **bounds})
            if row is None:
                return None
            if row.is_aged:
                await _count(connection, _NOTE, {"id": row.id})
        # Forms show it, so it must not reveal the secret that the cookie has.
        form_token = hmac.digest(secret.encode(), b"form", sha256).hex()
        return Session(row.id, row.name, row.role, form_token)

    async def open_among(self, secrets: Collection[str]) -> set[str]:
        """Return the secrets of open sessions, and note that these are used."""
        by_hash = {self._hash(secret): secret for secret in secrets}
        kept = {"nobody": EVERYONE, "hashes": list(by_hash), "idle_s": float(IDLE_S)}
        async with self._database.transaction(_NOBODY) as connection:
            return {by_hash[row.hash] for row in await connection.execute(_KEEP, kept)}

    async def own(self, session: Session, *, rows_max: int) -> Sequence[Row]:
        parameters = {"name": session.name, "idle_s": float(IDLE_S), "rows_max": rows_max}
        async with self._database.transaction(_NOBODY) as connection:
            return list(await connection.execute(_OWN, {"nobody": EVERYONE, **parameters}))

    async def end(self, session: Session, session_id: UUID, visitor: Visitor) -> None:
        async with self._database.transaction(_NOBODY) as connection:
            if await _count(connection, _END, {"id": session_id, "name": session.name}):
                await self._note(connection, "logout.succeeded", session, visitor, session_id)

    async def _note(
        self,
        connection: Connection,
        event: str,
        session: Session,
        visitor: Visitor,
        target: UUID | None = None,
    ) -> None:
        author = Author(session.actor, visitor.address, visitor.request_id)
        entry = author.event(event, str(target or session.id), data={"role": session.role})
        await audit_log.record(connection, None, entry)

    def _hash(self, secret: str) -> bytes:
        return self._peppers.current.hash(_PURPOSE + secret)


def login_url(origin: str, token: str) -> str:
    return f"{origin}{LOGIN}?{urlencode({'token': token})}"


async def _one(
    connection: Connection, statement: Statement, parameters: Mapping[str, Any]
) -> Row | None:
    return (await connection.execute(statement, {"nobody": EVERYONE, **parameters})).one_or_none()


async def _count(
    connection: Connection, statement: Statement, parameters: Mapping[str, Any]
) -> int:
    return await connection.count(statement, {"nobody": EVERYONE, **parameters})


def _new_secret() -> str:
    return base64.urlsafe_b64encode(os.urandom(SECRET_BYTES)).rstrip(b"=").decode()


FAILURES_MAX: Final = 5
"""Failures of one address within `WINDOW_S`."""
WINDOW_S: Final = 60.0
ADDRESSES_MAX: Final = 1_000
"""Addresses that are kept: those that failed last."""


class LoginAttempts:
    """Failed logins of this process, by address: each costs a statement."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str | None) -> None:
        failures = self._failures.get(address or "", ())
        recent = [at for at in failures if self._clock() - at < WINDOW_S]
        if len(recent) >= FAILURES_MAX:
            wait_s = WINDOW_S - (self._clock() - recent[0])
            raise RateLimited(
                "There were too many wrong login links. Try again in a minute.",
                retry_after_s=wait_s,
            )

    def note_failure(self, address: str | None) -> None:
        failures = self._failures.setdefault(address or "", deque(maxlen=FAILURES_MAX))
        self._failures.move_to_end(address or "")
        failures.append(self._clock())
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
