"""LMDeploy's `api_server`, as its source has it (0.18). It was not run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.endpoints import GENERATE
from gateway.upstreams.engines.engine import ANY, TOP_P_MIN, InferenceEngine, owner_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.endpoints import TokenEndpoint
    from gateway.upstreams.engines.engine import Capabilities, Fields, Grammars, Release

_NEW_IDS_ONLY: Final = replace(GENERATE, repeats=False)
_TEMPERATURE_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class LmDeploy(InferenceEngine):
    """The LMDeploy engine. Its `/generate` looks like SGLang's, with the sampling parameters at the
    top, and each event brings new ids only (`GenerateReqInput`, `endpoints/generate.py`).

    There it has no grammars, no alternatives of logprobs, no penalties, seeds or priorities, no id
    of a request, and no field that separates the caches of tenants.
    """

    title: ClassVar[str] = "LMDeploy"
    ids_since: ClassVar[Release] = ANY
    max_whitespace_since: ClassVar[Release] = (99, 0, 0)
    logprobs: ClassVar[bool] = False
    questions: ClassVar[tuple[str, ...]] = ("/v1/models",)
    flag: ClassVar[str] = "/health"
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"input length .* exceeds|INPUT_LENGTH_ERROR|session_len", re.IGNORECASE
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        return cls() if owner_of(document) == "lmdeploy" else None

    @override
    def grammars(self, release: Release) -> Grammars:
        return "none"

    @property
    @override
    def priority_sign(self) -> Literal[-1, 1]:
        return 1

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        return InferenceEngine.capabilities(self, grammars=False, priorities=False)

    @override
    def endpoint(self, request: TokenRequest) -> TokenEndpoint:
        return _NEW_IDS_ONLY

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        return {"include_stop_str_in_output": True}

    @override
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {}  # never asked for: it has no grammars

    @override
    def body(
        self, request: TokenRequest, served: ServedModel, can: Capabilities, bound: Fields
    ) -> Fields:
        sampling = request.sampling
        body: Fields = {
            "stream": True,
            "stop_token_ids": list(request.stop_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": min(sampling.temperature, _TEMPERATURE_MAX),
            "top_p": max(sampling.top_p, TOP_P_MIN),
            "skip_special_tokens": False,
            **self.request_fields(request, served),
        }
        if sampling.top_k is not None:
            body["top_k"] = max(sampling.top_k, 0)
        if sampling.min_p is not None:
            body["min_p"] = sampling.min_p
        return body
