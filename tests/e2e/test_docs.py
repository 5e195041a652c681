"""What the pages tell people to run does run: their Python, against real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.gateway import PEPPER
from tests.fakes.processes import STEP_S, Child, reserved_port, stopped, until_healthy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.hosted_gateway import HostedGateway
    from tests.fakes.processes import GatewayProcess

ROOT = Path(__file__).parents[2]
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
YAML = re.compile(r"^```yaml\n(backends:.*?)^```", re.DOTALL | re.MULTILINE)
MODELS = re.compile(r"^```yaml\n(models:.*?)^```", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TIME_MAX_S = 100
DEMO_SERVER = "127.0.0.1:8766"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/use.md"])
def test_the_python_of_a_page_runs(
    page: str, gateway: GatewayProcess, key: str, tmp_path: Path
) -> None:
    """One block after the other, as a reader would."""
    assert _printed((ROOT / page).read_text(encoding="utf-8"), gateway, key, tmp_path)


@pytest.mark.slow
def test_the_python_of_the_page_on_hosted_tools_runs(
    hosted_gateway: HostedGateway, hosted_key: str, tmp_path: Path
) -> None:
    """The demo's MCP server is at another port here."""
    text = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    with reserved_port() as port:
        workshop = Child([str(port), "workshop"], {}, module="tests.fakes.site_server")
        with stopped(workshop):
            until_healthy(port, workshop)
            assert DEMO_SERVER in text
            text = text.replace(DEMO_SERVER, f"127.0.0.1:{port}")
            printed = _printed(text, hosted_gateway.gateway, hosted_key, tmp_path)
    assert "](http://127.0.0.1:" in printed, "a citation"
    assert "cntr_" in printed, "a container"
    assert "1 notes are kept." in printed, "an approved call"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_way_to_a_cited_answer_with_searxng_can_be_gone(
    tmp_path: Path, database_url: str
) -> None:
    """Every command of that section, at other ports; of what goes on running the first words."""
    text = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    text = text.split("## From nothing to a cited answer with SearXNG")[1].split("\n## ")[0]
    with ExitStack() as stack:
        ports = {port: stack.enter_context(reserved_port()) for port in (8888, 8100, 8000)}
        for port, other in ports.items():
            assert f":{port}" in text
            text = re.sub(rf"\b{port}\b", str(other), text)
        (tmp_path / "gateway.yaml").write_text(YAML.findall(text)[0])
        search, look, backend, serve, ask = SHELL.findall(text)
        check, serve = serve.splitlines()
        terminal = partial(_terminal, tmp_path, database_url)
        stack.enter_context(terminal(search, ports[8888], "/"))
        assert "The lamp" in _pasted(look, tmp_path, database_url)
        stack.enter_context(terminal(backend, ports[8100], "/health"))
        assert "searxng" in _pasted(check, tmp_path, database_url)
        stack.enter_context(terminal(serve, ports[8000], "/readyz"))
        answered = json.loads(_pasted(ask, tmp_path, database_url).splitlines()[-1])
    (part,) = answered["output"][-1]["content"]
    (cited,) = part["annotations"]
    url = f"http://127.0.0.1:{ports[8888]}/lamp"
    assert (cited["type"], cited["url"]) == ("url_citation", url)
    link = part["text"][cited["start_index"] : cited["end_index"]]
    assert link == f"([The lamp]({url}))"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_from_a_configuration_to_a_tenant_can_be_pasted(
    tmp_path: Path, database_url: str
) -> None:
    """Those of the page on running it, at other ports and with a database that is there."""
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    text = text.split("## 3. Configure")[1].split("\n## Upgrade")[0]
    with ExitStack() as stack:
        vllm, sglang, port = (stack.enter_context(reserved_port()) for _ in range(3))
        for place, other in (("0.0.11", vllm), ("0.0.12", sglang)):
            text = re.sub(rf"10\.{place}:\d+", f"127.0.0.1:{other}", text)
        text = text.replace(" --port 8000", f" --port {port}").replace(":8000/", f":{port}/")
        (tmp_path / "gateway.yaml").write_text(MODELS.findall(text)[0])
        _, upgrade, create, ask, manage = map(_commands, CONSOLE.findall(text))
        terminal = partial(_terminal, tmp_path, database_url)
        for engine, at in (("vllm", vllm), ("sglang", sglang)):
            simulate = f".venv/bin/harmony-gateway simulate --model openai/gpt-oss-20b --port {at}"
            stack.enter_context(terminal(f"{simulate} --engine {engine}", at, "/health"))
        *create, serve = create
        # The lines before set what the test's environment has already.
        assert "gpt-oss-20b" in _pasted("\n".join(upgrade[2:]), tmp_path, database_url)
        create.append('echo "$KEY"')
        key = _pasted("\n".join(create), tmp_path, database_url).splitlines()[-1]
        stack.enter_context(terminal(serve, port, "/readyz"))
        answered = json.loads(_pasted("\n".join([f"KEY={key}", *ask]), tmp_path, database_url))
        assert answered["status"] == "completed"
        managed = "\n".join(manage).replace("…a1B2", f"…{key[-4:]}")
        assert "disabled" in _pasted(managed, tmp_path, database_url)


def _commands(block: str) -> list[str]:
    """What stands behind the prompts, each with the lines that it goes on in."""
    lines = block.replace("harmony-gateway ", ".venv/bin/harmony-gateway ")
    return re.findall(r"^\$ ((?:.*\\\n)*.*)", lines, re.MULTILINE)


def _environment(database_url: str) -> dict[str, str]:
    keys = {"VLLM_API_KEY": "of-vllm", "SGLANG_API_KEY": "of-sglang"}
    return os.environ | keys | {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}


def _pasted(block: str, folder: Path, database_url: str) -> str:
    """What a block prints that ends with success."""
    done = subprocess.run(
        ["sh", "-ec", block.replace(".venv/bin/", f"{Path(sys.executable).parent}/")],
        cwd=folder,
        env=_environment(database_url),
        capture_output=True,
        text=True,
        timeout=TIME_MAX_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def _terminal(folder: Path, database_url: str, block: str, port: int, path: str) -> Iterator[None]:
    """One in which a block goes on running; entered when it answers there."""
    block = block.replace(".venv/bin/", f"exec {Path(sys.executable).parent}/")
    with subprocess.Popen(["sh", "-ec", block], cwd=folder, env=_environment(database_url)) as one:
        try:
            deadline = time.monotonic() + TIME_MAX_S
            while not _answers(port, path):
                assert one.poll() is None, block
                assert time.monotonic() < deadline, block
                time.sleep(STEP_S)
            yield
        finally:
            one.terminate()


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIME_MAX_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def _printed(text: str, gateway: GatewayProcess, key: str, folder: Path) -> str:
    """What the blocks of a page print, one after the other."""
    script = folder / "page.py"
    script.write_text("\n".join(PYTHON.findall(text)))
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"OPENAI_BASE_URL": gateway.base_url, "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=TIME_MAX_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
