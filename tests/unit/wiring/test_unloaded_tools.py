"""A gateway that runs no tools holds none of their code."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUILD = """
import os, sys
from gateway.wiring.process import Process
from tests.fakes.gateway import gateway_settings
for names in sys.argv[1:]:
    if os.fork():  # what a gateway imports is the child's alone
        assert os.wait()[1] == 0
        continue
    tools = {name: {"enabled": True} for name in names.split()}
    backends = ["http://127.0.0.1:9"]
    settings = gateway_settings("postgresql://u:p@127.0.0.1:9/d", backends, tools=tools)
    process = Process.of(settings)
    assert (process.replica.rooms.executor is None) is not bool(tools)
    print(*sys.modules)
    break
"""
LIBRARIES = {"mcp", "opentelemetry", "selectolax", "pypdf", "pydantic_monty"}
ROOMS = {
    "web": "gateway.tools.browser",
    "python": "gateway.tools.python.linux",
    "mcp": "gateway.tools.mcp.server_tools",
}


@pytest.mark.slow
def test_a_gateway_imports_the_rooms_that_are_on_and_no_library_before_its_first_call() -> None:
    command = [sys.executable, "-c", BUILD, "", "python", "mcp"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    none, *of_rooms = (set(line.split()) for line in done.stdout.splitlines())
    assert not none & LIBRARIES
    assert not none & {*ROOMS.values(), "gateway.tools.tool_executor", "gateway.wiring.web"}
    for room, modules in zip(("python", "mcp"), of_rooms, strict=True):
        assert ROOMS[room] in modules
        assert not modules & {module for name, module in ROOMS.items() if name != room}
        assert not modules & LIBRARIES, room
