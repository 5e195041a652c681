"""Files: those that were uploaded (`container` None), and those of containers.

A file of a container is known by its path: written again it keeps its id.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, Literal

from gateway import ids
from gateway.errors import InvalidRequest, RateLimited
from gateway.protocol.container_bodies import unknown_file
from gateway.store import holds
from gateway.store.content import place_of
from gateway.store.locks import TenantLock, take_turns
from gateway.store.packing import pack_text, unpack_text
from gateway.store.postgres.statements import Statement, insert_into
from gateway.store.tools.containers import in_pages, page_rows, row_at_cursor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection, Database, Row
    from gateway.tenancy import ProjectId, TenantId

CHUNK_BYTES: Final = 1024 * 1024
Source = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file; `digest` is SHA-256 of its bytes. Only uploaded ones have a `purpose`, only those of
    containers a `source`.
    """

    uuid: UUID
    container: UUID | None
    name: str
    purpose: str | None
    source: Source | None
    size_bytes: int
    digest: bytes
    created_at: datetime
    expires_at: datetime | None = None
    project_id: ProjectId | None = None


@dataclass(frozen=True, slots=True)
class FileBounds:
    tenant_bytes_max: int
    container_bytes_max: int = 512 * 1024**2
    container_files_max: int = 200


_ALIASES: Final = {"uuid": "id", "container": "container_id"}
_NAMES: Final = {field.name: _ALIASES.get(field.name, field.name) for field in fields(FileRow)}
_COLUMNS: Final = ", ".join(f"{column} AS {name}" for name, column in _NAMES.items())
_IN: Final = "container_id IS NOT DISTINCT FROM CAST(:container AS uuid)"
_ALIVE: Final = "(expires_at IS NULL OR expires_at > CAST(:now AS timestamptz))"
_NAME: Final = place_of("files", "name")
_CONTENT: Final = place_of("file_chunks", "content")
_INSERT: Final = Statement(insert_into("files", ["tenant_id", *_NAMES.values()]))
_REPLACE: Final = Statement("""
UPDATE files SET source = :source, size_bytes = :size_bytes, digest = :digest
WHERE tenant_id = :tenant_id AND id = :id
""")
_INSERT_CHUNK: Final = Statement(
    insert_into("file_chunks", ["tenant_id", "file_id", "number", "content"])
)
_DELETE_CHUNKS: Final = Statement("""
DELETE FROM file_chunks WHERE tenant_id = :tenant_id AND file_id = :id
""")
_COPY_CHUNKS: Final = Statement("""
WITH copies AS (
    INSERT INTO file_chunks (tenant_id, file_id, number, content)
    SELECT tenant_id, :id, number, content FROM file_chunks
    WHERE tenant_id = :tenant_id AND file_id = :copied
    RETURNING number
)
SELECT count(*) FROM copies
""")
# Transactions that write files of the same container wait for each other.
_LOCK_CONTAINER: Final = Statement("""
SELECT true FROM containers WHERE tenant_id = :tenant AND id = :container FOR NO KEY UPDATE
""")
_SIZES: Final = Statement("""
SELECT
    coalesce(sum(size_bytes), 0)::bigint AS tenant_bytes,
    coalesce(sum(size_bytes) FILTER (WHERE container_id = CAST(:container AS uuid)), 0)::bigint
        AS container_bytes,
    count(*) FILTER (WHERE container_id = CAST(:container AS uuid)) AS container_files
FROM files WHERE tenant_id = :tenant AND id IS DISTINCT FROM CAST(:replaced AS uuid)
""")
_OF_PATH: Final = Statement(f"""
SELECT {_COLUMNS} FROM files
WHERE tenant_id = :tenant AND container_id = :container AND name = ANY(CAST(:names AS bytea[]))
""")  # noqa: S608 - constants only
_LOAD: Final = Statement(f"""
SELECT {_COLUMNS} FROM files WHERE tenant_id = :tenant AND id = :file AND {_IN} AND {_ALIVE}
""")  # noqa: S608 - constants only
_CHUNK: Final = Statement("""
SELECT content FROM file_chunks JOIN files USING (tenant_id)
WHERE tenant_id = :tenant AND file_id = :file AND files.id = :file AND digest = :digest
  AND number = :number
""")
_DELETE: Final = Statement(f"""
DELETE FROM files WHERE tenant_id = :tenant AND id = :file AND {_IN} RETURNING true
""")  # noqa: S608 - constants only
_ALL: Final = Statement(f"""
SELECT {_COLUMNS} FROM files WHERE tenant_id = :tenant AND container_id = :container
ORDER BY created_at, id LIMIT :row_limit
""")  # noqa: S608 - constants only
_LISTS: Final = in_pages(f"""
SELECT {_COLUMNS} FROM files
WHERE tenant_id = :tenant AND {_IN} AND {_ALIVE}
  AND (CAST(:purpose AS text) IS NULL OR purpose = CAST(:purpose AS text))
""")  # noqa: S608 - constants only


