"""Roles and what they may do: one table for the admin API of tenants and the plane of operators.

A route names the permission that it takes (`api.admin.routes`); a role is a fixed set of these. A
reader has every permission that ends in `.read`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Permission = Literal[
    "projects.read",
    "projects.write",
    "service_accounts.read",
    "service_accounts.write",
    "workload_identity.read",
    "workload_identity.write",
    "api_keys.read",
    "api_keys.write",
    "admin_keys.read",
    "admin_keys.write",
    "model_permissions.read",
    "model_permissions.write",
    "rate_limits.read",
    "rate_limits.write",
    "spend.read",
    "spend.write",
    "usage.read",
    "audit_log.read",
    "data_retention.read",
    "data_retention.write",
    "roles.read",
]
"""Of the admin API of one tenant. None of them shows what a request or a response says."""

OperatorPermission = Literal[
    "tenants.read",
    "tenants.write",
    "prices.read",
    "prices.write",
    "backends.read",
    "backends.write",
    "replicas.read",
    "settings.read",
    "ledger.read",
    "ledger.write",
    "operator_audit_log.read",
]
"""Of the plane of operators, over all tenants."""

AnyPermission: TypeAlias = Permission | OperatorPermission
Role = Literal["owner", "reader"]
"""Of an admin key, and of an operator's key, on their own planes."""

PERMISSIONS: Final[frozenset[Permission]] = frozenset(get_args(Permission))
OPERATOR_PERMISSIONS: Final[frozenset[OperatorPermission]] = frozenset(get_args(OperatorPermission))
READ_ONLY_SCOPE: Final = "api.all.read"
"""The scope of a key that changes nothing."""


def _reading(permissions: frozenset[AnyPermission]) -> frozenset[AnyPermission]:
    return frozenset(one for one in permissions if one.endswith(".read"))


ROLES: Final[dict[Role, frozenset[AnyPermission]]] = {
    "owner": frozenset(PERMISSIONS),
    "reader": _reading(frozenset(PERMISSIONS)),
}
"""What admin keys of a tenant may do, by their role."""
OPERATOR_ROLES: Final[dict[Role, frozenset[AnyPermission]]] = {
    "owner": frozenset(OPERATOR_PERMISSIONS),
    "reader": _reading(frozenset(OPERATOR_PERMISSIONS)),
}
"""The same for keys of operators."""


def role_of(scopes: frozenset[str]) -> Role:
    """The role of an admin key with these scopes: one that is for reading alone is a reader's."""
    return "reader" if scopes and scopes <= {READ_ONLY_SCOPE} else "owner"
