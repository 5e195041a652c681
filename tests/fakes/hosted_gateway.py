"""A gateway whose tools are on: over a site, an MCP server and a sandbox, all real and local."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.fakes.gateway import PEPPER
from tests.fakes.processes import (
    Child,
    GatewayProcess,
    gateway_process,
    reserved_port,
    stopped,
    until_healthy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOADED_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class HostedGateway:
    """The gateway, the site that it searches, and the MCP server that it may call."""

    gateway: GatewayProcess
    site_url: str
    tool_server_url: str
    folder: Path
    """Where the effects of the MCP server are."""
    sections: dict[str, Any]
    """Its settings: another replica is given the same."""
    backend_url: str

    def effects(self) -> dict[str, int]:
        """How often each effect took place, by name."""
        files = self.folder.iterdir()
        return {path.name: len(path.read_text("utf-8").splitlines()) for path in files}


def sections_with_tools(site: str) -> dict[str, Any]:
    """Settings with which all tools are on; `site` is the one host that pages are opened at."""
    return {
        "tools": {
            "web": {
                "enabled": True,
                "public": False,
                "allowed_hosts": [site],
                "visit_interval_s": 0,
            },
            "python": {"enabled": True},
            "mcp": {"enabled": True, "url_networks": ["127.0.0.0/8"], "url_plain_http": True},
        }
    }


@contextmanager
def hosted_gateway(
    folder: Path, database_url: str, backend_url: str, **sections: Any
) -> Iterator[HostedGateway]:
    """All of it, as processes; the pages of the site are in the index."""
    effects = folder / "effects"
    effects.mkdir()
    with reserved_port() as site_port, reserved_port() as tool_port:
        site = Child([str(site_port), "site"], {}, module="tests.fakes.site_server")
        tools = Child([str(tool_port), str(effects)], {}, module="tests.fakes.tool_server")
        with stopped(site), stopped(tools):
            for port, child in ((site_port, site), (tool_port, tools)):
                until_healthy(port, child)
            sections = sections_with_tools(f"127.0.0.1:{site_port}") | sections
            site_url, tools_url = (f"http://127.0.0.1:{port}" for port in (site_port, tool_port))
            with gateway_process(folder, database_url, [backend_url], **sections) as gateway:
                _load(folder, database_url, site_url)
                yield HostedGateway(
                    gateway, site_url, f"{tools_url}/mcp", effects, sections, backend_url
                )


def _load(folder: Path, database_url: str, site_url: str) -> None:
    """As an operator does."""
    arguments = ["pages", "add", "--config", str(folder / "gateway.yaml"), "--pages", "50"]
    arguments.append(f"{site_url}/")
    environment = {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    child = Child(arguments, environment)
    with stopped(child):
        assert child.process.wait(LOADED_TIMEOUT_S) == 0, child.output
