"""The admin API of the shared database's tenants, on both listeners that may serve it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import openai
import pytest

from gateway.admin.operator_keys import OperatorCreate, Operators
from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.services.federation import KeySetPolicy, KeySets
from tests.fakes.gateway import RunningGateway, gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer


@dataclass(frozen=True)
class AdminSite:
    """Where both listeners are, and an admin key of the tenant `acme` and one of `globex`."""

    gateway: RunningGateway
    admin_url: str
    admin_key: str
    other_admin_key: str

    def client(self, admin_key: str | None = None) -> openai.AsyncOpenAI:
        """OpenAI's SDK on the admin listener."""
        return openai.AsyncOpenAI(
            api_key="unused",
            admin_api_key=admin_key or self.admin_key,
            base_url=f"{self.admin_url}/v1",
            max_retries=0,
            http_client=http_client(timeout=600),
        )

    def user(self, api_key: str) -> httpx2.AsyncClient:
        """A client of the data plane."""
        return http_client(self.gateway.url, headers={"authorization": f"Bearer {api_key}"})


@pytest.fixture(scope="session")
async def admin_settings(
    postgres: PostgresServer, template: str, backends: Backends
) -> AsyncIterator[Settings]:
    """With a database of its own: it has a tool that the shared gateway has not."""
    name = await postgres.create(template)
    yield gateway_settings(
        postgres.database_url(name),
        backends.urls,
        models=[
            {"id": "gpt-oss-20b", "aliases": ["small"]},
            {"id": "lab/gpt-oss-20b", "served_as": "gpt-oss-20b"},
        ],
        admin={"public": True},
        tools={"python": {"enabled": True, "engine": "monty"}},
        federation={"allowed_networks": ["127.0.0.0/8"], "plain_http": True, "public": False},
        server={"drain_grace_s": 1, "trusted_proxies": ["127.0.0.0/8"]},
    )
    await postgres.drop(name)


@pytest.fixture(scope="session")
async def site(admin_settings: Settings) -> AsyncIterator[AdminSite]:
    """One process, both listeners. It fetches unknown keys of issuers without a pause."""
    policy = KeySetPolicy(unknown_interval_s=0.001, retry_s=0.001)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.wiring.process.KeySets", partial(KeySets, policy=policy))
        async with (
            running_gateway(admin_settings) as gateway,
            serving(AdminGateway(gateway.process)) as admin_url,
        ):
            yield AdminSite(
                gateway,
                admin_url,
                await new_key(admin_settings, "acme", kind="admin"),
                await new_key(admin_settings, "globex", kind="admin"),
            )


@pytest.fixture
async def admin(site: AdminSite) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's SDK with an admin key of `acme`."""
    async with site.client() as opened:
        yield opened


@pytest.fixture
async def other_admin(site: AdminSite) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same for another tenant."""
    async with site.client(site.other_admin_key) as opened:
        yield opened


CANARY = "canary-5c2e"


@dataclass
class Desk:
    """An operator who looks at responses, and the owner and a user of the tenant they are of."""

    site: AdminSite
    operator: httpx2.AsyncClient
    owner: httpx2.AsyncClient
    user: httpx2.AsyncClient

    async def create(self, **options: Any) -> dict[str, Any]:
        body = {"model": "gpt-oss-20b", "input": CANARY, **options}
        made: dict[str, Any] = (await self.user.post("/v1/responses", json=body)).json()
        while made["status"] in {"queued", "in_progress"}:
            made = (await self.user.get(f"/v1/responses/{made['id']}")).json()
        return made

    async def allow(self, word: str | None) -> None:
        policy = {"policy": {"operator_content_access": word}}
        answer = await self.operator.post("/admin/v1/tenants/looked-into", json=policy)
        assert answer.is_success, answer.text

    async def get(self, made: dict[str, Any], what: str = "", status: int = 200) -> Any:
        answer = await self.operator.get(f"/admin/v1/responses/{made['id']}{what}")
        assert answer.status_code == status, answer.text
        return answer.json()

    async def reveal(self, made: dict[str, Any]) -> httpx2.Response:
        path = f"/admin/v1/responses/{made['id']}/reveal"
        return await self.operator.post(path, json={"reason": "ticket 12"})


@pytest.fixture
async def desk(site: AdminSite) -> AsyncIterator[Desk]:
    process, settings = site.gateway.process, site.gateway.process.foundation.settings
    operators = Operators(process.foundation.database, process.access.peppers)
    _, secret = await operators.create(COMMAND_LINE, OperatorCreate(name="anna"))
    own = await new_key(settings, "looked-into", kind="admin")
    key = await new_key(settings, "looked-into")
    async with (
        http_client(site.admin_url, headers={"authorization": f"Bearer {secret}"}) as operator,
        http_client(site.admin_url, headers={"authorization": f"Bearer {own}"}) as owner,
        site.user(key) as user,
    ):
        yield Desk(site, operator, owner, user)
