"""Keys of projects, and of the admin API itself (`/v1/organization/admin_api_keys`)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from pydantic import Field
from sqlalchemy import Uuid, and_, bindparam, func, insert, or_, select, update

from gateway import ids
from gateway.admin.limits import KeyLimits, LimitOwner, set_limits
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import required_project
from gateway.admin.routes import (
    PAGE,
    AdminRoute,
    audited,
    changed,
    deleted,
    listed,
    page_params,
    read,
)
from gateway.admin.service_accounts import ALL as ACCOUNTS
from gateway.admin.service_accounts import ONE as ACCOUNT
from gateway.admin.service_accounts import find_accounts, required_account, service_account_body
from gateway.admin.transactions import CoreStatement, ResourceRows, in_seconds, named, of_tenant
from gateway.api.query import choice, list_body
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, shown
from gateway.protocol.admin_bodies import (
    LIFETIME_MAX_S,
    MODELS_MAX,
    DisplayName,
    Json,
    Lifetime,
    ModelId,
    scopes_of,
    seconds_of,
)
from gateway.protocol.base import AS_INTEGER, Many, NullableModel
from gateway.protocol.pages import Page
from gateway.protocol.request_errors import invalid, wrong_value
from gateway.store.tables import TABLES
from gateway.store.tenants import KEY_COLUMNS, key_of_row
from gateway.tenancy import KeyTerms
from gateway.tenancy.permissions import READ_ONLY_SCOPE, SCOPES, role_of
from gateway.tenancy.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.admin.routes import AdminCall
    from gateway.admin.service_accounts import ServiceAccounts
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.pages import PageParams
    from gateway.services.access import Peppers
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import ApiKey, Network, Project, ProjectId, ServiceAccount, TenantId
    from gateway.tenancy.permissions import Permission

API_KEYS: Final = TABLES["api_keys"]
SHOWN: Final = [API_KEYS.c[name] for name in KEY_COLUMNS.split(", ")]
"""All but the hash, which the role of tenants may not read."""

ALL = f"{PROJECT}/api_keys"
ONE = f"{ALL}/{{api_key_id}}"
ADMIN = "/organization/admin_api_keys"
ADMIN_ONE = f"{ADMIN}/{{api_key_id}}"
KIND = "organization.project.api_key"
ADMIN_KIND = "organization.admin_api_key"
DEFAULT_NAME: Final = "Secret key"
KEYS_MAX: Final = 10_000
"""Working keys per tenant."""
OVERLAP_S: Final = 86_400
NETWORKS_MAX: Final = 64
_ACCESS = ("active", "inactive", "any")


def routes(keys: Keys) -> list[AdminRoute]:
    async def list_keys(call: AdminCall) -> Json:
        # All owners in a project have access to it: deleting one ends its keys.
        tenant_id, project_id = call.principal.tenant_id, call.path["project_id"]
        query = call.request.query_params
        page = await keys.list(tenant_id, project_id, page_params(query))
        if choice(query, "owner_project_access", _ACCESS) == "inactive":
            page = Page([], has_more=False)
        return list_body(map(project_key_body, page.rows), has_more=page.has_more)

    async def create_account(call: AdminCall) -> Json:
        body = await call.body(ServiceAccountCreate)
        account, made = await keys.create_account(
            call.caller, call.path["project_id"], body.name, body.key()
        )
        return {
            **service_account_body(account),
            "api_key": None if made is None else account_key_body(made),
        }

    async def list_admin_keys(tenant_id: TenantId, page: PageParams) -> Page[ShownKey]:
        return await keys.list(tenant_id, None, page)

    reads: Final = "api_keys.read"
    writes: Final = "api_keys.write"
    makes: Final = "service_accounts.write"
    query = (*PAGE, "owner_project_access")
    return [
        AdminRoute("GET", ALL, reads, list_keys, query=query),
        changed(ONE, writes, keys.change, project_key_body, ProjectKeyUpdate),
        *_routes_of_one(keys, ONE, reads, writes, project_key_body),
        AdminRoute("POST", ACCOUNTS, makes, create_account, ServiceAccountCreate),
        changed(f"{ACCOUNT}/api_keys", writes, keys.create, account_key_body, AccountKeyCreate),
        listed(ADMIN, "admin_keys.read", list_admin_keys, admin_key_body, is_ordered=True),
        changed(ADMIN, "admin_keys.write", keys.create_admin, admin_key_body, AdminKeyCreate),
        *_routes_of_one(keys, ADMIN_ONE, "admin_keys.read", "admin_keys.write", admin_key_body),
    ]


def _routes_of_one(
    keys: Keys,
    path: str,
    reads: Permission,
    writes: Permission,
    body_of: Callable[[ShownKey], Json],
) -> list[AdminRoute]:
    # An admin key has no project in its path.
    project = (None,) if path == ADMIN_ONE else ()

    async def get(tenant_id: TenantId, *ids_: str) -> ShownKey:
        return await keys.get(tenant_id, *project, *ids_)

    async def end(caller: AdminCaller, *ids_: str) -> None:
        await keys.end(caller, *project, *ids_)

    async def rotate(caller: AdminCaller, *args: Any) -> ShownKey:
        return await keys.rotate(caller, *project, *args)

    return [
        read(path, reads, get, body_of),
        deleted(path, writes, end, ADMIN_KIND if path == ADMIN_ONE else KIND),
        changed(f"{path}/rotate", writes, rotate, body_of, KeyRotate),
    ]


class KeyExtras(NullableModel):
    """`harmony` of a key that is made: fields beyond OpenAI's."""

    allowed_cidrs: Annotated[Many[str], Field(max_length=NETWORKS_MAX)] = ()
    allowed_models: Annotated[Many[ModelId], Field(max_length=MODELS_MAX)] = ()
    limits: KeyLimits = KeyLimits()


