"""All data of a tenant, for operators: erasing a person, deleting a tenant, an archive of it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Final

import orjson
from typing_extensions import override

from gateway.errors import DataHeld, InvalidRequest, ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.metering import end_user_of
from gateway.services.governance.erasing import Erasing
from gateway.store import tenants
from gateway.store.governance import audit_log, erasure, export, holds
from gateway.store.ownership import require_owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from _typeshed import ReadableBuffer

    from gateway.governance.audit import AuditEvent, Author
    from gateway.services.governance.erasing import Erased
    from gateway.store.postgres.database import Database
    from gateway.store.tenant_keys import TenantKeys
    from gateway.tenancy import Tenant, TenantId

DAY_S: Final = 86_400
RESTORE_S: Final = 7 * DAY_S
"""So long a tenant that was deleted can be restored."""
ROWS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Removed:
    """Data removed of a tenant: rows by table, and the number of destroyed keys."""

    tenant: str
    rows: dict[str, int]
    keys: int


EXPORTS_MAX: Final = 1
"""Archives that a process makes at once."""


class TenantData:
    """Use cases of a tenant's data; all raise `StoreUnavailable`, those with the name of a tenant
    `ResourceNotFound`.

    `keys` are those that seal content, if any do. At most `EXPORTS_MAX` archives are made at once.
    """

    def __init__(
        self,
        database: Database,
        keys: TenantKeys | None = None,
        *,
        end_user_secret: bytes | None = None,
    ) -> None:
        """Compute usage's digests of end users with `end_user_secret`.

        Without it, persons are found only by the identifiers in stored requests.
        """
        self._database = database
        self._keys = keys
        self._end_user_secret = end_user_secret
        self._exporting = asyncio.Semaphore(EXPORTS_MAX)

    async def erase_person(
        self, name: str, person: str, *, author: Author = COMMAND_LINE
    ) -> Erased:
        """Delete all stored responses for this person, and what they caused (`erasing.Erasing`).

        It reads all responses of the tenant. The audit log has usage's digest of the identifier,
        which cannot be guessed without the secret; without a secret it has nothing of the
        identifier. Raises `InvalidRequest` for an empty one, and `DataHeld`.
        """
        if not person:
            raise InvalidRequest("Say whom to erase.", param="end_user")
        await require_owner(self._database)
        tenant = await self._tenant(name)
        async with holds.unheld(self._database, tenant.id):
            pass
        metered, target = None, str(tenant.id)
        if self._end_user_secret is not None:
            metered = end_user_of(self._end_user_secret, tenant.id, person)
            target = metered.hex()
        await self._tell(tenant.id, author.event("harmony.erasure.requested", target))
        erased = await Erasing(self._database, tenant.id, person, metered).run()
        told = {
            "responses": erased.responses,
            "conversations": erased.conversations,
            "sealed": erased.sealed,
            "busy": erased.busy,
            "rows": erased.rows,
        }
        await self._tell(tenant.id, author.event("harmony.erasure.completed", target, data=told))
        return erased

    async def delete(self, name: str, *, author: Author = COMMAND_LINE) -> Tenant:
        """Disable all keys of a tenant; its data is removed `RESTORE_S` later."""
        tenant = await self._tenant(name)
        event = author.event("harmony.tenant.deleted", str(tenant.id))
        return _require(await erasure.mark_deleted(self._database, name, event), name)

    async def restore(self, name: str, *, author: Author = COMMAND_LINE) -> Tenant:
        """Undo a deletion. Raises `InvalidRequest` if there is none, or it is too late."""
        tenant = await self._tenant(name)
        event = author.event("harmony.tenant.restored", str(tenant.id))
        restored = await erasure.restore(self._database, name, event, window_s=RESTORE_S)
        if restored is None:
            raise InvalidRequest(
                f"Tenant {name!r} was not deleted within the last {RESTORE_S // DAY_S} days."
            )
        return restored

    async def hold(self, name: str, *, is_held: bool, author: Author = COMMAND_LINE) -> Tenant:
        """Put a tenant's data under legal hold, or release it.

        While held, nothing expires or is erased, shredded or purged, and clients delete nothing. On
        return the change is in effect at all replicas.
        """
        tenant = await self._tenant(name)
        event = author.event(
            "harmony.tenant.updated", str(tenant.id), changes_requested={"held": is_held}
        )
        return _require(await holds.hold(self._database, name, event, is_held=is_held), name)

    async def purge(
        self, *, window_s: float = RESTORE_S, author: Author = COMMAND_LINE
    ) -> list[Removed]:
        """Remove the data of tenants deleted at least `window_s` seconds ago.

        First the keys of the content, which makes it unreadable wherever it is, then the rows.
        Usage and the audit log stay; an audit entry and the tenant's `purged_at` record the time.
        After an error the next call continues.
        """
        await require_owner(self._database)
        removed = []
        for tenant in await erasure.due(self._database, window_s=window_s):
            # Those before it may have taken hours.
            if not await erasure.is_due(self._database, tenant.id, window_s=window_s):
                continue
            with suppress(DataHeld):
                one = await self._remove(tenant, author)
                removed += [one] if one is not None else []
        return removed

    async def _remove(self, tenant: Tenant, author: Author) -> Removed | None:
        # None: everything was removed before. Raises `DataHeld` under a legal hold.
        keys = 0
        if self._keys is not None:
            async with holds.unheld(self._database, tenant.id):
                keys = await self._keys.destroy(tenant.id)
        tables = (*erasure.TABLES, *erasure.SCRUBBED)
        counts = {table: await self._empty(tenant.id, table) for table in tables}
        told = {"keys": keys, "rows": {table: count for table, count in counts.items() if count}}
        event = author.event("harmony.tenant.purged", str(tenant.id), data=told)
        is_more = bool(keys or any(counts.values()))
        if not await erasure.finish_removal(self._database, tenant.id, event, is_more=is_more):
            return None
        return Removed(tenant.name, counts, keys)

    async def export(
        self, name: str, *, author: Author = COMMAND_LINE, with_content: bool = True
    ) -> TenantArchive:
        """Make an archive of all data of a tenant.

        It has one file of JSON lines per table, with content opened, and `manifest.json` with the
        count and SHA-256 of each file. Without content it has only what operators see anyway. The
        audit log records the export before anything can be read.
        """
        tenant = await self._tenant(name)
        told = {"content": with_content}
        await self._tell(tenant.id, author.event("harmony.export.begun", str(tenant.id), data=told))
        return TenantArchive(
            self._database, tenant, author, self._exporting, with_content=with_content
        )

    async def _empty(self, tenant_id: TenantId, table: str) -> int:
        total = 0
        while count := await erasure.delete_some(
            self._database, tenant_id, table, rows_max=ROWS_AT_ONCE
        ):
            total += count
        return total

    async def _tenant(self, name: str) -> Tenant:
        return _require(await tenants.find_tenant(self._database, name), name)

    async def _tell(self, tenant_id: TenantId, event: AuditEvent) -> None:
        async with self._database.owner_transaction() as connection:
            await audit_log.record(connection, tenant_id, event)


class TenantArchive:
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
        """Share `turns`, which bound the archives that are read at once."""
        self._database = database
        self._author = author
        self._turns = turns
        self._with_content = with_content
        self.tenant = tenant
        self.files: dict[str, dict[str, object]] = {}
        """What is in it so far: rows, SHA-256, and rows with content that no key opens any more, by
        the name of the file.
        """

    async def pieces(self) -> AsyncIterator[bytes]:
        # The bytes can be read only once.
        async with self._turns:
            async for piece in self._generate():
                yield piece

    async def _generate(self) -> AsyncIterator[bytes]:
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
        digest, count, sealed = hashlib.sha256(), 0, 0
        with archive.open(f"{table}.jsonl", "w", force_zip64=True) as file:
            async for page in export.pages(
                self._database, self.tenant.id, table, with_content=self._with_content
            ):
                lines, unopened = await asyncio.to_thread(_write, file, page)
                digest.update(lines)
                count += len(page.rows)
                sealed += unopened
                if piece := sink.taken():
                    yield piece
        told = {"rows": count, "sha256": digest.hexdigest(), "sealed": sealed}
        self.files[f"{table}.jsonl"] = told


def _write(file: IO[bytes], page: export.ExportedPage) -> tuple[bytes, int]:
    lines, sealed = page.lines()
    file.write(lines)
    return lines, sealed


class _Sink(io.RawIOBase):
    """Output of an archive: it cannot seek, and `taken` returns what came since its last call."""

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
        """Return and drop the bytes written since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def _require(tenant: Tenant | None, name: str) -> Tenant:
    if tenant is None:
        raise ResourceNotFound(f"There is no tenant {name!r}.", param="tenant")
    return tenant
