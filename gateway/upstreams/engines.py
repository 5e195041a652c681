"""The inference engines that backends may run. No I/O here.

`InferenceEngine` says what an engine's class has to define. The capabilities of an engine depend on
its release, and follow from the version that it reports. To add an engine: a class, and a line in
`ENGINES` (or `CHAT_SERVERS`, for one that takes no token ids).

vLLM was read release by release from 0.10.2 to 0.33, SGLang from 0.5.3 to 0.5.23. LMDeploy (0.18)
and TensorRT-LLM's `trtllm-serve` (main, November 2026) are as their sources have them, and were not
run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gateway.generation import Constraint, Sampling, TokenRequest
    from gateway.upstreams.backend import ServedModel


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Endpoint of raw completions: its `path`, `prompt_key` for the ids, and reader of `events`.

    `repeats`: each event may have all ids from the first one on.
    """

    path: str
    prompt_key: str
    events: Literal["completions", "generate", "chat"]
    repeats: bool = False


COMPLETIONS: Final = TokenEndpoint("/v1/completions", "prompt", "completions")
"""OpenAI's, with token ids: vLLM since 0.10.2, SGLang since 0.5.17 behind its Python frontend."""
GENERATE: Final = TokenEndpoint("/generate", "input_ids", "generate", repeats=True)
"""SGLang's own, in all of its releases and frontends, and LMDeploy's."""
CHAT: Final = TokenEndpoint("/v1/chat/completions", "messages", "chat")
"""OpenAI's, with a conversation and text: what every server has."""


Grammars = Literal["turn", "answer", "none"]
Release = tuple[int, int, int]
Fields = dict[str, object]

ANY: Final[Release] = (0, 0, 0)
"""`ids_since` of engines of which any release will do: most do not report theirs."""
NEVER: Final = re.compile(r"(?!)")
"""The pattern of what is never said."""
_VERSION: Final = re.compile(
    r"v?(?P<major>\d{1,6})\.(?P<minor>\d{1,6})(?:\.(?P<patch>\d{1,6}))?"
    r"(?P<candidate>(?:a|b|rc)\d+)?(?:\.?post\d+)?(?P<development>\.?dev\d*)?(?:[+].*)?"
)
"""Version number of a Python package (https://peps.python.org/pep-0440/)."""
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
    """Reason why an engine cannot be used, and its remedy."""

    why: str
    remedy: str

    @override
    def __str__(self) -> str:
        return f"{self.why}. {self.remedy}"


