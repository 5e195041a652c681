"""The sections of the configuration: every setting with its default, its bounds and its unit.

The descriptions are the reference documentation: `harmony-gateway config env` and
gateway.example.yaml are made from them.
"""

from __future__ import annotations

import re
from dataclasses import fields
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
)

from gateway.tenancy import (
    POLICY_VALUES,
    OnDisconnect,
    ReasoningSummary,
    ResponseMessages,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import ValidationInfo

T = TypeVar("T", bound="DataclassInstance")


MIB = 1024 * 1024

Secret = Annotated[SecretStr, Field(min_length=1)]
_IPV4 = re.compile(r"\d+(\.\d+){3}")
NAME_PATTERN = r"^[^\s\x00-\x1f]+$"
KEY_ID_PATTERN = r"^[A-Za-z0-9_-]{1,32}$"
ID_RANGE_PATTERN = r"^[1-9][0-9]{0,8}-[1-9][0-9]{0,8}$"
PATTERNS = {
    NAME_PATTERN: "expected a name without spaces",
    KEY_ID_PATTERN: "expected 1 to 32 letters, digits, `_` and `-`",
    ID_RANGE_PATTERN: "expected two numbers from 1 on, such as 61184-61439",
}
"""Patterns in words."""
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME_PATTERN)]
SECRET_CHARS_MIN = 16
HEARTBEAT_SHARE = 0.3
"""Part of a lease that passes between two signs of life."""


def http_url(url: str) -> str:
    """Return the URL without a trailing slash or `/v1`. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isprintable():
        raise ValueError("expected a URL such as http://gpu-1:8000")
    if not _is_host(parts.hostname, is_address="[" in parts.netloc):
        raise ValueError(f"{parts.hostname!r} is no address, or no name of a host in ASCII")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("a backend's URL has no query, fragment or user; use api_key")
    if not _has_port(parts):
        raise ValueError(f"there is no port {parts.netloc.rpartition(':')[2]}")
    return url.rstrip("/").removesuffix("/v1")


def _is_host(host: str, *, is_address: bool) -> bool:
    # True: requests can be sent to it.
    if not (is_address or _IPV4.fullmatch(host)):
        return host.isascii()
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _has_port(parts: SplitResult) -> bool:
    # True also without a port.
    try:
        return parts.port != 0
    except ValueError:
        return False


def postgres_url(url: SecretStr) -> SecretStr:
    """Raise `ValueError` unless the URL is one of PostgreSQL."""
    scheme = url.get_secret_value().partition("://")[0]
    if scheme not in {"postgres", "postgresql", "postgresql+asyncpg"}:
        raise ValueError("expected a URL such as postgresql://user:password@host:5432/database")
    return url


def _long(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < SECRET_CHARS_MIN:
        raise ValueError(f"expected {SECRET_CHARS_MIN} characters or more")
    return secret


def _bearer(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not (text.isascii() and text.isprintable()):
        raise ValueError("it is sent in a header: expected one line of ASCII")
    return secret


BearerKey = Annotated[Secret, AfterValidator(_bearer)]
LongSecret = Annotated[SecretStr, AfterValidator(_long)]


def not_below(other: str) -> AfterValidator:
    """Make a validator against a field declared before; defaults need `validate_default`."""

    def check(value: int, info: ValidationInfo) -> int:
        least = info.data.get(other)
        if least is not None and value < least:
            raise ValueError(f"must not be less than {other}, which is {least}")
        return value

    return AfterValidator(check)


def none_or_from(least: int) -> AfterValidator:
    """Make a validator for 0 (off) or at least `least`; normal use would hit smaller values."""

    def check(value: int) -> int:
        if 0 < value < least:
            raise ValueError(f"expected 0, or {least} or more")
        return value

    return AfterValidator(check)


def tenant_default(name: str, **options: Any) -> Any:
    """Make the field for the default of the policy value `name`."""
    value = POLICY_VALUES[name]
    least = None if value.words or value.is_domains else value.least
    return Field(value.default, description=value.description, ge=least, **options)


class Section(BaseModel):
    """Frozen section; a key that does not exist is a mistake; no value is repeated in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def fill(self, kind: type[T], **given: Any) -> T:
        """Make a dataclass from the settings of the same names, with `given` taking precedence.

        Other fields keep their defaults.
        """
        same = (one.name for one in fields(kind) if one.name in type(self).model_fields)
        made: T = kind(**{**{name: getattr(self, name) for name in same}, **given})
        return made


