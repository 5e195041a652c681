"""Who may call, and on what terms: tenants, their keys and their policies. Values and rules only;
`store.tenants` keeps them, `services.access` answers requests and operators.
"""

from __future__ import annotations

from gateway.tenancy.policy import (
    DEFAULT_POLICY,
    POLICY_VALUES,
    OnDisconnect,
    OwnPolicy,
    PolicyChanges,
    PolicyValue,
    ReasoningSummary,
    ResponseMessages,
    ServiceTierMax,
    TenantPolicy,
    check_changes,
)
from gateway.tenancy.principals import ApiKey, Dialect, Principal, Tenant, TenantId

__all__ = [
    "DEFAULT_POLICY",
    "POLICY_VALUES",
    "ApiKey",
    "Dialect",
    "OnDisconnect",
    "OwnPolicy",
    "PolicyChanges",
    "PolicyValue",
    "Principal",
    "ReasoningSummary",
    "ResponseMessages",
    "ServiceTierMax",
    "Tenant",
    "TenantId",
    "TenantPolicy",
    "check_changes",
]
