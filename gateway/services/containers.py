from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from gateway import ids
from gateway.errors import (
    DataHeld,
    GatewayError,
    InvalidRequest,
    RateLimited,
    ResourceNotFound,
    StoreError,
)
from gateway.protocol.container_bodies import (
    MEMORY_LIMITS,
    expired_container,
    memory_limit_of,
    unknown_container,
    unknown_file,
)
from gateway.protocol.grants import PythonGrant
from gateway.protocol.hosted_tools import FILE_IDS_MAX
from gateway.protocol.pages import Page, PageParams
from gateway.protocol.request_errors import array_too_long, unsupported_value, wrong_value
from gateway.services.zero_retention import require_storage
from gateway.store.tools import containers as rows
from gateway.store.tools import files as file_rows
from gateway.store.tools.containers import ContainerRow
from gateway.store.tools.files import CHUNK_BYTES, FileRow
from gateway.tools.python.container_engine import NAME_BYTES_MAX
from gateway.tools.python.container_pool import container_file, path_of_upload
from gateway.tools.python.python_tool import description

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.protocol.container_bodies import NewContainer
    from gateway.protocol.hosted_tools import AutoContainer
    from gateway.replication.limiter import Limiter
    from gateway.settings.tools import Python
    from gateway.store.postgres.database import Database
    from gateway.store.tools.files import FileBounds
    from gateway.tenancy import Principal, TenantId
    from gateway.tenancy.policy import TenantPolicy
    from gateway.tools.python.container_pool import ContainerPool


_PARAM: Final = "tools.container"
Json = dict[str, Any]