def _network(given: str) -> str:
    try:
        return str(ip_network(given))
    except ValueError:
        raise ValueError("expected a network, such as 10.1.2.0/24 or fd00::/8") from None


Network = Annotated[str, AfterValidator(_network)]


def _origin(given: str) -> str:
    parts = urlsplit(given)
    is_one = parts.scheme in {"http", "https"} and parts.netloc and not parts.username
    if given != "*" and (not is_one or given != f"{parts.scheme}://{parts.netloc}".lower()):
        raise ValueError("expected an origin, such as https://app.example.com, or '*'")
    return given


Origin = Annotated[str, AfterValidator(_origin)]


class Server(Section):
    """The listening socket and the end of the process."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    connections_max: PositiveInt = Field(
        4096,
        description="Open connections. For one more the oldest that has shown no valid API key is "
        "closed; where all have, one that is idle; where none is, a request is answered 503.",
    )
    connections_per_peer_max: PositiveInt | None = Field(
        None,
        description="Connections of one address, the proxy's where there is one; one more is "
        "answered 503. Default: no bound. Set it where clients connect directly.",
    )
    trusted_proxies: tuple[Network, ...] = Field(
        (),
        description="Networks of the proxies whose X-Forwarded-For is believed, for keys that are "
        "bound to networks. Default: none, the address that connects is the client's.",
    )
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Origins whose pages may call this server from a browser "
        "(https://app.example.com), or '*' for any. Default: none.",
    )
    head_timeout_s: PositiveFloat = Field(30.0, description="Seconds for the headers to arrive.")
    keepalive_timeout_s: PositiveInt = Field(
        75, description="Seconds an idle client connection stays open; longer than the proxy's."
    )
    drain_grace_s: int = Field(
        110, ge=0, description="Seconds that streams may go on after SIGTERM, before they are cut."
    )
    drain_notice_s: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM in which /readyz says no but requests are still taken, "
        "so that a load balancer turns away first.",
    )


PostgresUrl = Annotated[SecretStr, AfterValidator(postgres_url)]


class Database(Section):
    """PostgreSQL."""

    url: PostgresUrl | None = Field(
        None, description="postgresql://…; without one an embedded PostgreSQL is started."
    )
    pool_size_max: PositiveInt = Field(
        10, description="Connections this process holds, beside six for logs, claims and LISTEN."
    )
    connect_timeout_s: PositiveFloat = Field(5.0, description="Seconds to connect.")
    command_timeout_s: PositiveFloat = Field(10.0, description="Seconds one statement may take.")
    commit_wait_s: PositiveFloat = Field(
        10.0, description="Seconds the end of a response waits for a database that is away."
    )
    listen: bool = Field(
        default=True,
        description="Be told by other replicas at once (LISTEN); without it each looks for "
        "itself, a little later. Off behind a pooler that has no LISTEN.",
    )
    listen_url: PostgresUrl | None = Field(
        None,
        description="A direct connection for LISTEN where url leads through a transaction pooler; "
        "default: url.",
    )
    statement_cache_size: int | None = Field(
        None,
        ge=0,
        description="Prepared statements a connection keeps; default: as many as are useful on one "
        "that is found to be direct, and none behind a pooler such as PgBouncer.",
    )


class Auth(Section):
    """API keys."""

    key_pepper: LongSecret | None = Field(
        None,
        description="Secret that API keys are hashed with, 16 characters or more; needed with an "
        "external database, made once for the embedded one.",
    )
    previous_key_pepper: LongSecret | None = Field(
        None,
        description="The secret that key_pepper took the place of: keys that were hashed with it "
        "work on, and are hashed again once they are used. See docs/admin-api.md.",
    )
    key_cache_ttl_s: PositiveFloat = Field(
        5.0, description="Seconds until a disabled key is refused by every replica."
    )
    stale_keys_max_s: float = Field(
        900.0, ge=0, description="Seconds a known key goes on working while the database is away."
    )


class Model(Section):
    """A model as clients know it."""

    id: Name = Field(description="The name in requests and in GET /v1/models.")
    aliases: tuple[Name, ...] = Field((), description="Other names for it.")
    served_as: Name | None = Field(None, description="Its name at the backends, if another.")
    context_length: PositiveInt | None = Field(
        None, description="Tokens of prompt and output together; default: what backends report."
    )
    reasoning_effort: Literal["low", "medium", "high"] = Field(
        "medium", description="Effort of requests that name none."
    )
    continue_preambles: bool = Field(
        default=True,
        description="Where it may call tools and ends its turn after a preamble (`I will look at "
        "the folder now.`), generate another turn, once. false: the response ends there.",
    )
    format: Name = Field(
        "harmony",
        description="How it is spoken to: harmony (gpt-oss); chat: its servers render the model's "
        "own chat template; passthrough: they take messages, return text, and know no token ids.",
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Of a model with format chat: its tokenizer.json, or the folder with it.",
    )
    reasoning: Name | None = Field(
        None, description="How it writes thoughts; default: as models of its name do. none: not."
    )
    calls: Name | None = Field(
        None, description="How it writes calls; default: as models of its name do. none: not."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Given to its chat template as they are, as in {thinking: true}.",
    )
    modalities: tuple[Literal["text", "image"], ...] = Field(
        ("text",), description="What can be shown to it: servers do not tell. Not for harmony."
    )
    adapters: bool = Field(
        default=False,
        description="Serve the LoRA adapters that backends list for it, too, by their names.",
    )
    tasks: tuple[Literal["generate", "embeddings", "rerank"], ...] = Field(
        ("generate",), description="What its backends do: servers do not tell."
    )


class Prefill(Section):
    """The prefill server of an SGLang pair. Built from SGLang's source; it was not run."""

    url: Annotated[str, AfterValidator(http_url)] = Field(description="Such as http://gpu-3:30000.")
    host: Name | None = Field(
        None, description="Where the decode server finds it; default: the host of its URL."
    )
    port: Annotated[int, Field(ge=1, le=65_535)] = Field(
        8998, description="Its --disaggregation-bootstrap-port."
    )


