"""The inference engines that backends may run. No I/O here.

vLLM was read release by release from 0.10.2 to 0.33, SGLang from 0.5.3 to 0.5.23; LMDeploy (0.18)
and TensorRT-LLM's `trtllm-serve` (main, November 2026) were read, but not run.
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
    """Endpoint of completions; `repeats`: each event may have all ids so far."""

    path: str
    prompt_key: str
    events: Literal["completions", "generate", "chat"]
    repeats: bool = False


COMPLETIONS: Final = TokenEndpoint("/v1/completions", "prompt", "completions")
"""With token ids: vLLM since 0.10.2, SGLang since 0.5.17 behind its Python frontend."""
GENERATE: Final = TokenEndpoint("/generate", "input_ids", "generate", repeats=True)
"""SGLang's, in all releases and frontends, and LMDeploy's."""
CHAT: Final = TokenEndpoint("/v1/chat/completions", "messages", "chat")


Grammars = Literal["turn", "answer", "none"]
Release = tuple[int, int, int]
Fields = dict[str, object]

ANY: Final[Release] = (0, 0, 0)
NEVER: Final = re.compile(r"(?!)")
_VERSION: Final = re.compile(
    r"v?(?P<major>\d{1,6})\.(?P<minor>\d{1,6})(?:\.(?P<patch>\d{1,6}))?"
    r"(?P<candidate>(?:a|b|rc)\d+)?(?:\.?post\d+)?(?P<development>\.?dev\d*)?(?:[+].*)?"
)
"""Version number of a Python package (https://peps.python.org/pep-0440/)."""
_BEFORE_NEXT: Final = 10**6
VERSION_CHARS_MAX: Final = 100
"""It is logged and shown, whatever a server says."""
TOP_P_MIN: Final = 1e-6
"""Stands for 0, which OpenAI takes and the engines refuse: only the likeliest token is left."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`grammars`: "turn" binds every id from the first one on, "answer" only the final message.
    `priority_sign` turns our priority into the engine's; 0: it has none. `max_whitespace`: white
    space inside JSON can be bounded.
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
    """POST of `{"lora_name"}`, to `load` with `{"lora_path"}`, a path that the server reads."""

    load: str
    unload: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Unusable:
    why: str
    remedy: str

    @override
    def __str__(self) -> str:
        return f"{self.why}. {self.remedy}"


@dataclass(frozen=True)
class InferenceEngine:
    """Engine of a server, as that describes itself; by default with the least capabilities."""

    version: str | None = None
    has_grammars: bool = True
    has_priorities: bool | None = None

    title: ClassVar[str]
    ids_since: ClassVar[Release] = ANY
    lacks: ClassVar[str] = "returns no token ids"
    """Predicate behind the engine's name, of releases before `ids_since`."""
    max_whitespace_since: ClassVar[Release | None] = None
    logprobs: ClassVar[bool] = False
    dies_of_unknown_ids: ClassVar[bool] = False
    """An id outside the vocabulary ends the server, and every stream of it."""
    questions: ClassVar[tuple[str, ...]] = ("/v1/models",)
    """Paths that identify the engine by their answers to GET."""
    owner: ClassVar[str | None] = None
    """Owner of its listed models, if that identifies it."""
    flag: ClassVar[str] = "/health"
    """Health check that takes the engine no work."""
    tokenize_path: ClassVar[str] = "/tokenize"
    working_check: ClassVar[str | None] = None
    """Health check that takes work, for where the flag says no."""

    adapter_paths: ClassVar[AdapterPaths | None] = None

    # Its words of refusals. But for the first, which concerns nobody but the caller, a message
    # begins with them: what clients sent may be repeated behind.
    context_overflow: ClassVar[re.Pattern[str]] = NEVER
    no_grammars: ClassVar[re.Pattern[str]] = NEVER
    """This server refuses every grammar."""
    unknown_adapter: ClassVar[re.Pattern[str]] = NEVER
    """A 400 where others answer 404: the gateway chooses the model."""
    gave_up: ClassVar[re.Pattern[str]] = NEVER
    """Whole message when it ends one request in the middle of its grammar."""
    not_the_caller: ClassVar[re.Pattern[str]] = NEVER
    """A 400 that only the gateway can have caused: a request id in use, a rank that does not
    exist."""

    @override
    def __str__(self) -> str:
        return f"{self.title} {self.version or '(version unknown)'}"

    @classmethod
    def read(cls, path: str, document: Mapping[str, Any]) -> Self | None:
        """Return the engine if `document` is its answer to one of `questions`."""
        if cls.owner is not None:
            return cls() if _owner_of(document) == cls.owner else None
        version = _version_of(document)
        return None if version is None else cls(version)

    @classmethod
    def requirement(cls) -> str:
        return f"{cls.title} >= {_dotted(cls.ids_since)}"

    def grammars(self, release: Release) -> Grammars:
        return "none"

    @property
    def priority_sign(self) -> Literal[-1, 1]:
        """Return 1 if the engine serves high values first."""
        return 1

    def endpoint(self, request: TokenRequest) -> TokenEndpoint:
        return COMPLETIONS

    def pair_fields(self, host: str, port: int, room: int) -> Fields:
        # The fields by which both servers of a pair find each other; `room` is unique to the
        # request.
        return {}

    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        return {}

    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {"response_format": tag}

    def body(
        self, request: TokenRequest, served: ServedModel, can: Capabilities, bound: Fields
    ) -> Fields:
        """Return the fields of a request without its prompt; `bound` is its grammar."""
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

        A development build can do what both releases around it can, an unknown version nothing.
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

    `0.26.1.dev7` comes after 0.26.0 and may already have all of 0.27.
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
    fields = {seed: sampling.seed, "top_k": sampling.top_k, "min_p": sampling.min_p}
    return {name: value for name, value in fields.items() if value is not None}


def _version_of(document: Mapping[str, Any]) -> str | None:
    version = document.get("version")
    return version[:VERSION_CHARS_MAX] if isinstance(version, str) else None


def _owner_of(models: Mapping[str, Any]) -> object:
    # None if a list of models does not tell the owner of its first one.
    rows = models.get("data")
    first = rows[0] if isinstance(rows, list) and rows else None
    return first.get("owned_by") if isinstance(first, dict) else None


def is_older(version: str | None, release: Release) -> bool:
    """Return True if the version is certainly older."""
    range_ = release_range(version)
    return range_ is not None and range_[0] == range_[1] and range_[1] < release


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))


