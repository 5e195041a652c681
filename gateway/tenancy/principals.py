"""Who is calling: frozen values that every layer may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NewType
from uuid import UUID

from gateway.tenancy.policy import DEFAULT_POLICY, TenantPolicy

if TYPE_CHECKING:
    from datetime import datetime

TenantId = NewType("TenantId", UUID)
Dialect = Literal["openai", "openresponses"]
"""How responses and events are spelled: as OpenAI does, or as Open Responses 2026-04-24 has it."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the gateway; nothing of one tenant is ever visible to another."""

    id: TenantId
    name: str
    created_at: datetime
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret: `hint` is its last four characters. `dialect` is what its requests
    are answered in, wherever their path does not say.
    """

    id: UUID
    tenant_id: TenantId
    name: str
    hint: str
    created_at: datetime
    disabled_at: datetime | None = None
    dialect: Dialect = "openai"


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller of one request. `dialect` is that of its key."""

    tenant_id: TenantId
    tenant_name: str
    key_id: UUID
    policy: TenantPolicy = DEFAULT_POLICY
    dialect: Dialect = "openai"
