"""Containers of the code interpreter, and the processes with their interpreters.

A row outlives the interpreter: another process that needs the container takes it over, and the one
before it notices at its next run that the epoch has moved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.protocol.request_errors import unknown_place
from gateway.store import holds
from gateway.store.content import place_of
from gateway.store.locks import TenantLock, take_turns
from gateway.store.packing import pack_text, unpack_text
from gateway.store.postgres.statements import Statement, insert_into

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import ProjectId, TenantId


class TooManyContainers(Exception):
    """The tenant has as many containers as it may."""

    def __init__(self, count: int) -> None:
        super().__init__(f"there are {count} containers already")
        self.count = count


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """A container. `expires_at` is `idle_s` after `last_active_at`, or sooner where its whole life
    has a bound. `epoch` counts its interpreters; `engine` and `handle` are of the last one.
    """

    uuid: UUID
    name: str
    created_at: datetime
    last_active_at: datetime
    expires_at: datetime
    idle_s: int
    memory_bytes: int
    owner: str | None = None
    epoch: int = 0
    engine: str | None = None
    handle: bytes | None = None
    project_id: ProjectId | None = None


_FIELDS: Final = tuple(field.name for field in fields(ContainerRow))
_COLUMNS: Final = ", ".join("id AS uuid" if name == "uuid" else name for name in _FIELDS)
_OF_INTERPRETER: Final = {"owner", "epoch", "engine", "handle"}
_NEW: Final = ("tenant_id", "id", *(name for name in _FIELDS[1:] if name not in _OF_INTERPRETER))
_NAME: Final = place_of("containers", "name")
# 0 where the container is there: it is one of them.
_COUNT_OTHERS: Final = Statement("""
SELECT CASE WHEN EXISTS (SELECT FROM containers WHERE tenant_id = :tenant AND id = :container)
THEN 0 ELSE (
    SELECT count(*) FROM (
        SELECT FROM containers
        WHERE tenant_id = :tenant AND expires_at > CAST(:now AS timestamptz)
        LIMIT :rows_max
    ) AS counted
) END
""")
_INSERT: Final = Statement(insert_into("containers", _NEW))
_LOAD: Final = Statement(f"""
SELECT {_COLUMNS} FROM containers WHERE tenant_id = :tenant AND id = :container
""")  # noqa: S608 - constants only
_DELETE: Final = Statement("""
DELETE FROM containers WHERE tenant_id = :tenant AND id = :container RETURNING true
""")
_TOUCH: Final = """
SET last_active_at = CAST(:now AS timestamptz),
    expires_at = least(
        CAST(:now AS timestamptz) + make_interval(secs => containers.idle_s),
        containers.created_at + make_interval(secs => CAST(:life_s AS integer))
    )
"""
_TOUCH_ONE: Final = Statement(f"""
UPDATE containers {_TOUCH}
WHERE tenant_id = :tenant AND id = :container AND expires_at > CAST(:now AS timestamptz)
RETURNING {_COLUMNS}
""")
_TAKE: Final = f"""
{_TOUCH}, owner = CAST(:owner AS text),
    epoch = containers.epoch
        + CASE WHEN containers.owner = CAST(:owner AS text)
            AND containers.epoch = CAST(:had AS integer) THEN 0 ELSE 1 END
WHERE containers.expires_at > CAST(:now AS timestamptz)
"""
_TAKE_ONE: Final = Statement(f"""
UPDATE containers {_TAKE} AND tenant_id = :tenant_id AND id = :id
RETURNING {_COLUMNS}
""")
_TAKE_OR_MAKE: Final = Statement(f"""
{insert_into("containers", [*_NEW, "owner", "epoch"])}
ON CONFLICT (tenant_id, id) DO UPDATE {_TAKE}
RETURNING {_COLUMNS}
""")
_OPENED: Final = Statement("""
UPDATE containers SET engine = :engine, handle = :handle
WHERE tenant_id = :tenant AND id = :container AND owner = :owner AND epoch = :epoch
RETURNING true
""")
_LIST: Final = f"""
SELECT {_COLUMNS} FROM containers
WHERE tenant_id = :tenant AND expires_at > CAST(:now AS timestamptz)
  AND (CAST(:names AS bytea[]) IS NULL OR name = ANY(CAST(:names AS bytea[])))
"""  # noqa: S608 - constants only
_PAGE: Final = """
  AND (CAST(:cursor AS uuid) IS NULL
       OR (created_at, id) {beyond} (CAST(:cursor_at AS timestamptz), CAST(:cursor AS uuid)))