@dataclass(frozen=True)
class InferenceEngine:
    """Engine of a server, as the server describes itself; `version` None: it reports none.

    What an engine's class does not say of itself is what the least of them can do.

    `has_grammars` is False where the server was started without the grammar engine that is needed.
    `has_priorities`: it schedules by priority (None: it does not say).
    """

    version: str | None = None
    has_grammars: bool = True
    has_priorities: bool | None = None

    title: ClassVar[str]
    ids_since: ClassVar[Release] = ANY
    """The first release that is of use."""
    lacks: ClassVar[str] = "returns no token ids"
    """Fault of releases before `ids_since`, as a predicate that follows the engine's name."""
    max_whitespace_since: ClassVar[Release | None] = None
    """The first one whose grammars bound the white space inside JSON; None: there is none."""
    logprobs: ClassVar[bool] = False
    """True if it reports logprobs by token id."""
    dies_of_unknown_ids: ClassVar[bool] = False
    """An id outside the vocabulary ends the server, and every stream of it."""
    questions: ClassVar[tuple[str, ...]] = ("/v1/models",)
    """Paths whose answers identify this engine, each read with GET, in this order. The list of
    models is read before.
    """
    owner: ClassVar[str | None] = None
    """Owner of the models that it lists, if that identifies it; None: it does not."""
    flag: ClassVar[str] = "/health"
    """The path of a health check whose answer takes it no work."""
    tokenize_path: ClassVar[str] = "/tokenize"
    """Path at which it renders conversations by the model's chat template."""
    working_check: ClassVar[str | None] = None
    """The path of one that takes work, for where the flag says no."""

    adapter_paths: ClassVar[AdapterPaths | None] = None
    """Paths at which adapters are loaded and unloaded while it runs; None: it has no such paths."""

    # Its words of refusals.
    context_overflow: ClassVar[re.Pattern[str]] = NEVER
    no_grammars: ClassVar[re.Pattern[str]] = NEVER
    """This server refuses every grammar."""
    unknown_adapter: ClassVar[re.Pattern[str]] = NEVER
    """A 400 where others answer 404: the gateway chooses the model, not the caller."""
    gave_up: ClassVar[re.Pattern[str]] = NEVER
    """Pattern of its whole message when it ends one request in the middle of its grammar, and is
    well."""
    not_the_caller: ClassVar[re.Pattern[str]] = NEVER
    """A 400 for what only this gateway can have done: a request id that is in use, a rank that the
    server does not have.
    """

    @override
    def __str__(self) -> str:
        return f"{self.title} {self.version or '(version unknown)'}"

    @classmethod
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        """Return the engine if `document` is its answer to one of its `questions`, else None."""
        if cls.owner is not None:
            return cls() if _owner_of(document) == cls.owner else None
        version = document.get("version")
        return cls(version) if isinstance(version, str) else None

    @classmethod
    def requirement(cls) -> str:
        return f"{cls.title} >= {_dotted(cls.ids_since)}"

    def grammars(self, release: Release) -> Grammars:
        """Return which grammars the release supports."""
        return "none"

    @property
    def priority_sign(self) -> Literal[-1, 1]:
        """Return 1 if the engine serves high priority values first, else -1."""
        return 1

    def endpoint(self, request: TokenRequest) -> TokenEndpoint:
        return COMPLETIONS

    def pair_fields(self, host: str, port: int, room: int) -> Fields:
        # The fields by which both servers of a pair find each other; `room` is unique to the
        # request.
        return {}

    def request_fields(
        self,
        request: TokenRequest,
        served: ServedModel,
    ) -> Fields:
        """Return the fields of the request id, the model, and the option to report the stop id."""
        return {}

    def tag_fields(
        self,
        endpoint: TokenEndpoint,
        tag: Mapping[str, Any],
        encoded: bytes,
    ) -> Fields:
        """Return the fields of a structural tag; `encoded` is its JSON."""
        return {"response_format": tag}

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
        body |= optional_sampling(sampling) | self.request_fields(request, served)
        if sampling.logprobs is not None and can.logprobs:
            body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if can.priority_sign:
            # Also 0, which is ordinary: to SGLang a request without any is the least urgent.
            body["priority"] = can.priority_sign * request.priority
        body.update(bound)
        return body

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
            max_whitespace=range_ is not None
            and self.max_whitespace_since is not None
            and range_[0] >= self.max_whitespace_since,
        )

    @property
    def unusable(self) -> Unusable | None:
        # None for development builds: they may be new enough.
        if not is_older(self.version, self.ids_since):
            return None
        needed = _dotted(self.ids_since)
        return Unusable(f"{self} {self.lacks}", f"Upgrade it to {needed} or newer.")


def release_range(version: str | None) -> tuple[Release, Release] | None:
    """Return the oldest and the newest release a build may equal; None for an unknown version.

    Builds between releases are numbered after the one before, in its line (`0.26.1.dev7` comes
    after 0.26.0 and may already have all of 0.27), or after a candidate (`0.27.0rc2.dev3`).
    """
    match = _VERSION.fullmatch(version.strip()) if version is not None else None
    if match is None:
        return None
    major, minor, patch = (int(match[part] or 0) for part in ("major", "minor", "patch"))
    release = (major, minor, patch)
    if match["development"] is None:
        return release, release
    next_line = (major, minor + 1, 0)
    if match["candidate"] is not None:
        return release, next_line
    before = (major, minor, patch - 1) if patch else (major, minor - 1, _BEFORE_NEXT)
    return before, next_line


def optional_sampling(sampling: Sampling, seed: str = "seed") -> Fields:
    """Return the fields of what a request need not choose; `seed` is the name of its field."""
    fields = {seed: sampling.seed, "top_k": sampling.top_k, "min_p": sampling.min_p}
    return {name: value for name, value in fields.items() if value is not None}


def _owner_of(models: Mapping[str, Any]) -> object:
    # None if a list of models does not tell the owner of its first one.
    rows = models.get("data")
    first = rows[0] if isinstance(rows, list) and rows else None
    return first.get("owned_by") if isinstance(first, dict) else None


def is_older(version: str | None, release: Release) -> bool:
    """Return True if the version is certainly older; False for development and unknown builds."""
    range_ = release_range(version)
    return range_ is not None and range_[0] == range_[1] and range_[1] < release


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))


_VLLM_ANSWER_SINCE: Final = (0, 11, 0)
"""`structured_outputs`, which look for the opening of a final message in prompt and output, and
bind from there on."""
_VLLM_TURN_SINCE: Final = (0, 27, 0)
"""First release whose `structured_outputs` bind from the first token on; tags of token ids have
been known since 0.22."""


