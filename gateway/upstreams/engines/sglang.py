"""SGLang, read release by release from 0.5.3 to 0.5.23."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.endpoints import COMPLETIONS, GENERATE
from gateway.upstreams.engines.engine import (
    TOP_P_MIN,
    AdapterPaths,
    InferenceEngine,
    is_older,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.endpoints import TokenEndpoint
    from gateway.upstreams.engines.engine import Capabilities, Fields, Grammars, Release

_TURN_SINCE: Final = (0, 5, 12)
"""xgrammar 0.2, which knows tags of token ids."""
_GRAMMAR_BACKEND: Final = "xgrammar"
"""The default. The others do not understand tags of token ids."""
_RUST_FRONTEND: Final = "rust"
_COMPLETIONS_SINCE: Final = (0, 5, 17)
"""`/v1/completions` returns token ids, if the frontend is Python."""
_SALTS_SINCE: Final = (0, 5, 19)
"""`/generate` knows `cache_salt`, before that only `extra_key`. An unknown name is ignored: tenants
would share what is cached of their prompts."""
_NEW_IDS_ONLY: Final = replace(GENERATE, repeats=False)
_INTERVALS: Final = ((8192, 1), (32768, 4))
"""Ids that one event of a stream brings, which repeats those before: by how many there may be."""
_INTERVAL_MAX: Final = 8
_MODEL_INFO: Final = "/model_info"
"""Has no version."""


@dataclass(frozen=True, slots=True)
class SGLang(InferenceEngine):
    """`low_values_first`: it was told to serve low priorities first. `frontend` is "python" or
    "rust". `incremental`: the events of `/generate` bring new ids only.

    `/v1/completions` is spoken where that returns ids, and logprobs are not asked for: there they
    name tokens by text. All else is `/generate`, whose events grow where they are not incremental.

    Its `/health` generates a token, behind the prompts that are being read; its flag is `/ready`
    (since 0.5.20), which is also 503 until `/health` or the server's warm-up has been through.
    """

    low_values_first: bool = False
    frontend: str | None = None
    incremental: bool = False

    title: ClassVar[str] = "SGLang"
    ids_since: ClassVar[Release] = (0, 5, 3)
    lacks: ClassVar[str] = "cannot keep apart what it caches for tenants"
    max_whitespace_since: ClassVar[Release] = (0, 5, 21)
    logprobs: ClassVar[bool] = True
    dies_of_unknown_ids: ClassVar[bool] = True
    # The second is the name of the first before 0.5.6.
    questions: ClassVar[tuple[str, ...]] = ("/server_info", "/get_server_info", _MODEL_INFO)
    tokenize_path: ClassVar[str] = "/v1/tokenize"
    flag: ClassVar[str] = "/ready"
    adapter_paths: ClassVar[AdapterPaths | None] = AdapterPaths(
        "/load_lora_adapter",
        "/unload_lora_adapter",
        "Start it with --enable-lora, --max-lora-rank and --lora-target-modules; if it has an "
        "admin key, set admin_key of this backend.",
    )
    working_check: ClassVar[str | None] = "/health"
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"model's context length|Requested token count exceeds|exceeds the maximum allowed length",
        re.IGNORECASE,
    )
    no_grammars: ClassVar[re.Pattern[str]] = re.compile(r"grammar[- ]backend none", re.IGNORECASE)
    unknown_adapter: ClassVar[re.Pattern[str]] = re.compile(
        r"LoRA adapter that has never been loaded|LoRA adapter .* was requested, but LoRA is not"
        r"|LoRA adapter .* is not loaded",
        re.IGNORECASE,
    )
    gave_up: ClassVar[re.Pattern[str]] = re.compile("Grammar accept_token failed: .*")
    not_the_caller: ClassVar[re.Pattern[str]] = re.compile(
        r"Duplicate request ID detected|routed_dp_rank=\d+ out of range"
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        # `/server_info` repeats the server's arguments.
        if path == _MODEL_INFO:
            return cls() if isinstance(document.get("model_path"), str) else None
        version = document.get("version")
        if not isinstance(version, str):
            return None
        backend = document.get("grammar_backend", _GRAMMAR_BACKEND)
        priorities = document.get("enable_priority_scheduling")
        frontend = document.get("frontend")
        return cls(
            version,
            has_grammars=backend in (None, _GRAMMAR_BACKEND),
            has_priorities=priorities if isinstance(priorities, bool) else None,
            low_values_first=document.get("schedule_low_priority_values_first") is True,
            frontend=frontend if isinstance(frontend, str) else None,
            incremental=document.get("incremental_streaming_output") is True,
        )

    @override
    def grammars(self, release: Release) -> Grammars:
        return "turn" if release >= _TURN_SINCE else "none"

    @property
    @override
    def priority_sign(self) -> Literal[-1, 1]:
        return -1 if self.low_values_first else 1

    @override
    def endpoint(self, request: TokenRequest) -> TokenEndpoint:
        has_ids = self.frontend != _RUST_FRONTEND and not is_older(self.version, _COMPLETIONS_SINCE)
        if has_ids and request.sampling.logprobs is None:
            return COMPLETIONS
        return _NEW_IDS_ONLY if self.incremental else GENERATE

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        # It ignores `model`, and answers with the base model whatever it says.
        fields: Fields = {"rid": request.request_id, "no_stop_trim": True}
        if served.parent is not None:
            fields |= {"model": served.parent, "lora_path": served.name}
        return fields

    @override
    def pair_fields(self, host: str, port: int, room: int) -> Fields:
        return {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}

    @override
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        if endpoint is COMPLETIONS:
            return {"response_format": tag}
        return {"structural_tag": encoded.decode()}

    @override
    def body(
        self, request: TokenRequest, served: ServedModel, can: Capabilities, bound: Fields
    ) -> Fields:
        endpoint = self.endpoint(request)
        if endpoint is COMPLETIONS:
            # A class with slots is made twice, and `super()` would mean the first.
            return InferenceEngine.body(self, request, served, can, bound)
        sampling = self._sampling(request, endpoint) | bound
        body: Fields = {"stream": True, "rid": request.request_id, "sampling_params": sampling}
        if request.sampling.logprobs is not None:
            body |= {
                "return_logprob": True,
                "top_logprobs_num": request.sampling.logprobs,
                "logprob_start_len": -1,
                "return_text_in_logprobs": False,
            }
        if served.parent is not None:
            body["lora_path"] = served.name
        if request.cache_salt:
            body |= dict.fromkeys(self._salts(), request.cache_salt)
        if can.priority_sign:
            body["priority"] = can.priority_sign * request.priority
        return body

    def _salts(self) -> tuple[str, ...]:
        # The field of `/generate` that keeps tenants' caches apart; both names if the version is
        # unknown.
        if self.version is None:
            return "extra_key", "cache_salt"
        return ("extra_key",) if is_older(self.version, _SALTS_SINCE) else ("cache_salt",)

    def _sampling(self, request: TokenRequest, endpoint: TokenEndpoint) -> Fields:
        # SGLang refuses names that it does not know.
        wanted = request.sampling
        fields: Fields = {
            "max_new_tokens": wanted.max_tokens,
            "temperature": wanted.temperature,
            "top_p": max(wanted.top_p, TOP_P_MIN),
            "presence_penalty": wanted.presence_penalty,
            "frequency_penalty": wanted.frequency_penalty,
            "stop_token_ids": list(request.stop_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        if wanted.seed is not None:
            fields["sampling_seed"] = wanted.seed
        if wanted.top_k is not None:
            fields["top_k"] = wanted.top_k
        if wanted.min_p is not None:
            fields["min_p"] = wanted.min_p
        if endpoint.repeats:
            bounds = (every for up_to, every in _INTERVALS if wanted.max_tokens <= up_to)
            fields["stream_interval"] = next(bounds, _INTERVAL_MAX)
        return fields
