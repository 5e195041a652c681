"""Erasure of everything that a tenant has stored about one end user.

A response is theirs whose request (`PERSON_FIELDS`) or token names them, and one that names nobody
and continues such a response or its conversation. These conversations are theirs, too, and what
their responses use and no others do: containers, files, pages. Usage forgets who it was.

What the next run finds them by goes last, so that it finds all again where one breaks off: the
responses that name the person, then what usage knows of a token, which stays for conversations that
are left. A conversation's writers are checked under the lock under which it goes: nobody can begin
to write between the two.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import orjson

from gateway import ids
from gateway.errors import ContentSealed, ConversationLocked
from gateway.protocol.grants import tool_state_of
from gateway.store import conversations, holds, responses
from gateway.store.content import opened
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.tables.columns import keys_of_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

ROWS_AT_ONCE: Final = 500
PERSON_FIELDS: Final = ("safety_identifier", "user")
BEFORE_ALL: Final = UUID(int=0)
_NAMES: Final = {
    "container": ids.parse_container_id,
    "container_id": ids.parse_container_id,
    "file_id": ids.parse_file_id,
    "file_ids": ids.parse_file_id,
}
_READ: Final = "SELECT id, parent_id, conversation_id, request, tool_state FROM responses"
_PAGE: Final = Statement(f"""
{_READ} WHERE tenant_id = :tenant AND id > :after ORDER BY id LIMIT :rows_max
""")
_CHILDREN: Final = Statement(f"""
{_READ} WHERE tenant_id = :tenant AND parent_id = ANY(CAST(:ids AS uuid[]))
""")
_OF_CONVERSATIONS: Final = Statement(f"""
{_READ} WHERE tenant_id = :tenant AND conversation_id = ANY(CAST(:ids AS uuid[]))
""")
_METERED: Final = Statement("""
SELECT DISTINCT response_id FROM usage
WHERE tenant_id = :tenant AND end_user = CAST(:digest AS bytea)
""")
_OF_OTHERS: Final = Statement("""
SELECT response_id FROM usage
WHERE tenant_id = :tenant AND response_id = ANY(CAST(:ids AS uuid[]))
  AND end_user IS DISTINCT FROM CAST(:digest AS bytea) AND end_user IS NOT NULL