class Containers:
    """Use cases of containers. All raise `StoreUnavailable`, and those with a container's id
    `ResourceNotFound` or, if it has expired, `InvalidRequest`.
    """

    def __init__(
        self, database: Database, pool: ContainerPool, files: Files, bounds: Python
    ) -> None:
        self._database = database
        self._pool = pool
        self._files = files
        self._bounds = bounds

    @property
    def engine(self) -> str | None:
        # None: Python does not run here.
        return self._pool.engine

    async def granted(
        self,
        principal: Principal,
        response: UUID,
        container: str | AutoContainer,
        *,
        inherited: str | None = None,
        param: str = _PARAM,
    ) -> PythonGrant:
        """Return the container that a new response may use; `param` is its path in the request.

        `auto` is the context's previous one (`inherited`) while that is alive, otherwise a new one,
        created when code first runs in it.
        """
        policy = principal.policy
        file_ids: tuple[str, ...] = ()
        containers_max = None
        if isinstance(container, str):
            row = await self._alive(principal, container, param=param)
            uuid, memory_bytes = row.uuid, row.memory_bytes
        else:
            file_ids = container.file_ids
            where = f"{param}.memory_limit"
            memory_bytes = self._memory(policy, container.memory_limit, param=where)
            if (used := await self._find_inherited(principal, inherited)) is not None:
                uuid, memory_bytes = used.uuid, used.memory_bytes
            else:
                uuid, containers_max = ids.auto_container(response), policy.containers_max
        if len(file_ids) > FILE_IDS_MAX:
            raise array_too_long(f"{param}.file_ids", len(file_ids), FILE_IDS_MAX)
        names = [
            (await self._files.find(principal, one, param=f"{param}.file_ids")).name
            for one in file_ids
        ]
        return PythonGrant(
            container_id=ids.container_id(uuid),
            engine=self.engine or "",
            memory_bytes=memory_bytes,
            file_ids=file_ids,
            description=self._description(names),
            containers_max=containers_max,
        )

    async def create(self, principal: Principal, new: NewContainer) -> Json:
        require_storage(principal, "A container")
        tenant_id, now = principal.tenant_id, self._pool.now()
        memory_bytes = self._memory(principal.policy, new.memory_limit, param="memory_limit")
        copied = [await self._files.find(principal, one, param="file_ids") for one in new.file_ids]
        idle_s = min(60 * new.expires_after.minutes, self._pool.policy.idle_s)
        lifetime_s = min(idle_s, self._pool.policy.life_s)
        row = ContainerRow(
            uuid=ids.new_uuid(),
            name=new.name,
            created_at=now,
            last_active_at=now,
            expires_at=now + timedelta(seconds=lifetime_s),
            idle_s=idle_s,
            memory_bytes=memory_bytes,
            project_id=principal.project,
        )
        count = principal.policy.containers_max
        async with self._files.storing(principal, sum(one.size_bytes for one in copied)):
            if not await rows.create(self._database, tenant_id, row, containers_max=count):
                raise RateLimited(
                    f"You have {count} containers, which is as many as may be. Delete some that "
                    "are not needed any more.",
                    code="too_many_containers",
                    is_final=True,
                )
            try:
                for source in copied:
                    await self._copy_file(tenant_id, row.uuid, source, param="file_ids")
            except GatewayError:
                # Nobody gets its id, but it would count among the tenant's containers.
                with suppress(DataHeld, StoreError):
                    await rows.delete(self._database, tenant_id, row.uuid)
                raise
        return container_body(row)

    async def get(self, principal: Principal, container_id: str) -> Json:
        return container_body(await self._alive(principal, container_id))

    async def list(self, principal: Principal, page: PageParams, *, name: str | None) -> Page[Json]:
        database, now = self._database_for(principal), self._pool.now()
        containers, has_more = await rows.list_containers(
            database, principal.tenant_id, page, name=name, now=now
        )
        return Page(list(map(container_body, containers)), has_more)

    async def delete(self, principal: Principal, container_id: str) -> None:
        """Delete a container and its files, and end this process's code in it."""
        uuid = _uuid(container_id)
        if not await rows.delete(self._database_for(principal), principal.tenant_id, uuid):
            raise unknown_container(container_id)
        await self._pool.forget(principal.tenant_id, uuid)

    async def add_file(self, principal: Principal, container_id: str, upload: Upload) -> Json:
        """Write a file into the container's `/mnt/data`, for the code that runs next."""
        require_storage(principal, "A file")
        tenant_id = principal.tenant_id
        uuid = await self._use(principal, container_id)
        size_bytes, digest = await asyncio.to_thread(upload.measured)
        path = _path(upload.name)
        row = container_file(uuid, path, size_bytes, digest, self._pool.now())
        async with self._files.storing(principal, size_bytes):
            kept = await file_rows.put(
                self._database, tenant_id, row, upload.chunks(), bounds=self._pool.policy.files
            )
            if kept is None:
                raise unknown_container(container_id)
        return container_file_body(kept)

    async def copy_file(self, principal: Principal, container_id: str, file_id: str) -> Json:
        require_storage(principal, "A file")
        tenant_id = principal.tenant_id
        source = await self._files.find(principal, file_id, param="file_id")
        uuid = await self._use(principal, container_id)
        async with self._files.storing(principal, source.size_bytes):
            kept = await self._copy_file(tenant_id, uuid, source, param="file_id")
            if kept is None:
                raise unknown_container(container_id)
        return container_file_body(kept)

    async def get_file(self, principal: Principal, container_id: str, file_id: str) -> Json:
        return container_file_body(await self._file(principal, container_id, file_id))

    async def list_files(
        self, principal: Principal, container_id: str, page: PageParams
    ) -> Page[Json]:
        container = (await self._alive(principal, container_id)).uuid
        files, has_more = await file_rows.list_files(
            self._database, principal.tenant_id, page, container=container, now=self._pool.now()
        )
        return Page(list(map(container_file_body, files)), has_more)

    async def file_content(self, principal: Principal, container_id: str, file_id: str) -> Download:
        row = await self._file(principal, container_id, file_id)
        return download(self._database, principal.tenant_id, row)

    async def delete_file(self, principal: Principal, container_id: str, file_id: str) -> None:
        row = await self._file(principal, container_id, file_id)
        await file_rows.delete(
            self._database, principal.tenant_id, row.uuid, container=row.container
        )

    def _database_for(self, principal: Principal) -> Database:
        return self._database.within(principal.project)

    async def _alive(
        self, principal: Principal, container_id: str, *, param: str | None = None
    ) -> ContainerRow:
        uuid = _uuid(container_id, param=param)
        row = await rows.load(self._database_for(principal), principal.tenant_id, uuid)
        if row is None:
            raise unknown_container(container_id, param=param)
        if row.expires_at <= self._pool.now():
            raise expired_container(container_id, param=param)
        return row

    async def _use(self, principal: Principal, container_id: str) -> UUID:
        uuid = (await self._alive(principal, container_id)).uuid
        life_s, now = self._pool.policy.life_s, self._pool.now()
        await rows.touch(self._database, principal.tenant_id, uuid, now=now, life_s=life_s)
        return uuid

    async def _find_inherited(
        self, principal: Principal, container_id: str | None
    ) -> ContainerRow | None:
        uuid = None if container_id is None else ids.parse_container_id(container_id)
        row = None
        if uuid is not None:
            row = await rows.load(self._database_for(principal), principal.tenant_id, uuid)
        return None if row is None or row.expires_at <= self._pool.now() else row

    async def _copy_file(
        self, tenant_id: TenantId, container: UUID, source: FileRow, *, param: str
    ) -> FileRow | None:
        path = _path(source.name, param=param)
        now = self._pool.now()
        row = container_file(container, path, source.size_bytes, source.digest, now)
        bounds = self._pool.policy.files
        return await file_rows.copy(
            self._database, tenant_id, row, copied=source.uuid, bounds=bounds
        )

    async def _file(self, principal: Principal, container_id: str, file_id: str) -> FileRow:
        container = (await self._alive(principal, container_id)).uuid
        uuid = ids.parse_container_file_id(file_id)
        row = None
        if uuid is not None:
            now = self._pool.now()
            row = await file_rows.load(
                self._database, principal.tenant_id, uuid, container=container, now=now
            )
        if row is None:
            raise unknown_file(file_id)
        return row

    def _memory(self, policy: TenantPolicy, limit: str | None, *, param: str) -> int:
        name = limit or "1g"
        if name not in MEMORY_LIMITS:
            raise wrong_value(param, name, tuple(MEMORY_LIMITS))
        most = min(self._bounds.memory_bytes_max, MEMORY_LIMITS[policy.container_memory_max])
        allowed = [option for option, size in MEMORY_LIMITS.items() if size <= most]
        if name not in allowed:
            raise unsupported_value(param, name, allowed, where="for this API key")
        return MEMORY_LIMITS[name]

    def _description(self, files: Sequence[str]) -> str | None:
        # None unless it differs from the description that the model was trained with.
        capabilities = self._pool.capabilities
        if capabilities is None:
            return None
        return description(capabilities, files, timeout_s=self._bounds.timeout_s)


