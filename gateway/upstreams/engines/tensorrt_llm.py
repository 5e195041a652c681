"""TensorRT-LLM's `trtllm-serve`, as its source has it (main, November 2026). It was not run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.engine import ANY, TOP_P_MIN, InferenceEngine, owner_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.endpoints import TokenEndpoint
    from gateway.upstreams.engines.engine import Capabilities, Fields, Grammars, Release

_ORDINARY: Final = 0.5
_STEP: Final = 0.25
"""Its priorities go from 0 to 1, ordinary is in the middle."""


@dataclass(frozen=True, slots=True)
class TensorRtLlm(InferenceEngine):
    """The TensorRT-LLM engine. It refuses a request with an unknown key (`OpenAIBaseModel`), and
    returns ids only if the request turns detokenization off (`completion_stream_post_processor`).

    It takes no id of a request, and no field that separates the caches of tenants. Without a
    version its grammars are unknown: it refuses those that it cannot bind, and the gateway repeats
    the request without.
    """

    title: ClassVar[str] = "TensorRT-LLM"
    ids_since: ClassVar[Release] = ANY
    max_whitespace_since: ClassVar[Release] = (99, 0, 0)
    logprobs: ClassVar[bool] = False  # it names tokens by their text only
    questions: ClassVar[tuple[str, ...]] = ("/v1/models",)
    flag: ClassVar[str] = "/health"
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"exceeds? (?:the )?(?:max_seq_len|max_input_len|maximum sequence length|max_num_tokens)"
        r"|larger than (?:max_seq_len|max_num_tokens)",
        re.IGNORECASE,
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        return cls() if owner_of(document) == "tensorrt_llm" else None

    @override
    def grammars(self, release: Release) -> Grammars:
        return "turn"

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        # A class with slots is made twice, and `super()` would mean the first.
        can = InferenceEngine.capabilities(self, grammars=grammars, priorities=priorities)
        return replace(can, grammars="turn" if grammars else "none")

    @property
    @override
    def priority_sign(self) -> Literal[-1, 1]:
        return 1

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        return {"detokenize": False}

    @override
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {"response_format": tag}

    @override
    def body(
        self, request: TokenRequest, served: ServedModel, can: Capabilities, bound: Fields
    ) -> Fields:
        sampling = request.sampling
        body: Fields = {
            "model": served.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop_token_ids": list(request.stop_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": max(sampling.top_p, TOP_P_MIN),
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            **self.request_fields(request, served),
        }
        chosen = {"seed": sampling.seed, "top_k": sampling.top_k, "min_p": sampling.min_p}
        body |= {name: value for name, value in chosen.items() if value is not None}
        if can.priority_sign:
            wanted = _ORDINARY + _STEP * request.priority
            body["priority"] = min(1.0, max(0.0, wanted))
        return body | bound
