"""Every route of the admin planes. A new resource adds its `routes` here, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.api.admin import (
    federation,
    governance,
    keys,
    ledger,
    limits,
    operators,
    projects,
    service_accounts,
    usage,
)

if TYPE_CHECKING:
    from gateway.api.admin.routes import AdminRoute
    from gateway.services.admin.operations import Operations
    from gateway.services.admin.services import AdminServices
    from gateway.services.ledger import LedgerOperations


def admin_routes(services: AdminServices) -> list[AdminRoute]:
    """Those of the plane of tenants, for the tenants of one database."""
    return [
        *projects.routes(services.projects),
        *service_accounts.routes(services.service_accounts, services.keys),
        *keys.routes(services.keys),
        *federation.routes(services.identity_providers),
        *limits.routes(services.limits),
        *usage.routes(services.usage),
        *governance.routes(services.audit, services.retention),
    ]


def operator_routes(operations: Operations, usage_of_all: LedgerOperations) -> list[AdminRoute]:
    """Those of the plane of operators."""
    return [*operators.routes(operations), *ledger.routes(usage_of_all)]
