"""Who is calling: frozen values that every layer may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NewType
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

TenantId = NewType("TenantId", UUID)
OnDisconnect = Literal["cancel", "continue"]
ReasoningSummary = Literal["analysis", "off"]
ServiceTierMax = Literal["default", "priority"]
ResponseMessages = Literal["refused", "allowed"]
Dialect = Literal["openai", "openresponses"]
"""How responses and events are spelled: as OpenAI does, or as Open Responses 2026-04-24 has it."""


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What the operator decides for one tenant, defaults filled in.

    `on_disconnect` is what becomes of a stored foreground response whose client hangs up.
    `log_retention_s` counts from the end of a response, `response_retention_s` from its creation.
    `background_running_max` bounds the background responses generated at once, on all replicas
    together, `background_queued_max` those that wait for it.

    `reasoning_summary` is what a summary that a client asks for is made from: the analysis, or
    nothing. `reasoning_budget_tokens` bounds the reasoning of requests that name no bound; 0: none
    does. `service_tier_max` is the best tier that the tenant's requests may have.
    `response_messages` is whether they may ask for the Harmony messages of a response.
    """

    on_disconnect: OnDisconnect = "cancel"
    log_retention_s: int = 86_400
    response_retention_s: int = 30 * 86_400
    background_running_max: int = 64
    background_queued_max: int = 1_000
    reasoning_summary: ReasoningSummary = "analysis"
    reasoning_budget_tokens: int = 0
    service_tier_max: ServiceTierMax = "default"
    response_messages: ResponseMessages = "refused"


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
    policy: TenantPolicy = TenantPolicy()
    dialect: Dialect = "openai"
