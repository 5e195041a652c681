"""Base class of the inference engines, and what each engine's class has to define. No I/O here.

The capabilities of an engine depend on its release, and follow from the version that it reports.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

from gateway.upstreams.engines.endpoints import COMPLETIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import Constraint, TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.endpoints import TokenEndpoint

Grammars = Literal["turn", "answer", "none"]
Release = tuple[int, int, int]
Fields = dict[str, object]

ANY: Final[Release] = (0, 0, 0)
"""Of a server that does not tell its release."""
NEVER: Final = re.compile(r"(?!)")
"""The pattern of what is never said."""
_VERSION: Final = re.compile(
    r"v?(?P<major>\d{1,6})\.(?P<minor>\d{1,6})(?:\.(?P<patch>\d{1,6}))?"
    r"(?P<candidate>(?:a|b|rc)\d+)?(?:\.?post\d+)?(?P<development>\.?dev\d*)?(?:[+].*)?"
)
"""As Python packages are numbered (https://peps.python.org/pep-0440/)."""
_BEFORE_NEXT: Final = 10**6
TOP_P_MIN: Final = 1e-6
"""Stands for 0, which OpenAI takes and the engines refuse: only the likeliest token is left."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend.

    `grammars`: "turn" binds every id from the first one on, "answer" only the final message.
    `logprobs`: by token id. `priority_sign` turns our priority into the engine's; 0: it has none.
    `max_whitespace`: the white space inside JSON can be bounded.
    """

    grammars: Grammars = "none"
    logprobs: bool = False
    priority_sign: Literal[-1, 0, 1] = 0
    max_whitespace: bool = False

    def rank(self, constraint: Constraint | None) -> int:
        """Return how far a constraint holds: 2 in all of the turn, 1 in its answer, 0 nowhere."""
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
class AdapterPaths:
    """Both take `{"lora_name"}` with POST, `load` besides `{"lora_path"}`, a path that the server
    reads. `remedy` says what a server has to be started with.
    """

    load: str
    unload: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why nothing can be asked of an engine, and what to do about that."""

    why: str
    remedy: str

    @override
    def __str__(self) -> str:
        return f"{self.why}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class InferenceEngine(ABC):
    """Engine of a server, as the server describes itself; `version` None: it reports none.

    `has_grammars` is False where the server was started without the grammar engine that is needed.
    `has_priorities`: it schedules by priority (None: it does not say).
    """

    version: str | None = None
    has_grammars: bool = True
    has_priorities: bool | None = None

    title: ClassVar[str]
    ids_since: ClassVar[Release]
    """The first release that is of use."""
    lacks: ClassVar[str] = "returns no token ids"
    """What is wrong with those before."""
    ids_need: ClassVar[str] = ""
    """What that takes besides, as the end of a sentence."""
    max_whitespace_since: ClassVar[Release]
    """The first one whose grammars bound the white space inside JSON."""
    logprobs: ClassVar[bool]
    """It tells logprobs by token id."""
    dies_of_unknown_ids: ClassVar[bool] = False
    """An id outside the vocabulary ends the server, and every stream of it."""
    questions: ClassVar[tuple[str, ...]]
    """Paths whose answer says that it is this engine, each asked with GET, in this order. The list
    of models is known before any is asked.
    """
    flag: ClassVar[str]
    """The path of a health check whose answer takes it no work."""
    tokenize_path: ClassVar[str] = "/tokenize"
    """Where it renders conversations by the model's chat template."""
    working_check: ClassVar[str | None] = None
    """The path of one that takes work, for where the flag says no."""

    adapter_paths: ClassVar[AdapterPaths | None] = None
    """Where adapters are loaded and unloaded while it runs; None: nowhere."""

    # How it words its refusals.
    context_overflow: ClassVar[re.Pattern[str]] = NEVER
    no_grammars: ClassVar[re.Pattern[str]] = NEVER
    """This server refuses every grammar."""
    unknown_adapter: ClassVar[re.Pattern[str]] = NEVER
    """A 400 for what others answer 404: which model is asked for is the gateway's choice."""
    gave_up: ClassVar[re.Pattern[str]] = NEVER
    """All that it says when it ends one request in the middle of its grammar, and is well."""
    not_the_caller: ClassVar[re.Pattern[str]] = NEVER
    """A 400 for what only this gateway can have done: a request id that is in use, a rank that the
    server does not have.
    """

    @override
    def __str__(self) -> str:
        return f"{self.title} {self.version or '(version unknown)'}"

    @classmethod
    @abstractmethod
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        """Return the engine if `document` is its answer to one of its `questions`, else None."""

    @classmethod
    def requirement(cls) -> str:
        return f"{cls.title} >= {_dotted(cls.ids_since)}{cls.ids_need}"

    @abstractmethod
    def grammars(self, release: Release) -> Grammars:
        """Return which grammars the release supports."""

    @property
    @abstractmethod
    def priority_sign(self) -> Literal[-1, 1]:
        """Return 1 if the engine serves high priority values first, else -1."""

    def endpoint(self, request: TokenRequest) -> TokenEndpoint:  # noqa: ARG002 - others look at it
        return COMPLETIONS

    def pair_fields(self, host: str, port: int, room: int) -> Fields:  # noqa: ARG002 - as above
        # The fields by which both servers of a pair find each other; `room` is unique to the
        # request.
        return {}

    @abstractmethod
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        """Return the fields of the request id, the model, and the option to report the stop id."""

    @abstractmethod
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        """Return the fields of a structural tag; `encoded` is its JSON."""

    def body(
        self, request: TokenRequest, served: ServedModel, can: Capabilities, bound: Fields
    ) -> Fields:
        """Return the fields of a request, without the ids of its prompt.

        `bound` are the fields of its grammar.
        """
        sampling = request.sampling
        body: Fields = {
            "model": served.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stop_token_ids": list(request.stop_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": max(sampling.top_p, TOP_P_MIN),
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.top_k is not None:
            body["top_k"] = sampling.top_k
        if sampling.min_p is not None:
            body["min_p"] = sampling.min_p
        body |= self.request_fields(request, served)
        if sampling.logprobs is not None and can.logprobs:
            body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if can.priority_sign:
            # Also 0, which is ordinary: to SGLang a request without any is the least urgent.
            body["priority"] = can.priority_sign * request.priority
        return body | bound

    def chat_fields(self, request: TokenRequest) -> Fields:
        # The salt keeps the caches of tenants apart.
        return {"cache_salt": request.cache_salt} if request.cache_salt else {}

    def answer_fields(self, constraint: Constraint) -> Fields:
        # For releases that can bind nothing but the schema of an answer.
        return {"structured_outputs": {"json": constraint.answer}}

    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        """Return what the engine can do, as far as the operator allows it.

        `priorities` is the operator's setting; a report of the engine itself overrides it. A
        development build lies between two releases: it counts as able only to what both of them can
        do. Of an unknown version nothing is assumed.
        """
        range_ = release_range(self.version)
        bound: set[Grammars] = {"none"}
        if grammars and self.has_grammars and range_:
            bound = {self.grammars(release) for release in range_}
        if self.has_priorities is not None:
            priorities = self.has_priorities
        return Capabilities(
            grammars=bound.pop() if len(bound) == 1 else "none",
            logprobs=self.logprobs,
            priority_sign=self.priority_sign if priorities else 0,
            max_whitespace=range_ is not None and range_[0] >= self.max_whitespace_since,
        )

    @property
    def unusable(self) -> Unusable | None:
        # None for development builds: they may be new enough.
        return self._too_old()

    def _too_old(self) -> Unusable | None:
        if not is_older(self.version, self.ids_since):
            return None
        needed = _dotted(self.ids_since)
        return Unusable(f"{self} {self.lacks}", f"Upgrade it to {needed} or newer.")


def release_range(version: str | None) -> tuple[Release, Release] | None:
    """Return the oldest and the newest release a build may equal; None for an unknown version.

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


def owner_of(models: Mapping[str, Any]) -> object:
    """Return the owner of the first model of a list of models; None if it has none."""
    rows = models.get("data")
    first = rows[0] if isinstance(rows, list) and rows else None
    return first.get("owned_by") if isinstance(first, dict) else None


def is_older(version: str | None, release: Release) -> bool:
    """Return True if the version is certainly older; False for development and unknown builds."""
    range_ = release_range(version)
    return range_ is not None and range_[0] == range_[1] and range_[1] < release


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))
