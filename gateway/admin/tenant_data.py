"""`/admin/v1/tenants/{name}/…`: deletion, erasure and archives of a tenant's data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from gateway.admin.operators import TENANT
from gateway.admin.routes import AdminRoute, check_permission
from gateway.protocol.admin_bodies import Erasure, Export, Hold, NoBody

if TYPE_CHECKING:
    from starlette.responses import Response

    from gateway.admin.operations import Operations
    from gateway.admin.routes import AdminCall


def routes(operations: Operations) -> list[AdminRoute]:
    """Return the routes that delete, keep or export a tenant's data."""
    answers = TenantDataEndpoints(operations)
    return [
        AdminRoute(
            "POST", f"{TENANT}/delete", "tenants.delete", answers.delete, "operator", body=NoBody
        ),
        AdminRoute(
            "POST", f"{TENANT}/restore", "tenants.delete", answers.restore, "operator", body=NoBody
        ),
        AdminRoute("POST", f"{TENANT}/hold", "tenants.delete", answers.hold, "operator", body=Hold),
        AdminRoute(
            "POST", f"{TENANT}/erasure", "tenants.delete", answers.erase, "operator", body=Erasure
        ),
        AdminRoute(
            "POST", f"{TENANT}/export", "tenants.export", answers.export, "operator", body=Export
        ),
    ]


class TenantDataEndpoints:
    """Endpoints of deletion, erasure and archives: see docs/data.md."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """Disable all keys of a tenant; its data is removed seven days later."""
        await call.body(NoBody)
        name = call.path["name"]
        await self._operations.delete_tenant(name, call.author)
        return {"object": "tenant.deleted", "name": name, "deleted": True}

    async def restore(self, call: AdminCall) -> dict[str, Any]:
        """Undo the deletion, before the data is removed."""
        await call.body(NoBody)
        name = call.path["name"]
        await self._operations.restore_tenant(name, call.author)
        return {"object": "tenant.restored", "name": name}

    async def hold(self, call: AdminCall) -> dict[str, Any]:
        """Put a tenant's data under legal hold; with `held: false` release it."""
        asked = await call.body(Hold)
        name = call.path["name"]
        await self._operations.hold_tenant(name, call.author, is_held=asked.held)
        return {"object": "tenant.hold", "name": name, "held": asked.held}

    async def erase(self, call: AdminCall) -> dict[str, Any]:
        """Delete everything stored for `end_user`, and return how much it was."""
        asked = await call.body(Erasure)
        erased = await self._operations.erase(call.path["name"], asked.end_user, call.author)
        return {
            "object": "tenant.erasure",
            "responses": erased.responses,
            "conversations": erased.conversations,
            "rows": dict(erased.rows),
            "responses_read": erased.seen,
            "responses_sealed": erased.sealed,
            "conversations_busy": erased.busy,
        }

    async def export(self, call: AdminCall) -> Response:
        """Send a zip file of a tenant's data.

        With `content: true` it includes content, which needs the permission `content.read`.
        """
        asked = await call.body(Export)
        if asked.content:
            check_permission(call.request.scope, "content.read", "operator")
        name = call.path["name"]
        archive = await self._operations.export(name, call.author, with_content=asked.content)
        return StreamingResponse(
            archive.pieces(),
            media_type="application/zip",
            headers={"content-disposition": f'attachment; filename="{name}.zip"'},
        )
