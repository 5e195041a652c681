"""Coding agents on a gateway, with a program in their place that tells how it was started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from gateway.cli import launch, provision
from gateway.cli.commands import commands
from gateway.cli.launch import (
    KEY_VARIABLE,
    OfferedModel,
    Target,
    codex_profile,
    find_target,
    opencode_profile,
)
from gateway.errors import StartupError
from tests.fakes.gateway import RunningGateway, gateway_settings, running_gateway
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer

ROOT = Path(__file__).parents[3]
EXIT_CODE = 7
MODELS = [{"id": "gpt-oss-20b", "aliases": ["small"]}, {"id": "gpt-oss-120b"}]
OFFERED = (OfferedModel("gpt-oss-20b", 131_072, ("small",)), OfferedModel("tiny", 8000, ()))
AGENT = """#!/bin/sh
IGNORED=$(sed -n 's/^SigIgn://p' /proc/$$/status) exec {python} {script} "$@"
"""
RECORDING = """
import json, os, sys
seen = {{"pid": os.getpid(), "argv": sys.argv[1:], "environment": dict(os.environ)}}
with open({seen!r}, "w") as file:
    json.dump(seen, file)
sys.exit({code})
"""


@pytest.fixture(scope="module")
async def gateway(postgres: PostgresServer, template: str) -> AsyncIterator[RunningGateway]:
    name = await postgres.create(template)
    async with serving(create_simulator(WaywardOptions())) as backend:
        settings = gateway_settings(postgres.database_url(name), [backend], models=MODELS)
        async with running_gateway(settings) as running:
            yield running
    await postgres.drop(name)


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that holds nothing yet, and no gateway in the environment."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GATEWAY_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.fixture
def target(gateway: RunningGateway) -> Target:
    return Target(f"{gateway.url}/v1", gateway.key, "gpt-oss-20b", OFFERED)


async def found(data_dir: Path, **given: str | None) -> Target:
    """What `find_target` finds; it waits for the gateway, which runs in this loop."""
    asked = {"url": None, "key": None, "model": None, **given}
    return await asyncio.to_thread(lambda: find_target(data_dir, **asked))


async def refused(data_dir: Path, **given: str | None) -> StartupError:
    with pytest.raises(StartupError) as caught:
        await found(data_dir, **given)
    return caught.value


async def invoked(*arguments: str) -> str:
    """What the command prints; raises what it raises."""
    run = CliRunner().invoke
    result = await asyncio.to_thread(
        lambda: run(commands, ["launch", *arguments], catch_exceptions=False)
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def written(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def remember(data_dir: Path, base_url: str, key: str) -> None:
    """As the demo does."""
    data_dir.mkdir()
    provision.write_demo(data_dir, {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key})


def install(folder: Path, name: str, seen: Path) -> Path:
    """A program of this name, which writes to `seen` how it was started."""
    folder.mkdir(exist_ok=True)
    program, script = folder / name, folder / "recording.py"
    script.write_text(RECORDING.format(seen=str(seen), code=EXIT_CODE), encoding="utf-8")
    program.write_text(AGENT.format(python=sys.executable, script=script), encoding="utf-8")
    program.chmod(0o755)
    return program


async def started(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The pid of the command, and what the program in the agent's place saw."""
    seen = tmp_path / "seen.json"
    install(tmp_path / "bin", arguments[0], seen)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "launch", *arguments),
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, printed = await process.communicate()
    assert process.returncode == EXIT_CODE, printed.decode()
    return process.pid, json.loads(seen.read_text(encoding="utf-8"))


@pytest.mark.slow
async def test_codex_takes_the_place_of_the_command(
    gateway: RunningGateway, data_dir: Path, tmp_path: Path
) -> None:
    options = ["--url", gateway.url, "--key", gateway.key, "--model", "small", "--no-websockets"]
    pid, seen = await started(tmp_path, "codex", *options, "--", "exec", "--json", "do it")
    assert seen["pid"] == pid
    assert seen["argv"] == ["--profile", "gateway", "exec", "--json", "do it"]
    assert seen["environment"][KEY_VARIABLE] == gateway.key
    assert not int(seen["environment"]["IGNORED"] or "0", 16) & 1 << signal.SIGPIPE - 1
    home = Path(seen["environment"]["CODEX_HOME"])
    assert home == data_dir / "codex"
    profile = tomllib.loads(written(home / "gateway.config.toml"))
    assert (profile["model"], profile["web_search"]) == ("small", "disabled")
    provider = profile["model_providers"][profile["model_provider"]]
    assert provider["base_url"] == f"{gateway.url}/v1"
    assert provider["model_catalog_url"] == f"{gateway.url}/v1/codex/models"
    assert (provider["wire_api"], provider["supports_websockets"]) == ("responses", False)
    assert provider["env_key"] == KEY_VARIABLE


