"""Keys of a project, and `/v1/organization/admin_api_keys`: those of the admin API itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.admin.pages import ORDERED_PAGE, PAGE, conversation_page, cursor_page, page_params
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import required_project
from gateway.admin.routes import AdminRoute
from gateway.admin.service_accounts import ALL as ACCOUNTS
from gateway.admin.service_accounts import ONE as ACCOUNT
from gateway.admin.service_accounts import find_accounts, required_account, service_account_body
from gateway.api.query import choice
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, shown
from gateway.protocol.admin.objects import (
    account_key_body,
    admin_key_body,
    deleted_body,
    project_key_body,
)
from gateway.protocol.admin.requests import (
    AccountKeyCreate,
    AdminKeyCreate,
    KeyRotate,
    ProjectKeyUpdate,
    ServiceAccountCreate,
    scopes_of,
    terms_of,
)
from gateway.protocol.request_errors import unknown_place, wrong_value
from gateway.services.limits import LimitOwner, set_limits
from gateway.store.admin import keys as rows
from gateway.store.admin.pages import Page, PagePosition
from gateway.tenancy import PLAIN_KEY, KeyTerms
from gateway.tenancy.permissions import READ_ONLY_SCOPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.admin.routes import AdminCall
    from gateway.admin.service_accounts import ServiceAccounts
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.limits.terms import Mode, What
    from gateway.services.credentials import Peppers
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import (
        ApiKey,
        Project,
        ProjectId,
        ServiceAccount,
        ServiceAccountRole,
        TenantId,
    )

DEFAULT_NAME: Final = "Secret key"


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Bounds of keys: the working keys of one tenant, the lifetime of a key (None: any), and,
    unless the request says otherwise, how long a replaced key goes on.
    """

    keys_max: int
    lifetime_max_s: int | None
    overlap_s: int


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """Request for a key; `terms` without expiry and owner, `limits` by what they limit and their
    window (seconds).
    """

    name: str = DEFAULT_NAME
    terms: KeyTerms = PLAIN_KEY
    expires_in_s: int | None = None
    limits: Mapping[tuple[What, int], int | None] = field(default_factory=dict)
    limits_mode: Mode | None = None


def unknown_key(key_id: str) -> ResourceNotFound:
    """Return the same error for a key that is unknown, ended, or another project's or tenant's."""
    return ResourceNotFound(
        f"No API key with id '{shown(key_id)}' was found.", code="api_key_not_found", param="key_id"
    )


@dataclass(frozen=True, slots=True)
class OwnedKey:
    """A key and its owner; None: nobody in particular, as for keys that operators make."""

    key: ApiKey
    account: ServiceAccount | None = None


