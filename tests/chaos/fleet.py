"""Replicas, backends and a database as child processes, each on a port that stays its own.

Whatever happens, all of them are gone when the fleet is left.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import subprocess
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.store.migration.migrate import upgrade
from tests.chaos.database import ChaosPostgres
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.fakes.postgres import reachable_folder
from tests.fakes.processes import Child, GatewayProcess, reserved_port, running, until_healthy
from tests.fakes.simulator import RunningSimulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

PRODUCT: Final = "gateway"
_ROOT: Final = Path(__file__).parents[2]

LEASE_S: Final = 3.0
_until_exit: Final = ExitStack()
atexit.register(_until_exit.close)
_clusters: Final[list[Path]] = []
"""What `_migrated` copies, once it is made."""
SECTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # As openai-harmony renders by default, which computes the expected prompts.
    "harmony": {"date": "off", "commentary_without_tools": True},
    "limits": {"responses_in_flight_max": 4000},
    "server": {"drain_grace_s": 20},
    "stream": {"start_grace_s": 0.0},
    "database": {"command_timeout_s": 2.0, "commit_wait_s": 30.0},
    "background": {
        "lease_s": LEASE_S,
        "running_max": 1000,
        "tenant_running_max": 2000,
        "tenant_queued_max": 5000,
        "attempts_max": 100,
    },
    # No request is to blame here for the backends that die under it.
    "upstream": {
        "stall_timeout_s": 1.5,
        "first_token_timeout_s": 10.0,  # a busy machine compiles a grammar for seconds
        "hops_max": 100,
        "losses_max": 100,
        "attempts_max": 6,
        "hop_wait_s": 30.0,
        "health_interval_s": 0.5,
        "probe_interval_s": 5.0,
    },
}
"""Settings of every replica of a fleet; what a scenario names is put over them."""


class Member:
    """One process of the fleet. It can be killed and frozen, and comes back on the same port."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        """The process, which must have been started."""
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    def start(self) -> None:
        """Return when it is ready."""
        self._child = self._launch()
        running.append(self._child)
        self._until_ready(self._child)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. May be repeated."""
        if self._child is not None:
            self._child.kill()
            if self._child in running:
                running.remove(self._child)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.child.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self.child.thaw()

    def _launch(self) -> Child:
        raise NotImplementedError

    def _until_ready(self, child: Child) -> None:
        raise NotImplementedError


class Replica(Member):
    """A gateway; `build` is the module that is run."""

    def __init__(self, name: str, port: int, config: Path, database_url: str, build: str) -> None:
        super().__init__(name, port)
        self._config = config
        self._database_url = database_url
        self._build = build

    @override
    def _launch(self) -> Child:
        environment = {
            "DATABASE_URL": self._database_url,
            "GATEWAY_AUTH__KEY_PEPPER": PEPPER,
            "PYTHONPATH": str(_ROOT),
        }
        arguments = ["serve", "--config", str(self._config), "--port", str(self.port)]
        return Child(arguments, environment, module=self._build)

    @override
    def _until_ready(self, child: Child) -> None:
        assert GatewayProcess(child).url == self.url


class SimulatedBackend(Member):
    """A simulated backend. What it is asked is kept in the file `journal`, if it has one."""

    def __init__(
        self, name: str, port: int, options: Mapping[str, Any], journal: Path | None = None
    ) -> None:
        super().__init__(name, port)
        self._options = {"name": name, **options}
        self.journal = journal

    @property
    def asked(self) -> RunningSimulator:
        """What it was asked since its last start."""
        return RunningSimulator(self.port)

    @override
    def _launch(self) -> Child:
        journal = [] if self.journal is None else [str(self.journal)]
        arguments = [str(self.port), json.dumps(self._options), *journal]
        return Child(arguments, {"PYTHONPATH": str(_ROOT)}, module="tests.chaos.backend")

    @override
    def _until_ready(self, child: Child) -> None:
        until_healthy(self.port, child)