class Backend(Section):
    """One inference server."""

    name: Name = Field(description="Its name in logs and metrics.")
    url: Annotated[str, AfterValidator(http_url)] = Field(description="Such as http://gpu-1:8000.")
    api_key: BearerKey | None = Field(None, description="Sent as a bearer token.")
    admin_key: BearerKey | None = Field(
        None, description="To load adapters; by default its api_key. SGLang may have another."
    )
    models: tuple[Name, ...] = Field((), description="Names it serves; empty: what it lists.")
    dp_rank: NonNegativeInt | None = Field(
        None, description="The data parallel rank to ask, where each rank is a backend of its own."
    )
    prefill: Prefill | None = Field(
        None, description="Reads prompts for this SGLang, which decodes (PD disaggregation)."
    )
    grammars: Literal["auto", "off"] = Field(
        "auto",
        description="Bind the model by grammars where the server's version can; off: never.",
    )
    priorities: bool = Field(
        default=False,
        description="It runs with priority scheduling: send it service tiers. SGLang says so.",
    )


class Upstream(Section):
    """Talking to backends."""

    connect_timeout_s: PositiveFloat = Field(5.0, description="Seconds to connect.")
    first_token_timeout_s: PositiveFloat = Field(600.0, description="Seconds to the first token.")
    stall_timeout_s: PositiveFloat = Field(
        20.0, description="Seconds between two tokens, after which another backend goes on."
    )
    attempts_max: PositiveInt = Field(
        3, description="Backends tried in a row for one that begins to generate."
    )
    hops_max: int = Field(
        3, ge=0, description="Times one response that has begun may go on at another backend."
    )
    losses_max: PositiveInt = Field(
        2, description="Backends that may be lost on one request before it is given up."
    )
    hop_wait_s: float = Field(
        10.0, ge=0, description="Seconds a response that has begun waits for another backend."
    )
    connections_max: PositiveInt = Field(2048, description="Open connections to one backend.")
    keepalive_expiry_s: PositiveFloat = Field(
        4.0, description="Seconds an idle connection is kept; below the backends' 5."
    )
    probe_interval_s: PositiveFloat = Field(
        30.0, description="Seconds between two looks at a backend's models and version."
    )
    probe_timeout_s: PositiveFloat = Field(10.0, description="Seconds such a look may take.")
    health_interval_s: PositiveFloat = Field(2.0, description="Seconds between health checks.")
    health_timeout_s: PositiveFloat = Field(2.0, description="Seconds a health check may take.")
    render_timeout_s: PositiveFloat = Field(
        10.0,
        description="Seconds a backend may take to render a prompt of a model with format chat.",
    )


