from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, NewType, TypeAlias
from uuid import UUID

from gateway.limits.rules import NO_TERMS
from gateway.tenancy.policy import (
    ALL_CONTROLS,
    DEFAULT_POLICY,
    ModelPermissions,
    ProjectControls,
    keeps_nothing,
)

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.limits.rules import Terms
    from gateway.tenancy.permissions import OperatorRole
    from gateway.tenancy.policy import TenantPolicy

TenantId = NewType("TenantId", UUID)
ProjectId = NewType("ProjectId", UUID)
Dialect = Literal["openai", "openresponses"]
"""OpenAI's spelling, or that of Open Responses 2026-04-24."""
KeyKind = Literal["project", "admin"]
"""The data plane of one project, or the admin API of one tenant."""
Credential = Literal["key", "token", "exchanged"]
"""A key of ours; a token of a trusted issuer; or what that was exchanged for."""
Network: TypeAlias = IPv4Network | IPv6Network
OwnerType = Literal["service_account", "user"]
ServiceAccountRole = Literal["owner", "member", "none"]
DEFAULT_PROJECT_NAME: Final = "Default project"


def default_project(tenant_id: TenantId) -> ProjectId:
    return ProjectId(tenant_id)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Customer. Its data is removed some days after `deleted_at`, at `purged_at`; never while
    `held_at`.
    """

    id: TenantId
    name: str
    created_at: datetime
    disabled_at: datetime | None = None
    deleted_at: datetime | None = None
    held_at: datetime | None = None
    purged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """Part of a tenant. Once it is archived none of its keys works."""

    id: ProjectId
    tenant_id: TenantId
    name: str
    created_at: datetime
    archived_at: datetime | None = None
    models: ModelPermissions | None = None
    controls: ProjectControls = ALL_CONTROLS

    @property
    def is_default(self) -> bool:
        # Keys without a project belong to it; it cannot be archived.
        return self.id == default_project(self.tenant_id)


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    id: UUID
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    role: ServiceAccountRole
    created_at: datetime


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """Terms of a key, within those of its tenant and its project. Empty: no such bound. `scopes`
    are words of `tenancy.permissions`; a name in `models` that ends in `*` is a prefix.
    """

    kind: KeyKind = "project"
    scopes: frozenset[str] = frozenset()
    expires_at: datetime | None = None
    networks: tuple[Network, ...] = ()
    models: tuple[str, ...] = ()
    owner_type: OwnerType | None = None
    owner_id: UUID | None = None

    @property
    def permissions(self) -> ModelPermissions | None:
        # None: any model.
        return ModelPermissions("allow_list", self.models) if self.models else None


PLAIN_KEY: Final = KeyTerms()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Key without its secret: `hint` is its last four characters. `dialect` counts where the path
    says none. Both it and `replaced_by` work until the rotation ends.
    """

    id: UUID
    tenant_id: TenantId
    name: str
    hint: str
    created_at: datetime
    disabled_at: datetime | None = None
    dialect: Dialect = "openai"
    project_id: ProjectId | None = None
    terms: KeyTerms = PLAIN_KEY
    last_used_at: datetime | None = None
    replaced_by: UUID | None = None
    created_by: UUID | None = None

    @property
    def project(self) -> ProjectId:
        # Meaningless for an admin key.
        return self.project_id or default_project(self.tenant_id)


@dataclass(frozen=True, slots=True)
class ProjectTerms:
    name: str = DEFAULT_PROJECT_NAME
    models: ModelPermissions | None = None
    retention_type: str | None = None
    controls: ProjectControls = ALL_CONTROLS


DEFAULT_PROJECT: Final = ProjectTerms()


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller of one request."""

    tenant_id: TenantId
    tenant_name: str
    key_id: UUID
    policy: TenantPolicy = DEFAULT_POLICY
    dialect: Dialect = "openai"
    project_id: ProjectId | None = None
    key: KeyTerms = PLAIN_KEY
    project_terms: ProjectTerms = DEFAULT_PROJECT
    terms: Terms = NO_TERMS
    retention_type: str | None = None
    credential: Credential = "key"
    """If it is none of our keys, `key_id` is the rule that admits it (`tenancy.issuers`)."""
    end_user: str | None = None
    """End user, as the issuer of a `token` names them."""
    # Derived from the others once a key, because each request reads them several times.
    keeps_nothing: bool = field(init=False, repr=False, compare=False)
    """Neither requests nor responses may be written anywhere."""
    project: ProjectId = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nothing = keeps_nothing(self.retention_type, self.project_terms.retention_type)
        object.__setattr__(self, "keeps_nothing", nothing)
        project = self.project_id or default_project(self.tenant_id)
        object.__setattr__(self, "project", project)

    @property
    def wall(self) -> ProjectId | None:
        # The project whose stored responses and conversations it sees. None: all of its tenant.
        return None if self.policy.projects_share_responses == "allowed" else self.project


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator of the gateway: sees all tenants, as far as its role allows."""

    key_id: UUID
    name: str
    role: OperatorRole = "owner"
