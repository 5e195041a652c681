"""The services of the admin API, from the settings."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from gateway.admin.backends import Backends
from gateway.admin.data_retention import RetentionControls
from gateway.admin.issuers import IdentityProviders, OperatorIssuers
from gateway.admin.keys import KeyPolicy, Keys
from gateway.admin.limits import ProjectLimits
from gateway.admin.operator_keys import Operators
from gateway.admin.projects import Projects
from gateway.admin.service_accounts import ServiceAccounts
from gateway.admin.services import AdminServices, OperatorServices
from gateway.admin.tenants import Tenants
from gateway.admin.transactions import Transactions
from gateway.retention.tenant_data import TenantData
from gateway.services.audit_logs import AuditLogs
from gateway.services.ledger import LedgerOperations
from gateway.services.limits import Limits
from gateway.services.usage import UsageReports
from gateway.wiring.ledger import adding, reconciliation

if TYPE_CHECKING:
    from gateway.services.access import Access
    from gateway.services.models import Models
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.wiring.foundation import Foundation
    from gateway.wiring.process import Process


def admin_services(
    settings: Settings, database: Database, access: Access, models: Models | None = None
) -> AdminServices:
    """Build the admin services of tenants; after changes they call `access.forget`.

    A command knows no backends, and has no `models`: limits are then shown for no model.
    """
    admin = settings.admin
    transactions = Transactions(database, access.forget)
    accounts = ServiceAccounts(transactions, accounts_max=admin.service_accounts_max)
    policy = KeyPolicy(
        keys_max=admin.keys_max,
        lifetime_max_s=admin.key_lifetime_max_s,
        overlap_s=admin.key_overlap_s,
    )
    return AdminServices(
        projects=Projects(transactions, projects_max=admin.projects_max),
        service_accounts=accounts,
        keys=Keys(transactions, accounts, access.peppers, policy),
        identity_providers=IdentityProviders(transactions),
        limits=ProjectLimits(
            transactions,
            Limits(database, settings.model_aliases),
            models=lambda: [] if models is None else [model.id for model in models.list()],
            forget=access.forget,
        ),
        usage=UsageReports(
            database,
            minutes_s=settings.ledger.minutes_s,
            hours_s=settings.ledger.hours_s,
            clock=time.time,
        ),
        audit=AuditLogs(database),
        retention=RetentionControls(database, transactions, access.forget),
    )


def ledger_operations(process: Process) -> LedgerOperations:
    foundation = process.services.foundation
    return ledger_of(foundation)


def ledger_of(foundation: Foundation) -> LedgerOperations:
    """Build the ledger's operations without a `Process`, for commands."""
    database, metrics = foundation.database, foundation.metrics
    return LedgerOperations(
        database,
        adding(foundation.settings, database, metrics),
        reconciliation(database, metrics, foundation.new_fold_for),
    )


def operator_services(process: Process) -> OperatorServices:
    settings, shared = process.shared.settings, process.shared
    database = process.services.foundation.database
    data = TenantData(database, end_user_secret=settings.cache_salt_key)
    return OperatorServices(
        tenants=Tenants(process.access, data),
        backends=Backends(
            database,
            shared.pool,
            replica=shared.owner,
            # Secrets are of a type that is written as stars.
            settings=partial(settings.model_dump, mode="json"),
        ),
        operators=Operators(database, process.access.peppers),
        issuers=operator_issuers(database, process.access),
        prices=Limits(database, settings.model_aliases),
        ledger=ledger_operations(process),
        database=database,
        audit=AuditLogs(database),
    )


def operator_issuers(database: Database, access: Access) -> OperatorIssuers:
    # `access` forgets its decisions when an issuer changes.
    return OperatorIssuers(database, access.forget)
