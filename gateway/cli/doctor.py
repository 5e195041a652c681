from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import orjson
import typer

from gateway import ids
from gateway.cli import backends, chat_probes, mcp_registry, terminal
from gateway.cli.chat_probes import Heard
from gateway.cli.command import Config, Json, run
from gateway.cli.config import require_complete
from gateway.cli.deployment_checks import DATABASE_CHECKS, admin_listener, proxy
from gateway.cli.engine_checks import engine_findings
from gateway.cli.findings import Finding, Subject, failed, show
from gateway.cli.provision import connected, prepared_keys, provisioned
from gateway.cli.terminal import FAILED
from gateway.constraints.output_rules import OutputRules
from gateway.errors import StartupError, StoreError, UpstreamError, installation
from gateway.generation import ChatTerms, Constraint, Literal, Sampling, TokenRequest
from gateway.models.format import SEES
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import InputText, Message
from gateway.protocol.proxied import PATHS
from gateway.services.models import GENERATES
from gateway.settings import load_settings
from gateway.store.diagnostics import server_facts
from gateway.store.migration.verification import missing, summary
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from gateway.text_ids import TEXT_STATE
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.engines import UnknownEngine
from gateway.upstreams.http.client import build_client
from gateway.upstreams.inference_server import InferenceServer
from gateway.upstreams.pool import DESCRIBE_TIMEOUT_S
from gateway.upstreams.probe import describe
from gateway.upstreams.served_models import REMEDY, offers, overlooked, unserved
from gateway.upstreams.tokenization import render
from gateway.wiring import foundation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from gateway.cli.findings import Check
    from gateway.generation import TokenSink
    from gateway.models.format import Formats, ModelFormat
    from gateway.protocol.proxied import ProxiedKind
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.upstreams.backend import Backend, Listed, ServedModel
    from gateway.upstreams.engines import InferenceEngine, Unusable
    from gateway.upstreams.http.client import Client

PROBE_TIMEOUT_S = 30.0
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
_HELLO = ContextItem(
    "message",
    "",
    b"",
    role="user",
    parsed=Message(role="user", content=(InputText(text="Hello"),)),
)
_BOUND_WORDS = "Qx7"
_BOUND = Constraint(Literal(_BOUND_WORDS))
_PROXIED: dict[ProxiedKind, dict[str, object]] = {
    "embeddings": {"input": "Hello"},
    "rerank": {"query": "Hello", "documents": ["Hello"]},
}
_ANSWER_BYTES_MAX = 1 << 22
_NO_RULES = OutputRules(tools={}, allowed=frozenset())
_MISFIT_REMEDY = (
    "Set tokenizer, reasoning and calls of the model as its servers need them: docs/models.md."
)
_UNBOUND_REMEDY = (
    "Start vLLM without --reasoning-parser: with one, grammars wait for the end of a thought. The "
    "gateway reads thoughts and calls itself, so it needs no parser of the server."
)


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


@dataclass(frozen=True, slots=True)
class _Probed:
    backend: Backend
    engine: InferenceEngine
    listed: Mapping[str, Listed]
    served: Mapping[str, ServedModel]
    unusable: Unusable | None
    tasks: Mapping[str, Sequence[str]]
    """By the public id of a declared model."""

    @property
    def generating(self) -> list[str]:
        return [name for name in self.served if "generate" in self.tasks_of(name)]

    def tasks_of(self, model: str) -> Sequence[str]:
        parent = self.served[model].parent or model
        return self.tasks.get(model, self.tasks.get(parent, GENERATES))

    @property
    def models(self) -> dict[str, int | None]:
        lengths = self.backend.context_lengths
        return {name: lengths.get(name) or one.context_length for name, one in self.served.items()}


async def _backends(subject: Subject) -> AsyncIterator[Finding]:
    if subject.formats is None:
        return
    async with build_client() as client:
        for finding in await _probed(subject.settings, client, subject.formats):
            yield finding


