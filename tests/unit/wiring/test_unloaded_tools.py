"""A gateway that runs no tools holds none of their code."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUILD = """
import sys
from gateway.wiring.process import Process
from tests.fakes.gateway import gateway_settings
tools = {name: {"enabled": True} for name in sys.argv[1:]}
settings = gateway_settings("postgresql://u:p@127.0.0.1:9/d", ["http://127.0.0.1:9"], tools=tools)
process = Process.of(settings)
assert (process.replica.rooms.executor is None) is not bool(tools)
print(*sys.modules)
"""
LIBRARIES = {"mcp", "opentelemetry", "selectolax", "pypdf", "pydantic_monty"}
ROOMS = {
    "web": "gateway.tools.browser",
    "python": "gateway.tools.python.linux",
    "mcp": "gateway.tools.mcp.server_tools",
}


def loaded(*enabled: str) -> set[str]:
    command = [sys.executable, "-c", BUILD, *enabled]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_nothing_is_imported_for_tools_that_are_off() -> None:
    modules = loaded()
    assert not modules & LIBRARIES
    assert not modules & {*ROOMS.values(), "gateway.tools.tool_executor", "gateway.wiring.web"}


@pytest.mark.slow
@pytest.mark.parametrize("room", ["python", "mcp"])
def test_one_room_does_not_bring_the_others(room: str) -> None:
    modules = loaded(room)
    assert ROOMS[room] in modules
    assert not modules & {module for name, module in ROOMS.items() if name != room}
    assert not modules & LIBRARIES, "its libraries are for its first call"
