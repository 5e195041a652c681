"""Engines that this machine has, and pools of containers with a clock that tests move."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.protocol.grants import Grants, PythonGrant
from gateway.telemetry.metrics import Metrics
from gateway.tools.egress.network_policy import NetworkPolicy, host_and_port_of
from gateway.tools.egress.transport import EgressLimits, client
from gateway.tools.python.container_pool import ContainerPolicy, ContainerPool
from gateway.tools.python.linux import Cgroups, LinuxEngine, LinuxOptions
from gateway.tools.python.monty import MontyEngine
from gateway.tools.python.python_tool import NAME, PythonSession
from gateway.tools.python.remote import RemoteEngine
from gateway.tools.python.worker_server import WorkerServer, WorkerServerLimits
from gateway.tools.tool_contract import ToolCall, ToolScope
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.python.container_engine import ContainerEngine
    from gateway.tools.tool_contract import HostedTools, ToolResult, ToolState

SYSTEM_PYTHON = Path("/usr/bin/python3")
CONTAINERS_MAX = 100
HAS_BUBBLEWRAP = shutil.which("bwrap") is not None and SYSTEM_PYTHON.exists()
ENGINES: dict[str, Callable[[], ContainerEngine]] = {"monty": lambda: MontyEngine(containers_max=8)}
"""Those that can be tried here, by name."""
if HAS_BUBBLEWRAP:
    ENGINES["linux"] = lambda: LinuxEngine(
        LinuxOptions(interpreter=SYSTEM_PYTHON, cgroups=Cgroups.find())
    )
if HAS_BUBBLEWRAP and (RUNSC := shutil.which("runsc")) is not None:
    ENGINES["gvisor"] = lambda: LinuxEngine(
        LinuxOptions(interpreter=SYSTEM_PYTHON, runsc=RUNSC, cgroups=Cgroups.find())
    )


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        return self.time

    def pass_s(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


TOKEN = "token of the tests"


@asynccontextmanager
async def serving_containers(
    engine: ContainerEngine, limits: WorkerServerLimits | None = None
) -> AsyncIterator[tuple[str, WorkerServer]]:
    """A server of containers on a real socket: its URL, and itself."""
    server = WorkerServer(engine, TOKEN, limits)
    try:
        async with serving(server) as url:
            yield url, server
    finally:
        await server.close()


def remote_engine(url: str, token: str = TOKEN, *, body_bytes_max: int = 80 << 20) -> RemoteEngine:
    """An engine whose containers are at that URL."""
    policy = NetworkPolicy(
        networks=(ip_network("127.0.0.0/8"),), network_ports=frozenset({host_and_port_of(url)[1]})
    )
    connected = client(policy, EgressLimits(body_bytes_max=body_bytes_max))
    connected.base_url = url
    connected.headers["authorization"] = f"Bearer {token}"
    return RemoteEngine(connected)


@asynccontextmanager
async def reaching(url: str, token: str = TOKEN, **bounds: int) -> AsyncIterator[RemoteEngine]:
    """The same, closed in the end."""
    engine = remote_engine(url, token, **bounds)
    try:
        yield engine
    finally:
        await engine.close()


@dataclass
class Caller:
    """One response of a tenant that runs code. `handles` are what its runs can be found by."""

    tools: HostedTools
    tenant_id: TenantId
    grant: PythonGrant
    response: UUID = field(default_factory=ids.new_uuid)
    states: list[ToolState] = field(default_factory=list)
    handles: list[bytes] = field(default_factory=list)
    calls: int = 0

    def scope(self) -> ToolScope:
        grants = Grants(python=self.grant)
        return ToolScope(self.tenant_id, self.response, grants, True, self.states, len)

    async def run(self, code: str) -> ToolResult:
        call = ToolCall(self.calls, NAME, code)
        self.calls += 1
        result = await self.tools(self.scope()).run(call, self.handles.append)
        if result.state:
            self.states.append(dict(result.state))
        return result

    async def resume(self, ordinal: int) -> ToolResult | None:
        call = ToolCall(ordinal, NAME, "")
        return await self.tools(self.scope()).resume(call, self.handles[ordinal])


@asynccontextmanager
async def open_pool(
    database: Database,
    engine: ContainerEngine,
    policy: ContainerPolicy | None = None,
    *,
    clock: Clock | None = None,
    owner: str = "me",
    metrics: Metrics | None = None,
) -> AsyncIterator[ContainerPool]:
    """A pool whose engine was tried, or the test fails."""
    pool = ContainerPool(
        database,
        [engine],
        policy or ContainerPolicy(),
        owner=owner,
        metrics=metrics or Metrics(),
        now=clock or Clock(),
    )
    await pool.check()
    assert pool.engine == engine.name
    try:
        yield pool
    finally:
        await pool.close()


def caller(
    pool: ContainerPool,
    tenant_id: TenantId,
    container: UUID | None = None,
    *,
    file_ids: tuple[str, ...] = (),
    **bounds: Any,
) -> Caller:
    """A response that has a container of its own, unless it is given one. `bounds` are of calls."""
    pool.policy = replace(pool.policy, **bounds)
    uuid = container or ids.auto_container(ids.new_uuid())
    grant = PythonGrant(
        ids.container_id(uuid),
        pool.engine or "",
        pool.policy.limits.memory_bytes,
        file_ids,
        containers_max=CONTAINERS_MAX,
    )
    return Caller(partial(PythonSession, pool), tenant_id, grant)