async def _probed(settings: Settings, client: Client, formats: Formats) -> list[Finding]:
    probes: dict[str, _Probed | UpstreamError] = {}
    for backend in (await backends.current_members(settings)).backends.values():
        try:
            probes[backend.name] = await _look(settings, backend, client)
        except UpstreamError as error:
            probes[backend.name] = error
    answered = [probe for probe in probes.values() if isinstance(probe, _Probed)]
    offered = {name for probe in answered if probe.unusable is None for name in probe.listed}
    answered = [
        replace(
            probe,
            served=offers(
                probe.backend.models, probe.listed, offered, adapters_of=probe.backend.adapters_of
            ),
        )
        for probe in answered
    ]
    probes |= {probe.backend.name: probe for probe in answered}
    findings = [await _backend(name, probe, client, formats) for name, probe in probes.items()]
    for probe in answered:
        named = next((one.name for one in probe.served.values()), None)
        if not _fault(probe):
            findings += await engine_findings(probe.backend, probe.engine, named, client)
        for model in () if _fault(probe) else probe.generating:
            findings += await _chat_format(probe, model, client, formats.for_model(model))
            findings += await _chat_endpoint(probe, model, client, formats.for_model(model))
    missing = [
        Finding(f"model {one.model}", ok=False, detail=str(one), remedy=REMEDY)
        for one in unserved(answered)
    ]
    return findings + missing


async def _look(settings: Settings, backend: Backend, client: Client) -> _Probed:
    description = await describe(client, backend, timeout_s=DESCRIBE_TIMEOUT_S)
    engine = description.engine or UnknownEngine()
    tasks = {model.id: model.tasks for model in settings.models}
    unusable = None if backend.is_chat_only else engine.unusable
    return _Probed(backend, engine, description.models, {}, unusable, tasks)


async def _backend(
    name: str, probe: _Probed | UpstreamError, client: Client, formats: Formats
) -> Finding:
    about = f"backend {name}"
    if isinstance(probe, UpstreamError):
        return failed(about, probe)
    fault = _fault(probe)
    if fault is not None:
        return Finding(about, False, *fault)
    try:
        for model in probe.generating:
            await _one_token(probe, model, client, formats.for_model(model))
        passed = [task for model in probe.served for task in await _proxied(probe, model, client)]
    except UpstreamError as error:
        return failed(about, error)
    can = probe.engine.capabilities(
        grammars=probe.backend.grammars, priorities=probe.backend.priorities
    )
    models = ", ".join(_described(probe, model) for model in probe.served)
    ids_or_text = "text" if probe.backend.is_chat_only else "token ids"
    back = [*([ids_or_text] if probe.generating else ()), *dict.fromkeys(passed)]
    able = () if probe.backend.is_chat_only else (str(can),)
    verb = "comes" if back == ["text"] else "come"
    summary = "; ".join((*able, models, f"{' and '.join(back)} {verb} back"))
    return Finding(about, ok=True, detail=f"{probe.engine}: {summary}")


def _fault(probe: _Probed) -> tuple[str, str] | None:
    if probe.unusable is not None:
        return probe.unusable.why, probe.unusable.remedy
    if not probe.listed:
        return "it serves no model", "Is the model still being loaded?"
    if why := overlooked(probe):
        return why, REMEDY
    untold = [model for model, length in probe.models.items() if length is None]
    if untold:
        why = f"it does not tell the context length of {', '.join(untold)}"
        return why, "Set context_length of the model in gateway.yaml."
    return None


def _described(probe: _Probed, model: str) -> str:
    served = probe.served[model]
    name = model if served.name == model else f"{model} as {served.name}"
    adapter = "" if served.parent is None else f", an adapter of {served.parent}"
    return f"{name} ({probe.models[model]} tokens{adapter})"


async def _chat_format(
    probe: _Probed, model: str, client: Client, format_: ModelFormat
) -> list[Finding]:
    # Checks that a server which renders a model's prompts renders what is read here, and that a
    # grammar holds from the first id on. Empty for models whose prompts are made here.
    if not format_.questions:
        return []
    about, served = f"model {model} at {probe.backend.name}", probe.served[model]
    path, name = probe.engine.tokenize_path, served.parent or served.name
    try:
        rendered = {
            question: await render(
                client, probe.backend, path, name, question, timeout_s=PROBE_TIMEOUT_S
            )
            for question in format_.questions
        }
        misfits = format_.misfits(rendered)
        if misfits:
            return [Finding(about, False, "; ".join(misfits), _MISFIT_REMEDY)]
        is_bound = await _is_bound_at_once(probe, model, client, format_)
    except UpstreamError as error:
        return [failed(about, error)]
    if not is_bound:
        return [
            Finding(about, False, "a grammar does not bind what it says first", _UNBOUND_REMEDY)
        ]
    return [Finding(about, ok=True, detail="its chat template and its tokenizer fit")]


