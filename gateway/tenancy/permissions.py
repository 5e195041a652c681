"""Scopes of project keys, roles of admin keys and of operators.

Routes name the `Need` (`api.access.authentication`) or the permission (`admin.routes`) of a
request.
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
"""In the admin API of one tenant. None shows content."""

OperatorPermission = Literal[
    "tenants.read",
    "tenants.write",
    "tenants.delete",
    "tenants.export",
    "content.read",
    "responses.read",
    "responses.cancel",
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
"""Over all tenants. Only `content.read` shows content: in archives, and in responses of tenants
that allow it."""

AnyPermission: TypeAlias = Permission | OperatorPermission
Role = Literal["owner", "reader"]
OperatorRole = Literal["owner", "admin", "support", "billing", "auditor"]

PERMISSIONS: Final[frozenset[Permission]] = frozenset(get_args(Permission))
OPERATOR_PERMISSIONS: Final[frozenset[OperatorPermission]] = frozenset(get_args(OperatorPermission))
READ_ONLY_SCOPE: Final = "api.all.read"


def _reading(permissions: frozenset[AnyPermission]) -> frozenset[AnyPermission]:
    return frozenset(one for one in permissions if one.endswith(".read"))


ROLES: Final[dict[Role, frozenset[AnyPermission]]] = {
    "owner": frozenset(PERMISSIONS),
    "reader": _reading(frozenset(PERMISSIONS)),
}
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


def role_of(scopes: frozenset[str]) -> Role:
    return "reader" if scopes and scopes <= {READ_ONLY_SCOPE} else "owner"


Need = Literal[
    "responses.write",
    "responses.read",
    "conversations.write",
    "conversations.read",
    "containers.write",
    "containers.read",
    "files.write",
    "files.read",
    "models.request",
    "models.read",
    "key.read",
]
NEEDS: Final[tuple[Need, ...]] = get_args(Need)
_ALL: Final = frozenset(NEEDS)
_READING: Final = frozenset(one for one in NEEDS if one.endswith(".read"))
_ALWAYS: Final = frozenset[Need]({"key.read"})
"""To read about itself."""

SCOPES: Final[dict[str, frozenset[Need]]] = {
    "api.all": _ALL,
    "api.all.read": _READING,
    # To have models generate, in whatever way: what is stored of it is not read by that.
    "api.model.request": frozenset[Need]({"models.request", "responses.write", "models.read"}),
    "api.model.read": frozenset[Need]({"models.read"}),
    "models.read": frozenset[Need]({"models.read"}),
    "models.request": frozenset[Need]({"models.request"}),
    "responses.write": frozenset[Need]({"responses.write", "responses.read"}),
    "responses.read": frozenset[Need]({"responses.read"}),
    "conversations.write": frozenset[Need]({"conversations.write", "conversations.read"}),
    "conversations.read": frozenset[Need]({"conversations.read"}),
    "containers.write": frozenset[Need]({"containers.write", "containers.read"}),
    "containers.read": frozenset[Need]({"containers.read"}),
    "files.write": frozenset[Need]({"files.write", "files.read"}),
    "files.read": frozenset[Need]({"files.read"}),
}


def may(scopes: frozenset[str], need: Need) -> bool:
    """Return True if a key may do this: unknown scopes allow nothing, none allow all."""
    if not scopes or need in _ALWAYS:
        return True
    return any(need in SCOPES.get(scope, ()) for scope in scopes)
