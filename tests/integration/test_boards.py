"""Prometheus beside two replicas under a small load: every expression of the boards has data.

Grafana asks Prometheus for just these. Rates and rules need samples, so it takes a minute.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient

from tests.fakes.boards import asked, rules
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.fakes.hosted_gateway import hosted_gateway
from tests.fakes.processes import Child, gateway_process, reserved_port, simulator_process, stopped
from tests.fakes.prometheus import PROGRAM, prometheus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.fakes.hosted_gateway import HostedGateway
    from tests.fakes.processes import GatewayProcess
    from tests.fakes.prometheus import Prometheus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed; Debian has it"),
]

MODEL: Final = "gpt-oss-20b"
TENANTS: Final = ("acme", "busy", "small")
NAMED: Final = 2
"""So that one of them is among the others."""
ROUNDS: Final = 4
STREAMS: Final = 12
SECOND: Final = "[[sim tokens=40 tokens_per_s=40]] go on"
LONG: Final = "[[sim tokens=600 tokens_per_s=60 think=none]] go on"
SLOTS: Final = 2
"""Of each backend, so that requests wait and some are refused."""
RATE: Final = "10s"
"""What rates are taken over: some samples, as Grafana chooses it."""
SECTIONS: Final[dict[str, Any]] = {
    "admission": {"slots_max": SLOTS, "queue_length_max": STREAMS // 2},
    "background": {"lease_s": 2},
    "telemetry": {"tenant_label_max": NAMED},
    "ledger": {"sinks": [{"name": "billing", "url": "http://127.0.0.1:9/"}]},
}
"""The sink cannot be reached."""
QUIET: Final = frozenset(
    {
        "Budgets corrected in the time shown",
        "Calls that came to a bound",
        "Connections in use",
        "Disagreements",
        "Drained",
        "Errors",
        "Late first tokens, last hour",
        "Lists of tools",
        "Not committed yet",
        "Results that were cut",
        "Slow commits, last hour",
        "Storage",
        "Usage that is in no sum",
        "Would be refused",
        "Wrong expectations",
    }
)
"""Panels of what need not happen here, or not when Prometheus looks: they may be 0 all the time."""
COMMANDS: Final = (
    ("prices", "set", MODEL, "--input", "1", "--output", "4"),
    ("limits", "set", "busy", "--requests-per-minute", "5"),
    ("budgets", "set", "small", "--usd", "0.0004"),
)


@dataclass(frozen=True)
class Fleet:
    """Two replicas, the first with tools, and clients of each tenant at the first."""

    hosted: HostedGateway
    second: GatewayProcess
    clients: dict[str, AsyncOpenAI]
    keys: dict[str, str]


@pytest.fixture
async def fleet(database_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    settings = gateway_settings(database_url, [])
    keys = {tenant: await new_key(settings, tenant) for tenant in TENANTS}
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        backends = [stack.enter_context(simulator_process(port)).url for port in ports]
        first, discovered = backends
        file = tmp_path / "backends.yaml"
        listed = {"backends": [{"name": "discovered", "url": discovered}]}
        file.write_text(json.dumps(listed), encoding="utf-8")
        sections = {**SECTIONS, "discovery": [{"name": "more", "kind": "file", "path": str(file)}]}
        hosted = stack.enter_context(hosted_gateway(tmp_path, database_url, first, **sections))
        other = tmp_path / "second"
        other.mkdir()
        second = stack.enter_context(
            gateway_process(other, database_url, [first], **hosted.sections)
        )
        for command in COMMANDS:
            run(database_url, *command)
        async with AsyncExitStack() as opened:
            clients = {
                tenant: await opened.enter_async_context(client(hosted.gateway, key))
                for tenant, key in keys.items()
            }
            yield Fleet(hosted, second, clients, keys)


def client(gateway: GatewayProcess, key: str) -> AsyncOpenAI:
    http_client = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(
        base_url=gateway.base_url, api_key=key, max_retries=0, http_client=http_client
    )


def run(database_url: str, *command: str) -> None:
    environ = {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    with stopped(Child(command, environ)) as child:
        assert child.exit_code() == 0, child.output


async def ask(client: AsyncOpenAI, text: str, **more: Any) -> str:
    """The id of the response; empty if the gateway or a backend refuses."""
    with suppress(APIError):
        return str((await client.responses.create(model=MODEL, input=text, **more)).id)
    return ""


async def begin(gateway: GatewayProcess, key: str, text: str) -> str:
    """The id of a response in background, whose stream is left at once."""
    async with client(gateway, key) as leaving:
        events = await leaving.responses.create(
            model=MODEL, input=text, background=True, stream=True
        )
        async with events:
            created = await anext(events)
    assert created.type == "response.created"
    return str(created.response.id)


async def a_round(fleet: Fleet, number: int) -> None:
    """What users do in some seconds: streams, turns that follow, tools, faults of backends."""
    acme, busy, small = fleet.clients.values()
    first = await ask(acme, f"{number} {SECOND}")
    shop: Any = {
        "type": "mcp",
        "server_label": "shop",
        "server_url": fleet.hosted.tool_server_url,
        "require_approval": "never",
    }
    python: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
    search: Any = {"type": "web_search"}
    forbidden = "[[sim steps=open http://127.0.0.1:9/; say ok]]"
    await asyncio.gather(
        ask(acme, f"more {SECOND}", previous_response_id=first or None),
        ask(acme, "lamp [[sim steps=search lamp; open first; cite]]", tools=[search]),
        ask(acme, forbidden, tools=[search]),
        ask(acme, "[[sim steps=python print(6 * 7); quote]]", tools=[python]),
        ask(acme, '[[sim steps=mcp shop.add {"a": 20, "b": 22}; quote]]', tools=[shop]),
        ask(acme, f"{number} [[sim die_after=5 times=1 tokens=20]] go on"),
        ask(acme, f"{number} [[sim attack=loop:3 times=1]] go on"),
        ask(acme, f"{number} [[sim attack=header times=1]] go on"),
    )
    await asyncio.gather(
        *(ask(acme, f"{number} {SECOND}") for _ in range(STREAMS)),
        *(ask(busy, f"{number} {SECOND}") for _ in range(3)),
        ask(small, f"{number} {SECOND}"),
        resumed(fleet, number),
    )


async def resumed(fleet: Fleet, number: int) -> None:
    """A background response at one replica, followed at the other."""
    began = await begin(fleet.second, fleet.keys["acme"], f"{number} {SECOND}")
    async for _ in await fleet.clients["acme"].responses.retrieve(began, stream=True):
        pass


async def taken_over(fleet: Fleet) -> None:
    """A replica dies in the middle of a response, and the other one ends it."""
    began = await begin(fleet.second, fleet.keys["acme"], LONG)
    events = await fleet.clients["acme"].responses.retrieve(began, stream=True)
    seen = [(await anext(events)).type for _ in range(10)]
    await asyncio.to_thread(fleet.second.child.kill)
    seen += [event.type async for event in events]
    assert seen[-1] == "response.completed"


@pytest.fixture
async def watched(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Prometheus]:
    """Prometheus, after the load."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    targets = [urlsplit(one.url).netloc for one in (fleet.hosted.gateway, fleet.second)]
    with prometheus(folder, targets) as running:
        for number in range(ROUNDS):
            await a_round(fleet, number)
        await taken_over(fleet)
        yield running


async def test_every_panel_has_data_and_every_rule_is_evaluated(watched: Prometheus) -> None:
    # Whether an alert fires by now depends on how fast the machine is; pending are two, see below.
    found = {one: watched.values(one.over(RATE)) for one in asked() if one.title != "Alerts"}
    assert [one for one, values in found.items() if not values] == []
    highest: dict[str, float] = {}
    for one, values in found.items():
        highest[one.title] = max(*values, highest.get(one.title, 0.0))
    assert {title for title, value in highest.items() if not value} <= QUIET
    groups = watched.get("rules")["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert health == dict.fromkeys((one.get("alert") or one["record"] for one in rules()), "ok")
    alerts = {one["labels"]["alertname"] for one in watched.get("alerts")["alerts"]}
    assert alerts >= {"ErrorBudgetBurnsFast", "ReplicaDown"}
