"""Files: those that clients upload, and the bytes of those of containers."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

from gateway import ids
from gateway.protocol.container_bodies import unknown_file
from gateway.protocol.request_errors import unknown_place
from gateway.services.zero_retention import require_storage
from gateway.store.tools import files as rows
from gateway.store.tools.containers import PageParams
from gateway.store.tools.files import CHUNK_BYTES, FileRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime

    from gateway.replication.limiter import Limiter
    from gateway.store.postgres.database import Database
    from gateway.store.tools.files import FileBounds
    from gateway.tenancy import Principal, TenantId


class FileReplaced(Exception):
    """A file was replaced or deleted while its bytes were sent."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was sent: its name, and its bytes in a file of this machine, from its start."""

    name: str
    content: BinaryIO

    def measured(self) -> tuple[int, bytes]:
        """Return the number of bytes and their SHA-256."""
        digest, size = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            size += len(chunk)
        return size, digest.digest()

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in the pieces that are stored."""
        self.content.seek(0)
        while chunk := self.content.read(CHUNK_BYTES):
            yield chunk


@dataclass(frozen=True, slots=True)
class Download:
    """A file to be sent; `chunks` raises `FileReplaced`, and `StoreError`."""

    name: str
    size_bytes: int
    chunks: AsyncIterator[bytes]


class Files:
    """Uploads, lists, sends and deletes files. All methods raise `StoreUnavailable`; those with the
    id of a file `ResourceNotFound`.
    """

    def __init__(
        self,
        database: Database,
        bounds: FileBounds,
        limiter: Limiter,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._database = database
        self.storing = limiter.storing
        """Counts what of a tenant is stored while it is entered (`Limiter.storing`)."""
        self._bounds = bounds
        self._now = now

    async def create(
        self, principal: Principal, upload: Upload, purpose: str, expires_after_s: int | None
    ) -> dict[str, Any]:
        """Store an uploaded file. Raises `RateLimited` if the tenant may store no more."""
        require_storage(principal, "A file")
        size_bytes, digest = await asyncio.to_thread(upload.measured)
        now = self._now()
        row = FileRow(
            uuid=ids.new_uuid(),
            container=None,
            name=upload.name,
            purpose=purpose,
            source=None,
            size_bytes=size_bytes,
            digest=digest,
            created_at=now,
            expires_at=None
            if expires_after_s is None
            else now + timedelta(seconds=expires_after_s),
            project_id=principal.project,
        )
        async with self.storing(principal, size_bytes):
            await rows.put(
                self._database, principal.tenant_id, row, upload.chunks(), bounds=self._bounds
            )
        return file_body(row)

    async def get(self, principal: Principal, file_id: str) -> dict[str, Any]:
        return file_body(await self.find(principal, file_id))

    async def list(
        self,
        principal: Principal,
        *,
        limit: int,
        order: Any,
        after: str | None,
        purpose: str | None,
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return one page of files, and True if there are more.

        Raises `InvalidRequest` for an unknown `after`.
        """
        place = None if after is None else ids.parse_file_id(after)
        if after is not None and place is None:
            raise unknown_place()
        page = await rows.list_files(
            self._database.within(principal.project),
            principal.tenant_id,
            PageParams(limit, order, place),
            purpose=purpose,
            now=self._now(),
        )
        return [file_body(row) for row in page.rows], page.has_more

    async def content(self, principal: Principal, file_id: str) -> Download:
        row = await self.find(principal, file_id)
        return download(self._database, principal.tenant_id, row)

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Delete the file. Copies of it in containers stay."""
        row = await self.find(principal, file_id)
        await rows.delete(self._database, principal.tenant_id, row.uuid)

    async def find(
        self, principal: Principal, file_id: str, *, param: str | None = None
    ) -> FileRow:
        """Return the row of an uploaded file. Raises `ResourceNotFound`, which names `param`."""
        uuid = ids.parse_file_id(file_id)
        row = None
        if uuid is not None:
            seen = self._database.within(principal.project)
            row = await rows.load(seen, principal.tenant_id, uuid, now=self._now())
        if row is None:
            raise unknown_file(file_id, param=param)
        return row


def download(database: Database, tenant_id: TenantId, row: FileRow) -> Download:
    """Prepare a file for download; its bytes are read while they are sent."""

    async def chunks() -> AsyncIterator[bytes]:
        for number in range(rows.chunk_count(row.size_bytes)):
            content = await rows.chunk(database, tenant_id, row, number)
            if content is None:
                raise FileReplaced
            yield content

    return Download(row.name.rpartition("/")[2], row.size_bytes, chunks())


def file_body(row: FileRow) -> dict[str, Any]:
    """Return an uploaded file as the API shows it. Times are in unix seconds."""
    return {
        "id": ids.file_id(row.uuid),
        "object": "file",
        "bytes": row.size_bytes,
        "created_at": int(row.created_at.timestamp()),
        "expires_at": None if row.expires_at is None else int(row.expires_at.timestamp()),
        "filename": row.name,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }
