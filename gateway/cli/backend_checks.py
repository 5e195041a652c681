"""Checks of `doctor` on inference servers: what they serve, their flags and their abilities."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import httpx2
import orjson

from gateway import ids
from gateway.cli import backends
from gateway.cli.deployment_checks import clock_finding, date_skew_s
from gateway.cli.findings import Finding, Subject, failed
from gateway.constraints.output_rules import OutputRules
from gateway.errors import UpstreamError, UpstreamRejected
from gateway.generation import ChatTerms, Constraint, Literal, Sampling, TokenRequest
from gateway.models.format import SEES
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import InputText, Message
from gateway.protocol.proxied import PATHS
from gateway.services.models import GENERATES
from gateway.text_ids import TEXT_STATE, packed_lines
from gateway.upstreams.backend import Timeouts
from gateway.upstreams.engines import SGLang, UnknownEngine, Vllm
from gateway.upstreams.http.client import build_client
from gateway.upstreams.inference_server import InferenceServer
from gateway.upstreams.pool import DESCRIBE_TIMEOUT_S
from gateway.upstreams.probe import describe
from gateway.upstreams.served_models import REMEDY, offers, overlooked, unserved
from gateway.upstreams.tokenization import render

if TYPE_CHECKING:
    from array import array
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterator,
        Mapping,
        Sequence,
    )

    from gateway.generation import ReportedUsage, TokenChunk, TokenSink
    from gateway.models.format import Formats, ModelFormat
    from gateway.protocol.proxied import ProxiedKind
    from gateway.settings import Settings
    from gateway.upstreams.backend import Backend, Listed, ServedModel
    from gateway.upstreams.engines import InferenceEngine, Unusable
    from gateway.upstreams.http.client import Client

    Ask = Callable[[array[int], "Heard"], Awaitable[None]]
    """Generate a few tokens. Raises `UpstreamError`."""

PROBE_TIMEOUT_S = 30.0
_HELLO = ContextItem(
    "message", "", b"", role="user", parsed=Message(role="user", content=(InputText(text="Hello"),))
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


async def inference_servers(subject: Subject) -> AsyncIterator[Finding]:
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

    plain = Heard()
    try:
        await ask(_prompt({}), plain)
        refused = await _refusals(ask, format_.abilities)
    except UpstreamError as error:
        return [failed(about, error)]
    usage = "tells no usage, which is estimated then" if plain.usage is None else "tells usage"
    taken = (name for name in _probes(format_.abilities) if name not in refused)
    takes = ", ".join(("messages", *taken))
    return [
        Finding(about, ok=True, detail=f"its chat endpoint takes {takes}; {usage}"),
        *(
            Finding(about, False, f"it takes no {name}: {why}", CHAT_REMEDIES[name])
            for name, why in refused.items()
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
        backend.url("/v1/models"), headers=backend.headers(), timeout=PROBE_TIMEOUT_S
    )
    skew_s = date_skew_s(answer.headers.get("date"))
    return [] if skew_s is None else [clock_finding(f"clock {backend.name}", "its clock", skew_s)]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


async def _arguments(backend: Backend, client: Client) -> dict[str, Any]:
    for path in SGLang.questions[:2]:
        answer = await client.get(
            backend.url(path), headers=backend.headers(), timeout=PROBE_TIMEOUT_S
        )
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
            timeout=PROBE_TIMEOUT_S,
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


_EMPTY_OBJECT: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_TOOL: Final = {"type": "function", "function": {"name": "look", "parameters": _EMPTY_OBJECT}}
_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "empty", "schema": _EMPTY_OBJECT}}
_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR4nGNoIAAYRhWMKh"
    "hVMFIVAABCAAAfNUt+NwAAAABJRU5ErkJggg=="
)
"""A grey square of 32 by 32 pixels: servers refuse smaller ones."""
CHAT_REMEDIES: Final = {
    "tools": "Start the server so that it calls tools (vLLM: --enable-auto-tool-choice and "
    "--tool-call-parser; llama.cpp: --jinja), or set calls of the model to none.",
    "formats": "Requests with text.format will fail: upgrade the server, or do without them.",
    "images": "Start the server with the model's projector, or take image from its modalities.",
}


@dataclass
class Heard:
    """Token sink that keeps everything."""

    ids: list[int] = field(default_factory=list)
    usage: ReportedUsage | None = None

    def on_tokens(self, chunk: TokenChunk) -> bool:
        self.ids += chunk.ids
        self.usage = chunk.usage
        return True

    async def room(self) -> bool:
        # Always continues: a probe generates a few tokens.
        return True


async def _refusals(ask: Ask, abilities: Collection[str]) -> dict[str, str]:
    # Reasons by what the chat endpoint refuses. Raises `UpstreamError` for any other failure.
    refused = {}
    for name, lines in _probes(abilities).items():
        try:
            await ask(lines, Heard())
        except UpstreamRejected as error:
            refused[name] = error.reason
    return refused


def _probes(abilities: Collection[str]) -> dict[str, array[int]]:
    probes = {"formats": _prompt({"response_format": _FORMAT})}
    if "tools" in abilities:
        probes["tools"] = _prompt({"tools": [_TOOL]})
    if SEES in abilities:
        image = {"type": "image_url", "image_url": {"url": _IMAGE}}
        probes["images"] = _prompt({}, [{"type": "text", "text": "What is it?"}, image])
    return probes


def _prompt(options: dict[str, Any], content: object = "Say hello.") -> array[int]:
    message = {"role": "user", "content": content}
    return packed_lines((orjson.dumps(options), orjson.dumps(message)))
