"""Settings become the objects of MCP; a gateway without it does not load the SDK."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gateway.errors import StartupError
from gateway.sealing import Sealer, SealingSecret
from gateway.settings import Settings
from gateway.settings.tools import Mcp, Tools
from gateway.wiring import mcp_room as wiring

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database

SEALER = Sealer([SealingSecret("key", b"secret" * 8)])
SDK = """
import sys
import gateway.wiring.mcp_room, gateway.cli.commands, gateway.tools.mcp.operator_tools
print([name for name in ("mcp", "mcp_types", "jsonschema") if name in sys.modules])
"""


class Nowhere:
    """Nothing is asked of a database while objects are made."""


def settings(**mcp: object) -> Settings:
    return Settings(tools=Tools(mcp=Mcp.model_validate(mcp))).with_pepper("p" * 32)


DATABASE: Database = Nowhere()  # type: ignore[assignment]


async def test_networks_of_operators_are_not_those_of_requests() -> None:
    room = wiring.new_room(
        settings(networks=["10.0.0.0/8"], url_networks=["127.0.0.0/8"], ports=[443, 8443]),
        DATABASE,
        SEALER,
    )
    networks = room.sessions._networks
    assert networks.registered.allows("10.1.2.3", 9)
    assert not networks.registered.allows("127.0.0.1", 9)
    assert networks.registered.origin("http://1.1.1.1/").port == 80
    assert networks.named.allows("127.0.0.1", 9)
    assert not networks.named.allows("10.1.2.3", 9)
    assert networks.named.allows("1.1.1.1", 8443)
    assert not networks.named.allows("1.1.1.1", 80)
    assert not networks.named.plain_http


async def test_missing_sdk_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "find_spec", lambda _: None)
    with pytest.raises(StartupError) as raised:
        wiring.new_room(settings(), DATABASE, SEALER)
    assert "./[mcp]" in raised.value.remedy


@pytest.mark.slow
def test_sdk_is_loaded_with_the_first_connection_only() -> None:
    told = subprocess.run([sys.executable, "-c", SDK], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