class AccountKeyCreate(NullableModel):
    """`POST …/service_accounts/{id}/api_keys`: one more key of an account; no scopes mean all."""

    name: DisplayName | None = None
    scopes: Annotated[Many[str], Field(max_length=len(SCOPES))] = ()
    expires_in_seconds: Lifetime | None = None
    harmony: KeyExtras = KeyExtras()

    def terms(self) -> KeyTerms:
        return KeyTerms(
            scopes=scopes_of(self.scopes),
            networks=tuple(
                _network(f"harmony.allowed_cidrs[{index}]", text)
                for index, text in enumerate(self.harmony.allowed_cidrs)
            ),
            models=tuple(dict.fromkeys(self.harmony.allowed_models)),
        )


class ServiceAccountCreate(NullableModel):
    """`POST …/service_accounts`: an account, and unless only that is requested a first key."""

    name: DisplayName
    create_service_account_only: bool = False
    expires_in_seconds: Lifetime | None = None
    harmony: KeyExtras = KeyExtras()

    def key(self) -> AccountKeyCreate | None:
        if not self.create_service_account_only:
            return AccountKeyCreate(
                expires_in_seconds=self.expires_in_seconds, harmony=self.harmony
            )
        for name in ("expires_in_seconds", "harmony"):
            if name in self.model_fields_set and getattr(self, name) is not None:
                why = "it is for the key, and 'create_service_account_only' asks for none"
                raise invalid(name, why)
        return None


class ProjectKeyUpdate(NullableModel):
    """`POST …/api_keys/{id}`: omitted fields stay; no scopes at all mean all."""

    scopes: Annotated[Many[str], Field(max_length=len(SCOPES))] | None = None
    expires_in_seconds: Lifetime | None = None


class KeyRotate(NullableModel):
    """`POST …/api_keys/{id}/rotate`: how long the key that is replaced goes on."""

    overlap_seconds: Annotated[int, Field(ge=0, le=LIFETIME_MAX_S), AS_INTEGER] | None = None