@pytest.mark.slow
async def test_opencode_takes_the_place_of_the_command(
    gateway: RunningGateway, data_dir: Path, tmp_path: Path
) -> None:
    options = ["--url", f"{gateway.url}/v1/", "--key", gateway.key]
    pid, seen = await started(tmp_path, "opencode", *options, "run", "do it")
    assert (seen["pid"], seen["argv"]) == (pid, ["run", "do it"])
    assert seen["environment"][KEY_VARIABLE] == gateway.key
    path = Path(seen["environment"]["OPENCODE_CONFIG"])
    assert path == data_dir / "opencode" / "opencode.json"
    configuration = json.loads(written(path))
    assert configuration["model"] == "harmony-gateway/gpt-oss-20b"
    provider = configuration["provider"]["harmony-gateway"]
    assert provider["options"] == {
        "baseURL": f"{gateway.url}/v1",
        "apiKey": f"{{env:{KEY_VARIABLE}}}",
    }
    assert set(provider["models"]) == {"gpt-oss-20b", "small", "gpt-oss-120b"}


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["codex", "opencode"])
async def test_the_file_alone_is_written_shown_and_explained(
    gateway: RunningGateway, data_dir: Path, agent: str
) -> None:
    printed = await invoked(agent, "--config", "--url", gateway.url, "--key", gateway.key)
    (path,) = (data_dir / agent).iterdir()
    assert str(path) in printed
    assert path.read_text(encoding="utf-8") in printed
    assert f"export {KEY_VARIABLE}=" in printed
    assert f"  {agent}" in printed.splitlines()[-1]
    assert gateway.key not in printed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_what_is_not_given_is_the_demos(gateway: RunningGateway, data_dir: Path) -> None:
    remember(data_dir, f"{gateway.url}/v1", gateway.key)
    target = await found(data_dir)
    assert (target.base_url, target.api_key) == (f"{gateway.url}/v1", gateway.key)
    assert target.model == "gpt-oss-20b"
    assert target.offered[0].names == ("gpt-oss-20b", "small")
    assert target.offered[0].context_length == 131_072


async def test_the_environment_wins_over_the_demo(
    gateway: RunningGateway, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(data_dir, "http://127.0.0.1:9/v1", "sk-old")
    monkeypatch.setenv("OPENAI_BASE_URL", gateway.url)
    monkeypatch.setenv("OPENAI_API_KEY", gateway.key)
    assert f"{gateway.url}/v1/codex/models" in await invoked("codex", "--config")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [("gpt-oss-120b", "gpt-oss-120b"), ("small", "small"), ("openai/gpt-oss-20b", "gpt-oss-20b")],
)
async def test_a_model_may_be_asked_for_by_any_of_its_names(
    gateway: RunningGateway, data_dir: Path, asked: str, chosen: str
) -> None:
    target = await found(data_dir, url=gateway.url, key=gateway.key, model=asked)
    assert target.model == chosen


async def test_an_unknown_model_is_told_with_those_there_are(
    gateway: RunningGateway, data_dir: Path
) -> None:
    error = await refused(data_dir, url=gateway.url, key=gateway.key, model="gpt-9")
    assert "gpt-9" in str(error)
    assert "gpt-oss-20b, small, gpt-oss-120b" in error.remedy


async def test_a_key_that_is_not_taken_is_told(gateway: RunningGateway, data_dir: Path) -> None:
    error = await refused(data_dir, url=gateway.url, key="sk-wrong")
    assert "does not take the API key" in str(error)
    assert "--key" in error.remedy


async def test_without_any_key_nobody_is_asked(data_dir: Path) -> None:
    assert "--key" in (await refused(data_dir, url="http://127.0.0.1:9")).remedy


async def test_where_nobody_answers_the_demo_is_offered(data_dir: Path) -> None:
    error = await refused(data_dir, url="http://127.0.0.1:9", key="sk-any")
    assert str(error) == "no gateway answers at http://127.0.0.1:9/v1"
    assert "harmony-gateway demo" in error.remedy


@pytest.mark.parametrize("key", ["sk-é", "sk-a\nb", "sk a"])
async def test_what_is_no_key_is_not_sent(data_dir: Path, key: str) -> None:
    error = await refused(data_dir, url="http://127.0.0.1:1", key=key)
    assert "characters that no key has" in str(error)


