"""vLLM, read release by release from 0.10.2 to 0.33."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.engine import AdapterPaths, InferenceEngine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.endpoints import TokenEndpoint
    from gateway.upstreams.engines.engine import Fields, Grammars, Release

_ANSWER_SINCE: Final = (0, 11, 0)
"""`structured_outputs`, which look for the opening of a final message in prompt and output, and
bind from there on."""
_TURN_SINCE: Final = (0, 27, 0)
"""They bind from the first token on; tags of token ids have been known since 0.22."""


@dataclass(frozen=True, slots=True)
class Vllm(InferenceEngine):
    """`/version` is a path that only it has."""

    title: ClassVar[str] = "vLLM"
    ids_since: ClassVar[Release] = (0, 10, 2)
    max_whitespace_since: ClassVar[Release] = (0, 31, 0)
    logprobs: ClassVar[bool] = True
    questions: ClassVar[tuple[str, ...]] = ("/version",)
    flag: ClassVar[str] = "/health"
    adapter_paths: ClassVar[AdapterPaths | None] = AdapterPaths(
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "Start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.",
    )
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"maximum context length|maximum model length|model's context length"
        r"|max_tokens must be at least 1, got (?:0|-\d+)|cannot be greater than max_model_len",
        re.IGNORECASE,
    )
    # Without a tokenizer; with llguidance, which does not know tags of token ids
    # (vllm-project/vllm#55152).
    no_grammars: ClassVar[re.Pattern[str]] = re.compile(
        r"skip_tokenizer_init|specification: 'triggers'", re.IGNORECASE
    )
    gave_up: ClassVar[re.Pattern[str]] = re.compile("Internal server error")
    not_the_caller: ClassVar[re.Pattern[str]] = re.compile(
        r"data_parallel_rank \d+ is out of range"
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        version = document.get("version")
        return cls(version) if isinstance(version, str) else None

    @override
    def grammars(self, release: Release) -> Grammars:
        if release >= _TURN_SINCE:
            return "turn"
        return "answer" if release >= _ANSWER_SINCE else "none"

    @property
    @override
    def priority_sign(self) -> Literal[-1, 1]:
        return -1

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        return {"request_id": request.request_id, "include_stop_str_in_output": True}

    @override
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {"structured_outputs": {"structural_tag": encoded.decode()}}
