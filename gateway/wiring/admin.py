"""The services of the admin API, from the settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

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
from gateway.admin.services import AdminServices, OperatorServices
from gateway.admin.tenants import Tenants
from gateway.admin.transactions import Transactions
from gateway.admin.usage import UsageReports
from gateway.ledger.jobs import Reconciliation
from gateway.retention.tenant_data import TenantData
from gateway.services.audit_logs import AuditLogs
from gateway.wiring.ledger import adding

if TYPE_CHECKING:
    from gateway.services.access import Access
    from gateway.services.models import Models
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
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
    return AdminServices(
        projects=Projects(transactions, projects_max=admin.projects_max),
        service_accounts=accounts,
        keys=Keys(transactions, accounts, access.peppers, admin),
        identity_providers=IdentityProviders(transactions),
        limits=Limits(
            database,
            settings.model_aliases,
            models=lambda: [] if models is None else [model.id for model in models.list()],
            forget=access.forget,
        ),
        usage=UsageReports(
            database,
            minutes_s=settings.ledger.minutes_s,
            hours_s=settings.ledger.hours_s,
        ),
        audit=AuditLogs(database),
        retention=RetentionControls(database, transactions, access.forget),
    )


def ledger_of(settings: Settings, database: Database, metrics: Metrics) -> Ledger:
    reconciliation = Reconciliation(database, metrics=metrics)
    return Ledger(database, adding(settings, database, metrics), reconciliation)


def operator_services(process: Process) -> OperatorServices:
    settings, shared = process.shared.settings, process.shared
    foundation = process.services.foundation
    database = foundation.database
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
        prices=Prices(database, settings.model_aliases),
        ledger=ledger_of(settings, database, foundation.metrics),
        database=database,
        audit=AuditLogs(database),
    )


def operator_issuers(database: Database, access: Access) -> OperatorIssuers:
    # `access` forgets its decisions when an issuer changes.
    return OperatorIssuers(database, access.forget)
