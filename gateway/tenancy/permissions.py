"""Roles and what they may do: one table for the admin API of tenants and the plane of operators.

A route names the permission that it takes (`admin.routes`); a role is a fixed set of these. A
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
    "roles.write",
]
"""Permission in the admin API of one tenant. None shows what a request or a response contains."""

OperatorPermission = Literal[
    "tenants.read",
    "tenants.write",
    "tenants.delete",
    "tenants.export",
    "content.read",
    "responses.read",
    "prices.read",
    "prices.write",
    "backends.read",
    "backends.write",
    "replicas.read",
    "settings.read",
    "ledger.read",
    "ledger.write",
    "operator_audit_log.read",
    "issuers.read",
    "issuers.write",
    "operators.read",
    "operators.write",
]
"""Permission of operators, over all tenants. None shows what a request or a response contains, but
`content.read`, with which an archive of a tenant may have its content."""

AnyPermission: TypeAlias = Permission | OperatorPermission
Role = Literal["owner", "reader"]
"""Role of an admin key of a tenant."""
OperatorRole = Literal["owner", "admin", "support", "billing", "auditor"]
"""Role of an operator's key."""

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
"""Permissions of admin keys of a tenant, by their role."""
_OF_OWNERS: Final[frozenset[AnyPermission]] = frozenset(
    {"operators.read", "operators.write", "content.read"}
)
OPERATOR_ROLES: Final[dict[OperatorRole, frozenset[AnyPermission]]] = {
    "owner": frozenset(OPERATOR_PERMISSIONS),
    "admin": frozenset(OPERATOR_PERMISSIONS) - _OF_OWNERS,
    "support": frozenset({"tenants.read", "responses.read", "backends.read", "replicas.read"}),
    "billing": frozenset(
        {"tenants.read", "prices.read", "prices.write", "ledger.read", "ledger.write"}
    ),
    "auditor": frozenset({"operator_audit_log.read", "settings.read"}),
}
"""Permissions of operators' keys, by their role."""


def role_of(scopes: frozenset[str]) -> Role:
    """Return the role of an admin key with these scopes.

    Only the read-only scope makes a reader.
    """
    return "reader" if scopes and scopes <= {READ_ONLY_SCOPE} else "owner"
