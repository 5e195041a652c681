"""Services of the admin planes: of the tenants of one database, and of operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.admin.backends import Backends
    from gateway.admin.data_retention import RetentionControls
    from gateway.admin.issuers import IdentityProviders, OperatorIssuers
    from gateway.admin.keys import Keys
    from gateway.admin.ledger import Ledger
    from gateway.admin.limits import Limits
    from gateway.admin.operator_keys import Operators
    from gateway.admin.prices import Prices
    from gateway.admin.projects import Projects
    from gateway.admin.service_accounts import ServiceAccounts
    from gateway.admin.tenants import Tenants
    from gateway.admin.usage import UsageReports
    from gateway.services.audit_logs import AuditLogs
    from gateway.store.postgres.database import Database


@dataclass(frozen=True, slots=True)
class AdminServices:
    """Services of the resources of tenants, one for each."""

    projects: Projects
    service_accounts: ServiceAccounts
    keys: Keys
    identity_providers: IdentityProviders
    limits: Limits
    usage: UsageReports
    audit: AuditLogs
    retention: RetentionControls


@dataclass(frozen=True, slots=True)
class OperatorServices:
    """Services of the plane of operators."""

    tenants: Tenants
    backends: Backends
    operators: Operators
    issuers: OperatorIssuers
    prices: Prices
    ledger: Ledger
    database: Database
    audit: AuditLogs