class Keys:
    """API keys. All methods raise `ResourceNotFound` for an unknown project, account or key."""

    def __init__(
        self,
        transactions: Transactions,
        service_accounts: ServiceAccounts,
        peppers: Peppers,
        policy: KeyPolicy,
    ) -> None:
        self._transactions = transactions
        self._accounts = service_accounts
        self._peppers = peppers
        self._policy = policy

    async def create_account(
        self,
        caller: AdminCaller,
        project_id: str,
        name: str,
        asked: KeyRequest | None,
    ) -> tuple[ServiceAccount, tuple[ApiKey, str] | None]:
        """Create a service account, and unless `asked` is None a key of it with its secret.

        Without a key the account has no role. Raises `RateLimited` for too many of either.
        """
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            role: ServiceAccountRole = "none" if asked is None else "member"
            account = await self._accounts.insert(connection, caller, project, name, role)
            if asked is None:
                return account, None
            return account, await self._insert(connection, caller, asked, project, account)

    async def create(
        self, caller: AdminCaller, project_id: str, account_id: str, asked: KeyRequest
    ) -> tuple[ApiKey, str]:
        """Create a key of a service account and return it with its secret.

        Raises `RateLimited` for too many.
        """
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            account = await required_account(connection, project, account_id)
            return await self._insert(connection, caller, asked, project, account)

    async def create_admin(self, caller: AdminCaller, asked: KeyRequest) -> tuple[ApiKey, str]:
        async with self._transactions.changing(caller.tenant_id) as connection:
            return await self._insert(connection, caller, asked, None, None)

    async def get(self, tenant_id: TenantId, project_id: str | None, key_id: str) -> OwnedKey:
        # Without a project: an admin key.
        async with self._transactions.reading(tenant_id) as connection:
            project = await self._project(connection, tenant_id, project_id)
            key = await self._require(connection, tenant_id, project, key_id)
            return (await _with_owners(connection, tenant_id, [key]))[0]

    async def list(
        self,
        tenant_id: TenantId,
        project_id: str | None,
        *,
        limit: int,
        after: str | None,
        descends: bool = False,
    ) -> Page[OwnedKey]:
        """Return one page of a project's keys, or (None) of admin keys.

        Raises `InvalidRequest` for an unknown `after`.
        """
        place = None if after is None else ids.parse_api_key_id(after)
        if after is not None and place is None:
            raise unknown_place()
        async with self._transactions.reading(tenant_id) as connection:
            project = await self._project(connection, tenant_id, project_id)
            page = await rows.page(
                connection, tenant_id, project, PagePosition(limit, place, descends)
            )
            return Page(await _with_owners(connection, tenant_id, page.rows), page.has_more)

    async def change(
        self,
        caller: AdminCaller,
        project_id: str,
        key_id: str,
        *,
        scopes: frozenset[str] | None,
        expires_in_s: int | None,
    ) -> OwnedKey:
        """Change what is not None. Raises `InvalidRequest` for an expired key or an archived
        project.
        """
        tenant_id = caller.tenant_id
        self._check_lifetime(expires_in_s)
        async with self._transactions.changing(tenant_id) as connection:
            project = await self._project(connection, tenant_id, project_id, is_active=True)
            key = await self._require(connection, tenant_id, project, key_id)
            changed = await rows.change(connection, key, scopes=scopes, expires_in_s=expires_in_s)
            if changed is None:
                raise _key_expired(key_id)
            told: dict[str, object] = {} if scopes is None else {"scopes": sorted(scopes)}
            told |= {} if expires_in_s is None else {"expires_in_seconds": expires_in_s}
            await caller.note(
                connection, "api_key.updated", key_id, project, changes_requested=told
            )
            return (await _with_owners(connection, tenant_id, [changed]))[0]

    async def end(self, caller: AdminCaller, project_id: str | None, key_id: str) -> None:
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await self._project(connection, tenant_id, project_id)
            key = await self._require(connection, tenant_id, project, key_id)
            await rows.end(connection, tenant_id, project, key.id)
            await caller.note(connection, "api_key.deleted", key_id, project)

    async def rotate(
        self, caller: AdminCaller, project_id: str | None, key_id: str, overlap_s: int | None
    ) -> tuple[ApiKey, str]:
        """Replace a key and return the new one with its secret.

        It has the terms, limits, budgets and lifetime of the old one, which works for `overlap_s`
        seconds more (None: the policy's). Raises `InvalidRequest` for a key that has expired or has
        been replaced, and for an archived project; `RateLimited` for too many.
        """
        tenant_id = caller.tenant_id
        overlap_s = self._policy.overlap_s if overlap_s is None else overlap_s
        async with self._transactions.changing(tenant_id) as connection:
            project = await self._project(connection, tenant_id, project_id, is_active=True)
            old = await self._require(connection, tenant_id, project, key_id)
            uuid = ids.new_uuid()
            if await rows.replace(connection, old, uuid, overlap_s=overlap_s) is None:
                raise _key_expired(key_id)
            await self._check_count(connection, tenant_id)
            secret = self._peppers.new_secret(old.terms.kind)
            made = rows.KeyMade(
                id=uuid,
                tenant_id=tenant_id,
                name=old.name,
                hint=secret.hint,
                hash=secret.hash,
                pepper_id=secret.pepper_id,
                terms=old.terms,
                project_id=old.project_id,
                expires_in_s=self._lifetime_after(old),
                created_by=caller.key_id,
                dialect=old.dialect,
            )
            new = await rows.insert(connection, made)
            told = {"scopes": sorted(new.terms.scopes), "replaces": key_id}
            target = ids.api_key_id(new.id)
            await caller.note(connection, "api_key.created", target, project, data=told)
            return new, secret.value

    async def _insert(
        self,
        connection: Connection,
        caller: AdminCaller,
        asked: KeyRequest,
        project: Project | None,
        account: ServiceAccount | None,
    ) -> tuple[ApiKey, str]:
        # Without a project: an admin key.
        self._check_lifetime(asked.expires_in_s)
        await self._check_count(connection, caller.tenant_id)
        terms = replace(asked.terms, kind="admin" if project is None else "project")
        if account is not None:
            terms = replace(terms, owner_type="service_account", owner_id=account.id)
        secret = self._peppers.new_secret(terms.kind)
        made = rows.KeyMade(
            id=ids.new_uuid(),
            tenant_id=caller.tenant_id,
            name=asked.name,
            hint=secret.hint,
            hash=secret.hash,
            pepper_id=secret.pepper_id,
            terms=terms,
            project_id=None if project is None else project.id,
            expires_in_s=asked.expires_in_s or self._policy.lifetime_max_s,
            created_by=caller.key_id,
        )
        new = await rows.insert(connection, made)
        told = {"scopes": sorted(terms.scopes)}
        target = ids.api_key_id(new.id)
        await caller.note(connection, "api_key.created", target, made.project_id, data=told)
        if asked.limits:
            owner = LimitOwner(caller.tenant_id, "key", new.id)
            mode, author = asked.limits_mode, caller.author
            await set_limits(connection, owner, asked.limits, mode=mode, author=author)
        return new, secret.value

    async def _project(
        self,
        connection: Connection,
        tenant_id: TenantId,
        project_id: str | None,
        *,
        is_active: bool = False,
    ) -> ProjectId | None:
        if project_id is None:
            return None
        found = await required_project(connection, tenant_id, project_id, is_active=is_active)
        return found.id

    async def _require(
        self,
        connection: Connection,
        tenant_id: TenantId,
        project: ProjectId | None,
        key_id: str,
    ) -> ApiKey:
        uuid = ids.parse_api_key_id(key_id)
        found = None
        if uuid is not None:
            found = await rows.find(connection, tenant_id, project, uuid)
        if found is None:
            raise unknown_key(key_id)
        return found

    async def _check_count(self, connection: Connection, tenant_id: TenantId) -> None:
        # A replaced key counts until its overlap is over.
        if await rows.count(connection, tenant_id) >= self._policy.keys_max:
            raise RateLimited(
                f"Your organization has {self._policy.keys_max} API keys, which is as many as may "
                "be. Delete some that are not needed any more.",
                code="too_many_api_keys",
            )

    def _lifetime_after(self, old: ApiKey) -> int | None:
        # In seconds: the replacement lives as long as the old key was made for.
        most, end = self._policy.lifetime_max_s, old.terms.expires_at
        if end is None:
            return most
        asked = max(1, round((end - old.created_at).total_seconds()))
        return asked if most is None else min(asked, most)

    def _check_lifetime(self, expires_in_s: int | None) -> None:
        most = self._policy.lifetime_max_s
        if most is not None and expires_in_s is not None and expires_in_s > most:
            raise InvalidRequest(
                f"Invalid 'expires_in_seconds': keys of this server live for {most} seconds at "
                "most.",
                code="integer_above_max_value",
                param="expires_in_seconds",
            )


