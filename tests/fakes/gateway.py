"""The gateway on a real socket, with a real database and real backends, in this event loop."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from gateway.admin.tenants import Tenants
from gateway.app import create_app
from gateway.audit import COMMAND_LINE
from gateway.replication import limiter
from gateway.retention.tenant_data import TenantData
from gateway.services.access import Access
from gateway.settings import Settings
from gateway.settings.sections import Backend
from gateway.settings.sections import Database as DatabaseSettings
from gateway.store.postgres.database import Database
from gateway.upstreams.routing import exchange
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Any

    from gateway.tenancy import Dialect, KeyKind
    from gateway.tenancy.policy import PolicyChanges
    from gateway.wiring.process import Process

PEPPER = "pepper-of-the-tests-only"
ANSWER_WITHIN_S = 60.0


@dataclass(frozen=True)
class RunningGateway:
    """Where it listens, a key of its first tenant, and what serves behind it."""

    url: str
    key: str
    process: Process

    @property
    def headers(self) -> dict[str, str]:
        """What authenticates the first tenant."""
        return {"authorization": f"Bearer {self.key}"}

    @property
    def tenants(self) -> Tenants:
        return tenants_of(self.process.foundation.database, self.process.access)


def tenants_of(database: Database, access: Access) -> Tenants:
    return Tenants(database, access, TenantData(database))


def gateway_settings(database_url: str, backends: Sequence[str], **sections: Any) -> Settings:
    """Settings for tests: `backends` are URLs, `sections` override single sections."""
    database = DatabaseSettings(url=SecretStr(database_url), pool_size_max=8)
    return Settings.model_validate(
        {
            "database": database,
            "auth": {"key_pepper": SecretStr(PEPPER)},
            "backends": [Backend(name=f"b{i}", url=url) for i, url in enumerate(backends)],
            "server": {"drain_grace_s": 1},
            **sections,
        }
    )


@asynccontextmanager
async def running_gateway(settings: Settings) -> AsyncIterator[RunningGateway]:
    """The gateway of `settings`, with a tenant `acme`."""
    app = create_app(settings)
    with pytest.MonkeyPatch.context() as patch:
        # Where many tests run, a slow answer does not say that the database is away.
        for module in (limiter, exchange):
            patch.setattr(module, "WAIT_MAX_S", ANSWER_WITHIN_S)
        async with serving(app, connections_max=settings.server.connections_max) as url:
            yield RunningGateway(url, await new_key(settings, "acme"), app.process)


async def new_key(
    settings: Settings,
    tenant: str,
    policy: PolicyChanges | None = None,
    *,
    dialect: Dialect = "openai",
    kind: KeyKind = "project",
) -> str:
    """A key for a tenant, which is made where there is none yet, with this policy."""
    assert settings.database.url is not None
    database = Database(
        settings.database.url.get_secret_value(),
        pool_size_max=2,
        command_timeout_s=30,
        connect_timeout_s=30,
    )
    try:
        tenants = tenants_of(database, Access(database, PEPPER.encode(), 5, 100))
        if tenant not in {known.name for known in await tenants.list()}:
            await tenants.create(COMMAND_LINE, tenant)
        if policy is not None:
            await tenants.set_policy(COMMAND_LINE, tenant, policy)
        _, secret = await tenants.create_key(
            COMMAND_LINE, tenant, "test", dialect=dialect, kind=kind
        )
    finally:
        await database.close()
    return secret