class Limits(Section):
    """Bounds of requests. A request beyond one is answered with a 4xx that says so."""

    body_bytes_max: PositiveInt = Field(16 * MIB, description="Bytes of a request's body.")
    body_timeout_s: PositiveFloat = Field(30.0, description="Seconds for the body to arrive.")
    tokenize_threads_max: PositiveInt = Field(2, description="Threads that parse and tokenise.")
    tokenize_threads_nice: Annotated[int, Field(ge=0, le=19)] = Field(
        10,
        description="How far these threads give way to streams, as in nice(1), on Linux. 0 where "
        "other processes use all CPUs and share them with no cgroup in between: streams would wait "
        "for a thread that waits for a CPU.",
    )
    tokenize_waiting_bytes_max: PositiveInt = Field(
        256 * MIB,
        description="Bytes of requests in those threads and waiting for them; one more is answered "
        "429.",
    )
    responses_in_flight_max: PositiveInt = Field(
        1000, description="Responses generated at once by this process; one more is answered 429."
    )
    request_timeout_s: PositiveFloat = Field(
        3600.0, description="Seconds one response may take from the request to its last token."
    )


class Stream(Section):
    """Server-sent events."""

    start_grace_s: float = Field(
        1.0,
        ge=0,
        description="Seconds a stream's status waits for the first token, so that a failure before "
        "it is an HTTP status.",
    )
    keepalive_event_s: PositiveFloat = Field(
        15.0,
        description="Seconds of silence until response.in_progress is sent again, for clients "
        "whose timers comments do not reset.",
    )
    write_timeout_s: PositiveFloat = Field(
        60.0, description="Seconds a client may take to read one write."
    )


class Background(Section):
    """Responses that are generated whether or not anybody listens."""

    running_max: PositiveInt = Field(
        256, description="Background responses generated at once by this process."
    )
    tenant_running_max: PositiveInt = tenant_default("background_running_max")
    tenant_queued_max: PositiveInt = tenant_default("background_queued_max")
    lease_s: PositiveFloat = Field(
        10.0, description="Seconds a replica may be silent until another goes on for it."
    )
    attempts_max: PositiveInt = Field(
        4, le=1000, description="Replicas that may begin or take over one response; then it fails."
    )
    on_disconnect: OnDisconnect = tenant_default("on_disconnect")

    @property
    def heartbeat_s(self) -> float:
        # A share of the lease, so that several heartbeats fit into it.
        return HEARTBEAT_SHARE * self.lease_s


class Retention(Section):
    """Lifetimes of stored data. Expired data goes within 15 minutes."""

    log_s: PositiveInt = tenant_default("log_retention_s")
    response_s: Annotated[PositiveInt, not_below("log_s")] = tenant_default(
        "response_retention_s", validate_default=True
    )
    idempotency_key_s: PositiveInt = Field(
        86_400, description="Seconds an Idempotency-Key stands for the same response."
    )
    traces_s: PositiveInt = Field(
        30 * 86_400, description="Seconds that traces of agents are kept."
    )
    tool_calls_s: PositiveInt = Field(
        90 * 86_400,
        description="Seconds that the audit of hosted tools is kept: who called what when, in "
        "numbers and digests.",
    )


