"""`/admin/v1/tenants`: tenants, their policies and their data.

Only the owner of the tables changes tenants: where the process serves as another user
(`deploy/roles.sql`), the command line does it with the owner's URL.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

from pydantic import StringConstraints

from gateway import ids
from gateway.admin.keys import ShownKey, admin_key_body
from gateway.admin.routes import PAGE, AdminRoute, changed, check_permission, cut, page_params, read
from gateway.admin.transactions import owned
from gateway.api.query import list_body
from gateway.api.streaming import TimedResponse
from gateway.errors import InvalidRequest, ResourceNotFound, StoreConflict, shown
from gateway.protocol.admin_bodies import NoBody, ShortText, seconds_of
from gateway.protocol.base import NullableModel, WireModel
from gateway.store import tenants as stored
from gateway.tenancy import TenantId
from gateway.tenancy.policy import check_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.responses import Response

    from gateway.admin.routes import AdminCall
    from gateway.audit import Author
    from gateway.protocol.admin_bodies import Json
    from gateway.retention.export import TenantArchive
    from gateway.retention.person_erasure import Erased
    from gateway.retention.tenant_data import TenantData
    from gateway.services.access import Access
    from gateway.store.postgres.database import Database
    from gateway.tenancy import ApiKey, Dialect, KeyKind, Tenant
    from gateway.tenancy.policy import OwnPolicy, PolicyChanges, TenantPolicy

ALL: Final = "/tenants"
ONE: Final = f"{ALL}/{{name}}"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_ID_PREFIX_MIN: Final = 8
"""A hint of a key is shorter."""


def routes(tenants: Tenants) -> list[AdminRoute]:
    async def listed(call: AdminCall) -> Json:
        # By name; `after` is the id of a tenant.
        page = page_params(call.request.query_params)
        items, has_more = cut([tenant_body(one) for one in await tenants.list()], page)
        return list_body(items, has_more=has_more)

    async def create(author: Author, body: TenantCreate) -> Tenant:
        return await tenants.create(author, body.name)

    async def set_policy(author: Author, name: str, body: TenantUpdate) -> TenantDetail:
        return await tenants.set_policy(author, name, body.policy)

    async def create_key(author: Author, name: str, body: TenantKeyCreate) -> Json:
        key, secret = await tenants.create_key(author, name, body.name, kind="admin")
        return admin_key_body(ShownKey(key, secret=secret))

    async def export(call: AdminCall) -> Response:
        # A zip file. With content it needs the permission `content.read`, too.
        body = await call.body(Export)
        if body.content:
            check_permission(call.request.scope, "content.read")
        name = call.path["name"]
        archive = await tenants.export(call.author, name, body)
        return TimedResponse(
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
        changed(ALL, writes, create, tenant_body, TenantCreate),
        read(ONE, reads, tenants.get, detail_body),
        changed(ONE, writes, set_policy, detail_body, TenantUpdate),
        changed(f"{ONE}/disable", writes, tenants.disable, tenant_body, NoBody),
        changed(keys, writes, create_key, dict, TenantKeyCreate),
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


@dataclass(frozen=True, slots=True)
class TenantDetail:
    """Tenant, its own policy, and the effective one, in which settings fill the gaps."""

    tenant: Tenant
    own: OwnPolicy
    policy: TenantPolicy


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
    renamed = {"seen": "responses_read", "sealed": "responses_sealed", "busy": "conversations_busy"}
    counts = {renamed.get(name, name): value for name, value in asdict(erased).items()}
    return {"object": "tenant.erasure", **counts}


def check_name(name: str, *, param: str = "name") -> None:
    if not _NAME.match(name):
        raise InvalidRequest(
            f"{shown(name)!r} is no name: up to 64 letters, digits, '.', '_' and '-', the first of "
            "them a letter or a digit.",
            param=param,
        )


def _is_meant(key: str, candidate: ApiKey) -> bool:
    try:
        return UUID(key) == candidate.id
    except ValueError:
        part = key.strip("…")
        begins = len(part) >= _ID_PREFIX_MIN and str(candidate.id).startswith(part.lower())
        return begins or part == candidate.hint


@contextmanager
def _owned(name: str) -> Iterator[None]:
    # Names are those of the command line, so a malformed one is no tenant's.
    check_name(name, param="tenant")
    with owned():
        yield


class Tenants:
    def __init__(self, database: Database, access: Access, data: TenantData) -> None:
        self._database = database
        self._access = access
        self._data = data

    async def list(self) -> list[Tenant]:
        with owned():
            return await stored.all_tenants(self._database)

    async def get(self, name: str) -> TenantDetail:
        with _owned(name):
            return self._detail(*await stored.find_policy(self._database, name))

    async def create(self, author: Author, name: str) -> Tenant:
        check_name(name)
        try:
            with owned():
                new = TenantId(ids.new_uuid())
                return await stored.insert_tenant(self._database, new, name, author)
        except StoreConflict as conflict:
            raise InvalidRequest(f"There is a tenant {name!r} already.", param="name") from conflict

    async def set_policy(self, author: Author, name: str, changes: PolicyChanges) -> TenantDetail:
        """Change a tenant's policy: None resets a value, omitted values stay.

        Other replicas follow within `auth.key_cache_ttl_s`.
        """
        check_changes(changes)
        with _owned(name):
            changed = await stored.set_policy(self._database, name, changes, author)
        self._access.forget()
        return self._detail(*changed)

    def _detail(self, tenant: Tenant, own: OwnPolicy) -> TenantDetail:
        return TenantDetail(tenant, own, self._access.defaults.with_own(own))

    async def disable(self, author: Author, name: str) -> Tenant:
        with _owned(name):
            tenant = await stored.disable_tenant(self._database, name, author)
        self._access.forget()
        return tenant

    async def create_key(
        self,
        author: Author,
        tenant_name: str,
        key_name: str,
        *,
        dialect: Dialect = "openai",
        kind: KeyKind = "project",
    ) -> tuple[ApiKey, str]:
        """Create a key of the tenant's default project, or an admin key; return it and its secret,
        which is not stored.
        """
        check_name(key_name)
        with _owned(tenant_name):
            tenant = await stored.tenant_named(self._database, tenant_name)
            for state in ("disabled", "deleted"):
                if getattr(tenant, f"{state}_at") is not None:
                    raise InvalidRequest(f"Tenant {tenant_name!r} is {state}.", param="tenant")
            secret = self._access.peppers.new_secret(kind)
            new = stored.NewKey(
                id=ids.new_uuid(),
                tenant_id=tenant.id,
                name=key_name,
                hint=secret.hint,
                hash=secret.hash,
                dialect=dialect,
                kind=kind,
                pepper_id=secret.pepper_id,
            )
            return await stored.insert_key(self._database, new, author), secret.value

    async def keys(self, tenant_name: str | None = None) -> Sequence[ApiKey]:
        with owned():
            tenant = tenant_name and await stored.tenant_named(self._database, tenant_name)
            return await stored.keys(self._database, tenant.id if tenant else None)

    async def disable_key(self, author: Author, key: str) -> ApiKey:
        """Disable the key with this id, beginning of an id, or hint."""
        matches = [one for one in await self.keys() if _is_meant(key, one)]
        enabled = [one for one in matches if one.disabled_at is None] or matches[:1]
        if not enabled:
            raise ResourceNotFound(f"There is no key {key!r}.", param="key")
        if len(enabled) > 1:
            raise InvalidRequest(
                f"Several keys begin or end with {key!r}: give the id.", param="key"
            )
        with owned():
            disabled = await stored.disable_key(self._database, enabled[0], author)
        self._access.forget()
        return disabled

    async def delete(self, author: Author, name: str) -> Json:
        with _owned(name):
            await self._data.delete(name, author=author)
        self._access.forget()
        return {"object": "tenant.deleted", "name": name, "deleted": True}

    async def restore(self, author: Author, name: str) -> Json:
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
        """Return an archive, which can be read once."""
        with _owned(name):
            return await self._data.export(name, author=author, with_content=body.content)
