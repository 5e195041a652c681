"""`doctor`: everything that must be right for a gateway to serve, looked at once."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import typer

from gateway import ids
from gateway.cli import terminal
from gateway.cli.failures import FAILED
from gateway.cli.options import Config, Json, run
from gateway.cli.provision import connected, provisioned
from gateway.errors import GatewayError, StartupError, StoreError, UpstreamError
from gateway.generation import Sampling, TokenRequest
from gateway.harmony.vocabulary import STOP_IDS, VOCABULARY_SIZE, Vocabulary
from gateway.settings import load_settings
from gateway.store.schema import REVISION
from gateway.tenancy import TenantId
from gateway.upstreams.backend import Backend, StreamLimits, Timeouts
from gateway.upstreams.client import build_client
from gateway.upstreams.connection import ConnectionLimits
from gateway.upstreams.engines import Engine, capabilities
from gateway.upstreams.probe import describe
from gateway.upstreams.server import InferenceServer
from gateway.upstreams.transport import KeepAlive

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.generation import TokenChunk
    from gateway.settings import Backend as BackendSettings
    from gateway.settings import Settings
    from gateway.upstreams.client import Client

PROBE_TIMEOUT_S = 30.0
NOBODY = TenantId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `remedy` is empty where it is right."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def doctor(config: Config = None, json_: Json = False) -> None:
    """Look at configuration, vocabulary, database and backends. Exit code 0: all is right.

    Each backend is asked for one token, which proves that it returns token ids.
    """
    findings = run(examine(config))
    ok = all(finding.ok for finding in findings)
    if json_:
        body = {"ok": ok, "findings": [asdict(finding) for finding in findings]}
        terminal.show(json.dumps(body))
    else:
        for finding in findings:
            mark = terminal.OK if finding.ok else terminal.BAD
            terminal.step(mark, finding.name, finding.detail)
            if finding.remedy:
                terminal.show(f"      {finding.remedy}")
    if not ok:
        raise typer.Exit(FAILED)


async def examine(config: Path | None) -> list[Finding]:
    """Look at everything; a mistake in the configuration hides the rest."""
    try:
        settings = load_settings(config)
    except StartupError as error:
        return [_failed("config", error)]
    findings = [Finding("config", ok=True, detail="no mistakes")]
    prompt_ids = _prompt(findings)
    await _database(settings, findings)
    if not prompt_ids:
        return findings
    if not settings.backends:
        remedy = "Name one in gateway.yaml: see gateway.example.yaml."
        findings.append(Finding("backends", ok=False, detail="none is configured", remedy=remedy))
    async with build_client(keep_alive=KeepAlive(), limits=ConnectionLimits()) as client:
        for backend in settings.backends:
            finding = await _backend(settings, backend, client, prompt_ids)
            findings.append(finding)
    return findings


def _prompt(findings: list[Finding]) -> list[int]:
    """A prompt to probe backends with; empty when this installation cannot make one."""
    from gateway.cli.prompt_check import verified_prompt

    try:
        vocabulary = Vocabulary.load()
        findings.append(Finding("vocabulary", ok=True, detail="o200k_harmony, checksum verified"))
    except StartupError as error:
        findings.append(_failed("vocabulary", error))
        return []
    try:
        ids = verified_prompt(vocabulary)
    except StartupError as error:
        findings.append(_failed("prompts", error))
        return []
    findings.append(Finding("prompts", ok=True, detail="rendered as openai-harmony does"))
    return ids


async def _database(settings: Settings, findings: list[Finding]) -> None:
    kind = "external" if settings.database.url else "embedded"
    looking_at = "database"
    try:
        async with provisioned(settings) as complete, connected(complete) as database:
            detail = f"{kind}, schema at {REVISION}"
            findings.append(Finding(looking_at, ok=True, detail=detail))
            looking_at = "isolation"
            async with database.transaction(NOBODY):
                detail = "the unprivileged role of tenants can be taken"
            findings.append(Finding(looking_at, ok=True, detail=detail))
    except (StartupError, StoreError) as error:
        findings.append(_failed(looking_at, error))
    else:
        where = "given" if settings.auth.key_pepper else str(settings.data_dir / "pepper")
        findings.append(Finding("pepper", ok=True, detail=where))


async def _backend(
    settings: Settings, configured: BackendSettings, client: Client, prompt_ids: list[int]
) -> Finding:
    """Reachable, what it serves, and whether one token comes back as an id."""
    api_key = configured.api_key.get_secret_value() if configured.api_key else None
    asked = Backend(configured.name, configured.url, models={}, api_key=api_key)
    try:
        said = await describe(client, asked, timeout_s=settings.upstream.probe_timeout_s)
        served = {name: name for name in configured.models or said.models}
        backend = Backend(configured.name, configured.url, models=served, api_key=api_key)
        for model in served:
            await _one_token(backend, model, client, prompt_ids)
    except UpstreamError as error:
        return _failed(f"backend {configured.name}", error)
    if not served:
        remedy = "Is the model still being loaded?"
        return Finding(f"backend {configured.name}", False, "it serves no model", remedy)
    models = ", ".join(f"{name} ({said.models.get(name) or '?'} tokens)" for name in served)
    engine = said.engine or Engine()
    can = capabilities(engine, grammars=configured.grammars == "auto")
    detail = f"{engine}: {can}; {models}; token ids come back"
    return Finding(f"backend {configured.name}", ok=True, detail=detail)


class _Count:
    """A listener who counts ids."""

    is_full = False

    def __init__(self) -> None:
        self.ids = 0

    def hear(self, chunk: TokenChunk) -> bool:
        self.ids += len(chunk.ids)
        return True

    def flow(self) -> None:
        """It hears too little for that."""

    async def room(self) -> bool:
        """There always is."""
        return True


async def _one_token(backend: Backend, model: str, client: Client, prompt_ids: list[int]) -> None:
    """Raises `UpstreamError` when no id comes back."""
    timeouts = Timeouts(first_token_s=PROBE_TIMEOUT_S, stall_s=PROBE_TIMEOUT_S)
    upstream = InferenceServer(
        backend,
        client,
        stop_ids=STOP_IDS,
        timeouts=timeouts,
        limits=StreamLimits(id_end=VOCABULARY_SIZE),
    )
    request = TokenRequest(
        request_id=ids.new_request_id(),
        model=model,
        prompt_ids=prompt_ids,
        sampling=Sampling(max_tokens=1, temperature=0.0),
        cache_salt="doctor",
    )
    count = _Count()
    await upstream.generate(request, count)
    if not count.ids:
        raise UpstreamError("it ended without a token id", upstream=backend.name)


def _failed(name: str, error: GatewayError) -> Finding:
    if isinstance(error, StartupError):
        remedy = error.remedy
    elif isinstance(error, StoreError):
        remedy = "Is PostgreSQL running, and is DATABASE_URL right?"
    else:
        remedy = "Is the server running, and are its url and api_key right?"
    return Finding(name, ok=False, detail=str(error), remedy=remedy)
