"""Operations of operators on a running gateway: tenants, backends, replicas, settings.

Tenants and drains are changed as the owner of the tables. Where the process serves as another user
(`deploy/roles.sql`), that is refused, and the command line does it with the owner's URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admin.transactions import owned
from gateway.errors import ResourceNotFound, shown
from gateway.services.access import check_name
from gateway.store.replicas import drains

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.governance.audit import Author
    from gateway.services.access import Access, TenantDetail
    from gateway.services.governance.erasing import Erased
    from gateway.services.governance.tenant_data import TenantArchive, TenantData
    from gateway.store.postgres.database import Database
    from gateway.store.replicas.drains import Drain
    from gateway.tenancy import ApiKey, PolicyChanges, Tenant
    from gateway.upstreams.member import Member
    from gateway.upstreams.pool import Pool

LOADS_FRESH_S: Final = 30.0
"""A replica that told nothing for longer is gone."""


class Operations:
    """Tenants and drains, for operators."""

    def __init__(
        self,
        access: Access,
        database: Database,
        pool: Pool,
        data: TenantData,
        *,
        replica: str,
        settings: Callable[[], dict[str, Any]],
    ) -> None:
        """Take the name of this process (`replica`) and its effective settings, without secrets."""
        self._access = access
        self._database = database
        self._pool = pool
        self._replica = replica
        self._settings = settings
        self._data = data

    async def tenants(self) -> list[Tenant]:
        with owned():
            return await self._access.list_tenants()

    async def tenant(self, name: str) -> TenantDetail:
        """Return the tenant and its policy. Raises `ResourceNotFound`."""
        check_name(name, param="tenant")
        with owned():
            return await self._access.show_tenant(name)

    async def create_tenant(self, name: str, author: Author) -> Tenant:
        with owned():
            return await self._access.create_tenant(name, author)

    async def set_policy(self, name: str, changes: PolicyChanges, author: Author) -> TenantDetail:
        """Change a tenant's policy.

        Raises `ResourceNotFound`, and `InvalidRequest` for a value out of bounds.
        """
        check_name(name, param="tenant")
        with owned():
            return await self._access.set_policy(name, changes, author)

    async def disable_tenant(self, name: str, author: Author) -> Tenant:
        """Disable all keys of a tenant. Raises `ResourceNotFound`."""
        check_name(name, param="tenant")
        with owned():
            return await self._access.disable_tenant(name, author)

    async def create_admin_key(
        self, name: str, key_name: str, author: Author
    ) -> tuple[ApiKey, str]:
        """Create an admin key for a tenant's first owner; return it with its secret."""
        check_name(name, param="tenant")
        with owned():
            return await self._access.create_key(name, key_name, kind="admin", author=author)

    async def backends(self) -> list[dict[str, Any]]:
        """Return the backends of this process as JSON; `drained` names who drained them."""
        drained = {one.name: one for one in await drains.drains(self._database)}
        return [_backend(state, drained.get(state.name)) for state in self._pool.snapshot()]

    async def delete_tenant(self, name: str, author: Author) -> None:
        """Disable all keys of a tenant; its data is removed later.

        Raises `ResourceNotFound`, like all methods below that name a tenant.
        """
        check_name(name, param="tenant")
        with owned():
            await self._data.delete(name, author=author)
        self._access.forget()

    async def restore_tenant(self, name: str, author: Author) -> None:
        """Undo a deletion. Raises `InvalidRequest` if there is none to undo."""
        check_name(name, param="tenant")
        with owned():
            await self._data.restore(name, author=author)
        self._access.forget()

    async def hold_tenant(self, name: str, author: Author, *, is_held: bool) -> None:
        """Put a tenant's data under legal hold, or release it."""
        check_name(name, param="tenant")
        with owned():
            await self._data.hold(name, is_held=is_held, author=author)

    async def erase(self, name: str, person: str, author: Author) -> Erased:
        """Delete everything stored for an end user. Reads all responses of the tenant."""
        check_name(name, param="tenant")
        with owned():
            return await self._data.erase_person(name, person, author=author)

    async def export(self, name: str, author: Author, *, with_content: bool) -> TenantArchive:
        """Return an archive of a tenant's data, which can be read once.

        Reading waits while this process sends its maximum of archives.
        """
        check_name(name, param="tenant")
        with owned():
            return await self._data.export(name, author=author, with_content=with_content)

    async def drain(self, name: str, author: Author) -> None:
        """Send no new requests to a backend, at any replica. Raises `ResourceNotFound`."""
        self._require_backend(name)
        with owned():
            by = f"operator {author.actor.owner_id}"
            await drains.drain(self._database, name, by=by, author=author)

    async def undrain(self, name: str, author: Author) -> None:
        """Use a backend again. Raises `ResourceNotFound`."""
        self._require_backend(name)
        with owned():
            await drains.undrain(self._database, name, author)

    async def replicas(self) -> Sequence[str]:
        """Return the names of this process and of others that reported their backends lately."""
        told = await drains.loads(self._database, fresh_s=LOADS_FRESH_S)
        return sorted({self._replica, *told})

    def settings(self) -> dict[str, Any]:
        return self._settings()

    def _require_backend(self, name: str) -> None:
        if name not in {state.name for state in self._pool.snapshot()}:
            raise ResourceNotFound(
                f"There is no backend '{shown(name)}'. GET /admin/v1/backends lists them.",
                code="backend_not_found",
                param="name",
            )


def _backend(state: Member, drain: Drain | None) -> dict[str, Any]:
    drained = None
    if drain is not None:
        drained = {"at": int(drain.drained_at.timestamp()), "by": drain.drained_by}
    return {
        "object": "backend",
        "name": state.name,
        "models": list(state.models),
        "healthy": state.healthy,
        "available": state.available,
        "in_flight": state.in_flight,
        "version": state.version,
        "problem": state.problem,
        "source": state.source,
        "drained": drained,
    }
