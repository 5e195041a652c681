"""The services of the admin API, from the settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gateway.services.admin.keys import KeyPolicy, Keys
from gateway.services.admin.projects import Projects
from gateway.services.admin.service_accounts import ServiceAccounts
from gateway.services.admin.services import AdminServices
from gateway.services.admin.transactions import Transactions
from gateway.services.usage import UsageReports

if TYPE_CHECKING:
    from gateway.services.access import Access
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database


def admin_services(settings: Settings, database: Database, access: Access) -> AdminServices:
    """Of the tenants of one database; `access` is told of what changes."""
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
        usage=UsageReports(
            database,
            minutes_s=settings.ledger.minutes_s,
            rows_max=settings.ledger.results_max,
            clock=time.time,
        ),
    )