class Harmony(Section):
    """The system message of every prompt."""

    identity: str = Field(
        "You are ChatGPT, a large language model trained by OpenAI.",
        max_length=4096,
        description="Its first sentence.",
    )
    knowledge_cutoff: str = Field("2024-06", max_length=64, description="Knowledge cutoff line.")
    date: Literal["utc", "off"] = Field(
        "utc", description="The date of the chain's first response, or none."
    )
    commentary_without_tools: bool = Field(
        default=False, description="Offer the commentary channel to requests that have no tools."
    )


class Generation(Section):
    """Measures against a model that does not follow its instructions."""

    reasoning_budget_tokens: int = tenant_default("reasoning_budget_tokens")
    repairs_max: int = Field(
        3, ge=0, description="Times the gateway may have part of one response generated again."
    )
    repeated_tokens_max: Annotated[int, none_or_from(64)] = Field(
        1024,
        ge=0,
        description="Tokens that may be repetitions of the 1 to 8 before them, 64 or more; then "
        "the response ends as incomplete. 0: any number.",
    )
    preamble_tokens_max: int = Field(
        1024,
        ge=0,
        description="Tokens said to the user before a call that tool_choice requires, and all "
        "markers and headers up to there, after which the call is opened; 0: any number. Reasoning "
        "is bounded by reasoning_budget_tokens.",
    )
    refusals: bool = Field(
        default=True,
        description="Let grammars allow a refusal in words instead of an answer in JSON.",
    )


class Debugging(Section):
    """Means for clients to see how a response came about."""

    response_messages: ResponseMessages = tenant_default("response_messages")


class SealingKey(Section):
    """A secret that reasoning is sealed with."""

    id: str = Field(pattern=KEY_ID_PATTERN, description="Its name, which seals carry.")
    secret: LongSecret = Field(description="16 characters or more; the same on all replicas.")


class Reasoning(Section):
    """The model's reasoning, as clients receive it."""

    summary: ReasoningSummary = tenant_default("reasoning_summary")
    sealing_keys: tuple[SealingKey, ...] = Field(
        (),
        description="Keys for reasoning.encrypted_content, each with an id and a secret: the first "
        "one seals, all of them open. One that is made from auth.key_pepper opens, too, and seals "
        "where there is no other.",
    )


class Input(Section):
    """Treatment of request contents that the gateway or a model cannot honour."""

    strict: bool = Field(
        default=False, description="Refuse what this gateway cannot honour instead of ignoring it."
    )
    media: Literal["note", "reject"] = Field(
        "note",
        description="Images and files in messages, for models that read text only. note: the model"
        " is told in their place that they are missing; reject: 400.",
    )


class Compaction(Section):
    """Long conversations, made short: what went before becomes a summary by the model."""

    summary_tokens_max: PositiveInt = Field(
        4096, description="Tokens of one summary, the reasoning about it included."
    )
    reasoning_effort: Literal["low", "medium", "high"] = Field(
        "low", description="How hard the model thinks about a summary."
    )


class WebSockets(Section):
    """WebSocket mode of /v1/responses."""

    connections_max: PositiveInt = Field(1024, description="Connections at once, in this process.")
    lifetime_s: PositiveFloat = Field(3600.0, description="Seconds until one must be opened anew.")
    idle_timeout_s: PositiveFloat = Field(
        900.0, description="Seconds without a request after which one is closed."
    )
    ping_interval_s: PositiveFloat = Field(
        20.0,
        description="Seconds between pings, and to answer one; below what proxies allow an idle "
        "connection.",
    )
    in_flight_max: PositiveInt = Field(
        16, description="Responses of one connection at once; more wait for their turn."
    )
    remembered_bytes_max: PositiveInt = Field(
        64 * MIB, description="Bytes of unstored responses that one connection remembers."
    )


class Log(Section):
    """Standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe level that is written."
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, json otherwise."
    )
