"""All data of a tenant, for operators: erasing a person, deleting a tenant, an archive of it."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.store import conversations, responses, tenants
from gateway.store.governance import audit_log, erasure, export

if TYPE_CHECKING:
    from typing import BinaryIO

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
    """What was erased of a person, and how many responses were looked at."""

    seen: int
    responses: int
    conversations: int


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed of a tenant: rows by table, and keys that were destroyed."""

    tenant: str
    rows: dict[str, int]
    keys: int


class TenantData:
    """Use cases; all raise `StoreUnavailable`, those with the name of a tenant `ResourceNotFound`.

    `keys` are those that content is sealed with, if any is.
    """

    def __init__(self, database: Database, keys: TenantKeys | None = None) -> None:
        self._database = database
        self._keys = keys

    async def erase_person(
        self, name: str, person: str, *, author: Author = COMMAND_LINE
    ) -> Erased:
        """Delete all stored responses whose `safety_identifier` or `user` is this, and the
        conversations that they continued.

        All responses of the tenant are read for it. Of what is in an audit log only a digest of the
        identifier is kept. Raises `InvalidRequest` for an empty one.
        """
        if not person:
            raise InvalidRequest("Say whom to erase.", param="end_user")
        tenant = await self._tenant(name)
        digest = hashlib.sha256(person.encode("utf-8", "surrogatepass")).hexdigest()
        await self._tell(tenant.id, author.event("harmony.erasure.requested", digest))
        seen, found, places = 0, 0, set()
        after = erasure.BEFORE_ALL
        while True:
            page = await erasure.of_person(
                self._database, tenant.id, person, after=after, rows_max=ROWS_AT_ONCE
            )
            seen += ROWS_AT_ONCE if page.last is not None else 0
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
        told = {"responses": found, "conversations": gone}
        await self._tell(tenant.id, author.event("harmony.erasure.completed", digest, data=told))
        return Erased(seen, found, gone)

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
        self, name: str, file: BinaryIO, *, author: Author = COMMAND_LINE
    ) -> dict[str, Any]:
        """Write an archive of all that a tenant has: for each table a file of JSON lines, its
        content opened, and `manifest.json` with the count and the SHA-256 of each.

        Returns the manifest. Raises what writing does.
        """
        tenant = await self._tenant(name)
        files: dict[str, dict[str, object]] = {}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for table in export.TABLES:
                files[f"{table}.jsonl"] = await self._written(archive, tenant.id, table)
            manifest: dict[str, Any] = {
                "tenant": {"id": str(tenant.id), "name": tenant.name},
                "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "files": files,
            }
            archive.writestr("manifest.json", orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        counts = {name: one["rows"] for name, one in files.items()}
        event = author.event("harmony.export.made", str(tenant.id), data=counts)
        await self._tell(tenant.id, event)
        return manifest

    async def _written(
        self, archive: zipfile.ZipFile, tenant_id: TenantId, table: str
    ) -> dict[str, object]:
        digest, count = hashlib.sha256(), 0
        with archive.open(f"{table}.jsonl", "w", force_zip64=True) as file:
            async for row in export.rows(self._database, tenant_id, table, rows_max=ROWS_AT_ONCE):
                line = orjson.dumps(row) + b"\n"
                digest.update(line)
                file.write(line)
                count += 1
        return {"rows": count, "sha256": digest.hexdigest()}

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


def _known(tenant: Tenant | None, name: str) -> Tenant:
    if tenant is None:
        raise ResourceNotFound(f"There is no tenant {name!r}.", param="tenant")
    return tenant