def chunk_count(size_bytes: int) -> int:
    return -(-size_bytes // CHUNK_BYTES)


async def put(
    database: Database,
    tenant_id: TenantId,
    row: FileRow,
    chunks: Iterable[bytes],
    *,
    bounds: FileBounds,
) -> FileRow | None:
    """Store a file; each of `chunks` except the last has `CHUNK_BYTES` bytes.

    None: the container is unknown. Raises `InvalidRequest` if the container has no room for it, and
    `RateLimited` if the tenant has none.
    """
    async with database.transaction(tenant_id) as connection:
        kept = await _write_row(connection, tenant_id, row, bounds)
        if kept is None:
            return None
        key = {"tenant_id": tenant_id, "file_id": kept.uuid}
        cipher = connection.cipher(tenant_id)
        for number, content in enumerate(chunks):
            sealed = cipher.seal(content, _CONTENT, kept.digest, number)
            chunk = key | {"number": number, "content": sealed}
            await connection.execute(_INSERT_CHUNK, chunk)
        await _check_among_others(connection, tenant_id, kept, bounds)
    return kept


async def copy(
    database: Database, tenant_id: TenantId, row: FileRow, *, copied: UUID, bounds: FileBounds
) -> FileRow | None:
    """Store a file as `put` does, with the bytes of another one.

    Raises `ResourceNotFound` if that has been deleted meanwhile.
    """
    async with database.transaction(tenant_id) as connection:
        kept = await _write_row(connection, tenant_id, row, bounds)
        if kept is not None:
            parameters = {"tenant_id": tenant_id, "id": kept.uuid, "copied": copied}
            if await connection.scalar(_COPY_CHUNKS, parameters) < chunk_count(kept.size_bytes):
                raise unknown_file(ids.file_id(copied))
            await _check_among_others(connection, tenant_id, kept, bounds)
    return kept


async def load(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    *,
    container: UUID | None = None,
    now: datetime,
) -> FileRow | None:
    parameters = {"tenant": tenant_id, "file": uuid, "container": container, "now": now}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_LOAD, parameters)).one_or_none()
        return None if row is None else _row(connection, tenant_id, row)


async def chunk(database: Database, tenant_id: TenantId, row: FileRow, number: int) -> bytes | None:
    """Return one chunk, counted from 0; None: the file was replaced or deleted meanwhile."""
    parameters = {"tenant": tenant_id, "file": row.uuid, "digest": row.digest, "number": number}
    async with database.transaction(tenant_id) as connection:
        content: bytes | None = await connection.scalar(_CHUNK, parameters)
        return connection.cipher(tenant_id).open(content, _CONTENT, row.digest, number)


async def delete(
    database: Database,
    tenant_id: TenantId,
    uuid: UUID,
    *,
    container: UUID | None = None,
    by_code: bool = False,
) -> bool:
    """Erase a file. Raises `DataHeld`, except for code in its container (`by_code`)."""
    parameters = {"tenant": tenant_id, "file": uuid, "container": container}
    async with database.transaction(tenant_id) as connection:
        if not by_code:
            await holds.check(connection, tenant_id)
        return bool(await connection.scalar(_DELETE, parameters))


