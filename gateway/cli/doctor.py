from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from gateway.cli import backends, mcp_registry, terminal
from gateway.cli.backend_checks import inference_servers
from gateway.cli.command import Config, Json, run
from gateway.cli.config import require_complete
from gateway.cli.deployment_checks import DATABASE_CHECKS, admin_listener, proxy
from gateway.cli.findings import Finding, Subject, failed, show
from gateway.cli.provision import connected, prepared_keys, provisioned
from gateway.cli.terminal import FAILED
from gateway.errors import StartupError, StoreError, installation
from gateway.settings import load_settings
from gateway.store.diagnostics import server_facts
from gateway.store.migration.verification import missing, summary
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from gateway.wiring import foundation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from gateway.cli.findings import Check
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

_SEARCH_REMEDY = (
    "Are its url and api_key in tools.web.providers right? SearXNG has to allow the format json."
)
_MCP_SEARCH_REMEDY = (
    "Set tools.mcp.enabled, and run: harmony-gateway mcp add LABEL URL --purpose search"
)
_PYTHON_REMEDY = (
    "docs/python.md says what each engine needs. Until one passes, no request gets this tool."
)
NOBODY = TenantId(UUID(int=0))


def doctor(
    config: Config = None,
    through: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where clients reach the proxy: try a stream through it."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key for --through.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="How many there will be. Default: those that run.")
    ] = None,
    json_: Json = False,
) -> None:
    """Look at configuration, vocabulary, database, clocks, backends, and with --through a proxy.

    Each backend is asked for one token, which proves that it returns token ids; where models are
    declared for something else, for that. Exit code 1: something is wrong; warnings leave it at 0.
    """
    findings = run(examine(config, through=through, api_key=key, replicas=replicas))
    ok = all(finding.ok for finding in findings)
    if json_:
        terminal.show(json.dumps({"ok": ok, "findings": [finding.json for finding in findings]}))
    else:
        show(findings)
    if not ok:
        raise typer.Exit(FAILED)


async def examine(config: Path | None, **options: Any) -> list[Finding]:
    """Run all checks; a configuration that cannot be read hides the rest.

    `options` are fields of the `Subject`.
    """
    try:
        subject = Subject(load_settings(config), **options)
    except StartupError as error:
        return [failed("config", error)]
    try:
        require_complete(subject.settings)
        findings = [Finding("config", ok=True, detail="no mistakes")]
    except StartupError as error:
        findings = [failed("config", error)]
    for check in CHECKS:
        findings += [finding async for finding in check(subject)]
    return findings


async def _libraries(subject: Subject) -> AsyncIterator[Finding]:
    # A process that serves loads most libraries with the first request that needs one. One that is
    # installed but broken (built for another system, of another version) would be noticed by it.
    is_well = True
    for what, modules, command in _needed(subject.settings):
        if faults := list(_faults(modules)):
            is_well = False
            detail = f"{what} needs what cannot be loaded: {'; '.join(faults)}"
            yield Finding("libraries", ok=False, detail=detail, remedy=f"Run: {command}")
    if is_well:
        yield Finding("libraries", ok=True, detail="all that is turned on can be loaded")


def _needed(settings: Settings) -> Iterator[tuple[str, Sequence[str], str]]:
    tools = settings.tools
    core = ("cryptography.hazmat.primitives.ciphers.aead", "jsonschema_rs", "llguidance")
    yield "grammars, schemas and sealing", core, "pip install --force-reinstall ."
    if tools.web.enabled:
        yield "web search", ("selectolax.lexbor", "pypdf"), installation("web")
    if tools.mcp.enabled:
        yield "MCP", ("mcp", "mcp.client.streamable_http"), installation("mcp")
    if tools.python.enabled:
        engine = ("pydantic_monty",) if tools.python.engine == "monty" else ()
        yield "code interpreter", ("python_multipart", *engine), installation("sandbox")


def _faults(modules: Sequence[str]) -> Iterator[str]:
    for name in modules:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a library raises, it is of no use
            yield f"{name.partition('.')[0]}: {error}"


async def _prompts(subject: Subject) -> AsyncIterator[Finding]:
    # Without formats this installation cannot make the prompts of the models.
    about = "vocabulary"
    try:
        formats = foundation.formats(subject.settings)
        yield Finding(about, ok=True, detail="o200k_harmony, checksum verified")
        about = "prompts"
        formats.default.check()
    except StartupError as error:
        yield failed(about, error)
        return
    subject.formats = formats
    yield Finding(about, ok=True, detail="rendered as openai-harmony does")


