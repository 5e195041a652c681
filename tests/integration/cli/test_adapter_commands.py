"""`adapters`, as a process, against servers that answer as the engines do."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.adapter_server import AdapterServer
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", "a pepper of more than sixteen characters")


async def ran(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "adapters", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


def with_backends(monkeypatch: pytest.MonkeyPatch, *urls: str) -> None:
    backends = [{"name": f"gpu-{index}", "url": url} for index, url in enumerate(urls)]
    monkeypatch.setenv("GATEWAY_BACKENDS", json.dumps(backends))


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
async def test_adapters_are_loaded_listed_and_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = AdapterServer("vllm"), AdapterServer("sglang")
    servers[1].refuses = {"/adapters/ad"}
    async with serving(servers[0].app()) as first, serving(servers[1].app()) as second:
        with_backends(monkeypatch, first, second)
        code, output = await ran("load", "ad", "/adapters/ad")
        assert code == 1
        assert "No adapter found for /adapters/ad" in output
        assert "at a path that the server can read" in output
        servers[1].refuses = set()
        code, output = await ran("load", "ad", "/adapters/ad", "--json")
        assert code == 0
        details: list[dict[str, Any]] = json.loads(output)
        assert [one["detail"] for one in details] == ["was there already", "loaded"]
        code, output = await ran("list")
        assert code == 0
        assert output.count("ad, of base, from /adapters/ad") == 2
        assert json.loads((await ran("list", "--json"))[1])[1]["name"] == "ad"
        code, output = await ran("unload", "ad")
        assert code == 0
        assert output.count("unloaded") == 2
        code, output = await ran("unload", "ad", "--model", "other")
        assert code == 1
        assert "No backend serves that model" in output
        servers[0].is_down = True
        assert (await ran("list"))[0] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
async def test_backends_that_are_discovered_are_asked_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "backends.yaml"
    sources = [{"name": "rack", "kind": "file", "path": str(file)}]
    monkeypatch.setenv("GATEWAY_DISCOVERY", json.dumps(sources))
    async with serving(AdapterServer("vllm").app()) as url:
        file.write_text(json.dumps({"backends": [{"name": "found", "url": url}]}))
        code, output = await ran("load", "ad", "/adapters/ad")
        assert (code, "found" in output, "loaded" in output) == (0, True, True)
        file.unlink()
        code, output = await ran("load", "ad", "/adapters/ad")
    assert code == 1
    assert "rack does not say which backends there are" in output
