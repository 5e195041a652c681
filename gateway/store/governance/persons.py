"""Find the data of a person, by the person that each request names, and erase it.

A request names the person in one of `PERSON_FIELDS`; a token names one, too, of which usage keeps a
digest. The request, the items and the tool state of a response name what else it used: containers,
files, pages of the browser, requests for approval. These are erased with the response unless other
responses use them, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import orjson

from gateway import ids
from gateway.errors import ContentSealed
from gateway.protocol.grants import tool_state_of
from gateway.store.content import opened
from gateway.store.governance import holds
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

PERSON_FIELDS: Final = ("safety_identifier", "user")
"""Where a request says for whom it is, as its response repeats it."""
BEFORE_ALL: Final = UUID(int=0)
_NAMES: Final = {
    "container": ids.parse_container_id,
    "container_id": ids.parse_container_id,
    "file_id": ids.parse_file_id,
    "file_ids": ids.parse_file_id,
}
"""Fields of requests and items that name containers and uploaded files."""
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
"""By table, what is known by the response that it is of."""
_FORGET: Final = {
    "usage": Statement("""
    UPDATE usage SET end_user = NULL, tags = NULL
    WHERE tenant_id = :tenant AND (end_user IS NOT NULL OR tags IS NOT NULL)
      AND response_id = ANY(CAST(:responses AS uuid[]))
    """),
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
_ERASE_USED: Final = {
    "tool_approvals": Statement("""
    DELETE FROM tool_approvals
    WHERE tenant_id = :tenant AND request_id = ANY(CAST(:keys AS bytea[]))
    """),
    "tool_pages": Statement("""
    DELETE FROM tool_pages WHERE tenant_id = :tenant AND key = ANY(CAST(:keys AS bytea[]))
    """),
    "containers": Statement("""
    DELETE FROM containers WHERE tenant_id = :tenant AND id = ANY(CAST(:keys AS uuid[]))
    """),
    "files": Statement("""
    DELETE FROM files WHERE tenant_id = :tenant AND id = ANY(CAST(:keys AS uuid[]))
    """),
}


_THERE: Final = {
    "tool_approvals": Statement("""
    SELECT request_id FROM tool_approvals
    WHERE tenant_id = :tenant AND request_id = ANY(CAST(:keys AS bytea[]))
    """),
    "tool_pages": Statement("""
    SELECT key FROM tool_pages WHERE tenant_id = :tenant AND key = ANY(CAST(:keys AS bytea[]))
    """),
    "containers": Statement("""
    SELECT id FROM containers WHERE tenant_id = :tenant AND id = ANY(CAST(:keys AS uuid[]))
    """),
    "files": Statement("""
    SELECT id FROM files WHERE tenant_id = :tenant AND id = ANY(CAST(:keys AS uuid[]))
    """),
}


class ReadResponse(NamedTuple):
    """A response as it is looked at: what it continues, for whom it says that it is, and what it
    used. `names` is empty where it says nothing.
    """

    uuid: UUID
    parent: UUID | None
    conversation: UUID | None
    names: frozenset[str]
    used: UsedKeys


@dataclass(slots=True)
class UsedKeys:
    """Containers, uploaded files, pages and approvals, by their keys."""

    containers: set[UUID] = field(default_factory=set)
    files: set[UUID] = field(default_factory=set)
    tool_pages: set[bytes] = field(default_factory=set)
    tool_approvals: set[bytes] = field(default_factory=set)

    def __ior__(self, other: UsedKeys) -> UsedKeys:
        for name in _ERASE_USED:
            getattr(self, name).update(getattr(other, name))
        return self

    def __isub__(self, other: UsedKeys) -> UsedKeys:
        for name in _ERASE_USED:
            getattr(self, name).difference_update(getattr(other, name))
        return self

    @property
    def may_be_shared(self) -> bool:
        # An approval belongs to one response, so approvals do not count.
        return bool(self.containers or self.files or self.tool_pages)


class ReadPage(NamedTuple):
    """Some responses, how many were there, and the last one; None: there are no more.

    `sealed` of them could not be opened: whose they are nobody can tell.
    """

    responses: list[ReadResponse]
    seen: int
    sealed: int
    last: UUID | None


def used_in(json: Any) -> UsedKeys:
    """Return the keys that a request or an item names, at any depth.

    Free text that only looks like an id does not count.
    """
    found, waiting = UsedKeys(), [json]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            for name, value in one.items():
                if name in _NAMES:
                    _note(found, name, value)
            waiting += one.values()
    return found


def _note(found: UsedKeys, name: str, value: Any) -> None:
    kept = found.containers if name.startswith("container") else found.files
    for word in value if isinstance(value, list) else [value]:
        uuid = _NAMES[name](word) if isinstance(word, str) else None
        if uuid is not None:
            kept.add(uuid)


async def page(database: Database, tenant_id: TenantId, *, after: UUID, rows_max: int) -> ReadPage:
    """Return a page of the tenant's responses behind the id `after`.

    Raises `ContentSealed` if the tenant has no key any more.
    """
    bounds = {"tenant": tenant_id, "after": after, "rows_max": rows_max}
    rows, found = await _read_page(database, tenant_id, _PAGE, bounds)
    last = rows[-1].id if len(rows) == rows_max else None
    return ReadPage(found, len(rows), len(rows) - len(found), last)


async def continuing(
    database: Database,
    tenant_id: TenantId,
    *,
    responses: Collection[UUID] = (),
    conversations: Collection[UUID] = (),
) -> list[ReadResponse]:
    """Return the responses that continue any of these responses or conversations."""
    found: list[ReadResponse] = []
    for statement, some in ((_CHILDREN, responses), (_OF_CONVERSATIONS, conversations)):
        if some:
            bounds = {"tenant": tenant_id, "ids": list(some)}
            found += (await _read_page(database, tenant_id, statement, bounds))[1]
    return found


async def _read_page(
    database: Database, tenant_id: TenantId, statement: Statement, bounds: dict[str, Any]
) -> tuple[Sequence[Row], list[ReadResponse]]:
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(statement, bounds)
        cipher = connection.cipher(tenant_id)
    return rows, [one for row in rows if (one := _response(cipher, row)) is not None]


def _response(cipher: ContentCipher, row: Row) -> ReadResponse | None:
    # None: the content cannot be opened.
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
    """Return the ids of responses whose usage lines carry this end-user digest."""
    async with database.transaction(tenant_id) as connection:
        asked = {"tenant": tenant_id, "digest": digest}
        return set(await connection.scalars(_METERED, asked))


async def metered_for_others(
    database: Database, tenant_id: TenantId, digest: bytes | None, responses: Collection[UUID]
) -> set[UUID]:
    """Return those of the responses whose usage lines carry another end-user digest."""
    asked = {"tenant": tenant_id, "digest": digest, "ids": list(responses)}
    async with database.transaction(tenant_id) as connection:
        return set(await connection.scalars(_OF_OTHERS, asked))


async def used_by_items(
    database: Database,
    tenant_id: TenantId,
    *,
    responses: Collection[UUID] = (),
    conversations: Collection[UUID] = (),
) -> UsedKeys:
    """Return the keys that the items of these responses and conversations name."""
    found = UsedKeys()
    for table, some in (("messages", responses), ("conversation_items", conversations)):
        if some:
            async with database.transaction(tenant_id) as connection:
                bounds = {"tenant": tenant_id, "ids": list(some)}
                rows = await connection.execute(_ITEMS[table], bounds)
                cipher = connection.cipher(tenant_id)
            for _, used in _of_items(cipher, rows, table):
                found |= used
    return found


async def used_by_items_of_others(
    database: Database, tenant_id: TenantId, without: Collection[UUID], *, rows_max: int
) -> UsedKeys:
    """Return the keys that the items of all other responses and conversations name."""
    found = UsedKeys()
    for table, statement in _ALL_ITEMS.items():
        place: tuple[UUID, int] = (BEFORE_ALL, -1)
        while True:
            after, position = place
            bounds = {"tenant": tenant_id, "after": after, "position": position}
            async with database.transaction(tenant_id) as connection:
                rows = await connection.execute(statement, bounds | {"rows_max": rows_max})
                cipher = connection.cipher(tenant_id)
            for owner, used in _of_items(cipher, rows, table):
                if owner not in without:
                    found |= used
            if len(rows) < rows_max:
                break
            place = rows[-1].owner, rows[-1].position
    return found


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


async def still_there(database: Database, tenant_id: TenantId, used: UsedKeys) -> UsedKeys:
    """Return the keys that exist: most containers were never made, or have expired."""
    found = UsedKeys()
    async with database.transaction(tenant_id) as connection:
        for table, statement in _THERE.items():
            keys = list(getattr(used, table))
            if keys:
                asked = {"tenant": tenant_id, "keys": keys}
                getattr(found, table).update(await connection.scalars(statement, asked))
    return found


async def erase_of_responses(
    database: Database, tenant_id: TenantId, responses: Collection[UUID]
) -> dict[str, int]:
    """Erase the data that belongs to these responses, but not the responses; return rows by table.

    Traces go as a whole. Raises `DataHeld`.
    """
    return await _erase(database, tenant_id, _ERASE, {"responses": list(responses)})


async def forget_responses(
    database: Database, tenant_id: TenantId, responses: Collection[UUID]
) -> dict[str, int]:
    """Remove the end user from the usage of these responses; return rows by table.

    Raises `DataHeld`.
    """
    return await _erase(database, tenant_id, _FORGET, {"responses": list(responses)})


async def forget_metered(
    database: Database, tenant_id: TenantId, digest: bytes, *, besides: Collection[UUID]
) -> dict[str, int]:
    """Remove this end-user digest from usage lines, except of responses in `besides`.

    The tags of these lines go too, and all daily sums of the digest. Return rows by table. Raises
    `DataHeld`.
    """
    given = {"digest": digest, "besides": list(besides)}
    return await _erase(database, tenant_id, _FORGET_METERED, given)


async def erase_used(database: Database, tenant_id: TenantId, used: UsedKeys) -> dict[str, int]:
    """Erase containers with their files, uploaded files, pages and approvals; return rows by table.

    Raises `DataHeld`.
    """
    erased: dict[str, int] = {}
    for table, statement in _ERASE_USED.items():
        keys = list(getattr(used, table))
        if keys:
            erased |= await _erase(database, tenant_id, {table: statement}, {"keys": keys})
    return erased


async def _erase(
    database: Database,
    tenant_id: TenantId,
    statements: dict[str, Statement],
    given: dict[str, Any],
) -> dict[str, int]:
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant_id)
        await holds.check(connection, tenant_id)
        return {
            table: await connection.count(statement, {"tenant": tenant_id, **given})
            for table, statement in statements.items()
        }
