"""The Codex CLI in front of a real model: whatever that says, no protocol error comes of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from gateway.cli.launch import KEY_VARIABLE, Target, codex_profile
from tests.fakes.coding_agents import CodingAgent, program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.gateway import RunningGateway

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

BINARY: Final = ".bin/codex"
SESSION: Final = ("--strict-config", "exec", "--skip-git-repo-check", "--sandbox", "read-only")
"""The commands of a small model are not to be trusted."""
NO_ROOM: Final = "Codex ran out of room in the model's context window"
"""The only way to fail: the window of a small model is soon full."""


@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
async def test_a_session_of_codex_meets_no_protocol_error(
    gateway: RunningGateway, model: str, tmp_path: Path, websockets: bool
) -> None:
    target = Target(f"{gateway.url}/v1", gateway.key, model, ())
    profile = codex_profile(target, tmp_path / "data", websockets=websockets)
    profile.write()
    environment = {**profile.environment, KEY_VARIABLE: gateway.key}
    command = (program("codex", BINARY), *profile.command[1:], *SESSION)
    codex = CodingAgent(command, tmp_path, environment)
    ended = await asyncio.to_thread(codex.run, "Say hello. Call no tool.")
    is_full = NO_ROOM in ended.stderr
    assert ended.returncode == 0 or is_full, ended.stderr
    assert "ERROR" not in ended.stderr or is_full, ended.stderr
