"""opencode against a real process, set up as `launch opencode` does it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from gateway.cli.launch import KEY_VARIABLE, OfferedModel, Target, opencode_profile
from tests.fakes.coding_agents import CodingAgent, program

if TYPE_CHECKING:
    from tests.fakes.processes import GatewayProcess

ROOT: Final = Path(__file__).parents[2]
BINARY: Final = "opencode-linux-x64/bin/opencode"
MODEL: Final = OfferedModel("gpt-oss-20b", 131_072, ())
ALONE: Final = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


@pytest.fixture
def opencode(gateway: GatewayProcess, key: str, tmp_path: Path) -> CodingAgent:
    profile = opencode_profile(Target(gateway.base_url, key, MODEL.id, (MODEL,)), tmp_path / "data")
    profile.write()
    environment = {**profile.environment, KEY_VARIABLE: key, **ALONE}
    return CodingAgent((program("opencode", BINARY), "run"), tmp_path, environment)


@pytest.mark.client("opencode", "text")
def test_a_request_is_answered(opencode: CodingAgent) -> None:
    assert opencode.answer(text="Say hello [[sim say=Hello from the script]]") == (
        "Hello from the script"
    )


@pytest.mark.client("opencode", "reasoning")
def test_reasoning_is_shown(opencode: CodingAgent) -> None:
    said = opencode.answer("--thinking", text="Say hello [[sim say=Hello]]")
    assert "I look at the whole conversation" in said


@pytest.mark.client("opencode", "tools")
def test_a_command_is_run_and_its_output_quoted(opencode: CodingAgent) -> None:
    arguments = json.dumps({"command": "echo made | tee made.txt", "description": "Makes it"})
    wish = f"Do it [[sim call=bash]] [[sim arguments={arguments}]]"
    assert "bash says: made" in opencode.answer(text=wish)
    assert (opencode.project / "made.txt").read_text() == "made\n"


@pytest.mark.client("opencode", "long sessions")
def test_a_session_goes_on_with_what_was_said(opencode: CodingAgent) -> None:
    opencode.answer(text="My name is Zoe.")
    assert opencode.answer("--continue", text="What is my name?") == "Your name is Zoe."


@pytest.mark.client("opencode", "setup")
def test_launch_sets_it_up(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    binary = Path(program("opencode", BINARY))
    path = os.pathsep.join([str(binary.parent), os.environ["PATH"]])
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "GATEWAY_DATA_DIR": str(tmp_path / "d")}
    launch = (sys.executable, "-m", "gateway", "launch", "opencode")
    options = ("--url", gateway.url, "--key", key, "--model", MODEL.id, "--", "run")
    launched = CodingAgent((*launch, *options), tmp_path, {**environment, **ALONE})
    assert launched.answer(text="Say hello [[sim say=launched]]") == "launched"