def container_body(row: ContainerRow) -> Json:
    return {
        "id": ids.container_id(row.uuid),
        "object": "container",
        "created_at": int(row.created_at.timestamp()),
        "status": "running",
        "expires_after": {"anchor": "last_active_at", "minutes": max(1, row.idle_s // 60)},
        "last_active_at": int(row.last_active_at.timestamp()),
        "memory_limit": memory_limit_of(row.memory_bytes),
        "name": row.name,
        "network_policy": {"type": "disabled"},
    }


def container_file_body(row: FileRow) -> Json:
    assert row.container is not None, "it is one of a container"
    return {
        "id": ids.container_file_id(row.uuid),
        "object": "container.file",
        "container_id": ids.container_id(row.container),
        "path": row.name,
        "bytes": row.size_bytes,
        "created_at": int(row.created_at.timestamp()),
        "source": row.source,
    }


def _uuid(container_id: str, *, param: str | None = None) -> UUID:
    uuid = ids.parse_container_id(container_id)
    if uuid is None:
        raise unknown_container(container_id, param=param)
    return uuid


def _path(name: str, *, param: str = "file") -> str:
    path = path_of_upload(name)
    if path is None:
        raise InvalidRequest(
            f"Invalid '{param}': a file of this name cannot be put into a container. Give it a "
            f"name of printable characters, at most {NAME_BYTES_MAX} bytes of UTF-8.",
            code="invalid_value",
            param=param,
        )
    return path


@dataclass(frozen=True, slots=True)
class Upload:
    """Uploaded file; `content` is a local file, read from its start."""

    name: str
    content: BinaryIO

    def measured(self) -> tuple[int, bytes]:
        digest, size = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            size += len(chunk)
        return size, digest.digest()

    def chunks(self) -> Iterator[bytes]:
        self.content.seek(0)
        while chunk := self.content.read(CHUNK_BYTES):
            yield chunk


@dataclass(frozen=True, slots=True)
class Download:
    """File to be sent; `chunks` raises `ResourceNotFound` once it is gone, and `StoreError`."""

    name: str
    size_bytes: int
    chunks: AsyncIterator[bytes]


class Files:
    """Use cases of uploaded files. All raise `StoreUnavailable`, and those with a file's id
    `ResourceNotFound`.
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
        """`Limiter.storing`."""
        self._bounds = bounds
        self._now = now

    async def create(
        self, principal: Principal, upload: Upload, purpose: str, expires_after_s: int | None
    ) -> dict[str, Any]:
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
            await file_rows.put(
                self._database, principal.tenant_id, row, upload.chunks(), bounds=self._bounds
            )
        return file_body(row)

    async def get(self, principal: Principal, file_id: str) -> dict[str, Any]:
        return file_body(await self.find(principal, file_id))

    async def list(
        self, principal: Principal, page: PageParams, *, purpose: str | None
    ) -> Page[Json]:
        database = self._database.within(principal.project)
        files, has_more = await file_rows.list_files(
            database, principal.tenant_id, page, purpose=purpose, now=self._now()
        )
        return Page(list(map(file_body, files)), has_more)

    async def content(self, principal: Principal, file_id: str) -> Download:
        row = await self.find(principal, file_id)
        return download(self._database, principal.tenant_id, row)

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Delete the file. Copies of it in containers stay."""
        row = await self.find(principal, file_id)
        await file_rows.delete(self._database, principal.tenant_id, row.uuid)

    async def find(
        self, principal: Principal, file_id: str, *, param: str | None = None
    ) -> FileRow:
        uuid = ids.parse_file_id(file_id)
        row = None
        if uuid is not None:
            seen = self._database.within(principal.project)
            row = await file_rows.load(seen, principal.tenant_id, uuid, now=self._now())
        if row is None:
            raise unknown_file(file_id, param=param)
        return row


def download(database: Database, tenant_id: TenantId, row: FileRow) -> Download:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(file_rows.chunk_count(row.size_bytes)):
            content = await file_rows.chunk(database, tenant_id, row, number)
            if content is None:
                raise ResourceNotFound("The file was replaced or deleted while it was sent.")
            yield content

    return Download(row.name.rpartition("/")[2], row.size_bytes, chunks())


def file_body(row: FileRow) -> dict[str, Any]:
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
