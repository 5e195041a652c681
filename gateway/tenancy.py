"""Who is calling: frozen values that every layer may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

TenantId = NewType("TenantId", UUID)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the gateway; nothing of one tenant is ever visible to another."""

    id: TenantId
    name: str
    created_at: datetime
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret: `hint` is its last four characters, `hash` its HMAC-SHA256."""

    id: UUID
    tenant_id: TenantId
    name: str
    hint: str
    created_at: datetime
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller of one request."""

    tenant_id: TenantId
    tenant_name: str
    key_id: UUID
