from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx2
import orjson

from gateway.cli.deployment_checks import clock_finding, date_skew_s
from gateway.cli.findings import Finding
from gateway.upstreams.engines import SGLang, Vllm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.engines import InferenceEngine
    from gateway.upstreams.http.client import Client

TIMEOUT_S: Final = 30.0
PROMPT: Final = [*range(1_000, 1_128)]
"""Several blocks of any engine's cache."""
_UNTOLD: Final = "it does not tell how much of a prompt it had cached: cached_tokens is 0"
_NO_PRIORITIES: Final = "it takes no priorities, which gateway.yaml says it does"


async def engine_findings(
    backend: Backend, engine: InferenceEngine, name: str | None, client: Client
) -> list[Finding]:
    about = f"engine {backend.name}"
    try:
        findings = await _clock(backend, client)
        if isinstance(engine, SGLang):
            findings += _sglang(about, backend, engine, await _arguments(backend, client))
        elif type(engine) is Vllm and name is not None:
            findings += await _vllm(about, backend, name, client)
    except (httpx2.HTTPError, ValueError) as error:
        detail = f"its flags are not known: {type(error).__name__}"
        return [Finding(about, ok=True, detail=detail, remedy="Is it busy? Try again.")]
    return findings


async def _clock(backend: Backend, client: Client) -> list[Finding]:
    answer = await client.get(
        backend.url("/v1/models"), headers=backend.headers(), timeout=TIMEOUT_S
    )
    skew_s = date_skew_s(answer.headers.get("date"))
    return [] if skew_s is None else [clock_finding(f"clock {backend.name}", "its clock", skew_s)]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


async def _arguments(backend: Backend, client: Client) -> dict[str, Any]:
    for path in SGLang.questions[:2]:
        answer = await client.get(backend.url(path), headers=backend.headers(), timeout=TIMEOUT_S)
        if answer.status_code == 200:
            return _object(answer.json())
    return {}


def _sglang(
    about: str, backend: Backend, engine: SGLang, arguments: dict[str, Any]
) -> Iterator[Finding]:
    if backend.priorities and engine.has_priorities is False:
        remedy = "Start it with --enable-priority-scheduling, or set its priorities to false."
        yield Finding(about, False, _NO_PRIORITIES, remedy)
    if arguments.get("enable_cache_report") is False:
        yield Finding(about, ok=True, detail=_UNTOLD, remedy="Start it with --enable-cache-report.")
    if not engine.has_grammars:
        detail = "its grammar backend is not xgrammar: the gateway can only check what it writes"
        yield Finding(
            about, ok=True, detail=detail, remedy="Start it with --grammar-backend xgrammar."
        )
    if engine.frontend == "rust" and not engine.incremental:
        detail = "each event of an answer repeats all before it"
        remedy = "Start it with --incremental-streaming-output."
        yield Finding(about, ok=True, detail=detail, remedy=remedy)


async def _vllm(about: str, backend: Backend, name: str, client: Client) -> list[Finding]:
    # It does not report its flags, so their effects are tested.
    async def ask(**more: object) -> httpx2.Response:
        body = {"model": name, "prompt": PROMPT, "max_tokens": 1, "cache_salt": "doctor", **more}
        return await client.post(
            backend.url("/v1/completions"),
            content=orjson.dumps(body),
            headers={**backend.headers(), "content-type": "application/json"},
            timeout=TIMEOUT_S,
        )

    findings = []
    await ask()
    usage = _object(_object((await ask()).json()).get("usage"))
    if not _object(usage.get("prompt_tokens_details")).get("cached_tokens"):
        remedy = "Start it with --enable-prompt-tokens-details and with its prefix cache."
        findings.append(Finding(about, ok=True, detail=_UNTOLD, remedy=remedy))
    if backend.priorities and (await ask(priority=1)).status_code == 400:
        remedy = "Start it with --scheduling-policy priority, or set its priorities to false."
        findings.append(Finding(about, False, _NO_PRIORITIES, remedy))
    return findings