async def _database(subject: Subject) -> AsyncIterator[Finding]:
    settings = subject.settings
    kind = "external" if settings.database.url else "embedded"
    looking_at = "database"
    try:
        async with provisioned(settings) as complete, connected(complete) as database:
            facts = await server_facts(database)
            detail = f"{kind}, PostgreSQL {facts.version}, schema at {await database.revision()}"
            yield Finding(looking_at, ok=True, detail=detail)
            for finding in await _shortcomings(database):
                yield finding
            looking_at = "isolation"
            async with database.transaction(NOBODY):
                detail = "the unprivileged role of tenants can be taken"
            yield Finding(looking_at, ok=True, detail=detail)
            for check in DATABASE_CHECKS if settings.database.url else ():
                async for finding in check(subject, facts):
                    yield finding
            if settings.encryption.is_on:
                looking_at = "encryption"
                async with prepared_keys(complete):
                    yield Finding(looking_at, ok=True, detail="the database of keys answers")
            looking_at = "mcp servers"
            for finding in await _mcp_servers(complete, database):
                yield finding
    except (StartupError, StoreError) as error:
        yield failed(looking_at, error)
    else:
        where = "given" if settings.auth.key_pepper else str(settings.data_dir / "pepper")
        yield Finding("pepper", ok=True, detail=where)


async def _mcp_servers(settings: Settings, database: Database) -> list[Finding]:
    # Servers of all tenants only.
    is_on = settings.tools.mcp.enabled
    servers = [*(await mcp_registry.registered(settings, database)).values()] if is_on else []
    remedy = "Is it running? harmony-gateway mcp list shows its URL and which headers it is sent."
    findings = [
        Finding(f"mcp {label}", ok=ok, detail=detail, remedy="" if ok else remedy)
        for label, (ok, detail) in (await mcp_registry.answers(settings, database, servers)).items()
    ]
    if is_on and not servers:
        detail = "no server is registered for all tenants"
        findings.append(Finding("mcp", ok=True, detail=detail))
    web = settings.tools.web
    is_search_needed = web.enabled and any(one.kind == "mcp" for one in web.providers)
    if is_search_needed and not any("search" in one.purposes for one in servers):
        detail = "no MCP server is registered for search"
        findings.append(Finding("search by mcp", False, detail, _MCP_SEARCH_REMEDY))
    return findings


async def _shortcomings(database: Database) -> list[Finding]:
    # Report missing parts of the database that no request needs.
    lacking = [fact for fact in await missing(database) if not fact.stops]
    findings = []
    for cost in dict.fromkeys(fact.cost for fact in lacking):
        facts = [fact for fact in lacking if fact.cost == cost]
        by_hand = "Make it again by hand, as gateway/store/tables has it."
        remedy = "Run: harmony-gateway db upgrade" if facts[0].mend else by_hand
        detail = f"it lacks: {summary(facts)}: {cost}"
        findings.append(Finding("schema", ok=False, detail=detail, remedy=remedy))
    return findings


async def _web_search(subject: Subject) -> AsyncIterator[Finding]:
    from gateway.wiring.web import Workshop, probe_search

    web = subject.settings.tools.web
    if not web.enabled:
        return
    try:
        workshop = Workshop.of(web, Metrics())
    except StartupError as error:
        yield failed("web search", error)
        return
    try:
        engines = [one for one in web.providers if one.kind not in {"index", "mcp"}]
        for provider in engines:
            why = await probe_search(workshop, provider)
            about = f"search by {provider.kind}"
            yield Finding(about, not why, why or "it answers", _SEARCH_REMEDY if why else "")
        if not web.providers or any(one.kind == "index" for one in web.providers):
            detail = "pages of the local index, see `harmony-gateway pages list`"
            yield Finding("web search", ok=True, detail=detail)
    finally:
        await workshop.close()


async def _code_interpreter(subject: Subject) -> AsyncIterator[Finding]:
    # Runs the self-test that a gateway runs at its start.
    from gateway.tools.python.self_test import choose
    from gateway.wiring.python import engines

    about, python = "code interpreter", subject.settings.tools.python
    if not python.enabled:
        return
    try:
        chosen = await choose(engines(python))
    except StartupError as error:
        yield failed(about, error)
        return
    if chosen.engine is None:
        yield Finding(about, False, str(chosen), _PYTHON_REMEDY)
        return
    await chosen.engine.close()
    yield Finding(about, ok=True, detail=str(chosen))


async def _sources(subject: Subject) -> AsyncIterator[Finding]:
    settings = subject.settings
    for name, (ok, detail) in (await backends.examine(settings)).items():
        remedy = "" if ok else "See docs/backends.md; harmony-gateway backends list asks again."
        yield Finding(f"source {name}", ok=ok, detail=detail, remedy=remedy)


CHECKS: Final[tuple[Check, ...]] = (
    _libraries,
    _prompts,
    _database,
    admin_listener,
    _web_search,
    _code_interpreter,
    _sources,
    inference_servers,
    proxy,
)
"""Checks in the order of the output."""
