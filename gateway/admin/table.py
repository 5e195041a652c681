"""Every route of the admin planes. A new resource adds its `routes` here, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.admin import (
    audit_log,
    backends,
    data_retention,
    inspection,
    issuers,
    keys,
    ledger,
    limits,
    operator_keys,
    prices,
    projects,
    roles,
    service_accounts,
    tenants,
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
        *audit_log.routes(services.audit),
        *data_retention.routes(services.retention),
        *roles.routes(services.projects),
    ]


def operator_routes(services: OperatorServices) -> list[AdminRoute]:
    return [
        *tenants.routes(services.tenants),
        *backends.routes(services.backends),
        *operator_keys.routes(services.operators),
        *issuers.operator_routes(services.issuers),
        *prices.routes(services.prices),
        *ledger.routes(services.ledger),
        *inspection.routes(services.database),
        *audit_log.operator_routes(services.audit, services.tenants),
    ]
