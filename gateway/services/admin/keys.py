"""Keys of projects and admin keys of a tenant: make, list, change, rotate, end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound, shown
from gateway.protocol.request_errors import unknown_place
from gateway.services.admin.projects import required_project
from gateway.services.admin.service_accounts import required_account
from gateway.services.limits import LimitOwner, set_limits
from gateway.store.admin import keys as rows
from gateway.store.admin import service_accounts as accounts
from gateway.store.admin.pages import Page, PagePosition
from gateway.tenancy import PLAIN_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.limits.terms import Mode, What
    from gateway.services.admin.service_accounts import ServiceAccounts
    from gateway.services.admin.transactions import AdminCaller, Transactions
    from gateway.services.credentials.secrets import Peppers
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import (
        ApiKey,
        KeyTerms,
        Project,
        ProjectId,
        ServiceAccount,
        ServiceAccountRole,
        TenantId,
    )

DEFAULT_NAME: Final = "Secret key"


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Bounds of keys: how many of one tenant work, how long one lives at most (None: any time), how
    long one that is replaced goes on where nothing else is said.
    """

    keys_max: int
    lifetime_max_s: int | None
    overlap_s: int


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key that is asked for; `terms` without expiry and owner, `limits` by what they limit and
    their window (seconds).
    """

    name: str = DEFAULT_NAME
    terms: KeyTerms = PLAIN_KEY
    expires_in_s: int | None = None
    limits: Mapping[tuple[What, int], int | None] = field(default_factory=dict)
    limits_mode: Mode | None = None


def unknown_key(key_id: str) -> ResourceNotFound:
    """The same for one that is unknown, has ended, and is of another project or tenant."""
    return ResourceNotFound(
        f"No API key with id '{shown(key_id)}' was found.", code="api_key_not_found", param="key_id"
    )


@dataclass(frozen=True, slots=True)
class OwnedKey:
    """A key, and whose it is; None: nobody's in particular, as those that operators make."""

    key: ApiKey
    account: ServiceAccount | None = None


class Keys:
    """All methods raise `ResourceNotFound` for an unknown project, account or key."""

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
        """A service account, and a key of it with its secret, unless `asked` is None: it has no
        role then. Raises `RateLimited` where there are too many of either.
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
        """A key of a service account, and its secret. Raises `RateLimited` where there are too
        many.
        """
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            account = await required_account(connection, project, account_id)
            return await self._insert(connection, caller, asked, project, account)

    async def create_admin(self, caller: AdminCaller, asked: KeyRequest) -> tuple[ApiKey, str]:
        """An admin key of the tenant, and its secret."""
        async with self._transactions.changing(caller.tenant_id) as connection:
            return await self._insert(connection, caller, asked, None, None)

    async def get(self, tenant_id: TenantId, project_id: str | None, key_id: str) -> OwnedKey:
        """A key of a project, or (None) an admin key."""
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
        """Keys of a project, or (None) admin keys. Raises `InvalidRequest` for an unknown
        `after`.
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
        """Change what is not None. Raises `InvalidRequest` for a key that has expired, and for an
        archived project.
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
        """Disable a key: from now on it is refused."""
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await self._project(connection, tenant_id, project_id)
            key = await self._require(connection, tenant_id, project, key_id)
            await rows.end(connection, tenant_id, project, key.id)
            await caller.note(connection, "api_key.deleted", key_id, project)

    async def rotate(
        self, caller: AdminCaller, project_id: str | None, key_id: str, overlap_s: int | None
    ) -> tuple[ApiKey, str]:
        """A key that takes the place of another one, with the same terms, limits and budgets, and
        its secret. It lives as long as the other was made for; the other goes on for `overlap_s`
        (None: as the policy says). Raises `InvalidRequest` for one that has expired or has been
        replaced already, and for an archived project, and `RateLimited` where there are too many.
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
        """An admin key where there is no project."""
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
        """That one more may be made. One that was replaced counts until its overlap is over."""
        if await rows.count(connection, tenant_id) >= self._policy.keys_max:
            raise RateLimited(
                f"Your organization has {self._policy.keys_max} API keys, which is as many as may "
                "be. Delete some that are not needed any more.",
                code="too_many_api_keys",
            )

    def _lifetime_after(self, old: ApiKey) -> int | None:
        """Seconds for the key that takes its place: as many as the old one was made for."""
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
    known = await accounts.find_all(connection, tenant_id, owners) if owners else {}
    return [OwnedKey(key, known.get(key.terms.owner_id or key.id)) for key in keys]


def _key_expired(key_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"API key '{key_id}' has expired or has been replaced: it cannot be changed. Create "
        "another one.",
        code="api_key_expired",
        param="key_id",
    )
