"""A gateway with a console, backends and some days of work behind it, as browsers are shown it."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.admin.keys import AccountKeyCreate
from gateway.admin.limits import LimitOwner
from gateway.admin.prices import PriceCreate
from gateway.admin.projects import ProjectCreate
from gateway.admin.transactions import AdminCaller
from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.console.login_sessions import Sessions, login_url
from gateway.console.pages import PAGES
from gateway.ledger.jobs import Adding
from gateway.store import usage_lines
from gateway.wiring.admin import admin_services, operator_services
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.usage_lines import random_line
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.limits.money import Component
    from gateway.tenancy.permissions import OperatorRole
    from tests.fakes.gateway import RunningGateway

MODELS: Final = ("gpt-oss-20b", "gpt-oss-120b")
PRICE: Final[dict[Component, int]] = {"input": 50, "output": 250}
DAYS: Final = 6
LINES: Final = 240
SLOW_BACKEND: Final = "b1"
SLOW_TOKENS_PER_S: Final = 12.0


@dataclass(frozen=True)
class Showcase:
    """Where it is, who serves it, and a key of the tenant `acme` and its project."""

    gateway: RunningGateway
    admin_url: str
    key: str
    project_id: str
    response_id: str
    conversation_id: str

    def paths(self) -> dict[str, str]:
        """Of every page, by a name for its picture."""
        place = {
            "name": "acme",
            "project_id": self.project_id,
            "response_id": self.response_id,
            "conversation_id": self.conversation_id,
        }
        found = {}
        for page in PAGES:
            if page.template and not page.path.endswith(("/search", ".csv")):
                name = re.sub(r"/\{\w+\}", "-one", page.path)
                found[name.strip("/").replace("/", "-")] = page.path.format(**place)
        return found

    @property
    def sessions(self) -> Sessions:
        process = self.gateway.process
        return Sessions(process.foundation.database, process.access.peppers)

    async def login_url(self, role: OperatorRole = "owner", name: str = "Ada Lovelace") -> str:
        return login_url(self.admin_url, await self.sessions.create_link(name, role))

    def client(self, key: str | None = None) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {key or self.key}"}
        return http_client(self.gateway.url, headers=headers, timeout=120)

    async def generate(self, **fields: Any) -> httpx2.Response:
        body = {"model": MODELS[0], "input": "Tell me of the sea.", **fields}
        async with self.client() as client:
            return await client.post("/v1/responses", json=body)


@asynccontextmanager
async def showcase(database_url: str, **sections: Any) -> AsyncIterator[Showcase]:
    fast = create_simulator(WaywardOptions(name="b0", models=MODELS))
    slow = create_simulator(
        WaywardOptions(name=SLOW_BACKEND, models=MODELS, tokens_per_s=SLOW_TOKENS_PER_S)
    )
    async with serving(fast) as first, serving(slow) as second:
        settings = gateway_settings(
            database_url,
            [first, second, "http://127.0.0.1:9"],
            models=[{"id": model} for model in MODELS],
            admin={"port": 0},
            console={"enabled": True},
            **sections,
        )
        async with (
            running_gateway(settings) as gateway,
            serving(AdminGateway(gateway.process)) as admin_url,
        ):
            fleet = operator_services(gateway.process).fleet
            # What is to be there already need not come slowly.
            await fleet.drain(COMMAND_LINE, SLOW_BACKEND)
            key, project_id = await _populate(gateway)
            shown = await _talk(gateway, key)
            await fleet.undrain(COMMAND_LINE, SLOW_BACKEND)
            yield Showcase(gateway, admin_url, key, project_id, *shown)


async def _populate(gateway: RunningGateway) -> tuple[str, str]:
    """Return a key of the tenant `acme`, and the id of its project."""
    process = gateway.process
    base = process.foundation
    operators = operator_services(process)
    services = admin_services(base.settings, base.database, process.access, process.models)
    for name in ("globex", "initech", "umbrella"):
        await operators.tenants.create(COMMAND_LINE, name)
    await operators.tenants.disable(COMMAND_LINE, "umbrella")
    await operators.tenants.set_policy(COMMAND_LINE, "acme", {"background_running_max": 16})
    acme = (await operators.tenants.get("acme")).tenant.id
    for model in MODELS:
        await operators.prices.set(COMMAND_LINE, PriceCreate(model=model, nano_per_unit=PRICE))
    caller = AdminCaller(acme)
    project = await services.projects.create(caller, ProjectCreate(name="Checkout assistant"))
    project_id = ids.project_id(project.id)
    made = None
    for name in ("checkout-prod", "checkout-staging"):
        body = AccountKeyCreate(name=name)
        _, made = await services.keys.create_account(caller, project_id, name, body)
    assert made is not None
    owner = await services.limits.of_project(acme, project_id)
    await services.limits.set_limits(owner, {("requests", 60): 600, ("tokens", 60): 250_000})
    await services.spend_limits.set_budget(owner, 250 * 10**9)
    await services.limits.set_limits(LimitOwner.of_tenant(acme), {("requests", 60): 6_000})
    await _use(gateway, acme, project.id, made.key.id)
    return made.secret or "", project_id


async def _talk(gateway: RunningGateway, key: str) -> tuple[str, str]:
    """Return the ids of a background response and of a conversation."""
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(gateway.url, headers=headers, timeout=120) as client:
        opened = (await client.post("/v1/conversations", json={})).json()["id"]
        for text in ("What is the sea?", "And its salt?", "How deep is it?"):
            body = {"model": MODELS[0], "input": text, "conversation": opened}
            await client.post("/v1/responses", json=body)
        asked = {"model": MODELS[0], "input": "Tell me of the sea.", "background": True}
        made = (await client.post("/v1/responses", json=asked)).json()
        while made["status"] in {"queued", "in_progress"}:
            made = (await client.get(f"/v1/responses/{made['id']}")).json()
    return made["id"], opened


async def _use(gateway: RunningGateway, acme: Any, project: Any, key_id: Any) -> None:
    process, chance = gateway.process, random.Random(7)
    base = process.foundation
    start = datetime.now(UTC) - timedelta(days=DAYS)
    lines = [
        replace(
            random_line(chance, start=start, span_s=DAYS * 86_400),
            project_id=chance.choice((project, None)),
            key_id=key_id,
        )
        for _ in range(LINES)
    ]
    await usage_lines.record_all(base.database, [(acme, line) for line in lines])
    await Adding(base.database, metrics=base.metrics).round()
    async with http_client(gateway.url, headers=gateway.headers, timeout=120) as client:
        bodies = [
            {"model": MODELS[index % 2], "input": f"Question {index}", "max_output_tokens": 64}
            for index in range(10)
        ]
        bodies += [{**body, "background": True} for body in bodies[:3]]
        answers = [client.post("/v1/responses", json=body) for body in bodies]
        await asyncio.gather(*answers)
