"""What `doctor` finds, with a real database and a simulated backend."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.cli.doctor import examine
from tests.fakes.key_services import sealing
from tests.fakes.serving import serving
from tests.fakes.text_server import TextServer, text
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from starlette.requests import Request

    from gateway.cli.findings import Finding
    from tests.fakes.postgres import PostgresServer

PEPPER = "a pepper of more than sixteen characters"


@pytest.fixture(autouse=True)
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", PEPPER)


def with_backends(monkeypatch: pytest.MonkeyPatch, *urls: str) -> None:
    backends = [{"name": f"gpu-{index}", "url": url} for index, url in enumerate(urls)]
    monkeypatch.setenv("GATEWAY_BACKENDS", json.dumps(backends))


def by_name(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.slow
async def test_a_gateway_that_can_serve_has_nothing_to_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(create_simulator(WaywardOptions(version="0.33.0"))) as url:
        with_backends(monkeypatch, url)
        findings = await examine(None)
    assert [finding for finding in findings if not finding.ok] == []
    assert list(by_name(findings)) == [
        *("config", "libraries", "vocabulary", "prompts", "database", "isolation", "roles"),
        *("clock", "connections", "tls", "pepper", "backend gpu-0", "clock gpu-0"),
    ]  # fmt: skip
    detail = by_name(findings)["backend gpu-0"].detail
    assert "vLLM 0.33.0: grammars, logprobs" in detail
    assert "gpt-oss-20b (131072 tokens)" in detail


@pytest.mark.slow
async def test_a_library_that_cannot_be_loaded_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("selectolax.lexbor", "mcp.client.streamable_http", "pydantic_monty"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("GATEWAY_TOOLS__WEB__ENABLED", "true")
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENABLED", "true")
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENGINE", "monty")
    found = [finding for finding in await examine(None) if finding.name == "libraries"]
    assert [finding.remedy for finding in found] == [
        "Run: pip install './[web]'",
        "Run: pip install './[sandbox]'",
    ]
    assert "web search" in found[0].detail
    assert "selectolax" in found[0].detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        WaywardOptions(api_key="another"),
        WaywardOptions(faults="status=500"),
        WaywardOptions(faults="end_after=0"),
    ],
    ids=["refused", "broken", "silent"],
)
async def test_a_backend_that_cannot_serve_is_found(
    options: WaywardOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(create_simulator(options)) as url:
        with_backends(monkeypatch, url, "http://127.0.0.1:9")
        findings = by_name(await examine(None))
    for name in ("backend gpu-0", "backend gpu-1"):
        assert not findings[name].ok
        assert findings[name].remedy


@pytest.mark.slow
async def test_a_backend_that_serves_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": []})

    async with serving(Starlette(routes=[Route("/v1/models", no_models)])) as url:
        with_backends(monkeypatch, url)
        findings = by_name(await examine(None))
    assert findings["backend gpu-0"].detail == "it serves no model"
    assert findings["backend gpu-0"].remedy


@pytest.mark.slow
async def test_a_backend_that_is_too_old_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    options = WaywardOptions(engine="sglang", version="0.5.2")
    async with serving(create_simulator(options)) as url:
        with_backends(monkeypatch, url)
        finding = by_name(await examine(None))["backend gpu-0"]
    assert not finding.ok
    assert "cannot keep apart" in finding.detail
    assert "Upgrade it to 0.5.3" in finding.remedy


@pytest.mark.slow
@pytest.mark.parametrize("said", [{"frontend": "rust"}, {"version": "0.5.16"}])
async def test_an_sglang_that_has_ids_at_generate_alone_is_well(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    async with serving(create_simulator(WaywardOptions(engine="sglang", **said))) as url:
        with_backends(monkeypatch, url)
        finding = by_name(await examine(None))["backend gpu-0"]
    assert finding.ok, finding.detail
    assert "token ids come back" in finding.detail


@pytest.mark.slow
async def test_a_configured_model_that_no_backend_serves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = [{"id": "m", "served_as": "inner"}, {"id": "oss", "served_as": "gpt-oss-20b"}]
    monkeypatch.setenv("GATEWAY_MODELS", json.dumps(models))
    options = WaywardOptions(models=("openai/gpt-oss-20b",))
    async with serving(create_simulator(options)) as url:
        with_backends(monkeypatch, url)
        findings = by_name(await examine(None))
    assert findings["backend gpu-0"].ok
    assert "oss as openai/gpt-oss-20b (131072 tokens)" in findings["backend gpu-0"].detail
    missing = findings["model m"]
    assert not missing.ok
    assert "(served_as 'inner'): gpu-0 serves 'openai/gpt-oss-20b'" in missing.detail
    assert "served_as" in missing.remedy


@pytest.mark.slow
async def test_a_backend_of_which_nothing_is_asked_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_MODELS", json.dumps([{"id": "m"}]))
    async with serving(create_simulator(WaywardOptions(models=("other",)))) as url:
        with_backends(monkeypatch, url)
        finding = by_name(await examine(None))["backend gpu-0"]
    assert (finding.ok, finding.detail) == (False, "it serves 'other', of which nothing is asked")


@pytest.mark.slow
async def test_an_adapter_of_sglang_is_asked_for_a_token_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = WaywardOptions(engine="sglang", models=("base",), adapters=("ad",))
    async with serving(create_simulator(options)) as url:
        with_backends(monkeypatch, url)
        finding = by_name(await examine(None))["backend gpu-0"]
    assert finding.ok
    assert "ad (131072 tokens, an adapter of base)" in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize("rerank", [200, 404])
async def test_a_model_that_does_not_generate_is_asked_for_what_it_does(
    monkeypatch: pytest.MonkeyPatch, rerank: int
) -> None:
    asked: list[object] = []

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "bge", "max_model_len": 512}]})

    async def answer(request: Request) -> JSONResponse:
        asked.append((await request.json())["model"])
        is_known = "embeddings" in request.url.path
        return JSONResponse({"data": []}, status_code=200 if is_known else rerank)

    paths = ("/v1/embeddings", "/v1/rerank")
    routes = [Route("/v1/models", models)]
    routes += [Route(path, answer, methods=["POST"]) for path in paths]
    declared = [{"id": "m", "served_as": "bge", "tasks": ["embeddings", "rerank"]}]
    monkeypatch.setenv("GATEWAY_MODELS", json.dumps(declared))
    async with serving(Starlette(routes=routes)) as url:
        with_backends(monkeypatch, url)
        finding = by_name(await examine(None))["backend gpu-0"]
    assert asked == ["bge", "bge"]
    assert finding.ok is (rerank == 200), finding.detail
    assert finding.detail.endswith("; embeddings and rerank come back") is finding.ok


@pytest.mark.slow
async def test_a_context_length_that_is_not_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def untold(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "m"}]})

    async with serving(Starlette(routes=[Route("/v1/models", untold)])) as url:
        with_backends(monkeypatch, url)
        finding = by_name(await examine(None))["backend gpu-0"]
    assert (finding.ok, finding.detail) == (False, "it does not tell the context length of m")
    assert "context_length" in finding.remedy


@pytest.mark.slow
async def test_a_database_that_is_behind_is_found(
    monkeypatch: pytest.MonkeyPatch, empty_database_url: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    findings = by_name(await examine(None))
    assert findings["database"].remedy == "Run: harmony-gateway db upgrade"
    assert findings["config"].detail == "backends: no backend is configured"


@pytest.mark.slow
async def test_what_serve_would_refuse_is_found(
    monkeypatch: pytest.MonkeyPatch, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    with_backends(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("GATEWAY_ADMIN__PORT", "8000")
    section = sealing(tmp_path, empty_database_url)
    monkeypatch.setenv("GATEWAY_ENCRYPTION__PROVIDER", section["provider"])
    monkeypatch.setenv("GATEWAY_ENCRYPTION__FILE__PATH", section["file"]["path"])
    monkeypatch.setenv("GATEWAY_ENCRYPTION__KEYS_URL", empty_database_url)
    findings = by_name(await examine(None))
    assert findings["config"].detail.startswith("admin.port: the admin API would listen")
    assert findings["encryption"].ok
    # The same database, by another URL.
    monkeypatch.setenv("GATEWAY_ENCRYPTION__KEYS_URL", f"{database_url}&application_name=x")
    finding = by_name(await examine(None))["encryption"]
    assert "in the database of the content" in finding.detail


@pytest.mark.slow
def test_the_exit_code_tells_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(commands, ["doctor", "--json"])
    assert result.exit_code == 1
    told: dict[str, Any] = json.loads(result.stdout)
    assert told["ok"] is False
    assert (told["findings"][0]["name"], told["findings"][0]["ok"]) == ("config", False)

    monkeypatch.setenv("GATEWAY_NO_SUCH", "1")
    result = CliRunner().invoke(commands, ["doctor"])
    assert result.exit_code == 1
    assert result.stdout.startswith("  ✗ config ")

    monkeypatch.delenv("GATEWAY_NO_SUCH")
    monkeypatch.delenv("GATEWAY_AUTH__KEY_PEPPER")
    config, *remedies = CliRunner().invoke(commands, ["doctor"]).stdout.splitlines()[:3]
    assert "no backend is configured; auth.key_pepper: no secret" in config
    assert all(line.startswith("      ") for line in remedies), "one for each mistake"


@pytest.mark.slow
async def test_a_database_that_says_it_is_up_to_date_and_is_not_is_found(
    postgres: PostgresServer, database_url: str
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("ALTER TABLE responses DROP recoveries", database=name)
    findings = by_name(await examine(None))
    assert "column responses.recoveries" in findings["database"].detail
    assert findings["database"].remedy == "Run: harmony-gateway db upgrade"


@pytest.mark.slow
async def test_an_index_that_is_missing_is_found(
    postgres: PostgresServer, database_url: str
) -> None:
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("DROP INDEX ix_usage_tenant_id_at", database=name)
    findings = by_name(await examine(None))
    assert findings["database"].ok
    assert "ix_usage_tenant_id_at" in findings["schema"].detail


@pytest.mark.slow
async def test_a_database_that_is_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:canary@127.0.0.1:9/d")
    findings = by_name(await examine(None))
    assert not findings["database"].ok
    assert "canary" not in findings["database"].detail


@pytest.mark.slow
async def test_search_engines_are_asked_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async def search(request: Request) -> JSONResponse:
        if request.url.path.startswith("/closed"):
            return JSONResponse({"error": "the format json is off"}, 403)
        return JSONResponse({"results": [{"url": "https://a.example/", "title": "A"}]})

    monkeypatch.setenv("GATEWAY_TOOLS__WEB__ENABLED", "true")
    findings = by_name(await examine(None))
    assert findings["web search"].ok
    app = Starlette(routes=[Route("/search", search), Route("/closed/search", search)])
    async with serving(app) as url:
        for path, ok, detail in (("", True, "it answers"), ("/closed", False, "it answered 403")):
            providers = [{"kind": "searxng", "url": f"{url}{path}"}, {"kind": "index"}]
            monkeypatch.setenv("GATEWAY_TOOLS__WEB__PROVIDERS", json.dumps(providers))
            found = by_name(await examine(None))["search by searxng"]
            assert (found.ok, found.detail, bool(found.remedy)) == (ok, detail, not ok)
    down = by_name(await examine(None))["search by searxng"]
    assert not down.ok


@pytest.mark.slow
async def test_the_code_interpreter_is_tried_as_at_the_start_of_a_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENABLED", "true")
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENGINE", "monty")
    well = by_name(await examine(None))["code interpreter"]
    assert (well.ok, well.remedy) == (True, "")
    assert "python runs in the engine monty" in well.detail
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENGINE", "linux")
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__INTERPRETER", "/nowhere/python3")
    off = by_name(await examine(None))["code interpreter"]
    assert not off.ok
    assert "python is off: no engine is safe here (linux:" in off.detail
    assert "docs/python.md" in off.remedy
    monkeypatch.setenv("GATEWAY_TOOLS__PYTHON__ENGINE", "remote")
    unset = by_name(await examine(None))["code interpreter"]
    assert not unset.ok
    assert "tools.python.remote_url" in unset.remedy


@pytest.mark.slow
async def test_a_search_that_an_mcp_server_is_to_do_needs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_TOOLS__MCP__ENABLED", "true")
    assert by_name(await examine(None))["mcp"].ok
    monkeypatch.setenv("GATEWAY_TOOLS__WEB__ENABLED", "true")
    monkeypatch.setenv("GATEWAY_TOOLS__WEB__PROVIDERS", json.dumps([{"kind": "mcp"}]))
    findings = by_name(await examine(None))
    assert "web search" not in findings
    monkeypatch.setenv("GATEWAY_TOOLS__MCP__ENABLED", "false")
    assert not by_name(await examine(None))["search by mcp"].ok
    assert not findings["search by mcp"].ok
    assert "mcp add LABEL URL --purpose search" in findings["search by mcp"].remedy


@pytest.mark.slow
async def test_what_a_chat_endpoint_takes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    server = TextServer(lambda _: text("Hello."), "ollama")
    model = {"id": server.model, "format": "passthrough", "context_length": 4096}
    monkeypatch.setenv("GATEWAY_MODELS", json.dumps([{**model, "modalities": ["text", "image"]}]))

    def refuse_tools(body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        said = {"error": {"message": f"{server.model} does not support tools"}}
        return (400, said) if "tools" in body else None

    server.refuses_if = refuse_tools
    async with serving(server.app) as url:
        with_backends(monkeypatch, url)
        findings = await examine(None)
    finding = by_name(findings)["backend gpu-0"]
    assert finding.ok, finding.detail
    assert finding.detail == "Ollama 0.6.0: toy-text (4096 tokens); text comes back"
    takes, lacks = (one for one in findings if one.name == "model toy-text at gpu-0")
    assert takes.detail == "its chat endpoint takes messages, formats, images; tells usage"
    assert not lacks.ok
    assert "does not support tools" in lacks.detail
    assert "calls of the model to none" in lacks.remedy