_VLLM_ANSWER_SINCE: Final = (0, 11, 0)
"""`structured_outputs` bind from the opening of a final message on, in prompt or output."""
_VLLM_TURN_SINCE: Final = (0, 27, 0)
"""`structured_outputs` bind from the first token on; tags of token ids exist since 0.22."""


class Vllm(InferenceEngine):
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
    no_grammars = re.compile(
        r"[\w ]*it can't be used with 'skip_tokenizer_init'"
        r"|Invalid grammar specification: 'triggers'",
        re.IGNORECASE,
    )
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
"""The default; the others have no tags of token ids."""
_RUST_FRONTEND: Final = "rust"
_COMPLETIONS_SINCE: Final = (0, 5, 17)
"""`/v1/completions` returns token ids, if the frontend is Python."""
_SALTS_SINCE: Final = (0, 5, 19)
"""`/generate` knows `cache_salt`, before that only `extra_key`. It ignores unknown names, so
tenants would share caches."""
_NEW_IDS_ONLY: Final = replace(GENERATE, repeats=False)
_INTERVALS: Final = ((8192, 1), (32768, 4))
"""Ids that one event brings, by how many there may be in all."""
_INTERVAL_MAX: Final = 8
_MODEL_INFO: Final = "/model_info"
"""Has no version."""


@dataclass(frozen=True)
class SGLang(InferenceEngine):
    """SGLang; `/v1/completions` names tokens of logprobs by text, so these use `/generate`.

    `/health` generates a token, behind the prompts that are being read; `/ready` (since 0.5.20) is
    also 503 until `/health` or the server's warm-up has been through.
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
    no_grammars = re.compile(
        r"[\w (),-]*not supported when [\w -]*grammar[- ]backend none", re.IGNORECASE
    )
    unknown_adapter = re.compile(
        r"(?:Got |validation failed: )?LoRA adapter "
        r"(?:that has never been loaded|.* was requested, but LoRA is not|.* is not loaded)",
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
        if (version := _version_of(document)) is None:
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
    """LMDeploy's `/generate` has the sampling parameters at the top (`endpoints/generate.py`).

    It has no grammars, alternatives of logprobs, penalties, seeds, priorities, request ids, or
    salts of caches.
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


class TensorRtLlm(InferenceEngine):
    """TensorRT-LLM refuses unknown keys (`OpenAIBaseModel`), and lacks request ids and salts.

    It returns ids only with detokenization off (`completion_stream_post_processor`). It refuses
    grammars that it cannot bind, and the gateway repeats the request without.
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
    """Any server or hosted API with a chat endpoint."""

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
    """Ollama cuts a prompt that is too long, silently. `/api/version` is in `server/routes.go`."""

    title = "Ollama"
    questions = ("/api/version",)
    flag = "/api/version"


class LlamaCpp(ChatServer):
    """`llama-server`; the owner is in `tools/server/server.cpp`."""

    title = "llama.cpp"
    owner = "llamacpp"
    questions = ("/v1/models",)
    context_overflow = re.compile(
        r"exceeds the available context size|exceed_context_size|larger than the max context size",
        re.IGNORECASE,
    )


class TextGenerationInference(ChatServer):
    """TGI; `GET /info` is in `router/src/lib.rs` (`Info`)."""

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


ENGINES: Final[tuple[type[InferenceEngine], ...]] = (TensorRtLlm, LmDeploy, Vllm, SGLang)
"""In the order of identification: TensorRT-LLM also has the path of vLLM."""
KINDS: Final[tuple[type[InferenceEngine], ...]] = (*ENGINES, *CHAT_SERVERS)


class UnknownEngine(Vllm):
    """Server that is used like vLLM without optional parameters. It may be an SGLang that has not
    answered yet, so adapters and health checks follow SGLang.
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
        fields = super().request_fields(request, served)
        return fields if served.parent is None else fields | {"lora_path": served.name}
