"""Which inference engine a backend runs, and what that version of it can do. No I/O here.

Both engines were read release by release: vLLM from 0.10.2 to 0.33, SGLang from 0.5.2 to 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.generation import Constraint

Kind = Literal["vllm", "sglang", "unknown"]
Grammars = Literal["turn", "answer", "none"]
Release = tuple[int, int, int]

_NAMES: Final = {"vllm": "vLLM", "sglang": "SGLang"}
_VERSION: Final = re.compile(
    r"v?(?P<major>\d{1,6})\.(?P<minor>\d{1,6})(?:\.(?P<patch>\d{1,6}))?"
    r"(?P<candidate>(?:a|b|rc)\d+)?(?:\.?post\d+)?(?P<development>\.?dev\d*)?(?:[+].*)?"
)
"""As Python packages are numbered (https://peps.python.org/pep-0440/)."""
_BEFORE_NEXT: Final = 10**6

_VLLM_ANSWER: Final = (0, 11, 0)
"""`structured_outputs`, which begin to bind at the final message of gpt-oss."""
_VLLM_TURN: Final = (0, 27, 0)
"""They bind from the first token on; tags of token ids have been known since 0.22."""
_VLLM_WHITESPACE: Final = (0, 31, 0)
_SGLANG_TURN: Final = (0, 5, 12)
"""xgrammar 0.2, which knows tags of token ids."""
_SGLANG_WHITESPACE: Final = (0, 5, 21)
_IDS_SINCE: Final = {"vllm": (0, 10, 2), "sglang": (0, 5, 17)}
"""`return_token_ids` of `/v1/completions`."""
_RUST_FRONTEND: Final = "rust"
_SGLANG_GRAMMAR_BACKEND: Final = "xgrammar"
"""The default. The others do not understand tags of token ids."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What a server says it is; `version` is None if it keeps that to itself.

    `has_grammars` is False where the server was started without the grammar engine that is needed.
    `has_priorities`: it schedules by priority (None: it does not say), `low_values_first` where an
    SGLang was told to serve low ones first. `frontend` is SGLang's, "python" or "rust".
    """

    kind: Kind = "unknown"
    version: str | None = None
    has_grammars: bool = True
    has_priorities: bool | None = None
    low_values_first: bool = False
    frontend: str | None = None

    @override
    def __str__(self) -> str:
        if self.kind == "unknown":
            return "unknown engine"
        return f"{_NAMES[self.kind]} {self.version or '(version unknown)'}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be asked of a backend.

    `grammars`: "turn" binds every id from the first one on, "answer" only the final message.
    `logprobs` are told by id. `priority_sign` makes the engine's priority of ours, 0: it has none.
    `max_whitespace`: the white space inside JSON can be bounded.
    """

    grammars: Grammars = "none"
    logprobs: bool = False
    priority_sign: Literal[-1, 0, 1] = 0
    max_whitespace: bool = False

    def rank(self, constraint: Constraint | None) -> int:
        """How far a constraint would hold: 2 in all of the turn, 1 in its answer, 0 nowhere."""
        if constraint is None or self.grammars == "none":
            return 0
        if self.grammars == "turn":
            return 2
        return int(constraint.answer is not None)

    @override
    def __str__(self) -> str:
        grammars = {"turn": "grammars", "answer": "grammars for answers", "none": "no grammars"}
        return f"{grammars[self.grammars]}, {'' if self.logprobs else 'no '}logprobs"


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why nothing can be asked of an engine, and what to do about that."""

    why: str
    remedy: str

    @override
    def __str__(self) -> str:
        return f"{self.why}. {self.remedy}"


def capabilities(
    engine: Engine, *, grammars: bool = True, priorities: bool = False
) -> Capabilities:
    """What the engine can do, as far as the operator lets it.

    `priorities` is what the operator says of them; what the engine itself says goes before it.
    A development build lies somewhere between two releases: it counts as able only to what both
    of them are able to. An unknown engine or version is asked for nothing that it may not know.
    """
    if engine.kind == "unknown":
        return Capabilities()
    grammars = grammars and engine.has_grammars
    range_ = _release_range(engine.version)
    earliest = _grammars(engine.kind, range_[0]) if grammars and range_ else "none"
    latest = _grammars(engine.kind, range_[1]) if grammars and range_ else "none"
    if engine.has_priorities is not None:
        priorities = engine.has_priorities
    whitespace = _VLLM_WHITESPACE if engine.kind == "vllm" else _SGLANG_WHITESPACE
    return Capabilities(
        grammars=earliest if earliest == latest else "none",
        logprobs=engine.kind == "vllm",  # by id; SGLang names tokens by their text only
        priority_sign=_priority_sign(engine) if priorities else 0,
        max_whitespace=range_ is not None and range_[0] >= whitespace,
    )


def unusable(engine: Engine) -> Unusable | None:
    """Why the engine cannot be used; None where nothing is known against it.

    A development build is given the benefit of the doubt.
    """
    if engine.kind == "unknown":
        return None
    if engine.frontend == _RUST_FRONTEND:
        return Unusable(
            f"{engine} runs with its Rust frontend, which returns no token ids",
            "Restart it with its Python frontend: without SGLANG_RUST_SERVER.",
        )
    range_ = _release_range(engine.version)
    since = _IDS_SINCE[engine.kind]
    if range_ is None or range_[0] != range_[1] or range_[1] >= since:
        return None
    needed = ".".join(map(str, since))
    return Unusable(f"{engine} returns no token ids", f"Upgrade it to {needed} or newer.")


def from_version(document: Mapping[str, object]) -> Engine | None:
    """The engine behind an answer to `GET /version`, which only vLLM has."""
    version = document.get("version")
    return Engine("vllm", version) if isinstance(version, str) else None


def from_server_info(document: Mapping[str, object]) -> Engine | None:
    """The engine behind an answer to `GET /server_info`, which repeats SGLang's arguments."""
    version = document.get("version")
    if not isinstance(version, str):
        return None
    backend = document.get("grammar_backend", _SGLANG_GRAMMAR_BACKEND)
    priorities = document.get("enable_priority_scheduling")
    frontend = document.get("frontend")
    return Engine(
        "sglang",
        version,
        has_grammars=backend in (None, _SGLANG_GRAMMAR_BACKEND),
        has_priorities=priorities if isinstance(priorities, bool) else None,
        low_values_first=document.get("schedule_low_priority_values_first") is True,
        frontend=frontend if isinstance(frontend, str) else None,
    )


def from_model_info(document: Mapping[str, object]) -> Engine | None:
    """The engine behind an answer to `GET /model_info`, which has no version."""
    return Engine("sglang") if isinstance(document.get("model_path"), str) else None


def _release_range(version: str | None) -> tuple[Release, Release] | None:
    """The oldest and the newest release a build may be equal to; None if it is not known.

    Builds between releases are numbered after the one before, in its line (`0.26.1.dev7` comes
    after 0.26.0 and may already have all of 0.27), or after a candidate (`0.27.0rc2.dev3`).
    """
    found = _VERSION.fullmatch(version.strip()) if version is not None else None
    if found is None:
        return None
    major, minor, patch = (int(found[part] or 0) for part in ("major", "minor", "patch"))
    release = (major, minor, patch)
    if found["development"] is None:
        return release, release
    next_line = (major, minor + 1, 0)
    if found["candidate"] is not None:
        return release, next_line
    before = (major, minor, patch - 1) if patch else (major, minor - 1, _BEFORE_NEXT)
    return before, next_line


def _grammars(kind: Kind, release: Release) -> Grammars:
    if kind == "sglang":
        return "turn" if release >= _SGLANG_TURN else "none"
    if release >= _VLLM_TURN:
        return "turn"
    return "answer" if release >= _VLLM_ANSWER else "none"


def _priority_sign(engine: Engine) -> Literal[-1, 1]:
    """SGLang serves high values first unless it was told otherwise, vLLM low ones."""
    return -1 if engine.kind == "vllm" or engine.low_values_first else 1