async def test_the_key_of_the_demo_is_for_the_demo_alone(
    gateway: RunningGateway, data_dir: Path
) -> None:
    remember(data_dir, f"{gateway.url}/v1", gateway.key)
    assert (await found(data_dir, url=f"{gateway.url}/openresponses/v1")).api_key == gateway.key
    error = await refused(data_dir, url="http://127.0.0.1:1")
    assert "no API key is given" in str(error)


NO_ADDRESSES = [
    "127.0.0.1:8000",
    "ftp://127.0.0.1",
    "http://",
    "nonsense",
    "http://[::1",
    "http://user:password@127.0.0.1:8000",
    "http://127.0.0.1:8000/v1?model=x",
    "http://127.0.0.1:8000/v1#top",
    "http://[:::::]:8000",
    "http://127.0.0.1:0",
]


@pytest.mark.parametrize("url", NO_ADDRESSES)
async def test_what_is_no_address_is_told(data_dir: Path, url: str) -> None:
    assert f"{url} is no address" in str(await refused(data_dir, url=url, key="sk-any"))


NOTHING_KNOWN = '{"object": "list", "data": []}'
OTHERS = '{"object": "list", "data": [{"id": "gpt-5", "object": "model", "owned_by": "x"}]}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (PlainTextResponse("hello"), "is no Harmony Gateway"),
        (Response("[1]", media_type="application/json"), "is no Harmony Gateway"),
        (Response("{", media_type="application/json"), "is no Harmony Gateway"),
        (Response("{}", media_type="application/json"), "is no Harmony Gateway"),
        (Response('{"data": [1]}', media_type="application/json"), "is no Harmony Gateway"),
        (Response(OTHERS, media_type="application/json"), "is no Harmony Gateway"),
        (Response(NOTHING_KNOWN, media_type="application/json"), "has no model yet"),
        (PlainTextResponse("no", status_code=500), "answered HTTP 500"),
        (PlainTextResponse("no", status_code=404), "answered HTTP 404"),
    ],
)
async def test_another_server_is_not_taken_for_a_gateway(
    data_dir: Path, answer: Response, told: str
) -> None:
    async def models(_: object) -> Response:
        return answer

    async with serving(Starlette(routes=[Route("/v1/models", models)])) as url:
        assert told in str(await refused(data_dir, url=url, key="sk-any"))


async def test_a_missing_program_is_told_with_how_to_install_it(
    gateway: RunningGateway, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartupError, match="no codex on the PATH") as caught:
        await invoked("codex", "--url", gateway.url, "--key", gateway.key)
    assert "npm install --global @openai/codex" in caught.value.remedy


def test_a_program_that_cannot_run_is_told(tmp_path: Path) -> None:
    program = install(tmp_path / "bin", "opencode", tmp_path / "seen.json")
    program.write_text("#!/nowhere/python\n", encoding="utf-8")
    before = signal.getsignal(signal.SIGPIPE)
    with pytest.raises(StartupError, match="cannot run"):
        launch._become(str(program), ["opencode"], {})
    assert signal.getsignal(signal.SIGPIPE) is before


def test_a_folder_that_cannot_be_made_is_told(target: Target, tmp_path: Path) -> None:
    (tmp_path / "codex").write_text("in the way", encoding="utf-8")
    with pytest.raises(StartupError, match="cannot write"):
        codex_profile(target, tmp_path, websockets=True).write()


def test_an_address_cannot_break_out_of_the_profile(target: Target, tmp_path: Path) -> None:
    odd = Target('http://h/"\n[agents]\nenabled = true\n#', "sk-any", 'a"b', OFFERED)
    profile = tomllib.loads(codex_profile(odd, tmp_path, websockets=True).text)
    assert profile["model"] == 'a"b'
    assert profile["agents"] == {"enabled": False}


@pytest.mark.parametrize(("search", "mode"), [(False, "disabled"), (True, "live")])
def test_codex_searches_where_it_is_told_to(
    target: Target, tmp_path: Path, *, search: bool, mode: str
) -> None:
    profile = codex_profile(target, tmp_path, websockets=True, search=search)
    assert tomllib.loads(profile.text)["web_search"] == mode


def test_a_small_window_is_not_kept_free_for_the_answer(target: Target, tmp_path: Path) -> None:
    configuration = json.loads(opencode_profile(target, tmp_path).text)
    models = configuration["provider"]["harmony-gateway"]["models"]
    assert models["small"]["limit"] == {"context": 131_072, "output": 32_000}
    assert models["tiny"]["limit"] == {"context": 8000, "output": 2000}