class Vllm(InferenceEngine):
    """`/version` is a path that only it has."""

    title = "vLLM"
    ids_since = (0, 10, 2)
    max_whitespace_since = (0, 31, 0)
    logprobs = True
    questions: ClassVar[tuple[str, ...]] = ("/version",)
    adapter_paths = AdapterPaths(
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "Start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.",
    )
    context_overflow = re.compile(
        r"maximum context length|maximum model length|model's context length"
        r"|max_tokens must be at least 1, got (?:0|-\d+)|cannot be greater than max_model_len",
        re.IGNORECASE,
    )
    # Without a tokenizer; with llguidance, which does not know tags of token ids
    # (vllm-project/vllm#55152).
    no_grammars = re.compile(r"skip_tokenizer_init|specification: 'triggers'", re.IGNORECASE)
    gave_up = re.compile("Internal server error")
    not_the_caller = re.compile(r"data_parallel_rank \d+ is out of range")

    @override
    def grammars(self, release: Release) -> Grammars:
        if release >= _VLLM_TURN_SINCE:
            return "turn"
        return "answer" if release >= _VLLM_ANSWER_SINCE else "none"

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


_SGLANG_TURN_SINCE: Final = (0, 5, 12)
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


@dataclass(frozen=True)
class SGLang(InferenceEngine):
    """SGLang. `low_values_first`: it is set to serve low priorities first. `frontend` is "python"
    or "rust". `incremental`: the events of `/generate` bring new ids only.

    `/v1/completions` is used if that returns ids and no logprobs are requested: there they name
    tokens by text. Everything else uses `/generate`, whose events grow unless they are incremental.

    Its `/health` generates a token, behind the prompts that are being read; its flag is `/ready`
    (since 0.5.20), which is also 503 until `/health` or the server's warm-up has been through.
    """

    low_values_first: bool = False
    frontend: str | None = None
    incremental: bool = False

    title = "SGLang"
    ids_since = (0, 5, 3)
    lacks = "cannot keep apart what it caches for tenants"
    max_whitespace_since = (0, 5, 21)
    logprobs = True
    dies_of_unknown_ids = True
    # The second is the name of the first before 0.5.6.
    questions = ("/server_info", "/get_server_info", _MODEL_INFO)
    tokenize_path = "/v1/tokenize"
    flag = "/ready"
    adapter_paths = AdapterPaths(
        "/load_lora_adapter",
        "/unload_lora_adapter",
        "Start it with --enable-lora, --max-lora-rank and --lora-target-modules; if it has an "
        "admin key, set admin_key of this backend.",
    )
    working_check = "/health"
    context_overflow = re.compile(
        r"model's context length|Requested token count exceeds|exceeds the maximum allowed length",
        re.IGNORECASE,
    )
    no_grammars = re.compile(r"grammar[- ]backend none", re.IGNORECASE)
    unknown_adapter = re.compile(
        r"LoRA adapter that has never been loaded|LoRA adapter .* was requested, but LoRA is not"
        r"|LoRA adapter .* is not loaded",
        re.IGNORECASE,
    )
    gave_up = re.compile("Grammar accept_token failed: .*")
    not_the_caller = re.compile(r"Duplicate request ID detected|routed_dp_rank=\d+ out of range")

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
        return "turn" if release >= _SGLANG_TURN_SINCE else "none"

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
            return super().tag_fields(endpoint, tag, encoded)
        return {"structural_tag": encoded.decode()}

    @override
    def body(
        self, request: TokenRequest, served: ServedModel, can: Capabilities, bound: Fields
    ) -> Fields:
        endpoint = self.endpoint(request)
        if endpoint is COMPLETIONS:
            return super().body(request, served, can, bound)
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
            **optional_sampling(wanted, seed="sampling_seed"),
        }
        if endpoint.repeats:
            bounds = (every for up_to, every in _INTERVALS if wanted.max_tokens <= up_to)
            fields["stream_interval"] = next(bounds, _INTERVAL_MAX)
        return fields


_TEMPERATURE_MAX: Final = 2.0


class LmDeploy(InferenceEngine):
    """The LMDeploy engine. Its `/generate` looks like SGLang's, with the sampling parameters at the
    top, and each event brings new ids only (`GenerateReqInput`, `endpoints/generate.py`).

    There it has no grammars, no alternatives of logprobs, no penalties, seeds or priorities, no id
    of a request, and no field that separates the caches of tenants.
    """

    title = "LMDeploy"
    owner = "lmdeploy"
    context_overflow = re.compile(
        r"input length .* exceeds|INPUT_LENGTH_ERROR|session_len", re.IGNORECASE
    )

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        return super().capabilities(grammars=False, priorities=False)

    @override
    def endpoint(self, request: TokenRequest) -> TokenEndpoint:
        return _NEW_IDS_ONLY

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
            "include_stop_str_in_output": True,
        }
        if sampling.top_k is not None:
            body["top_k"] = max(sampling.top_k, 0)
        if sampling.min_p is not None:
            body["min_p"] = sampling.min_p
        return body


