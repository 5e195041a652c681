"""The Codex CLI against a real process, set up as `launch codex` does it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

import pytest

from gateway.cli.launch import KEY_VARIABLE, Target, codex_profile
from tests.fakes.coding_agents import CodingAgent, program
from tests.fakes.processes import gateway_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.hosted_gateway import HostedGateway
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

ROOT: Final = Path(__file__).parents[2]
BINARY: Final = ".bin/codex"
MODEL: Final = "gpt-oss-20b"
NARROW: Final = "narrow"
NARROW_TOKENS: Final = 10_000
MODELS: Final[Any] = [
    {"id": MODEL, "aliases": ["small"]},
    {"id": NARROW, "served_as": MODEL, "context_length": NARROW_TOKENS},
]
KEEPALIVE_S: Final = 0.5
SESSION: Final = (
    "--strict-config",
    "exec",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
)
IMPATIENT: Final = ("-c", "model_providers.harmony-gateway.stream_max_retries=0")
NO_METADATA: Final = "Model metadata"


@pytest.fixture(scope="module")
def replica(
    replicas_database_url: str,
    simulator: SimulatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    """One with a second model, whose window is soon full, and that breaks silence soon."""
    simulator.until_healthy()  # a window that is configured is known before it answers
    with gateway_process(
        tmp_path_factory.mktemp("codex"),
        replicas_database_url,
        [simulator.url],
        models=MODELS,
        stream={"keepalive_event_s": KEEPALIVE_S},
    ) as running:
        yield running


def agent(
    folder: Path,
    replica: GatewayProcess,
    key: str,
    *,
    websockets: bool,
    search: bool = False,
    model: str = MODEL,
) -> CodingAgent:
    target = Target(replica.base_url, key, model, ())
    profile = codex_profile(target, folder / "data", websockets=websockets, search=search)
    profile.write()
    environment = {**profile.environment, KEY_VARIABLE: key}
    command = (program("codex", BINARY), *profile.command[1:])
    return CodingAgent((*command, *SESSION), folder, environment)


@pytest.fixture(params=[False, True], ids=["http", "websocket"])
def codex(
    request: pytest.FixtureRequest, replica: GatewayProcess, key: str, tmp_path: Path
) -> CodingAgent:
    """Codex by each of its ways to the gateway."""
    return agent(tmp_path, replica, key, websockets=request.param)


@pytest.fixture
def plain(replica: GatewayProcess, key: str, tmp_path: Path) -> CodingAgent:
    """Codex over HTTP."""
    return agent(tmp_path, replica, key, websockets=False)


def connections(replica: GatewayProcess) -> float:
    """How many WebSockets were opened to it."""
    with urlopen(f"{replica.url}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(r"^gateway_connections_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def calling(tool: str, arguments: object, *, calls: int = 1) -> str:
    """A request that makes the scripted model call a tool."""
    wish = f"[[sim call={tool} calls={calls}]]"
    return f"Do it {wish} [[sim arguments={json.dumps(arguments)}]]"


@pytest.mark.client("Codex CLI", "text")
def test_a_request_is_answered(codex: CodingAgent) -> None:
    ended = codex.run("Say hello [[sim say=Hello from the script]]")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "Hello from the script"
    assert NO_METADATA not in ended.stderr
    assert "ERROR" not in ended.stderr


@pytest.mark.client("Codex CLI", "WebSocket")
def test_a_session_is_one_connection(replica: GatewayProcess, key: str, tmp_path: Path) -> None:
    before = connections(replica)
    codex = agent(tmp_path, replica, key, websockets=True)
    codex.answer(calling("exec_command", {"cmd": "true"}, calls=2))
    assert connections(replica) == before + 1


@pytest.mark.client("Codex CLI", "reasoning")
def test_reasoning_is_shown(plain: CodingAgent) -> None:
    assert "I look at the whole conversation" in plain.run("Say hello").stderr


@pytest.mark.client("Codex CLI", "tools")
def test_a_command_is_run_and_its_output_quoted(codex: CodingAgent) -> None:
    said = codex.answer(calling("exec_command", {"cmd": "echo made | tee made.txt"}))
    assert "exec_command says" in said
    assert (codex.project / "made.txt").read_text() == "made\n"


@pytest.mark.client("Codex CLI", "tools")
def test_a_goal_that_the_model_sets_does_not_end_the_session(codex: CodingAgent) -> None:
    ended = codex.run(calling("create_goal", {"objective": "Greet the user"}))
    assert ended.returncode == 0, ended.stderr
    assert "create_goal says" in ended.stdout
    assert "ERROR" not in ended.stderr


@pytest.mark.client("Codex CLI", "custom tools")
def test_a_patch_is_applied(codex: CodingAgent) -> None:
    (codex.project / "numbers.txt").write_text("one\ntwo\nthree\n")
    update = ["*** Update File: numbers.txt", "@@", " one", "-two", "+zwei", " three"]
    patch = ["*** Begin Patch", *update, "*** Add File: new.txt", "+hello", "*** End Patch", ""]
    said = codex.answer(calling("apply_patch", {"input": "\n".join(patch)}))
    assert "apply_patch says" in said
    assert (codex.project / "numbers.txt").read_text() == "one\nzwei\nthree\n"
    assert (codex.project / "new.txt").read_text() == "hello\n"


@pytest.mark.client("Codex CLI", "tools in namespaces")
def test_a_tool_of_a_namespace_is_found_again(plain: CodingAgent) -> None:
    wish = calling("multi_agent_v1.wait_agent", {"targets": ["nobody"], "timeout_ms": 1000})
    said = plain.answer("-c", "agents.enabled=true", wish)
    assert "multi_agent_v1.wait_agent says: invalid agent id" in said


@pytest.mark.client("Codex CLI", "structured output")
def test_an_answer_is_of_the_schema(plain: CodingAgent) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    (plain.project / "schema.json").write_text(json.dumps(schema))
    answer = json.loads(plain.answer("--output-schema", "schema.json", "Name a city"))
    assert isinstance(answer["city"], str)
    assert isinstance(answer["people"], int)


@pytest.mark.client("Codex CLI", "long sessions")
def test_a_session_is_resumed_with_what_was_thought_called_and_said(codex: CodingAgent) -> None:
    codex.answer("My name is Zoe. " + calling("exec_command", {"cmd": "true"}))
    assert codex.answer("resume", "--last", "What is my name?") == "Your name is Zoe."


@pytest.mark.client("Codex CLI", "images")
def test_an_image_does_not_end_a_session(plain: CodingAgent) -> None:
    png = "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63"
    end = "fcffff3f030005fe02fea72d1e480000000049454e44ae426082"
    (plain.project / "dot.png").write_bytes(bytes.fromhex(png + end))
    assert plain.answer("-i", "dot.png", "--", "What is this? [[sim say=a dot]]") == "a dot"


@pytest.mark.client("Codex CLI", "long sessions")
def test_a_session_is_summed_up_before_the_window_is_full(codex: CodingAgent) -> None:
    wish = calling("exec_command", {"cmd": "seq 1 2000"}, calls=20)
    ended = codex.run("-m", NARROW, wish)
    assert ended.returncode == 0, ended.stderr
    assert "context compacted" in ended.stderr
    assert "ran out of room" not in ended.stderr


@pytest.mark.client("Codex CLI", "streaming")
def test_a_long_silence_of_the_model_is_no_idle_connection(codex: CodingAgent) -> None:
    idle = f"model_providers.harmony-gateway.stream_idle_timeout_ms={KEEPALIVE_S * 4 * 1000:.0f}"
    wish = f"Take your time [[sim first_token_delay_s={KEEPALIVE_S * 8}]] [[sim say=late]]"
    assert codex.answer("-c", idle, *IMPATIENT, wish) == "late"


@pytest.mark.client("Codex CLI", "errors")
def test_an_unknown_model_is_named(plain: CodingAgent) -> None:
    ended = plain.run("-m", "gpt-9", "Say hello")
    assert ended.returncode != 0
    assert "ERROR: The requested model 'gpt-9' does not exist." in ended.stderr


@pytest.mark.client("Codex CLI", "errors")
def test_a_wrong_key_is_told_with_the_id_of_the_request(
    replica: GatewayProcess, tmp_path: Path
) -> None:
    ended = agent(tmp_path, replica, "sk-wrong", websockets=False).run(*IMPATIENT, "Say hello")
    assert ended.returncode != 0
    assert "401 Unauthorized: Incorrect API key provided" in ended.stderr
    assert "request id: req_" in ended.stderr


@pytest.mark.client("Codex CLI", "errors")
def test_a_request_that_does_not_fit_is_told_as_such(codex: CodingAgent) -> None:
    ended = codex.run("-m", NARROW, "-", text="word " * NARROW_TOKENS)
    assert ended.returncode != 0
    assert "Codex ran out of room in the model's context window" in ended.stderr


@pytest.mark.client("Codex CLI", "errors")
def test_a_stream_that_breaks_off_is_asked_for_again(codex: CodingAgent) -> None:
    wish = "Say hello [[sim say=Hello again]] [[sim error_after=8 times=3]]"
    assert codex.answer(wish) == "Hello again"


@pytest.mark.client("Codex CLI", "setup")
def test_commands_of_the_model_do_not_see_the_key(plain: CodingAgent, key: str) -> None:
    said = plain.answer(calling("exec_command", {"cmd": "env"}))
    assert "PATH=" in said
    assert key not in said


@pytest.mark.client("Codex CLI", "setup")
def test_launch_sets_it_up(replica: GatewayProcess, key: str, tmp_path: Path) -> None:
    binary = Path(program("codex", BINARY))
    path = os.pathsep.join([str(binary.parent), os.environ["PATH"]])
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "GATEWAY_DATA_DIR": str(tmp_path / "d")}
    launch = (sys.executable, "-m", "gateway", "launch", "codex")
    options = ("--url", replica.url, "--key", key, "--model", "small", "--no-websockets", "--")
    launched = CodingAgent((*launch, *options, *SESSION), tmp_path, environment)
    ended = launched.run("Say hello [[sim say=launched]]")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "launched"
    assert NO_METADATA not in ended.stderr
    assert "model: small" in ended.stderr


@pytest.mark.client("Codex CLI", "hosted tools")
@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_the_gateway_searches_the_web_for_it(
    hosted_gateway: HostedGateway, hosted_key: str, tmp_path: Path, *, websockets: bool
) -> None:
    replica = hosted_gateway.gateway
    searching = agent(tmp_path, replica, hosted_key, websockets=websockets, search=True)
    answer = searching.answer("lamp [[sim steps=search lamp; open first; cite]]")
    assert f"]({hosted_gateway.site_url}/" in answer
    assert "【" not in answer
