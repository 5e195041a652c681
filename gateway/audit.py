"""The audit log: its entries, how they are chained, and how they are shown.

A tenant's entries are numbered from 1. `hash` is SHA-256 over the previous hash (at first zeros)
and the fields of the entry, each with its length in front, so one that was changed, removed or
inserted breaks the chain. Before retention removes the oldest ones, it adds an entry with the
number and hash of the last of these. A chain cannot show that its last entries were cut off, that
all of it was made anew, or that such an entry is forged: for that it is compared with heads
recorded elsewhere (the process log has them).

An entry never has content of requests, secrets, or bodies of mails.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

BEGINNING: Final = bytes(32)
OWN_PREFIX: Final = "harmony."
TRIMMED: Final = "harmony.audit_log.trimmed"
_OPENAI: Final = {
    "api_key": "created updated deleted",
    "certificate": "created updated deleted",
    "certificates": "activated deactivated",
    "external_key": "registered removed",
    "group": "created updated deleted",
    "invite": "sent accepted deleted",
    "ip_allowlist": "created updated deleted",
    "ip_allowlist.config": "activated deactivated",
    "login": "succeeded failed",
    "logout": "succeeded failed",
    "organization": "updated",
    "project": "created updated archived deleted",
    "rate_limit": "updated deleted",
    "resource": "deleted",
    "role": "created updated deleted",
    "role.assignment": "created deleted",
    "scim": "enabled disabled",
    "service_account": "created updated deleted",
    "user": "added updated deleted",
    "workload_identity_provider": "created updated deleted",
    "workload_identity_provider_mapping": "created updated deleted",
}
OPENAI_TYPES: Final = frozenset(
    f"{what}.{act}" for what, acts in _OPENAI.items() for act in acts.split()
)
"""Types of OpenAI's that occur here (openai-python 3.54)."""
OWN_TYPES: Final = frozenset(
    OWN_PREFIX + name
    for name in (
        *("content.revealed", "response.cancelled_by_operator", "response.continued_by_operator"),
        *("backend.drained", "backend.undrained"),
        *("tenant.created", "tenant.updated", "tenant.disabled", "tenant.deleted"),
        *("tenant.restored", "tenant.shredded", "tenant.purged", "audit_log.trimmed"),
        *("erasure.requested", "erasure.completed", "export.begun", "export.made"),
        *("encryption.enabled", "encryption.disabled", "encryption.rotated"),
        "encryption.resealed",
        *("price.changed", "limit.changed", "budget.changed", "settings.changed"),
        *("model_permissions.updated", "model_permissions.deleted"),
        *("spend_alert.created", "spend_alert.updated", "spend_alert.deleted"),
        *("operator.created", "operator.disabled", "mcp_server.added", "mcp_server.removed"),
        *("issuer.created", "issuer.updated", "issuer.deleted"),
        *("pages.added", "pages.removed", "usage.reconciled", "sink.resumed"),
    )
)
ActorKind = Literal["api_key", "session", "operator"]


@dataclass(frozen=True, slots=True)
class Actor:
    """Actor of an event.

    `api_key` is an admin key. Of an `operator`, `owner_id` is the name of the key, or without one
    `cli` (the command line) or `job` (the gateway itself); clients see an `api_key` without an
    owner.
    """

    kind: ActorKind = "operator"
    key_id: str | None = None
    owner_type: Literal["user", "service_account"] | None = None
    owner_id: str | None = None
    email: str | None = None

    def json(self) -> bytes:
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def of(cls, json: bytes) -> Actor:
        return cls(**orjson.loads(json))


OPERATOR: Final = Actor(owner_id="cli")
JOB: Final = Actor(owner_id="job")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Event for the audit log. `details` is what OpenAI's object has beside the id: `data` or
    `changes_requested`, for example. Raises `ValueError` for an unknown type.
    """

    type: str
    target: str
    actor: Actor = OPERATOR
    details: Mapping[str, Any] = field(default_factory=dict)
    project_id: UUID | None = None
    address: str | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        if self.type not in OPENAI_TYPES and self.type not in OWN_TYPES:
            raise ValueError(f"the audit log has no type {self.type!r}")


@dataclass(frozen=True, slots=True)
class Author:
    """Author of changes. Its `event` is written in the transaction of the change."""

    actor: Actor = OPERATOR
    address: str | None = None
    request_id: str | None = None

    def event(
        self, type_: str, target: str, project_id: UUID | None = None, **details: Any
    ) -> AuditEvent:
        return AuditEvent(
            type_, target, self.actor, details, project_id, self.address, self.request_id
        )


COMMAND_LINE: Final = Author()
BY_ITSELF: Final = Author(JOB)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A row of the log. `actor` and `details` are JSON exactly as hashed. `tenant_id` is nil for
    events of no tenant.
    """

    tenant_id: UUID
    number: int
    id: UUID
    at: datetime
    type: str
    actor: bytes
    target: str
    project_id: UUID | None
    address: str | None
    request_id: str | None
    details: bytes
    previous: bytes
    hash: bytes = b""

    def digest(self) -> bytes:
        fields = (
            self.tenant_id.bytes,
            str(self.number).encode(),
            self.id.bytes,
            self.at.astimezone(UTC).isoformat(timespec="microseconds").encode(),
            self.type.encode(),
            self.actor,
            self.target.encode(),
            b"" if self.project_id is None else self.project_id.bytes,
            (self.address or "").encode(),
            (self.request_id or "").encode(),
            self.details,
        )
        hashed = hashlib.sha256(self.previous)
        for value in fields:
            hashed.update(len(value).to_bytes(8, "big") + value)
        return hashed.digest()