class AdminKeyCreate(NullableModel):
    """`POST /organization/admin_api_keys`: a key for the admin API alone."""

    name: DisplayName
    expires_in_seconds: Lifetime | None = None
    scopes: Annotated[Many[str], Field(max_length=1)] = ()

    def terms(self) -> KeyTerms:
        if self.scopes and self.scopes != (READ_ONLY_SCOPE,):
            raise wrong_value("scopes[0]", self.scopes[0], (READ_ONLY_SCOPE,))
        return KeyTerms(kind="admin", scopes=frozenset(self.scopes))


def _network(param: str, text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise InvalidRequest(
            f"Invalid '{param}': it is no network such as 203.0.113.0/24 or 2001:db8::/32, whose "
            "bits behind the length are zero.",
            code="invalid_value",
            param=param,
        ) from None


class ShownKey(NamedTuple):
    """Key, its owner unless an operator made it, and the `secret` if it was just made."""

    key: ApiKey
    account: ServiceAccount | None = None
    secret: str | None = None


def account_key_body(made: ShownKey) -> Json:
    return {
        "id": ids.api_key_id(made.key.id),
        "object": "organization.project.service_account.api_key",
        "name": made.key.name,
        "value": made.secret,
        "created_at": seconds_of(made.key.created_at),
        "expires_at": seconds_of(made.key.terms.expires_at),
        "harmony": _extras(made.key),
    }


def project_key_body(one: ShownKey) -> Json:
    # A key of no service account is shown as the operator's.
    return {
        **_common(one, KIND),
        "owner_project_access": "active",
        "owner": _owner(one.key, one.account),
        "harmony": _extras(one.key),
    }


def admin_key_body(one: ShownKey) -> Json:
    key = one.key
    return {
        **_common(one, ADMIN_KIND),
        "owner": {
            "type": "user",
            "object": "organization.user",
            "id": ids.user_id(key.created_by or key.tenant_id),
            "name": key.name,
            "created_at": seconds_of(key.created_at),
            "role": "owner",
        },
        "harmony": {"role": role_of(key.terms.scopes), **_extras(key)},
    }


def _common(one: ShownKey, kind: str) -> Json:
    key = one.key
    return {
        "id": ids.api_key_id(key.id),
        "object": kind,
        "name": key.name,
        "redacted_value": redacted(key.terms.kind, key.hint),
        "created_at": seconds_of(key.created_at),
        "last_used_at": seconds_of(key.last_used_at),
        "expires_at": seconds_of(key.terms.expires_at),
        **({} if one.secret is None else {"value": one.secret}),
    }


def _owner(key: ApiKey, account: ServiceAccount | None) -> Json:
    if account is None:
        user = {
            "id": ids.user_id(key.tenant_id),
            "name": "Operator",
            "email": "",
            "role": "owner",
            "created_at": seconds_of(key.created_at),
        }
        return {"type": "user", "user": user, "service_account": None}
    body = service_account_body(account)
    del body["object"]
    return {"type": "service_account", "service_account": body, "user": None}


def _extras(key: ApiKey) -> Json:
    return {
        "scopes": sorted(key.terms.scopes),
        "allowed_cidrs": [str(network) for network in key.terms.networks],
        "allowed_models": list(key.terms.models),
        "replaced_by": None if key.replaced_by is None else ids.api_key_id(key.replaced_by),
    }


_INSERT: Final = CoreStatement(
    insert(API_KEYS)
    .values(
        tenant_id=bindparam("tenant"),
        created_at=func.now(),
        expires_at=in_seconds("expires_in_s"),
        **named(
            *("id", "name", "hint", "hash", "pepper_id", "dialect", "kind", "project_id"),
            *("owner_type", "owner_id", "scopes", "allowed_cidrs", "allowed_models", "created_by"),
        ),
    )
    .returning(*SHOWN)
)
_PROJECT: Final = bindparam("project", type_=Uuid)
_IS_MEANT: Final = (
    or_(
        and_(_PROJECT.is_(None), API_KEYS.c.kind == "admin"),
        and_(
            API_KEYS.c.kind == "project",
            func.coalesce(API_KEYS.c.project_id, API_KEYS.c.tenant_id) == _PROJECT,
        ),
    ),
    API_KEYS.c.disabled_at.is_(None),
)
"""A key of `project`, or an admin key where that is null, that has not been ended."""
_WORKS: Final = (
    API_KEYS.c.disabled_at.is_(None),
    or_(API_KEYS.c.expires_at.is_(None), API_KEYS.c.expires_at > func.now()),
)
_COUNT: Final = CoreStatement(
    select(func.count()).select_from(API_KEYS).where(*of_tenant(API_KEYS), *_WORKS)
)
_CHANGEABLE: Final = (*of_tenant(API_KEYS, "id"), *_WORKS, API_KEYS.c.replaced_by.is_(None))
_CHANGE: Final = CoreStatement(
    update(API_KEYS)
    .where(*_CHANGEABLE)
    .values(
        scopes=func.coalesce(bindparam("scopes", type_=API_KEYS.c.scopes.type), API_KEYS.c.scopes),
        expires_at=func.coalesce(in_seconds("expires_in_s"), API_KEYS.c.expires_at),
    )
    .returning(*SHOWN)
)
_END: Final = CoreStatement(
    update(API_KEYS).where(*of_tenant(API_KEYS, "id")).values(disabled_at=func.now())
)
# A replaced key ends when the overlap does, or before, as it would have.
_REPLACE: Final = CoreStatement(
    update(API_KEYS)
    .where(*_CHANGEABLE)
    .values(
        replaced_by=bindparam("replaced_by"),
        expires_at=func.least(API_KEYS.c.expires_at, in_seconds("overlap_s")),
    )
    .returning(*SHOWN)
)


def unknown_key(key_id: str) -> ResourceNotFound:
    """Return the same error for an unknown, ended, or foreign key."""
    return ResourceNotFound(
        f"No API key with id '{shown(key_id)}' was found.", code="api_key_not_found", param="key_id"
    )


_ROWS: Final = ResourceRows(
    API_KEYS, key_of_row, ids.parse_api_key_id, unknown_key, *_IS_MEANT, columns=SHOWN
)


class Keys:
    """API keys; without a project they are admin keys."""

    def __init__(
        self,
        transactions: Transactions,
        service_accounts: ServiceAccounts,
        peppers: Peppers,
        *,
        lifetime_max_s: int | None = None,
    ) -> None:
        # None: a key ends when it is deleted.
        self._transactions = transactions
        self._accounts = service_accounts
        self._peppers = peppers
        self._lifetime_max_s = lifetime_max_s

    async def create_account(
        self, caller: AdminCaller, project_id: str, name: str, body: AccountKeyCreate | None
    ) -> tuple[ServiceAccount, ShownKey | None]:
        """Create a service account with a key, or without one and without a role."""
        tenant_id = caller.tenant_id
        async with self._transactions.in_turn(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            role: Any = "none" if body is None else "member"
            account = await self._accounts.insert(connection, caller, project, name, role)
            if body is None:
                return account, None
            return account, await self._insert_owned(connection, caller, project, account, body)

    async def create(
        self, caller: AdminCaller, project_id: str, account_id: str, body: AccountKeyCreate
    ) -> ShownKey:
        tenant_id = caller.tenant_id
        async with self._transactions.in_turn(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            account = await required_account(connection, project, account_id)
            return await self._insert_owned(connection, caller, project, account, body)

    async def create_unowned(
        self, caller: AdminCaller, project_id: str, body: AccountKeyCreate
    ) -> ShownKey:
        """Create a key of no service account, of the server's longest lifetime at most."""
        limits = (body.expires_in_seconds, self._lifetime_max_s)
        expires_in_s = min((one for one in limits if one is not None), default=None)
        async with self._transactions.in_turn(caller.tenant_id) as connection:
            project = await required_project(
                connection, caller.tenant_id, project_id, is_active=True
            )
            return await self._insert(
                connection,
                caller,
                project.id,
                body.name or DEFAULT_NAME,
                body.terms(),
                expires_in_s,
            )

    async def create_admin(self, caller: AdminCaller, body: AdminKeyCreate) -> ShownKey:
        terms = body.terms()
        async with self._transactions.in_turn(caller.tenant_id) as connection:
            expires_in_s = self._lifetime(body.expires_in_seconds)
            return await self._insert(connection, caller, None, body.name, terms, expires_in_s)

    async def get(self, tenant_id: TenantId, project_id: str | None, key_id: str) -> ShownKey:
        async with self._transactions.reading(tenant_id) as connection:
            key = await self._required(connection, tenant_id, project_id, key_id)
            return (await _with_owners(connection, tenant_id, [key]))[0]

    async def list(
        self, tenant_id: TenantId, project_id: str | None, page: PageParams
    ) -> Page[ShownKey]:
        # Expired keys are listed, too.
        async with self._transactions.reading(tenant_id) as connection:
            project = await _project(connection, tenant_id, project_id)
            key_page = await _ROWS.page(connection, page, tenant=tenant_id, project=project)
            return Page(await _with_owners(connection, tenant_id, key_page.rows), key_page.has_more)

    async def change(
        self, caller: AdminCaller, project_id: str, key_id: str, body: ProjectKeyUpdate
    ) -> ShownKey:
        tenant_id = caller.tenant_id
        values = {
            "scopes": None if body.scopes is None else sorted(scopes_of(body.scopes)),
            "expires_in_s": body.expires_in_seconds,
        }
        self._check_lifetime(body.expires_in_seconds)
        async with self._transactions.changing(tenant_id) as connection:
            key = await self._required(connection, tenant_id, project_id, key_id, is_active=True)
            row = {"tenant": tenant_id, "id": key.id, **values}
            changed_row = (await connection.execute(_CHANGE, row)).one_or_none()
            if changed_row is None:
                raise _key_expired(key_id)
            await caller.note(
                connection, "api_key.updated", key_id, key.project, changes_requested=audited(body)
            )
            return (await _with_owners(connection, tenant_id, [key_of_row(changed_row)]))[0]

    async def end(self, caller: AdminCaller, project_id: str | None, key_id: str) -> None:
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            key = await self._required(connection, tenant_id, project_id, key_id)
            await connection.execute(_END, {"tenant": tenant_id, "id": key.id})
            await caller.note(connection, "api_key.deleted", key_id, _project_of(key))

    async def rotate(
        self, caller: AdminCaller, project_id: str | None, key_id: str, body: KeyRotate
    ) -> ShownKey:
        """Replace a key by a new one with its terms, limits, budgets and lifetime."""
        tenant_id, overlap_s = caller.tenant_id, body.overlap_seconds
        async with self._transactions.changing(tenant_id) as connection:
            old = await self._required(connection, tenant_id, project_id, key_id, is_active=True)
            row = {
                "tenant": tenant_id,
                "id": old.id,
                "replaced_by": ids.new_uuid(),
                "overlap_s": OVERLAP_S if overlap_s is None else overlap_s,
            }
            if not await connection.execute(_REPLACE, row):
                raise _key_expired(key_id)
            made = await self._insert(
                connection,
                caller,
                old.project_id,
                old.name,
                old.terms,
                self._lifetime_after(old),
                replaces=key_id,
                id=row["replaced_by"],
                dialect=old.dialect,
            )
            owned = (await _with_owners(connection, tenant_id, [made.key]))[0]
            return owned._replace(secret=made.secret)

    async def _insert_owned(
        self,
        connection: Connection,
        caller: AdminCaller,
        project: Project,
        account: ServiceAccount,
        body: AccountKeyCreate,
    ) -> ShownKey:
        terms = replace(body.terms(), owner_type="service_account", owner_id=account.id)
        made = await self._insert(
            connection,
            caller,
            project.id,
            body.name or DEFAULT_NAME,
            terms,
            self._lifetime(body.expires_in_seconds),
        )
        limits = body.harmony.limits
        if limits.values:
            owner = LimitOwner(caller.tenant_id, "key", made.key.id, caller.author)
            await set_limits(connection, owner, limits.values, mode=limits.mode)
        return made

    async def _insert(  # noqa: PLR0913 - the columns of a key
        self,
        connection: Connection,
        caller: AdminCaller,
        project_id: ProjectId | None,
        name: str,
        terms: KeyTerms,
        expires_in_s: int | None,
        *,
        replaces: str | None = None,
        **columns: Any,
    ) -> ShownKey:
        # A replaced key counts until its overlap is over.
        if await connection.scalar(_COUNT, {"tenant": caller.tenant_id}) >= KEYS_MAX:
            raise RateLimited(
                f"Your organization has {KEYS_MAX} API keys, which is as many as may "
                "be. Delete some that are not needed any more.",
                code="too_many_api_keys",
            )
        secret = self._peppers.new_secret(terms.kind)
        values = {
            "tenant": caller.tenant_id,
            "id": ids.new_uuid(),
            "name": name,
            "hint": secret.hint,
            "hash": secret.hash,
            "pepper_id": secret.pepper_id,
            "dialect": "openai",
            "kind": terms.kind,
            "project_id": project_id,
            "owner_type": terms.owner_type,
            "owner_id": terms.owner_id,
            "scopes": sorted(terms.scopes),
            "allowed_cidrs": list(terms.networks),
            "allowed_models": list(terms.models),
            "created_by": caller.key_id,
            "expires_in_s": expires_in_s,
            **columns,
        }
        key = key_of_row((await connection.execute(_INSERT, values)).one())
        data = {"scopes": values["scopes"]} | ({} if replaces is None else {"replaces": replaces})
        target = ids.api_key_id(key.id)
        await caller.note(connection, "api_key.created", target, _project_of(key), data=data)
        return ShownKey(key, secret=secret.value)

    async def _required(
        self,
        connection: Connection,
        tenant_id: TenantId,
        project_id: str | None,
        key_id: str,
        *,
        is_active: bool = False,
    ) -> ApiKey:
        project = await _project(connection, tenant_id, project_id, is_active=is_active)
        return await _ROWS.get(connection, key_id, tenant=tenant_id, project=project)

    def _lifetime_after(self, old: ApiKey) -> int | None:
        # In seconds: the replacement lives as long as the old key was made for.
        most, end = self._lifetime_max_s, old.terms.expires_at
        if end is None:
            return most
        lifetime_s = max(1, round((end - old.created_at).total_seconds()))
        return lifetime_s if most is None else min(lifetime_s, most)

    def _lifetime(self, expires_in_s: int | None) -> int | None:
        self._check_lifetime(expires_in_s)
        return expires_in_s or self._lifetime_max_s

    def _check_lifetime(self, expires_in_s: int | None) -> None:
        most = self._lifetime_max_s
        if most is not None and expires_in_s is not None and expires_in_s > most:
            raise InvalidRequest(
                f"Invalid 'expires_in_seconds': keys of this server live for {most} seconds at "
                "most.",
                code="integer_above_max_value",
                param="expires_in_seconds",
            )


async def _project(
    connection: Connection, tenant_id: TenantId, project_id: str | None, *, is_active: bool = False
) -> ProjectId | None:
    if project_id is None:
        return None
    return (await required_project(connection, tenant_id, project_id, is_active=is_active)).id


def _project_of(key: ApiKey) -> ProjectId | None:
    return None if key.terms.kind == "admin" else key.project


async def _with_owners(
    connection: Connection, tenant_id: TenantId, keys: Sequence[ApiKey]
) -> list[ShownKey]:
    owners = {key.terms.owner_id for key in keys if key.terms.owner_id is not None}
    accounts = await find_accounts(connection, tenant_id, owners) if owners else {}
    return [ShownKey(key, accounts.get(key.terms.owner_id or key.id)) for key in keys]


def _key_expired(key_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"API key '{key_id}' has expired or has been replaced: it cannot be changed. Create "
        "another one.",
        code="api_key_expired",
        param="key_id",
    )