""")
_OWNERS: Final = {"messages": "response_id", "conversation_items": "conversation_id"}
_ITEMS: Final = {
    table: Statement(f"""
    SELECT {owner} AS owner, kind, item_id, item FROM {table}
    WHERE tenant_id = :tenant AND {owner} = ANY(CAST(:ids AS uuid[]))
    """)  # noqa: S608 - constants only
    for table, owner in _OWNERS.items()
}
_ALL_ITEMS: Final = {
    table: Statement(f"""
    SELECT {owner} AS owner, position, kind, item_id, item FROM {table}
    WHERE tenant_id = :tenant
      AND ({owner}, position) > (CAST(:after AS uuid), CAST(:position AS bigint))
    ORDER BY {owner}, position LIMIT :rows_max
    """)  # noqa: S608 - constants only
    for table, owner in _OWNERS.items()
}
_ERASE: Final = {
    "traces": Statement("""
    DELETE FROM traces WHERE tenant_id = :tenant AND sha256(trace_id) IN (
        SELECT sha256(trace_id) FROM traces
        WHERE tenant_id = :tenant AND response_id = ANY(CAST(:responses AS uuid[]))
    )
    """),
    "tool_calls": Statement("""
    DELETE FROM tool_calls
    WHERE tenant_id = :tenant AND response_id = ANY(CAST(:responses AS uuid[]))
    """),
}
_FORGET: Final = {
    "usage": Statement("""
    UPDATE usage SET end_user = NULL, tags = NULL
    WHERE tenant_id = :tenant AND (end_user IS NOT NULL OR tags IS NOT NULL)
      AND response_id = ANY(CAST(:responses AS uuid[]))
    """)
}
_FORGET_METERED: Final = {
    "usage": Statement("""
    UPDATE usage SET end_user = NULL, tags = NULL
    WHERE tenant_id = :tenant AND end_user = CAST(:digest AS bytea)
      AND response_id <> ALL(CAST(:besides AS uuid[]))
    """),
    "usage_end_user_days": Statement("""
    DELETE FROM usage_end_user_days
    WHERE tenant_id = :tenant AND end_user = CAST(:digest AS bytea)
    """),
}
_USED: Final = ("tool_approvals", "tool_pages", "containers", "files")
"""Tables of what responses use, each with one key besides the tenant."""


def _by_keys(act: str, table: str) -> Statement:
    ((key, kind),) = keys_of_table(table).items()
    return Statement(
        f"{act.format(key=key)} FROM {table}"
        f" WHERE tenant_id = :tenant AND {key} = ANY(CAST(:keys AS {kind}[]))"
    )


_ERASE_USED: Final = {table: _by_keys("DELETE", table) for table in _USED}
_THERE: Final = {table: _by_keys("SELECT {key}", table) for table in _USED}


class ReadResponse(NamedTuple):
    uuid: UUID
    parent: UUID | None
    conversation: UUID | None
    names: frozenset[str]
    used: UsedKeys


@dataclass(slots=True)
class UsedKeys:
    containers: set[UUID] = field(default_factory=set)
    files: set[UUID] = field(default_factory=set)
    tool_pages: set[bytes] = field(default_factory=set)
    tool_approvals: set[bytes] = field(default_factory=set)

    def __ior__(self, other: UsedKeys) -> UsedKeys:
        for name in _USED:
            getattr(self, name).update(getattr(other, name))
        return self

    def __isub__(self, other: UsedKeys) -> UsedKeys:
        for name in _USED:
            getattr(self, name).difference_update(getattr(other, name))
        return self

    @property
    def may_be_shared(self) -> bool:
        # An approval belongs to one response, so approvals do not count.
        return bool(self.containers or self.files or self.tool_pages)


def used_in(json: Any) -> UsedKeys:
    """Return the keys named at any depth. Free text that only looks like an id does not count."""
    keys, waiting = UsedKeys(), [json]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            for name, value in one.items():
                if name in _NAMES:
                    _note(keys, name, value)
            waiting += one.values()
    return keys


def _note(keys: UsedKeys, name: str, value: Any) -> None:
    kept = keys.containers if name.startswith("container") else keys.files
    for word in value if isinstance(value, list) else [value]:
        uuid = _NAMES[name](word) if isinstance(word, str) else None
        if uuid is not None:
            kept.add(uuid)


def _responses(cipher: ContentCipher, rows: Iterable[Row]) -> list[ReadResponse]:
    return [one for row in rows if (one := _response(cipher, row)) is not None]


def _response(cipher: ContentCipher, row: Row) -> ReadResponse | None:
    try:
        content = opened(cipher, "responses", row, ("request", "tool_state"))
    except ContentSealed:
        return None
    request: dict[str, Any] = orjson.loads(content["request"])
    named = frozenset(name for one in PERSON_FIELDS if (name := request.get(one)))
    used, state = used_in(request), tool_state_of(content["tool_state"])
    if state.container_id is not None:
        _note(used, "container_id", state.container_id)
    for shown in state.pages:
        with suppress(ValueError):
            used.tool_pages.add(bytes.fromhex(shown.key))
    used.containers.add(ids.auto_container(row.id))
    return ReadResponse(row.id, row.parent_id, row.conversation_id, named, used)


async def metered(database: Database, tenant_id: TenantId, digest: bytes) -> set[UUID]:
    async with database.transaction(tenant_id) as connection:
        parameters = {"tenant": tenant_id, "digest": digest}
        return set(await connection.scalars(_METERED, parameters))


def _of_items(
    cipher: ContentCipher, rows: Iterable[Row], table: str
) -> Iterator[tuple[UUID, UsedKeys]]:
    for row in rows:
        used = UsedKeys()
        with suppress(ContentSealed, ValueError):
            used = used_in(orjson.loads(opened(cipher, table, row, ["item"])["item"]))
        if row.kind == "mcp_approval_request":
            used.tool_approvals.add(row.item_id)
        yield row.owner, used


@dataclass(frozen=True, slots=True)
class Erased:
    """Result of an erasure. `rows` are those of other tables; those of `usage` lost the person and
    their tags.

    `sealed` responses could not be opened, because their key is gone. `busy` conversations have
    another writer, and stay with the person's responses in them until another run.
    """

    seen: int
    responses: int
    conversations: int
    sealed: int = 0
    busy: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)


class Erasing:
    """Erasure of `person`. It may miss what others create meanwhile."""

    def __init__(
        self,
        database: Database,
        tenant_id: TenantId,
        person: str,
        digest: bytes | None,
        *,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> None:
        # `digest` is the person's in usage lines; None if unknown.
        self._on_rows = on_rows
        self._database = database
        self._tenant_id = tenant_id
        self._person = person
        self._digest = digest
        self._metered: set[UUID] = set()
        self._named: dict[UUID, ReadResponse] = {}
        self._nameless: dict[UUID, ReadResponse] = {}
        """The person's responses that name nobody, each behind what it continues."""
        self._places: set[UUID] = set()
        self._seen = self._sealed = 0

    async def run(self) -> Erased:
        """Find and erase everything. Raises `StoreUnavailable` and `DataHeld`; the next run
        continues.
        """
        await self._find()
        await self._follow()
        rows: Counter[str] = Counter()
        rows.update(await self._erase_used())
        for some in _batches(list(self._theirs)):
            rows.update(await self._erase(_ERASE, responses=list(some)))
        for some in _batches([one for one in self._theirs if one not in self._metered]):
            rows.update(await self._erase(_FORGET, responses=list(some)))
        gone, busy = await self._delete_places()
        kept = {uuid for uuid, one in self._theirs.items() if one.conversation in busy}
        count = await self._delete(one for one in reversed(self._nameless) if one not in kept)
        count += await self._delete(one for one in self._named if one not in kept)
        if self._digest is not None:
            metered = {"digest": self._digest, "besides": list(kept)}
            rows.update(await self._erase(_FORGET_METERED, **metered))
        nonzero = {table: number for table, number in rows.items() if number}
        return Erased(self._seen, count, gone, self._sealed, len(busy), nonzero)

    async def _find(self) -> None:
        if self._digest is not None:
            self._metered = await metered(self._database, self._tenant_id, self._digest)
        async for rows, read in self._pages():
            self._seen += len(rows)
            self._sealed += len(rows) - len(read)
            self._named |= {one.uuid: one for one in read if self._is_named(one)}

    async def _pages(self) -> AsyncIterator[tuple[Sequence[Row], list[ReadResponse]]]:
        # All responses of the tenant: the rows of each page, and those of them that open.
        after = BEFORE_ALL
        while True:
            rows, cipher = await self._rows(_PAGE, after=after, rows_max=ROWS_AT_ONCE)
            self._on_rows(len(rows))
            yield rows, _responses(cipher, rows)
            if len(rows) < ROWS_AT_ONCE:
                return
            after = rows[-1].id

    async def _rows(
        self, statement: Statement, **parameters: Any
    ) -> tuple[Sequence[Row], ContentCipher]:
        async with self._database.transaction(self._tenant_id) as connection:
            rows = await connection.execute(statement, {"tenant": self._tenant_id, **parameters})
            return rows, connection.reading_cipher(self._tenant_id)

    @property
    def _theirs(self) -> dict[UUID, ReadResponse]:
        return self._named | self._nameless

    def _is_named(self, one: ReadResponse) -> bool:
        return self._person in one.names or one.uuid in self._metered

    async def _follow(self) -> None:
        # Also finds what continues those, to any depth.
        newest: list[ReadResponse] = list(self._named.values())
        while newest:
            places = {one.conversation for one in newest if one.conversation is not None}
            places -= self._places
            self._places |= places
            successors: list[ReadResponse] = []
            for statement, uuids in (
                (_CHILDREN, [one.uuid for one in newest]),
                (_OF_CONVERSATIONS, list(places)),
            ):
                for some in _batches(uuids):
                    rows, cipher = await self._rows(statement, ids=some)
                    successors += _responses(cipher, rows)
            newest = await self._nobodys(successors)
            self._nameless |= {one.uuid: one for one in newest}

    async def _nobodys(self, candidates: Iterable[ReadResponse]) -> list[ReadResponse]:
        # Return the responses that name nobody, and whose usage names no other person.
        listed = self._named.keys() | self._nameless.keys()
        some = {one.uuid: one for one in candidates if not one.names and one.uuid not in listed}
        others: set[UUID] = set()
        for batch in _batches(list(some)):
            rows, _ = await self._rows(_OF_OTHERS, digest=self._digest, ids=batch)
            others.update(row.response_id for row in rows)
        return [one for uuid, one in some.items() if uuid not in others]

    async def _erase_used(self) -> Mapping[str, int]:
        theirs = self._theirs
        used = UsedKeys()
        for one in theirs.values():
            used |= one.used
        for table, owners in (("messages", theirs), ("conversation_items", self._places)):
            for some in _batches(list(owners)):
                rows, cipher = await self._rows(_ITEMS[table], ids=some)
                for _, of_item in _of_items(cipher, rows, table):
                    used |= of_item
        for table, statement in _THERE.items():
            # Most containers were never made, or have expired.
            if keys := list(getattr(used, table)):
                rows, _ = await self._rows(statement, keys=keys)
                setattr(used, table, {row[0] for row in rows})
        if used.may_be_shared:
            used -= await self._find_used_by_others(theirs.keys() | self._places)
        erased: dict[str, int] = {}
        for table, statement in _ERASE_USED.items():
            if keys := list(getattr(used, table)):
                erased |= await self._erase({table: statement}, keys=keys)
        return erased

    async def _find_used_by_others(self, theirs: set[UUID]) -> UsedKeys:
        used = UsedKeys()
        for table, statement in _ALL_ITEMS.items():
            place: tuple[UUID, int] = (BEFORE_ALL, -1)
            while True:
                after, position = place
                rows, cipher = await self._rows(
                    statement, after=after, position=position, rows_max=ROWS_AT_ONCE
                )
                for owner, of_item in _of_items(cipher, rows, table):
                    if owner not in theirs:
                        used |= of_item
                if len(rows) < ROWS_AT_ONCE:
                    break
                place = rows[-1].owner, rows[-1].position
        async for _, read in self._pages():
            for one in read:
                if one.uuid not in theirs:
                    used |= one.used
        return used

    async def _erase(
        self, statements: Mapping[str, Statement], **parameters: Any
    ) -> dict[str, int]:
        # Rows by table. Raises `DataHeld`.
        async with self._database.owner_transaction() as connection:
            await turn_to(connection, self._tenant_id)
            await holds.check(connection, self._tenant_id)
            return {
                table: await connection.count(statement, {"tenant": self._tenant_id, **parameters})
                for table, statement in statements.items()
            }

    async def _delete(self, some: Iterable[UUID]) -> int:
        count = 0
        for uuid in some:
            count += await responses.delete(self._database, self._tenant_id, uuid)
        return count

    async def _delete_places(self) -> tuple[int, set[UUID]]:
        # A conversation is busy while somebody else's response is added to it. This end user's own
        # responses are deleted next and keep none.
        theirs, gone = self._theirs, 0
        busy: set[UUID] = set()
        for place in self._places:
            try:
                gone += await conversations.delete_conversation(
                    self._database, self._tenant_id, place, despite=theirs
                )
            except ConversationLocked:
                busy.add(place)
        return gone, busy


def _batches(some: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for at in range(0, len(some), ROWS_AT_ONCE):
        yield some[at : at + ROWS_AT_ONCE]