def entry_of(
    event: AuditEvent, tenant_id: UUID, number: int, id_: UUID, at: datetime, previous: bytes
) -> AuditEntry:
    entry = AuditEntry(
        tenant_id=tenant_id,
        number=number,
        id=id_,
        at=at,
        type=event.type,
        actor=event.actor.json(),
        target=event.target,
        project_id=event.project_id,
        address=event.address,
        request_id=event.request_id,
        details=orjson.dumps(event.details, option=orjson.OPT_SORT_KEYS),
        previous=previous,
    )
    return replace(entry, hash=entry.digest())


def trimmed(tenant_id: UUID, number: int, hash_: bytes) -> AuditEvent:
    """Make the event that precedes the removal of entries up to `number`."""
    data = {"number": number, "hash": hash_.hex()}
    return BY_ITSELF.event(TRIMMED, str(tenant_id), data=data)


class Head(NamedTuple):
    """Last entry of a chain, as recorded elsewhere."""

    number: int
    hash: bytes
    at: datetime | None = None


@dataclass(slots=True)
class ChainCheck:
    """Check of one tenant's entries, added in order.

    The chain must have the `kept` heads, except those from before `keeps_since`, which retention
    may have removed.
    """

    kept: Sequence[Head] = ()
    keeps_since: datetime | None = None
    number: int = 0
    at: datetime | None = None
    hash: bytes = BEGINNING
    count: int = 0
    _problems: list[str] = field(default_factory=list)
    _begins: tuple[int, bytes] = (0, BEGINNING)
    _trimmed: tuple[int, bytes] = (0, BEGINNING)

    def add(self, entries: Iterable[AuditEntry]) -> None:
        for entry in entries:
            if entry.number < 1:
                self._problems.append(f"entry {entry.number} was put in before the first one")
            if not self.count:
                self._begins = entry.number - 1, entry.previous
            elif entry.number <= self.number:
                self._problems.append(f"entry {entry.number} stands behind entry {self.number}")
            elif entry.number != self.number + 1:
                self._problems.append(f"entries {self.number + 1} to {entry.number - 1} are gone")
            elif entry.previous != self.hash:
                self._problems.append(f"entry {entry.number} does not follow on the one before")
            if entry.digest() != entry.hash:
                self._problems.append(f"entry {entry.number} was changed")
            elif entry.type == TRIMMED:
                self._trim(entry)
            if any(one.number == entry.number and one.hash != entry.hash for one in self.kept):
                self._problems.append(f"entry {entry.number} is another one than it was")
            self.number, self.hash, self.at = entry.number, entry.hash, entry.at
            self.count += 1

    def _trim(self, entry: AuditEntry) -> None:
        try:
            data = orjson.loads(entry.details)["data"]
            self._trimmed = int(data["number"]), bytes.fromhex(data["hash"])
        except (ValueError, LookupError, TypeError):
            self._problems.append(f"entry {entry.number} does not say what was removed")

    @property
    def faults(self) -> list[str]:
        (first, previous), (last, hash_) = self._begins, self._trimmed
        begin = []
        if first < last:
            begin = [f"entries up to {last} were removed, and some are there again"]
        elif first > last:
            begin = [f"entries {last + 1} to {first} are gone"]
        elif previous != hash_:
            begin = [f"entry {first + 1} does not follow on what was before"]
        newest = max((one.number for one in self.kept), default=0)
        end = [f"entries {self.number + 1} to {newest} are gone"] if newest > self.number else []
        return [*begin, *self._removed_early(first), *self._problems, *end]

    def _removed_early(self, upto: int) -> list[str]:
        # A forger who can write to the table can claim that retention removed an entry, but not one
        # that is too young for retention.
        gone = [
            one.number
            for one in self.kept
            if one.number <= upto and one.at is not None and self._has_to_be_kept(one.at)
        ]
        return [f"entry {max(gone)} was removed before its time"] if gone else []

    def _has_to_be_kept(self, at: datetime) -> bool:
        return self.keeps_since is not None and at >= self.keeps_since


def shown(
    entry: AuditEntry,
    *,
    entry_id: str,
    project: Mapping[str, str] | None,
    names_operators: bool = False,
) -> dict[str, Any]:
    """Return OpenAI's audit log object; `project` is an id and a name.

    `names_operators` identifies operators, which tenants may not see.
    """
    actor = Actor.of(entry.actor)
    body: dict[str, Any] = {
        "id": entry_id,
        "type": entry.type,
        "effective_at": int(entry.at.timestamp()),
        "actor": _shown_actor(actor, entry.address),
        entry.type: {"id": entry.target, **orjson.loads(entry.details)},
    }
    if project is not None:
        body["project"] = dict(project)
    if names_operators and actor.kind == "operator":
        body["harmony"] = {"operator": actor.owner_id, "address": entry.address}
    return body


def _shown_actor(actor: Actor, address: str | None) -> dict[str, Any]:
    owner = {"id": actor.owner_id}
    if actor.kind == "session":
        user = {"id": actor.owner_id, "email": actor.email}
        return {"type": "session", "session": {"ip_address": address, "user": user}}
    key: dict[str, Any] = {"id": actor.key_id}
    if actor.owner_type == "service_account":
        key |= {"type": "service_account", "service_account": owner}
    elif actor.owner_type == "user":
        key |= {"type": "user", "user": {**owner, "email": actor.email}}
    return {"type": "api_key", "api_key": key}