async def _chat_endpoint(
    probe: _Probed, model: str, client: Client, format_: ModelFormat
) -> list[Finding]:
    # Empty for models that are only sent ids.
    is_text = format_.framing.is_text
    if not is_text and SEES not in format_.abilities:
        return []
    about = f"model {model} at {probe.backend.name}"

    async def ask(prompt: Sequence[int], heard: Heard) -> None:
        text_format = format_ if is_text else format_.with_state(TEXT_STATE)
        await _generate(probe, model, client, text_format, heard, prompt=prompt)

    try:
        report = await chat_probes.examine(ask, format_.abilities)
    except UpstreamError as error:
        return [failed(about, error)]
    usage = "tells usage" if report.tells_usage else "tells no usage, which is estimated then"
    takes = ", ".join(("messages", *report.taken))
    return [
        Finding(about, ok=True, detail=f"its chat endpoint takes {takes}; {usage}"),
        *(
            Finding(about, False, f"it takes no {name}: {why}", chat_probes.REMEDIES[name])
            for name, why in report.refused.items()
        ),
    ]


async def _is_bound_at_once(
    probe: _Probed, model: str, client: Client, format_: ModelFormat
) -> bool:
    # The grammar allows only words that the model would not write by itself.
    can = probe.engine.capabilities(grammars=probe.backend.grammars)
    if can.grammars != "turn":
        return True
    heard = Heard()
    await _generate(probe, model, client, format_, heard, _BOUND)
    parser = format_.new_parser(_NO_RULES)
    return b"".join(map(parser.piece, heard.ids)).startswith(_BOUND_WORDS.encode())


async def _one_token(probe: _Probed, model: str, client: Client, format_: ModelFormat) -> None:
    # Raises `UpstreamError` when nothing comes back. Servers of text send a few words.
    count = Heard()
    await _generate(probe, model, client, format_, count)
    if not count.ids:
        raise UpstreamError("it ended without a token id", upstream=probe.backend.name)


async def _proxied(probe: _Probed, model: str, client: Client) -> list[str]:
    # Tasks whose requests are passed through.
    timeouts = Timeouts(first_token_s=PROBE_TIMEOUT_S, stall_s=PROBE_TIMEOUT_S)
    upstream = InferenceServer(probe.backend, client, timeouts=timeouts)
    kinds = [kind for kind in PATHS if kind in probe.tasks_of(model)]
    for kind in kinds:
        body = orjson.dumps({"model": probe.served[model].name, **_PROXIED[kind]})
        await upstream.ask(PATHS[kind], body, bytes_max=_ANSWER_BYTES_MAX)
    return list(kinds)


async def _generate(  # noqa: PLR0913 - what is asked, and of whom
    probe: _Probed,
    model: str,
    client: Client,
    format_: ModelFormat,
    sink: TokenSink,
    constraint: Constraint | None = None,
    *,
    prompt: Sequence[int] = (),
) -> None:
    is_text = format_.framing.is_text
    timeouts = Timeouts(first_token_s=PROBE_TIMEOUT_S, stall_s=PROBE_TIMEOUT_S)
    upstream = InferenceServer(probe.backend, client, timeouts=timeouts)
    upstream.runs(probe.engine)
    upstream.serves(probe.served)
    request = TokenRequest(
        request_id=ids.new_request_id(),
        model=model,
        prompt_ids=prompt or [*format_.render_item(_HELLO), *format_.framing.opening],
        sampling=Sampling(max_tokens=16 if constraint or is_text else 1, temperature=0.0),
        chat=ChatTerms(limits_output=True) if is_text else None,
        cache_salt="doctor",
        stop_ids=format_.stop_ids,
        id_end=format_.vocabulary_size,
        constraint=constraint,
    )
    await upstream.generate(request, sink)


CHECKS: Final[tuple[Check, ...]] = (
    _libraries,
    _prompts,
    _database,
    admin_listener,
    _web_search,
    _code_interpreter,
    _sources,
    _backends,
    proxy,
)
"""Checks in the order of the output."""