ORDER BY created_at {direction}, id {direction}
LIMIT :row_limit
"""


def in_pages(select: str) -> dict[str, Statement]:
    """Return the statements of a page of `select`, which ends in its WHERE, by their order."""
    return {
        "asc": Statement(select + _PAGE.format(beyond=">", direction="ASC")),
        "desc": Statement(select + _PAGE.format(beyond="<", direction="DESC")),
    }


_LISTS: Final = in_pages(_LIST)


async def create(
    database: Database, tenant_id: TenantId, row: ContainerRow, *, containers_max: int
) -> bool:
    async with database.transaction(tenant_id) as connection:
        try:
            of_row = _of(tenant_id, row.uuid)
            await _check_count(connection, of_row, containers_max, now=row.created_at)
        except TooManyContainers:
            return False
        await connection.execute(_INSERT, _new(connection, tenant_id, row))
    return True


async def _check_count(
    connection: Connection, of_row: dict[str, Any], containers_max: int, *, now: datetime
) -> None:
    # From here to the commit, containers of a tenant take turns. Raises `TooManyContainers`.
    await take_turns(connection, of_row["tenant"], TenantLock.CONTAINERS)
    counted = {"now": now, "rows_max": containers_max}
    others = await connection.scalar(_COUNT_OTHERS, of_row | counted)
    if others >= containers_max:
        raise TooManyContainers(containers_max)


async def load(database: Database, tenant_id: TenantId, uuid: UUID) -> ContainerRow | None:
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_LOAD, _of(tenant_id, uuid))).one_or_none()
        return _row(connection, tenant_id, row)


async def touch(
    database: Database, tenant_id: TenantId, uuid: UUID, *, now: datetime, life_s: int
) -> ContainerRow | None:
    used = _of(tenant_id, uuid) | {"now": now, "life_s": life_s}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_TOUCH_ONE, used)).one_or_none()
        return _row(connection, tenant_id, row)


async def delete(database: Database, tenant_id: TenantId, uuid: UUID) -> bool:
    async with database.transaction(tenant_id) as connection:
        await holds.check(connection, tenant_id)
        return bool(await connection.scalar(_DELETE, _of(tenant_id, uuid)))


async def take(
    database: Database,
    tenant_id: TenantId,
    row: ContainerRow,
    *,
    life_s: int,
    containers_max: int | None = None,
) -> ContainerRow | None:
    """Take the container's interpreter for `row.owner`.

    With `containers_max` and without an interpreter create the container if it is missing.

    `row.epoch` is the epoch of the interpreter that the owner has, 0 for none. The result has the
    same epoch if no one else took it meanwhile; otherwise the next epoch, with `engine` and
    `handle` of the last interpreter. None: it has expired or was deleted. Raises
    `TooManyContainers`.
    """
    now = {"now": row.last_active_at, "life_s": life_s, "had": row.epoch}
    async with database.transaction(tenant_id) as connection:
        new = _new(connection, tenant_id, row) | {"owner": row.owner, "epoch": 1}
        statement = _TAKE_ONE
        if row.epoch == 0 and containers_max is not None:
            statement = _TAKE_OR_MAKE
            of_row = _of(tenant_id, row.uuid)
            await _check_count(connection, of_row, containers_max, now=row.last_active_at)
        taken = (await connection.execute(statement, new | now)).one_or_none()
        return _row(connection, tenant_id, taken)


async def opened(
    database: Database, tenant_id: TenantId, row: ContainerRow, *, engine: str, handle: bytes | None
) -> bool:
    """Record the started interpreter. Return False if another process took it meanwhile."""
    interpreter = {"owner": row.owner, "epoch": row.epoch, "engine": engine, "handle": handle}
    async with database.transaction(tenant_id) as connection:
        return bool(await connection.scalar(_OPENED, _of(tenant_id, row.uuid) | interpreter))


async def list_containers(
    database: Database, tenant_id: TenantId, page: PageParams, *, name: str | None, now: datetime
) -> Page[ContainerRow]:
    wanted: dict[str, Any] = {"tenant": tenant_id, "now": now, "names": None}
    async with database.transaction(tenant_id) as connection:
        if name is not None:
            wanted["names"] = connection.cipher(tenant_id).names(pack_text(name), _NAME)
        wanted["container"] = wanted["cursor"] = row_at_cursor(page, ids.parse_container_id)
        rows = await page_rows(connection, _LISTS, wanted, page, _LOAD)
        return page.of([_container(connection, tenant_id, row) for row in rows])


def row_at_cursor(page: PageParams, parse_id: Callable[[str], UUID | None]) -> UUID | None:
    if page.cursor is None:
        return None
    uuid = parse_id(page.cursor)
    if uuid is None:
        raise unknown_place(page.cursor_name)
    return uuid


async def page_rows(
    connection: Connection,
    statements: Mapping[str, Statement],
    wanted: Mapping[str, Any],
    page: PageParams,
    load: Statement,
) -> Sequence[Row]:
    """Return the rows of a page in the order from its cursor, and one more if there is any.

    `load` reads the row at the cursor. Raises `InvalidRequest`.
    """
    parameters = {**wanted, "cursor_at": None, "row_limit": page.limit + 1}
    if wanted["cursor"] is not None:
        last = (await connection.execute(load, parameters)).one_or_none()
        if last is None:
            raise unknown_place(page.cursor_name)
        parameters["cursor_at"] = last.created_at
    rows: Sequence[Row] = await connection.execute(statements[page.order_from_cursor], parameters)
    return rows


def _of(tenant_id: TenantId, uuid: UUID) -> dict[str, Any]:
    return {"tenant": tenant_id, "container": uuid}


def _new(connection: Connection, tenant_id: TenantId, row: ContainerRow) -> dict[str, Any]:
    name = connection.cipher(tenant_id).seal_name(pack_text(row.name), _NAME)
    return asdict(row) | {"tenant_id": tenant_id, "id": row.uuid, "name": name}


def _row(connection: Connection, tenant_id: TenantId, row: Row | None) -> ContainerRow | None:
    return None if row is None else _container(connection, tenant_id, row)


def _container(connection: Connection, tenant_id: TenantId, row: Row) -> ContainerRow:
    uuid, name, *rest = row
    return ContainerRow(uuid, unpack_text(connection.cipher(tenant_id).open(name, _NAME)), *rest)