async def of_container(
    database: Database, tenant_id: TenantId, container: UUID, *, files_max: int
) -> list[FileRow]:
    parameters = {"tenant": tenant_id, "container": container, "row_limit": files_max}
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_ALL, parameters)
        return [_row(connection, tenant_id, row) for row in rows]


async def list_files(
    database: Database,
    tenant_id: TenantId,
    page: PageParams,
    *,
    container: UUID | None = None,
    purpose: str | None = None,
    now: datetime,
) -> Page[FileRow]:
    parse_id = ids.parse_file_id if container is None else ids.parse_container_file_id
    cursor = row_at_cursor(page, parse_id)
    wanted = {
        "tenant": tenant_id,
        "container": container,
        "now": now,
        "purpose": purpose,
        "file": cursor,
        "cursor": cursor,
    }
    async with database.transaction(tenant_id) as connection:
        rows = await page_rows(connection, _LISTS, wanted, page, _LOAD)
        return page.of([_row(connection, tenant_id, row) for row in rows])


async def _write_row(
    connection: Connection, tenant_id: TenantId, row: FileRow, bounds: FileBounds
) -> FileRow | None:
    # Writes no bytes. Replaces the file of the same path, if any.
    cipher, name = connection.cipher(tenant_id), pack_text(row.name)
    parameters = {
        "tenant": tenant_id,
        "container": row.container,
        "names": cipher.names(name, _NAME),
    }
    there: Row | None = None
    if row.container is not None:
        if not await connection.scalar(_LOCK_CONTAINER, parameters):
            return None
        there = (await connection.execute(_OF_PATH, parameters)).one_or_none()
    replaced = None if there is None else there.uuid
    sizes = (await connection.execute(_SIZES, parameters | {"replaced": replaced})).one()
    _check_room(row, sizes, bounds)
    if there is not None:
        row = replace(row, uuid=there.uuid, created_at=there.created_at)
    columns = {column: getattr(row, name) for name, column in _NAMES.items()}
    columns |= {"tenant_id": tenant_id, "name": cipher.seal_name(name, _NAME)}
    if there is None:
        await connection.execute(_INSERT, columns)
    else:
        await connection.execute(_REPLACE, columns)
        await connection.execute(_DELETE_CHUNKS, columns)
    return row


async def _check_among_others(
    connection: Connection, tenant_id: TenantId, row: FileRow, bounds: FileBounds
) -> None:
    # Other files may have been written since the first check. From here to the commit, files of a
    # tenant take turns, so none is missed, but writing bytes holds up no one. Raises as `put` does.
    parameters = {"tenant": tenant_id, "container": row.container, "replaced": row.uuid}
    await take_turns(connection, tenant_id, TenantLock.FILES)
    _check_room(row, (await connection.execute(_SIZES, parameters)).one(), bounds)


def _check_room(row: FileRow, sizes: Row, bounds: FileBounds) -> None:
    if sizes.tenant_bytes + row.size_bytes > bounds.tenant_bytes_max:
        raise RateLimited(
            f"Your files have {bounds.tenant_bytes_max} bytes together, which is all they may. "
            "Delete some that are not needed any more.",
            code="file_storage_full",
            is_final=True,
        )
    if row.container is None:
        return
    if sizes.container_bytes + row.size_bytes > bounds.container_bytes_max:
        raise InvalidRequest(
            f"The files of a container have at most {bounds.container_bytes_max} bytes together. "
            "Delete some, or use another container.",
            code="container_full",
        )
    if sizes.container_files >= bounds.container_files_max:
        raise InvalidRequest(
            f"A container has at most {bounds.container_files_max} files. Delete some, or use "
            "another container.",
            code="container_full",
        )


def _row(connection: Connection, tenant_id: TenantId, row: Row) -> FileRow:
    uuid, container, name, *rest = row
    opened = connection.cipher(tenant_id).open(name, _NAME)
    return FileRow(uuid, container, unpack_text(opened), *rest)