_ORDINARY: Final = 0.5
_STEP: Final = 0.25
"""Its priorities go from 0 to 1, ordinary is in the middle."""


class TensorRtLlm(InferenceEngine):
    """The TensorRT-LLM engine. It refuses a request with an unknown key (`OpenAIBaseModel`), and
    returns ids only if the request turns detokenization off (`completion_stream_post_processor`).

    It takes no id of a request, and no field that separates the caches of tenants. Without a
    version its grammars are unknown: it refuses those that it cannot bind, and the gateway repeats
    the request without.
    """

    title = "TensorRT-LLM"
    owner = "tensorrt_llm"
    context_overflow = re.compile(
        r"exceeds? (?:the )?(?:max_seq_len|max_input_len|maximum sequence length|max_num_tokens)"
        r"|larger than (?:max_seq_len|max_num_tokens)",
        re.IGNORECASE,
    )

    @override
    def grammars(self, release: Release) -> Grammars:
        return "turn"

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        can = super().capabilities(grammars=grammars, priorities=priorities)
        return replace(can, grammars="turn" if grammars else "none")

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
            **optional_sampling(sampling),
            "detokenize": False,
        }
        if can.priority_sign:
            wanted = _ORDINARY + _STEP * request.priority
            body["priority"] = min(1.0, max(0.0, wanted))
        body.update(bound)
        return body


class ChatServer(InferenceEngine):
    """Any server or hosted API with a chat endpoint, of unknown engine."""

    title = "chat completions"
    questions: ClassVar[tuple[str, ...]] = ()
    flag = "/v1/models"

    @override
    def __str__(self) -> str:
        return self.title if self.version is None else f"{self.title} {self.version}"

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        return Capabilities(logprobs=True)  # who tells none refuses them, or leaves them out

    @override
    def chat_fields(self, request: TokenRequest) -> Fields:
        return {}


class Ollama(ChatServer):
    """`GET /api/version` (`server/routes.go`). It cuts a prompt that is too long, silently."""

    title = "Ollama"
    questions = ("/api/version",)
    flag = "/api/version"


class LlamaCpp(ChatServer):
    """`llama-server`: its rows of models are owned by `llamacpp` (`tools/server/server.cpp`)."""

    title = "llama.cpp"
    owner = "llamacpp"
    questions = ("/v1/models",)
    context_overflow = re.compile(
        r"exceeds the available context size|exceed_context_size|larger than the max context size",
        re.IGNORECASE,
    )


class TextGenerationInference(ChatServer):
    """`GET /info` tells the model, the version and the router (`router/src/lib.rs`, `Info`)."""

    title = "TGI"
    questions = ("/info",)
    context_overflow = re.compile(
        r"`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be <=|have less than)", re.IGNORECASE
    )

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        return super().read(path, document) if isinstance(document.get("router"), str) else None


CHAT_SERVERS: Final[tuple[type[ChatServer], ...]] = (LlamaCpp, Ollama, TextGenerationInference)
"""Asked in this order, behind all engines that take ids."""


ENGINES: Final[tuple[type[InferenceEngine], ...]] = (
    TensorRtLlm,
    LmDeploy,
    Vllm,
    SGLang,
)
"""In the order in which they are tried for a server. TensorRT-LLM also has the path that identifies
vLLM."""
KINDS: Final[tuple[type[InferenceEngine], ...]] = (*ENGINES, *CHAT_SERVERS)
"""Kinds of all servers, also of those that take no token ids."""


class UnknownEngine(Vllm):
    """Unidentified engine: used like vLLM, without optional parameters. It may be an SGLang that
    has not answered yet, so adapters and health checks follow SGLang.
    """

    questions = ()
    flag = "/ready"
    working_check = "/health"

    @override
    def __str__(self) -> str:
        return "unknown engine"

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        return Capabilities()

    @override
    def chat_fields(self, request: TokenRequest) -> Fields:
        return {}  # hosted APIs refuse what they do not know

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        fields: Fields = {"request_id": request.request_id, "include_stop_str_in_output": True}
        return fields if served.parent is None else fields | {"lora_path": served.name}
