"""SGLang, read release by release from 0.5.2 to 0.5.23."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.engine import InferenceEngine, Unusable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import Served
    from gateway.upstreams.engines.engine import Fields, Grammars, Release

_TURN_SINCE: Final = (0, 5, 12)
"""xgrammar 0.2, which knows tags of token ids."""
_GRAMMAR_BACKEND: Final = "xgrammar"
"""The default. The others do not understand tags of token ids."""
_RUST_FRONTEND: Final = "rust"
_MODEL_INFO: Final = "/model_info"
"""Has no version."""


@dataclass(frozen=True, slots=True)
class SGLang(InferenceEngine):
    """`low_values_first`: it was told to serve low priorities first. `frontend` is "python" or
    "rust".

    Its `/health` generates a token, behind the prompts that are being read; its flag is `/ready`
    (since 0.5.20), which is also 503 until `/health` or the server's warm-up has been through.
    """

    low_values_first: bool = False
    frontend: str | None = None

    title: ClassVar[str] = "SGLang"
    ids_since: ClassVar[Release] = (0, 5, 17)
    ids_need: ClassVar[str] = " with its Python frontend (restart it without SGLANG_RUST_SERVER)"
    max_whitespace_since: ClassVar[Release] = (0, 5, 21)
    logprobs: ClassVar[bool] = False  # it names tokens by their text only
    # The second is the name of the first before 0.5.6.
    questions: ClassVar[tuple[str, ...]] = ("/server_info", "/get_server_info", _MODEL_INFO)
    tokenize_path: ClassVar[str] = "/v1/tokenize"
    flag: ClassVar[str] = "/ready"
    working_check: ClassVar[str | None] = "/health"
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"model's context length|Requested token count exceeds|exceeds the maximum allowed length",
        re.IGNORECASE,
    )
    no_grammars: ClassVar[re.Pattern[str]] = re.compile(r"grammar[- ]backend none", re.IGNORECASE)
    unknown_adapter: ClassVar[re.Pattern[str]] = re.compile(
        r"LoRA adapter that has never been loaded|LoRA adapter .* was requested, but LoRA is not",
        re.IGNORECASE,
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        """`/server_info` repeats the server's arguments."""
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
        )

    @property
    @override
    def unusable(self) -> Unusable | None:
        if self.frontend == _RUST_FRONTEND:
            return Unusable(
                f"{self} runs with its Rust frontend, which returns no token ids",
                "Restart it with its Python frontend: without SGLANG_RUST_SERVER.",
            )
        return self._too_old()

    @override
    def grammars(self, release: Release) -> Grammars:
        return "turn" if release >= _TURN_SINCE else "none"

    @property
    @override
    def priority_sign(self) -> Literal[-1, 1]:
        return -1 if self.low_values_first else 1

    @override
    def request_fields(self, request: TokenRequest, served: Served) -> Fields:
        """It does not look at `model`, and answers with the base model whatever is there."""
        fields: Fields = {"rid": request.request_id, "no_stop_trim": True}
        if served.parent is not None:
            fields |= {"model": served.parent, "lora_path": served.name}
        return fields

    @override
    def tag_fields(self, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {"response_format": tag}
