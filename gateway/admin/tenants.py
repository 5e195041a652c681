"""`/admin/v1/tenants`: tenants, their policies and their data, for operators; by their names.

Tenants are changed as the owner of the tables. Where the process serves as another user
(`deploy/roles.sql`), that is refused, and the command line does it with the owner's URL.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import StringConstraints
from starlette.responses import StreamingResponse

from gateway import ids
from gateway.admin.keys import ShownKey, admin_key_body
from gateway.admin.routes import (
    PAGE,
    AdminRoute,
    changed,
    check_permission,
    conversation_page,
    cut,
    page_params,
    read,
)
from gateway.admin.transactions import owned
from gateway.protocol.admin_bodies import NoBody, ShortText, seconds_of
from gateway.protocol.base import NullableModel, WireModel
from gateway.services.access import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.responses import Response

    from gateway.admin.routes import AdminCall
    from gateway.audit import Author
    from gateway.protocol.admin_bodies import Json
    from gateway.retention.erasure import Erased
    from gateway.retention.export import TenantArchive
    from gateway.retention.tenant_data import TenantData
    from gateway.services.access import Access, TenantDetail
    from gateway.tenancy import Tenant

ALL: Final = "/tenants"
ONE: Final = f"{ALL}/{{name}}"


def routes(tenants: Tenants) -> list[AdminRoute]:
    async def listed(call: AdminCall) -> Json:
        # By name; `after` is the id of a tenant.
        page = page_params(call.request.query_params)
        items, has_more = cut([tenant_body(one) for one in await tenants.list()], page)
        return conversation_page(items, has_more=has_more)

    async def export(call: AdminCall) -> Response:
        # A zip file. With content it needs the permission `content.read`, too.
        body = await call.body(Export)
        if body.content:
            check_permission(call.request.scope, "content.read", "operator")
        name = call.path["name"]
        archive = await tenants.export(call.author, name, body)
        return StreamingResponse(
            archive.pieces(),
            media_type="application/zip",
            headers={"content-disposition": f'attachment; filename="{name}.zip"'},
        )

    reads: Final = "tenants.read"
    writes: Final = "tenants.write"
    deletes: Final = "tenants.delete"
    keys = f"{ONE}/admin_api_keys"
    return [
        AdminRoute("GET", ALL, reads, listed, query=PAGE),
        changed(ALL, writes, tenants.create, tenant_body, TenantCreate),
        read(ONE, reads, tenants.get, detail_body),
        changed(ONE, writes, tenants.set_policy, detail_body, TenantUpdate),
        changed(f"{ONE}/disable", writes, tenants.disable, tenant_body, NoBody),
        changed(keys, writes, tenants.create_key, dict, TenantKeyCreate),
        changed(f"{ONE}/delete", deletes, tenants.delete, dict, NoBody),
        changed(f"{ONE}/restore", deletes, tenants.restore, dict, NoBody),
        changed(f"{ONE}/hold", deletes, tenants.hold, dict, HoldUpdate),
        changed(f"{ONE}/erasure", deletes, tenants.erase, erasure_body, Erasure),
        AdminRoute("POST", f"{ONE}/export", "tenants.export", export, Export),
    ]


class TenantCreate(WireModel):
    """`POST /admin/v1/tenants`; the name is checked as that of the command line is."""

    name: ShortText


class TenantUpdate(WireModel):
    """`POST /admin/v1/tenants/{name}`: values of its policy, null for that of the settings."""

    policy: dict[str, str | int | None]


class TenantKeyCreate(NullableModel):
    """`POST /admin/v1/tenants/{name}/admin_api_keys`: the first admin key of a tenant."""

    name: ShortText = "owner"


class HoldUpdate(WireModel):
    """`POST /admin/v1/tenants/{name}/hold`: while it is held nothing of a tenant is deleted."""

    held: bool = True


class Erasure(WireModel):
    """`POST /admin/v1/tenants/{name}/erasure`: a `safety_identifier` or `user` of requests."""

    end_user: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Export(WireModel):
    """`POST /admin/v1/tenants/{name}/export`. `content`: what requests and responses say, too."""

    content: bool = False


def tenant_body(tenant: Tenant) -> Json:
    times = ("created_at", "disabled_at", "deleted_at", "held_at", "purged_at")
    return {
        "id": ids.tenant_id(tenant.id),
        "object": "tenant",
        "name": tenant.name,
        **{name: seconds_of(getattr(tenant, name)) for name in times},
    }


def detail_body(detail: TenantDetail) -> Json:
    own = dict(detail.own)
    return {**tenant_body(detail.tenant), "policy": detail.policy.shown(), "own": own}


def erasure_body(erased: Erased) -> Json:
    renamed = {
        "seen": "responses_read",
        "sealed": "responses_sealed",
        "busy": "conversations_busy",
    }
    counts = {renamed.get(name, name): value for name, value in asdict(erased).items()}
    return {"object": "tenant.erasure", **counts}


@contextmanager
def _owned(name: str) -> Iterator[None]:
    # Names are those of the command line, so a malformed one is no tenant's.
    check_name(name, param="tenant")
    with owned():
        yield


class Tenants:
    """Tenants and their data. Methods with the name of a tenant raise `ResourceNotFound` for an
    unknown one; all raise `PermissionDenied` where this process does not own the tables.
    """

    def __init__(self, access: Access, data: TenantData) -> None:
        self._access = access
        self._data = data

    async def list(self) -> list[Tenant]:
        with owned():
            return await self._access.list_tenants()

    async def get(self, name: str) -> TenantDetail:
        with _owned(name):
            return await self._access.show_tenant(name)

    async def create(self, author: Author, body: TenantCreate) -> Tenant:
        # With the policy of the settings.
        with owned():
            return await self._access.create_tenant(body.name, author)

    async def set_policy(self, author: Author, name: str, body: TenantUpdate) -> TenantDetail:
        """Change values of the policy; null resets one. Raises `InvalidRequest` for bad values."""
        with _owned(name):
            return await self._access.set_policy(name, body.policy, author)

    async def disable(self, author: Author, name: str) -> Tenant:
        with _owned(name):
            return await self._access.disable_tenant(name, author)

    async def create_key(self, author: Author, name: str, body: TenantKeyCreate) -> Json:
        with _owned(name):
            key, value = await self._access.create_key(name, body.name, kind="admin", author=author)
        return admin_key_body(ShownKey(key, secret=value))

    async def delete(self, author: Author, name: str) -> Json:
        with _owned(name):
            await self._data.delete(name, author=author)
        self._access.forget()
        return {"object": "tenant.deleted", "name": name, "deleted": True}

    async def restore(self, author: Author, name: str) -> Json:
        """Undo a deletion. Raises `InvalidRequest` if there is none to undo."""
        with _owned(name):
            await self._data.restore(name, author=author)
        self._access.forget()
        return {"object": "tenant.restored", "name": name}

    async def hold(self, author: Author, name: str, body: HoldUpdate) -> Json:
        with _owned(name):
            await self._data.hold(name, is_held=body.held, author=author)
        return {"object": "tenant.hold", "name": name, "held": body.held}

    async def erase(self, author: Author, name: str, body: Erasure) -> Erased:
        with _owned(name):
            return await self._data.erase_person(name, body.end_user, author=author)

    async def export(self, author: Author, name: str, body: Export) -> TenantArchive:
        """Return an archive of a tenant's data, which can be read once.

        Reading waits while this process sends its maximum of archives.
        """
        with _owned(name):
            return await self._data.export(name, author=author, with_content=body.content)
