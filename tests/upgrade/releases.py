"""Two releases of the gateway, as processes on one database: a checkout of one before, and this."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2

from tests.fakes.gateway import PEPPER
from tests.fakes.http_client import NO_TLS
from tests.fakes.processes import Child, module_process, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.processes import GatewayProcess

TIMEOUT_S: Final = 30.0
BRIEF: Final[dict[str, Any]] = {"background": {"lease_s": 6.0}}
"""Who dies is followed soon."""
SEALED: Final = {"GATEWAY_AUTH__KEY_PEPPER": PEPPER}


@dataclass(frozen=True)
class Release:
    """One whose package is in `folder`."""

    folder: Path

    @property
    def has_hosted_tools(self) -> bool:
        """Whether it runs tools itself, and so goes on with responses that use them."""
        return (self.folder / "gateway" / "tools").is_dir()

    def run(self, database_url: str, *arguments: str) -> str:
        """What a command of it prints; fails when that fails."""
        environment = {"DATABASE_URL": database_url, **SEALED}
        with stopped(Child(arguments, environment, checkout=self.folder)) as child:
            assert child.exit_code() == 0, child.output
            return child.output

    def new_key(self, database_url: str, tenant: str) -> str:
        """A key of a tenant, which there is."""
        printed = self.run(database_url, "keys", "create", tenant, "--json")
        key: str = json.loads(printed)["key"]
        return key


@dataclass(frozen=True)
class Replica:
    """A process of a release, and clients of it, by tenant."""

    process: GatewayProcess
    clients: dict[str, httpx2.Client]

    @property
    def client(self) -> httpx2.Client:
        """That of the first tenant."""
        return next(iter(self.clients.values()))

    def counted(self, metric: str) -> float:
        """What it says of itself in /metrics; 0 for what it does not mention."""
        lines = self.client.get("/metrics").text.splitlines()
        values = [line.split(" ")[-1] for line in lines if line.startswith(f"{metric} ")]
        return float(values[0]) if values else 0.0


@contextmanager
def replica(
    release: Release,
    folder: Path,
    database_url: str,
    backend_url: str,
    keys: dict[str, str],
    sections: dict[str, Any] = BRIEF,
) -> Iterator[Replica]:
    """One replica of a release that is ready; `keys` are of its tenants."""
    folder.mkdir()
    with ExitStack() as stack:
        process = stack.enter_context(
            module_process(
                "gateway", folder, database_url, [backend_url], sections, checkout=release.folder
            )
        )
        clients = {
            tenant: stack.enter_context(
                httpx2.Client(
                    base_url=process.url,
                    headers={"authorization": f"Bearer {key}"},
                    timeout=TIMEOUT_S,
                    trust_env=False,
                    verify=NO_TLS,
                )
            )
            for tenant, key in keys.items()
        }
        yield Replica(process, clients)
