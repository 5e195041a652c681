"""The services of the admin API, from the settings."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from gateway.admin.data_retention import RetentionControls
from gateway.admin.federation import IdentityProviders
from gateway.admin.inspection import Inspection
from gateway.admin.issuers import OperatorIssuers
from gateway.admin.keys import Keys
from gateway.admin.limits import ProjectLimits
from gateway.admin.operations import Operations
from gateway.admin.operator_keys import Operators
from gateway.admin.projects import Projects
from gateway.admin.service_accounts import ServiceAccounts
from gateway.admin.services import AdminServices, OperatorServices
from gateway.admin.transactions import Transactions
from gateway.services.governance.audit import AuditLogs, project_names
from gateway.services.governance.tenant_data import TenantData
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
    transactions = Transactions(database, access.forget)
    accounts = ServiceAccounts(transactions)
    return AdminServices(
        projects=Projects(transactions),
        service_accounts=accounts,
        keys=Keys(
            transactions,
            accounts,
            access.peppers,
            lifetime_max_s=settings.admin.key_lifetime_max_s,
        ),
        identity_providers=IdentityProviders(transactions),
        limits=ProjectLimits(
            transactions,
            Limits(database, settings.model_aliases),
            models=lambda: [] if models is None else [model.id for model in models.list()],
            forget=access.forget,
        ),
        usage=UsageReports(database, ledger=settings.ledger, clock=time.time),
        audit=AuditLogs(database, project_names(database)),
        retention=RetentionControls(database, transactions, access.forget),
    )


def ledger_of(foundation: Foundation) -> LedgerOperations:
    # Also for commands, which have no `Process`.
    return LedgerOperations(foundation.database, adding(foundation), reconciliation(foundation))


def operator_services(process: Process) -> OperatorServices:
    foundation, access = process.services.foundation, process.access
    settings, database = foundation.settings, foundation.database
    return OperatorServices(
        operations=Operations(
            access,
            database,
            foundation.pool,
            TenantData(database, end_user_secret=settings.cache_salt_key),
            Limits(database, settings.model_aliases),
            replica=foundation.owner,
            # Secrets are of a type that is written as stars.
            settings=partial(settings.model_dump, mode="json"),
        ),
        operators=Operators(database, access.peppers),
        issuers=OperatorIssuers(database, access.forget),
        ledger=ledger_of(foundation),
        inspection=Inspection(database),
        audit=AuditLogs(database, project_names(database)),
    )