class ToolServer(Member):
    """An MCP server, whose effects are in `folder`."""

    def __init__(self, name: str, port: int, folder: Path) -> None:
        super().__init__(name, port)
        self.folder = folder

    @override
    def _launch(self) -> Child:
        arguments = [str(self.port), str(self.folder)]
        return Child(arguments, {"PYTHONPATH": str(_ROOT)}, module="tests.fakes.tool_server")

    @override
    def _until_ready(self, child: Child) -> None:
        until_healthy(self.port, child)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All members, running. `key` is that of the one tenant."""

    replicas: list[Replica]
    backends: list[SimulatedBackend]
    database: ChaosPostgres
    key: str
    tool_servers: list[ToolServer]

    @property
    def urls(self) -> list[str]:
        """Of the replicas."""
        return [replica.url for replica in self.replicas]


@dataclass(frozen=True, slots=True)
class Build:
    """What a fleet is made of. `sections` are put over `SECTIONS`, key by key.

    `journals`: whatever backends are asked is kept.
    """

    replicas: int = 1
    backends: int = 1
    program: str = PRODUCT
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    own_backend_options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    journals: bool = False
    tool_servers: int = 0

    def options_of(self, backend: int) -> dict[str, Any]:
        """Of one backend: those of all, and over them its own."""
        shared = {"running_max": 4000, **self.backend_options}
        return {**shared, **self.own_backend_options.get(backend, {})}


@asynccontextmanager
async def fleet(build: Build) -> AsyncIterator[Fleet]:
    """A fleet that serves; all starts overlap."""
    with ExitStack() as stack:
        folder = stack.enter_context(reachable_folder())
        count = 1 + build.replicas + build.backends + build.tool_servers
        ports = [stack.enter_context(reserved_port()) for _ in range(count)]
        effects = folder / "effects"
        effects.mkdir()
        tool_servers = [
            ToolServer(f"t{number}", ports.pop(), effects) for number in range(build.tool_servers)
        ]
        backends = [
            SimulatedBackend(
                f"b{number}",
                ports.pop(),
                build.options_of(number),
                folder / f"b{number}.journal" if build.journals else None,
            )
            for number in range(build.backends)
        ]
        port = ports.pop()
        async with _running([*backends, *tool_servers]):
            database = ChaosPostgres(await _migrated(folder / "postgres", port), port)
            stack.callback(database.stop)
            await asyncio.to_thread(database.start)
            key = await new_key(gateway_settings(database.url, []), "acme")
            config = _write_config(folder, build, backends)
            replicas = [
                Replica(f"r{number}", port, config, database.url, build.program)
                for number, port in enumerate(ports)
            ]
            async with _running(replicas):
                yield Fleet(replicas, backends, database, key, tool_servers)


@asynccontextmanager
async def _running(members: Sequence[Member]) -> AsyncIterator[None]:
    try:
        starts = [asyncio.to_thread(member.start) for member in members]
        for failure in filter(None, await asyncio.gather(*starts, return_exceptions=True)):
            raise failure
        yield
    finally:
        for member in members:
            member.kill()


async def _migrated(folder: Path, port: int) -> Path:
    """`folder`, with a cluster that has the tables. The first is made, which takes seconds; the
    others are copies of it.
    """
    if not _clusters:
        made = _until_exit.enter_context(reachable_folder()) / "postgres"
        database = ChaosPostgres(made, port)
        try:
            await asyncio.to_thread(database.start)
            await upgrade(database.url)
        finally:
            await asyncio.to_thread(database.stop)
        _clusters.append(made)
    await asyncio.to_thread(_copy_cluster, _clusters[0], folder)
    return folder


def _copy_cluster(made: Path, folder: Path) -> None:
    """With owners and rights, without the locks of whoever made it."""
    folder.mkdir(mode=0o711)
    kept = (str(made / name) for name in ("cluster", "password"))
    subprocess.run(["cp", "-a", *kept, str(folder)], check=True)


def _write_config(folder: Path, build: Build, backends: list[SimulatedBackend]) -> Path:
    sections = {
        name: {**SECTIONS.get(name, {}), **build.sections.get(name, {})}
        for name in {*SECTIONS, *build.sections}
    }
    named = [{"name": backend.name, "url": backend.url} for backend in backends]
    path = folder / "gateway.yaml"
    path.write_text(json.dumps({"backends": named, **sections}), encoding="utf-8")
    return path
