"""`/v1/organization/projects/{id}/service_accounts`: machines that have keys of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.api.admin.pages import PAGE, conversation_page, page_params
from gateway.api.admin.projects import ONE as PROJECT
from gateway.api.admin.routes import AdminRoute
from gateway.protocol.admin.objects import account_key_body, deleted_body, service_account_body
from gateway.protocol.admin.requests import (
    AccountKeyCreate,
    ServiceAccountCreate,
    ServiceAccountUpdate,
    terms_of,
)
from gateway.services.admin.keys import DEFAULT_NAME, KeyRequest

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminCall
    from gateway.services.admin.keys import Keys
    from gateway.services.admin.service_accounts import ServiceAccounts
    from gateway.services.admin.transactions import AdminCaller

ALL = f"{PROJECT}/service_accounts"
ONE = f"{ALL}/{{service_account_id}}"
KIND = "organization.project.service_account"


def routes(accounts: ServiceAccounts, keys: Keys) -> list[AdminRoute]:
    """Those of service accounts, and the one that makes keys of them."""
    answers = ServiceAccountEndpoints(accounts, keys)
    return [
        AdminRoute("GET", ALL, "service_accounts.read", answers.list, query=PAGE),
        AdminRoute(
            "POST", ALL, "service_accounts.write", answers.create, body=ServiceAccountCreate
        ),
        AdminRoute("GET", ONE, "service_accounts.read", answers.get),
        AdminRoute(
            "POST", ONE, "service_accounts.write", answers.update, body=ServiceAccountUpdate
        ),
        AdminRoute("DELETE", ONE, "service_accounts.write", answers.delete),
        AdminRoute(
            "POST", f"{ONE}/api_keys", "api_keys.write", answers.create_key, body=AccountKeyCreate
        ),
    ]


class ServiceAccountEndpoints:
    """Endpoints of service accounts."""

    def __init__(self, accounts: ServiceAccounts, keys: Keys) -> None:
        self._accounts = accounts
        self._keys = keys

    async def list(self, call: AdminCall) -> dict[str, Any]:
        """List the service accounts of one project."""
        asked = page_params(call.request.query_params)
        page = await self._accounts.list(
            call.principal.tenant_id,
            call.path["project_id"],
            limit=asked.limit,
            after=asked.after,
        )
        return conversation_page(list(map(service_account_body, page.rows)), has_more=page.has_more)

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """With a key, unless only the account is asked for."""
        asked = await call.body(ServiceAccountCreate)
        asked.check_consistent()
        limits = asked.harmony.limits
        wanted = KeyRequest(
            terms=terms_of((), asked.harmony),
            expires_in_s=asked.expires_in_seconds,
            limits=limits.values,
            limits_mode=limits.mode,
        )
        account, made = await self._keys.create_account(
            call.caller,
            call.path["project_id"],
            asked.name,
            None if asked.create_service_account_only else wanted,
        )
        key = None if made is None else account_key_body(*made)
        return {**service_account_body(account), "api_key": key}

    async def get(self, call: AdminCall) -> dict[str, Any]:
        """GET by id; 404 for one of another project."""
        return service_account_body(await self._accounts.get(*_tenant_and_account(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        """Change the name or the role of a service account."""
        asked = await call.body(ServiceAccountUpdate)
        changed = await self._accounts.change(
            *_caller_and_account(call), name=asked.name, role=asked.role
        )
        return service_account_body(changed)

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """DELETE: its keys end with it."""
        await self._accounts.delete(*_caller_and_account(call))
        return deleted_body(KIND, call.path["service_account_id"])

    async def create_key(self, call: AdminCall) -> dict[str, Any]:
        """A key of the account; its value is shown this once."""
        asked = await call.body(AccountKeyCreate)
        wanted = KeyRequest(
            name=asked.name or DEFAULT_NAME,
            terms=terms_of(asked.scopes, asked.harmony),
            expires_in_s=asked.expires_in_seconds,
            limits=asked.harmony.limits.values,
            limits_mode=asked.harmony.limits.mode,
        )
        made = await self._keys.create(
            call.caller, call.path["project_id"], call.path["service_account_id"], wanted
        )
        return account_key_body(*made)


def _tenant_and_account(call: AdminCall) -> tuple[Any, str, str]:
    path = call.path
    return call.principal.tenant_id, path["project_id"], path["service_account_id"]


def _caller_and_account(call: AdminCall) -> tuple[AdminCaller, str, str]:
    return call.caller, call.path["project_id"], call.path["service_account_id"]
