from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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
from gateway.admin.resources import AdminServices, OperatorServices
from gateway.admin.responses import StoredResponses
from gateway.admin.service_accounts import ServiceAccounts
from gateway.admin.spend_limits import LimitStates, SpendLimits
from gateway.admin.tenants import Tenants
from gateway.admin.transactions import Ownership, Transactions
from gateway.admin.usage import UsageReports
from gateway.errors import StartupError, installation
from gateway.ledger.jobs import Adding, Reconciliation
from gateway.retention.tenant_data import TenantData
from gateway.services.audit_logs import AuditLogs
from gateway.services.runs.regeneration import Regenerator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.api.request_body import BodyReader
    from gateway.console.application import Console
    from gateway.services.access import Access
    from gateway.services.models import Models
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import Network
    from gateway.wiring.process import Process


def admin_services(
    settings: Settings, database: Database, access: Access, models: Models | None = None
) -> AdminServices:
    transactions = Transactions(database, access.forget)
    accounts = ServiceAccounts(transactions)
    return AdminServices(
        projects=Projects(transactions),
        service_accounts=accounts,
        keys=Keys(
            transactions, accounts, access.peppers, lifetime_max_s=settings.admin.key_lifetime_max_s
        ),
        identity_providers=IdentityProviders(transactions),
        federation_rules=FederationRules(transactions),
        limits=Limits(
            database,
            settings.model_aliases,
            models=lambda: [] if models is None else [model.id for model in models.list()],
            forget=access.forget,
        ),
        spend_limits=SpendLimits(database, access.forget),
        usage=UsageReports(database, settings.ledger),
        audit=AuditLogs(database),
        data_controls=DataControls(transactions),
    )


def ledger_of(settings: Settings, database: Database, metrics: Metrics) -> Ledger:
    adding = Adding(database, minutes_s=settings.ledger.minutes_s, metrics=metrics)
    return Ledger(database, adding, Reconciliation(database, metrics=metrics))


def tenants(settings: Settings, database: Database, access: Access) -> Tenants:
    data = TenantData(database, end_user_secret=settings.cache_salt_key)
    return Tenants(database, access, data)


def operator_services(process: Process) -> OperatorServices:
    foundation = process.foundation
    settings, database = foundation.settings, foundation.database
    engine = process.replica.dependencies.engine
    stored = StoredResponses(
        database,
        process.replica.dependencies.live_logs,
        process.replica.feed,
        cancel=process.replica.dependencies.archive.cancel,
        new_fold_for=foundation.new_fold_for,
        format_of=foundation.formats.for_model,
    )
    return OperatorServices(
        tenants=tenants(settings, database, process.access),
        fleet=Fleet(
            database,
            foundation.pool,
            process.health,
            process.replica.snapshots,
            replica=foundation.owner,
            # Secrets are of a type that is written as stars.
            settings=lambda: foundation.settings.model_dump(mode="json"),
        ),
        operators=Operators(database, process.access.peppers),
        issuers=OperatorIssuers(database, process.access.forget),
        prices=Prices(database, settings.model_aliases),
        ledger=ledger_of(settings, database, foundation.metrics),
        limit_states=LimitStates(
            Limits(database, settings.model_aliases),
            SpendLimits(database),
            process.replica.limiter.figures,
        ),
        database=database,
        responses=stored,
        replays=Replays(
            stored,
            process.rebuilder,
            Regenerator(
                foundation.pool,
                foundation.formats.for_model,
                foundation.executor,
                refusals=engine.guard_limits.refusals,
            ),
            pool=foundation.pool,
            new_fold_for=foundation.new_fold_for,
            executor=foundation.executor,
        ),
        audit=AuditLogs(database),
    )


def console(
    app: Any,
    process: Process,
    services: OperatorServices,
    bodies: BodyReader,
    *,
    public: Any,
    trusted_proxies: Sequence[Network],
) -> Console:
    """Build the console in front of `app`; `public` is the application that clients reach."""
    if find_spec("jinja2") is None:
        raise StartupError(
            "the console needs what is not installed: jinja2",
            remedy=f"Install it, in a checkout: {installation('console')}. Or set console.enabled "
            "to false.",
        )
    from gateway.console.application import FORM_BYTES_MAX, Console
    from gateway.console.login_sessions import Sessions
    from gateway.console.page import Services
    from gateway.console.playground import Playground, PlaygroundKeys
    from gateway.services.sign_in import SignIn

    base = process.foundation
    chosen = base.settings.console.sign_in
    tenant = admin_services(base.settings, base.database, process.access, process.models)
    sessions = Sessions(base.database, process.access.peppers)
    return Console(
        app,
        Services(
            services,
            tenant,
            sessions,
            Ownership(base.database),
            api_port=base.settings.server.port,
            models=lambda: [model.id for model in process.models.list()],
            is_ending=lambda: process.replica.dependencies.supervisor.is_draining,
            playground=Playground(public, PlaygroundKeys(tenant.keys), process.tool_grants.served),
        ),
        replace(bodies, own_bytes_max=FORM_BYTES_MAX),
        name=base.settings.console.name,
        public_url=base.settings.console.public_url,
        sign_in=None if chosen.issuer is None else SignIn(chosen, process.federation.key_sets),
        trusted_proxies=trusted_proxies,
    )
