"""A good body for each kind that the admin planes read, with all its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admin.data_controls import ContentConsent, DataRetentionUpdate
from gateway.admin.federation_rules import RuleCreate, RuleUpdate
from gateway.admin.identity_providers import ProviderCreate, ProviderUpdate
from gateway.admin.issuers import OperatorIssuerCreate, OperatorIssuerUpdate
from gateway.admin.keys import (
    AccountKeyCreate,
    AdminKeyCreate,
    KeyRotate,
    ProjectKeyUpdate,
    ServiceAccountCreate,
)
from gateway.admin.ledger import SinkResume
from gateway.admin.limits import RateLimitUpdate
from gateway.admin.operator_keys import OperatorCreate
from gateway.admin.prices import PriceCreate, PriceEnd
from gateway.admin.projects import (
    HostedToolsUpdate,
    ModelPermissionsUpdate,
    ProjectCreate,
    ProjectUpdate,
    ServiceTiersUpdate,
)
from gateway.admin.replays import Replay
from gateway.admin.responses import Reveal
from gateway.admin.service_accounts import ServiceAccountUpdate
from gateway.admin.spend_limits import SpendAlertUpdate, SpendLimitUpdate
from gateway.admin.tenants import (
    Erasure,
    Export,
    HoldUpdate,
    TenantCreate,
    TenantKeyCreate,
    TenantUpdate,
)
from gateway.protocol.admin_bodies import NoBody

if TYPE_CHECKING:
    from gateway.protocol.base import WireModel

Json = dict[str, Any]

_TERMS: Final = {"allowed_cidrs": ["0.0.0.0/0"], "allowed_models": ["gpt-oss-*"]}
_PROVIDER: Final = {
    "name": "sso",
    "description": "of the house",
    "issuer": "https://issuer.example",
    "audience": "gateway",
    "enabled": True,
    "attribute_transformations": [{"attribute": "team", "expression": "assertion.team"}],
    "verification": {"type": "discovery", "discovery_url": "https://issuer.example/configuration"},
    "harmony": {"bearer": False, "algorithms": ["RS256"], "clock_skew_seconds": 1},
}
_OPERATOR_ISSUER: Final = {
    **_PROVIDER,
    "attribute_transformations": [{"attribute": "harmony.tenant", "expression": "assertion.org"}],
    "tenants": ["acme"],
    "roles": {"user": ["models.read"]},
}
_RULE: Final = {
    "name": "ci",
    "description": "of the build",
    "enabled": True,
    "attribute_matchers": {"sub": "build"},
    "permissions": {"type": "restricted", "scopes": ["models.read"]},
}
_ALERT: Final = {
    "currency": "USD",
    "interval": "month",
    "threshold_amount": 5,
    "notification_channel": {
        "type": "email", "recipients": ["a@example.com"], "subject_prefix": "Spend",
    },
}  # fmt: skip
_PRICE: Final = {"model": "no-such-model", "tier": "flex", "tenant": "acme"}

GOOD: Final[dict[type[WireModel], Json]] = {
    NoBody: {},
    ProjectCreate: {"name": "Another"},
    ProjectUpdate: {"name": "Renamed"},
    ServiceAccountCreate: {"name": "ci", "expires_in_seconds": 60, "harmony": _TERMS},
    ServiceAccountUpdate: {"name": "cd", "role": "owner"},
    AccountKeyCreate: {
        "name": "second", "scopes": ["models.read"], "expires_in_seconds": 60, "harmony": _TERMS,
    },
    ProjectKeyUpdate: {"scopes": ["models.read"], "expires_in_seconds": 60},
    KeyRotate: {"overlap_seconds": 60},
    AdminKeyCreate: {"name": "reader", "expires_in_seconds": 60, "scopes": ["api.all.read"]},
    ModelPermissionsUpdate: {"mode": "allow_list", "model_ids": ["gpt-oss-20b"]},
    HostedToolsUpdate: {"mcp": {"enabled": False}, "web_search": {"enabled": False}},
    ServiceTiersUpdate: {"default": "fast", "enabled_tiers": ["fast"]},
    RateLimitUpdate: {
        "max_requests_per_1_minute": 5, "harmony": {"max_tokens_per_1_day": 9, "mode": "observe"},
    },
    SpendLimitUpdate: {"currency": "USD", "interval": "month", "threshold_amount": 5},
    SpendAlertUpdate: _ALERT,
    DataRetentionUpdate: {"retention_type": "none"},
    ProviderCreate: {"type": "oidc", **_PROVIDER},
    ProviderUpdate: _PROVIDER,
    RuleCreate: {**_RULE, "project_id": "PROJECT", "service_account_id": "ACCOUNT"},
    RuleUpdate: _RULE,
    TenantCreate: {"name": "umbrella"},
    TenantUpdate: {"policy": {"containers_max": 3}},
    TenantKeyCreate: {"name": "owner"},
    OperatorCreate: {"name": "ops", "role": "auditor", "expires_in_seconds": 60},
    OperatorIssuerCreate: _OPERATOR_ISSUER,
    OperatorIssuerUpdate: _OPERATOR_ISSUER,
    HoldUpdate: {"held": False},
    ContentConsent: {"expires_in_s": 60},
    Reveal: {"reason": "ticket 12"},
    Replay: {"at": 3, "backend": "b0", "text": "No.", "temperature": 0.5, "seed": 7},
    Erasure: {"end_user": "nobody"},
    Export: {"content": True},
    PriceCreate: {**_PRICE, "nano_per_unit": {"output": 5}, "valid_from": 1_900_000_000},
    PriceEnd: _PRICE,
    SinkResume: {"delivered": False},
}  # fmt: skip
"""By the class. Ids stand for their names: `PROJECT` and `ACCOUNT`."""


def body_of(model: type[WireModel] | None, **named: str) -> Json | None:
    """A good body for a route, with these ids in it; None: it reads none."""
    return None if model is None else {
        name: named.get(value, value) if isinstance(value, str) else value
        for name, value in GOOD[model].items()
    }  # fmt: skip
