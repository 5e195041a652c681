"""All data of a tenant, for operators: erasing a person, deleting a tenant, an archive of it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Final

import orjson
from typing_extensions import override

from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.store import conversations, responses, tenants
from gateway.store.governance import audit_log, erasure, export

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from _typeshed import ReadableBuffer

    from gateway.governance.audit import AuditEvent, Author
    from gateway.store.postgres.database import Database
    from gateway.store.tenant_keys import TenantKeys
    from gateway.tenancy import Tenant, TenantId

DAY_S: Final = 86_400
RESTORE_S: Final = 7 * DAY_S
"""So long a tenant that was deleted can be restored."""
ROWS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Erased:
    """What was erased of a person, and how many responses were looked at.

    `sealed` of these could not be opened, because their key is gone: they are left.
    """

    seen: int
    responses: int
    conversations: int
    sealed: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed of a tenant: rows by table, and keys that were destroyed."""

    tenant: str
    rows: dict[str, int]
    keys: int


class TenantData:
    """Use cases; all raise `StoreUnavailable`, those with the name of a tenant `ResourceNotFound`.

    `keys` are those that content is sealed with, if any is. At most `exports_max` archives are made
    at once.
    """

    def __init__(
        self, database: Database, keys: TenantKeys | None = None, *, exports_max: int = 1
    ) -> None:
        self._database = database
        self._keys = keys
        self._exporting = asyncio.Semaphore(exports_max)

    async def erase_person(
        self, name: str, person: str, *, author: Author = COMMAND_LINE
    ) -> Erased:
        """Delete all stored responses whose `safety_identifier` or `user` is this, and the
        conversations that they continued.

        All responses of the tenant are read for it. Of what is in an audit log only a digest of the
        identifier is kept. Raises `InvalidRequest` for an empty one, and for a tenant that is held.
        """
        if not person:
            raise InvalidRequest("Say whom to erase.", param="end_user")
        tenant = await self._tenant(name)
        await check_is_not_held(self._database, tenant.id)
        digest = hashlib.sha256(person.encode("utf-8", "surrogatepass")).hexdigest()
        await self._tell(tenant.id, author.event("harmony.erasure.requested", digest))
        seen, found, sealed, places = 0, 0, 0, set()
        after = erasure.BEFORE_ALL
        while True:
            page = await erasure.of_person(
                self._database, tenant.id, person, after=after, rows_max=ROWS_AT_ONCE
            )
            seen += page.seen
            sealed += page.sealed
            for one in page.found:
                found += await responses.delete(self._database, tenant.id, one.uuid)
                if one.conversation is not None:
                    places.add(one.conversation)
            if page.last is None:
                break
            after = page.last
        gone = 0
        for place in places:
            gone += await conversations.delete_conversation(self._database, tenant.id, place)
        told = {"responses": found, "conversations": gone, "sealed": sealed}
        await self._tell(tenant.id, author.event("harmony.erasure.completed", digest, data=told))
        return Erased(seen, found, gone, sealed)

    async def delete(self, name: str, *, author: Author = COMMAND_LINE) -> Tenant:
        """Let none of its keys work any more; what it has is removed `RESTORE_S` later."""
        tenant = await self._tenant(name)
        event = author.event("harmony.tenant.deleted", str(tenant.id))
        return _known(await erasure.mark_deleted(self._database, name, event), name)

    async def restore(self, name: str, *, author: Author = COMMAND_LINE) -> Tenant:
        """Take a deletion back. Raises `InvalidRequest` where there is none, or it is too late."""
        tenant = await self._tenant(name)
        event = author.event("harmony.tenant.restored", str(tenant.id))
        restored = await erasure.restore(self._database, name, event, window_s=RESTORE_S)
        if restored is None:
            raise InvalidRequest(
                f"Tenant {name!r} was not deleted within the last {RESTORE_S // DAY_S} days."
            )
        return restored

    async def hold(self, name: str, *, is_held: bool, author: Author = COMMAND_LINE) -> Tenant:
        """Keep what a deleted tenant has until it is held no more."""
        tenant = await self._tenant(name)
        event = author.event(
            "harmony.tenant.updated", str(tenant.id), changes_requested={"held": is_held}
        )
        return _known(await erasure.hold(self._database, name, event, is_held=is_held), name)

    async def purge(
        self, *, window_s: float = RESTORE_S, author: Author = COMMAND_LINE
    ) -> list[Removed]:
        """Remove what tenants have that were deleted so long ago: first the keys of their content,
        which makes it unreadable wherever it is, then the rows. Usage and the audit log stay.

        Where it breaks off, the next call goes on.
        """
        removed = []
        for tenant in await erasure.due(self._database, window_s=window_s):
            # Those before it may have taken hours.
            if not await erasure.is_due(self._database, tenant.id, window_s=window_s):
                continue
            keys = 0 if self._keys is None else await self._keys.destroy(tenant.id)
            counts = {table: await self._emptied(tenant.id, table) for table in erasure.TABLES}
            await erasure.finish_removal(self._database, tenant.id)
            if keys or any(counts.values()):
                told = {"keys": keys, "rows": counts}
                event = author.event("harmony.tenant.shredded", str(tenant.id), data=told)
                await self._tell(tenant.id, event)
                removed.append(Removed(tenant.name, counts, keys))
        return removed

    async def export(
        self, name: str, *, author: Author = COMMAND_LINE, with_content: bool = True
    ) -> Archive:
        """An archive of all that a tenant has: for each table a file of JSON lines, its content
        opened, and `manifest.json` with the count and the SHA-256 of each. Without content there
        is in it what operators see anyway.

        That it is made is in the audit log before anything of it can be read.
        """
        tenant = await self._tenant(name)
        told = {"content": with_content}
        await self._tell(tenant.id, author.event("harmony.export.begun", str(tenant.id), data=told))
        return Archive(self._database, tenant, author, self._exporting, with_content=with_content)

    async def _emptied(self, tenant_id: TenantId, table: str) -> int:
        total = 0
        while count := await erasure.delete_some(
            self._database, tenant_id, table, rows_max=ROWS_AT_ONCE
        ):
            total += count
        return total

    async def _tenant(self, name: str) -> Tenant:
        return _known(await tenants.find_tenant(self._database, name), name)

    async def _tell(self, tenant_id: TenantId, event: AuditEvent) -> None:
        async with self._database.owner_transaction() as connection:
            await audit_log.record(connection, tenant_id, event)