async def _with_owners(
    connection: Connection, tenant_id: TenantId, keys: Sequence[ApiKey]
) -> list[OwnedKey]:
    owners = {key.terms.owner_id for key in keys if key.terms.owner_id is not None}
    known = await find_accounts(connection, tenant_id, owners) if owners else {}
    return [OwnedKey(key, known.get(key.terms.owner_id or key.id)) for key in keys]


def _key_expired(key_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"API key '{key_id}' has expired or has been replaced: it cannot be changed. Create "
        "another one.",
        code="api_key_expired",
        param="key_id",
    )


ALL = f"{PROJECT}/api_keys"
ONE = f"{ALL}/{{api_key_id}}"
ADMIN = "/organization/admin_api_keys"
ADMIN_ONE = f"{ADMIN}/{{api_key_id}}"
_ACCESS = ("active", "inactive", "any")


def routes(keys: Keys) -> list[AdminRoute]:
    answers = KeyEndpoints(keys)
    return [
        AdminRoute(
            "GET", ALL, "api_keys.read", answers.list, query=(*PAGE, "owner_project_access")
        ),
        AdminRoute("GET", ONE, "api_keys.read", answers.get),
        AdminRoute("POST", ONE, "api_keys.write", answers.update, body=ProjectKeyUpdate),
        AdminRoute("DELETE", ONE, "api_keys.write", answers.delete),
        AdminRoute("POST", f"{ONE}/rotate", "api_keys.write", answers.rotate, body=KeyRotate),
        AdminRoute(
            "POST",
            ACCOUNTS,
            "service_accounts.write",
            answers.create_account,
            body=ServiceAccountCreate,
        ),
        AdminRoute(
            "POST",
            f"{ACCOUNT}/api_keys",
            "api_keys.write",
            answers.create_of_account,
            body=AccountKeyCreate,
        ),
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
        """List the keys of one project.

        All owners in it have access: deleting one ends its keys.
        """
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
        # Admin keys get 404, too.
        return _project_key(await self._keys.get(call.principal.tenant_id, *_project_and_key(call)))

    async def update(self, call: AdminCall) -> dict[str, Any]:
        asked = await call.body(ProjectKeyUpdate)
        changed = await self._keys.change(
            call.caller,
            *_project_and_key(call),
            scopes=None if asked.scopes is None else scopes_of(asked.scopes),
            expires_in_s=asked.expires_in_seconds,
        )
        return _project_key(changed)

    async def delete(self, call: AdminCall) -> dict[str, Any]:
        """Disable a key: at once here, at other replicas within `auth.key_cache_ttl_s`."""
        await self._keys.end(call.caller, *_project_and_key(call))
        return deleted_body("organization.project.api_key", call.path["api_key_id"])

    async def rotate(self, call: AdminCall) -> dict[str, Any]:
        """Replace a key; the old one keeps working for a while."""
        asked = await call.body(KeyRotate)
        key, value = await self._keys.rotate(
            call.caller, *_project_and_key(call), overlap_s=asked.overlap_seconds
        )
        made = ids.api_key_id(key.id)
        owned = await self._keys.get(call.principal.tenant_id, _project(call), made)
        return {**_project_key(owned), "value": value}

    async def create_account(self, call: AdminCall) -> dict[str, Any]:
        """Create a service account, with a key unless the body asks for the account only."""
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

    async def create_of_account(self, call: AdminCall) -> dict[str, Any]:
        """Create a key of a service account; its value is shown only once."""
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

    async def list_admin(self, call: AdminCall) -> dict[str, Any]:
        """List the admin keys of the tenant, by default the oldest first."""
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
        """Create a key for the whole admin API, or with scope `api.all.read` for reading it."""
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
        """Return an admin key; 404 for a key of a project."""
        found = await self._keys.get(call.principal.tenant_id, None, call.path["api_key_id"])
        return admin_key_body(found.key)

    async def delete_admin(self, call: AdminCall) -> dict[str, Any]:
        """Disable an admin key, even the one of this request."""
        await self._keys.end(call.caller, None, call.path["api_key_id"])
        return deleted_body("organization.admin_api_key", call.path["api_key_id"])

    async def rotate_admin(self, call: AdminCall) -> dict[str, Any]:
        """Replace an admin key; the old one keeps working for `overlap_seconds`."""
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
