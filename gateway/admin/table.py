"""Every route of the admin planes. A new resource adds its `routes` here, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.admin import (
    directory,
    governance,
    inspection,
    issuers,
    keys,
    ledger,
    limits,
    operator_keys,
    operators,
    prices,
    projects,
    service_accounts,
    tenant_data,
    usage,
)

if TYPE_CHECKING:
    from gateway.admin.routes import AdminRoute
    from gateway.admin.services import AdminServices, OperatorServices


def admin_routes(services: AdminServices) -> list[AdminRoute]:
    return [
        *projects.routes(services.projects),
        *service_accounts.routes(services.service_accounts),
        *keys.routes(services.keys),
        *issuers.routes(services.identity_providers),
        *limits.routes(services.limits),
        *usage.routes(services.usage),
        *governance.routes(services.audit, services.retention),
        *directory.routes(services.projects),
    ]


def operator_routes(services: OperatorServices) -> list[AdminRoute]:
    return [
        *operators.routes(services.operations),
        *operator_keys.routes(services.operators),
        *issuers.operator_routes(services.issuers),
        *tenant_data.routes(services.operations),
        *prices.routes(services.prices),
        *ledger.routes(services.ledger),
        *inspection.routes(services.inspection, services.audit, services.operations),
    ]
