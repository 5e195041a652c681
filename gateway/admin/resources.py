"""Every resource of the admin planes: its service, and its routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.admin import (
    audit_log,
    data_controls,
    federation_rules,
    fleet,
    identity_providers,
    issuers,
    keys,
    ledger,
    limits,
    operator_keys,
    prices,
    projects,
    replays,
    responses,
    roles,
    service_accounts,
    spend_limits,
    tenants,
    usage,
)

if TYPE_CHECKING:
    from gateway.admin.data_controls import DataControls
    from gateway.admin.federation_rules import FederationRules
    from gateway.admin.fleet import Fleet
    from gateway.admin.identity_providers import IdentityProviders
    from gateway.admin.issuers import OperatorIssuers
    from gateway.admin.keys import Keys
    from gateway.admin.ledger import Ledger
    from gateway.admin.limits import Limits
    from gateway.admin.operator_keys import Operators
    from gateway.admin.prices import Prices
    from gateway.admin.projects import Projects
    from gateway.admin.replays import Replays
    from gateway.admin.responses import StoredResponses
    from gateway.admin.routes import AdminRoute
    from gateway.admin.service_accounts import ServiceAccounts
    from gateway.admin.spend_limits import LimitStates, SpendLimits
    from gateway.admin.tenants import Tenants
    from gateway.admin.usage import UsageReports
    from gateway.services.audit_logs import AuditLogs
    from gateway.store.postgres.database import Database


@dataclass(frozen=True, slots=True)
class AdminServices:
    projects: Projects
    service_accounts: ServiceAccounts
    keys: Keys
    identity_providers: IdentityProviders
    federation_rules: FederationRules
    limits: Limits
    spend_limits: SpendLimits
    usage: UsageReports
    audit: AuditLogs
    data_controls: DataControls


@dataclass(frozen=True, slots=True)
class OperatorServices:
    tenants: Tenants
    fleet: Fleet
    operators: Operators
    issuers: OperatorIssuers
    prices: Prices
    ledger: Ledger
    limit_states: LimitStates
    database: Database
    responses: StoredResponses
    replays: Replays
    audit: AuditLogs


def admin_routes(services: AdminServices) -> list[AdminRoute]:
    return [
        *projects.routes(services.projects),
        *service_accounts.routes(services.service_accounts),
        *keys.routes(services.keys),
        *identity_providers.routes(services.identity_providers),
        *federation_rules.routes(services.federation_rules),
        *limits.routes(services.limits),
        *spend_limits.routes(services.spend_limits, services.limits),
        *usage.routes(services.usage),
        *audit_log.routes(services.audit),
        *data_controls.routes(services.data_controls),
        *roles.routes(services.projects),
    ]


def operator_routes(services: OperatorServices) -> list[AdminRoute]:
    return [
        *tenants.routes(services.tenants),
        *fleet.routes(services.fleet),
        *operator_keys.routes(services.operators),
        *issuers.routes(services.issuers),
        *prices.routes(services.prices),
        *ledger.routes(services.ledger),
        *spend_limits.operator_routes(services.limit_states),
        *responses.routes(services.responses, services.database),
        *replays.routes(services.replays),
        *audit_log.operator_routes(services.audit, services.tenants),
    ]