class Archive:
    """A zip file of what a tenant has, as it is read: a page of rows is in memory at once, and is
    opened and compressed in a thread.
    """

    def __init__(
        self,
        database: Database,
        tenant: Tenant,
        author: Author,
        turns: asyncio.Semaphore,
        *,
        with_content: bool,
    ) -> None:
        """`turns` are those of all archives that are read at once."""
        self._database = database
        self._author = author
        self._turns = turns
        self._with_content = with_content
        self.tenant = tenant
        self.files: dict[str, dict[str, object]] = {}
        """What is in it so far: rows and SHA-256 by the name of the file."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of the file, to be read once. Raises `StoreUnavailable` and `ContentSealed`."""
        async with self._turns:
            async for piece in self._made():
                yield piece

    async def _made(self) -> AsyncIterator[bytes]:
        sink = _Sink()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
            for table in export.TABLES:
                async for piece in self._table(archive, sink, table):
                    yield piece
            manifest = {
                "tenant": {"id": str(self.tenant.id), "name": self.tenant.name},
                "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "content": self._with_content,
                "files": self.files,
            }
            archive.writestr("manifest.json", orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        yield sink.taken()
        counts = {name: one["rows"] for name, one in self.files.items()}
        event = self._author.event("harmony.export.made", str(self.tenant.id), data=counts)
        async with self._database.owner_transaction() as connection:
            await audit_log.record(connection, self.tenant.id, event)

    async def _table(
        self, archive: zipfile.ZipFile, sink: _Sink, table: str
    ) -> AsyncIterator[bytes]:
        digest, count = hashlib.sha256(), 0
        with archive.open(f"{table}.jsonl", "w", force_zip64=True) as file:
            async for page in export.pages(
                self._database, self.tenant.id, table, with_content=self._with_content
            ):
                lines = await asyncio.to_thread(_written, file, page)
                digest.update(lines)
                count += len(page.rows)
                if piece := sink.taken():
                    yield piece
        self.files[f"{table}.jsonl"] = {"rows": count, "sha256": digest.hexdigest()}


def _written(file: IO[bytes], page: export.ExportedPage) -> bytes:
    lines = page.lines()
    file.write(lines)
    return lines


class _Sink(io.RawIOBase):
    """Where an archive is written to: it cannot go back, and gives what came since it was asked."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, content: ReadableBuffer, /) -> int:
        self._pieces.append(bytes(content))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        """What was written since."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


async def check_is_not_held(database: Database, tenant_id: TenantId) -> None:
    """Raises `InvalidRequest` where what a tenant has is to be kept."""
    if await erasure.is_held(database, tenant_id):
        raise InvalidRequest(
            "What this tenant has is held, and cannot be erased. Release it first:"
            " `harmony-gateway data hold TENANT --release`."
        )


def _known(tenant: Tenant | None, name: str) -> Tenant:
    if tenant is None:
        raise ResourceNotFound(f"There is no tenant {name!r}.", param="tenant")
    return tenant
