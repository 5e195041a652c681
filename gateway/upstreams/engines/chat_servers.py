"""Servers that take no token ids, or give none back: what is told of them, and how they refuse.

All of them are asked at `/v1/chat/completions`, and only for models of format `passthrough`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.engine import ANY, Capabilities, InferenceEngine, owner_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.endpoints import TokenEndpoint
    from gateway.upstreams.engines.engine import Fields, Grammars, Release


@dataclass(frozen=True, slots=True)
class ChatServer(InferenceEngine):
    """Any server, or hosted API, of which no more is known than that it takes conversations."""

    title: ClassVar[str] = "chat completions"
    ids_since: ClassVar[Release] = ANY
    max_whitespace_since: ClassVar[Release] = (99, 0, 0)
    logprobs: ClassVar[bool] = False
    questions: ClassVar[tuple[str, ...]] = ()
    flag: ClassVar[str] = "/v1/models"

    @override
    def __str__(self) -> str:
        return self.title if self.version is None else f"{self.title} {self.version}"

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        return None

    @override
    def grammars(self, release: Release) -> Grammars:
        return "none"

    @property
    @override
    def priority_sign(self) -> Literal[-1, 1]:
        return 1

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        return Capabilities(logprobs=True)  # who tells none refuses them, or leaves them out

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        return {}

    @override
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {}  # never asked for: it has no grammars

    @override
    def chat_fields(self, request: TokenRequest) -> Fields:
        return {}


@dataclass(frozen=True, slots=True)
class Ollama(ChatServer):
    """`GET /api/version` (`server/routes.go`). It cuts a prompt that is too long, silently."""

    title: ClassVar[str] = "Ollama"
    questions: ClassVar[tuple[str, ...]] = ("/api/version",)
    flag: ClassVar[str] = "/api/version"

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        version = document.get("version")
        return cls(version) if isinstance(version, str) else None


@dataclass(frozen=True, slots=True)
class LlamaCpp(ChatServer):
    """`llama-server`: its rows of models are owned by `llamacpp` (`tools/server/server.cpp`)."""

    title: ClassVar[str] = "llama.cpp"
    questions: ClassVar[tuple[str, ...]] = ("/v1/models",)
    flag: ClassVar[str] = "/health"
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"exceeds the available context size|exceed_context_size|larger than the max context size",
        re.IGNORECASE,
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        return cls() if owner_of(document) == "llamacpp" else None


@dataclass(frozen=True, slots=True)
class TextGenerationInference(ChatServer):
    """`GET /info` tells the model, the version and the router (`router/src/lib.rs`, `Info`)."""

    title: ClassVar[str] = "TGI"
    questions: ClassVar[tuple[str, ...]] = ("/info",)
    flag: ClassVar[str] = "/health"
    context_overflow: ClassVar[re.Pattern[str]] = re.compile(
        r"`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be <=|have less than)", re.IGNORECASE
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        version = document.get("version")
        if not (isinstance(version, str) and isinstance(document.get("router"), str)):
            return None
        return cls(version)


CHAT_SERVERS: Final[tuple[type[ChatServer], ...]] = (LlamaCpp, Ollama, TextGenerationInference)
"""Asked in this order, behind all engines that take ids."""
