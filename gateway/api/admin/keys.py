"""Keys of a project, and `/v1/organization/admin_api_keys`: those of the admin API itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.api.admin.pages import (
    ORDERED_PAGE,
    PAGE,
    conversation_page,
    cursor_page,
    page_params,
)
from gateway.api.admin.projects import ONE as PROJECT
from gateway.api.admin.routes import AdminRoute
from gateway.api.query import choice
from gateway.protocol.admin.objects import admin_key_body, deleted_body, project_key_body
from gateway.protocol.admin.requests import (
    AdminKeyCreate,
    KeyRotate,
    ProjectKeyUpdate,
    scopes_of,
)
from gateway.protocol.request_errors import wrong_value
from gateway.services.admin.keys import KeyRequest
from gateway.tenancy import KeyTerms
from gateway.tenancy.permissions import READ_ONLY_SCOPE

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.keys import Keys, OwnedKey

ALL = f"{PROJECT}/api_keys"
ONE = f"{ALL}/{{api_key_id}}"
ADMIN = "/organization/admin_api_keys"
ADMIN_ONE = f"{ADMIN}/{{api_key_id}}"
_ACCESS = ("active", "inactive", "any")


def routes(keys: Keys) -> list[AdminRoute]:
    """Those of keys, whoever owns them."""
    answers = KeyEndpoints(keys)
    return [
        AdminRoute(
            "GET", ALL, "api_keys.read", answers.list, query=(*PAGE, "owner_project_access")
        ),
        AdminRoute("GET", ONE, "api_keys.read", answers.get),
        AdminRoute("POST", ONE, "api_keys.write", answers.update, body=ProjectKeyUpdate),
        AdminRoute("DELETE", ONE, "api_keys.write", answers.delete),
        AdminRoute("POST", f"{ONE}/rotate", "api_keys.write", answers.rotate, body=KeyRotate),
        AdminRoute("GET", ADMIN, "admin_keys.read", answers.list_admin, query=ORDERED_PAGE),
        AdminRoute("POST", ADMIN, "admin_keys.write", answers.create_admin, body=AdminKeyCreate),
        AdminRoute("GET", ADMIN_ONE, "admin_keys.read", answers.get_admin),
        AdminRoute("DELETE", ADMIN_ONE, "admin_keys.write", answers.delete_admin),
        AdminRoute(
            "POST", f"{ADMIN_ONE}/rotate", "admin_keys.write", answers.rotate_admin, body=KeyRotate
        ),
    ]


class KeyEndpoints:
    """Endpoints of keys. The value of a key is shown when it is made, and never again."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def list(self, call: AdminCall) -> dict[str, Any]:
        """Those of one project. All owners have access: one that is deleted ends its keys."""
        query = call.request.query_params
        asked = page_params(query)
        if choice(query, "owner_project_access", _ACCESS) == "inactive":
            await self._keys.list(call.principal.tenant_id, _project(call), limit=1, after=None)
            return conversation_page([], has_more=False)
        page = await self._keys.list(
            call.principal.tenant_id, _project(call), limit=asked.limit, after=asked.after
        )
        return conversation_page(list(map(_project_key, page.rows)), has_more=page.has_more)

    async def get(self, call: AdminCall) -> dict[str, Any]:
        """A key of a project, with its owner; 404 for an admin key, too."""
        return _project_key(await self._keys.get(call.principal.tenant_id, *_project_and_key(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """Change the scopes of a key, or when it expires."""
        asked = await call.body(ProjectKeyUpdate)
        changed = await self._keys.change(
            call.caller,
            *_project_and_key(call),
            scopes=None if asked.scopes is None else scopes_of(asked.scopes),
            expires_in_s=asked.expires_in_seconds,
        )
        return _project_key(changed)

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """DELETE of a key: refused at once here, elsewhere within `auth.key_cache_ttl_s`."""
        await self._keys.end(call.caller, *_project_and_key(call))
        return deleted_body("organization.project.api_key", call.path["api_key_id"])

    async def rotate(self, call: AdminCall) -> dict[str, Any]:
        """Another one in its place, beside which it goes on for a while."""
        asked = await call.body(KeyRotate)
        key, value = await self._keys.rotate(
            call.caller, *_project_and_key(call), overlap_s=asked.overlap_seconds
        )
        made = ids.api_key_id(key.id)
        owned = await self._keys.get(call.principal.tenant_id, _project(call), made)
        return {**_project_key(owned), "value": value}

    async def list_admin(self, call: AdminCall) -> dict[str, Any]:
        """Those of the tenant, by default the oldest first."""
        asked = page_params(call.request.query_params)
        page = await self._keys.list(
            call.principal.tenant_id,
            None,
            limit=asked.limit,
            after=asked.after,
            descends=asked.order == "desc",
        )
        return cursor_page([admin_key_body(one.key) for one in page.rows], has_more=page.has_more)

    async def create_admin(self, call: AdminCall) -> dict[str, Any]:
        """For the whole admin API, or with the scope `api.all.read` for reading it."""
        asked = await call.body(AdminKeyCreate)
        if asked.scopes and asked.scopes != (READ_ONLY_SCOPE,):
            raise wrong_value("scopes[0]", asked.scopes[0], (READ_ONLY_SCOPE,))
        wanted = KeyRequest(
            name=asked.name,
            terms=KeyTerms(kind="admin", scopes=frozenset(asked.scopes)),
            expires_in_s=asked.expires_in_seconds,
        )
        key, value = await self._keys.create_admin(call.caller, wanted)
        return {**admin_key_body(key), "value": value}

    async def get_admin(self, call: AdminCall) -> dict[str, Any]:
        """An admin key, by the id that lists show; 404 for a key of a project."""
        found = await self._keys.get(call.principal.tenant_id, None, call.path["api_key_id"])
        return admin_key_body(found.key)

    async def delete_admin(self, call: AdminCall) -> dict[str, Any]:
        """DELETE of an admin key, which may be the one that asks."""
        await self._keys.end(call.caller, None, call.path["api_key_id"])
        return deleted_body("organization.admin_api_key", call.path["api_key_id"])

    async def rotate_admin(self, call: AdminCall) -> dict[str, Any]:
        """An admin key with the same scopes; the old one goes on for `overlap_seconds`."""
        asked = await call.body(KeyRotate)
        key, value = await self._keys.rotate(
            call.caller, None, call.path["api_key_id"], asked.overlap_seconds
        )
        return {**admin_key_body(key), "value": value}


def _project(call: AdminCall) -> str:
    return call.path["project_id"]


def _project_and_key(call: AdminCall) -> tuple[str, str]:
    return call.path["project_id"], call.path["api_key_id"]


def _project_key(owned: OwnedKey) -> dict[str, Any]:
    return project_key_body(owned.key, owned.account)
