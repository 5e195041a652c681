from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import httpx2

from gateway.settings.sections import PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping


DP_RANK: Final = "x-data-parallel-rank"
"""vLLM and SGLang read it, and refuse a rank that they do not have with 400."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill server of a pair (PD disaggregation); the decode server fetches its result from
    `bootstrap_host` and `bootstrap_port`.
    """

    base_url: str
    bootstrap_host: str
    bootstrap_port: int


@dataclass(frozen=True, slots=True)
class Backend:
    """vLLM or SGLang server, or another that speaks like one.

    `models` maps public ids to the server's names (base models or LoRA adapters); empty: every
    model it lists. `context_lengths` (tokens, prompt and output together, by public id) go before
    the server's own. `grammars` may be used where the engine can. `priorities`: the server
    schedules by them. Adapters of models in `adapters_of` (public ids) are served too. `admin_key`
    loads adapters, where that takes another key. Models in `passed_through` (public ids) are sent
    messages.
    """

    name: str
    base_url: str
    models: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    context_lengths: Mapping[str, int] = field(default_factory=dict)
    grammars: bool = True
    priorities: bool = False
    adapters_of: frozenset[str] = frozenset()
    dp_rank: int | None = None
    prefill: Prefill | None = None
    admin_key: str | None = field(default=None, repr=False)
    source: str = "settings"
    passed_through: frozenset[str] = frozenset()

    @property
    def is_chat_only(self) -> bool:
        return bool(self.models) and self.passed_through.issuperset(self.models)

    def at(self, base_url: str) -> Backend:
        return replace(self, base_url=base_url)

    def url(self, path: str) -> httpx2.URL:
        return httpx2.URL(self.base_url.rstrip("/").removesuffix("/v1") + path)

    def checked(self) -> Backend:
        """Return the backend itself. Raises `ValueError` if its URL is not valid."""
        try:
            port = self.url("/").port
        except httpx2.InvalidURL as error:
            raise ValueError(str(error)) from error
        if port is not None and not 0 < port <= PORT_MAX:
            raise ValueError(f"there is no port {port}")
        return self

    @property
    def origins(self) -> set[httpx2.URL]:
        # Of its servers: what has the same one is reached over the same connections.
        servers = [self] if self.prefill is None else [self, self.at(self.prefill.base_url)]
        return {one.url("/").copy_with(raw_path=b"/") for one in servers}

    def headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return key if self.dp_rank is None else {**key, DP_RANK: str(self.dp_rank)}


@dataclass(frozen=True, slots=True)
class Listed:
    """Row of a backend's list of models: context length in tokens, an adapter's base model and
    path; None if the backend does not say.
    """

    context_length: int | None = None
    parent: str | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    parent: str | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. There is no limit on a whole stream, only on its silences.

    `first_token_s` covers queueing and prefill; `stall_s` is the longest gap between two ids, and
    keep-alive comments do not count; `tail_s` is how long to wait for what follows the last id.
    """

    connect_s: float = 5.0
    write_s: float = 30.0
    first_token_s: float = 600.0
    stall_s: float = 20.0
    tail_s: float = 1.0


EVENT_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one event without prompt and logprobs, and of a refusal's body."""

    event_bytes_max: int = EVENT_BYTES_MAX
    error_bytes_max: int = 64 * 1024
