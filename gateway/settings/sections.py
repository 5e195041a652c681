"""Sections of the configuration.

A number that no operator has a reason to change is a constant beside the code that uses it.

Descriptions are the reference documentation. Their first sentence, which gateway.example.yaml has
too, says what the setting is; the others say why to change it.
"""

from __future__ import annotations

import base64
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from gateway.settings.http_urls import AnyUrl, HttpUrl, WholeUrl
from gateway.tenancy.policy import (
    DAY_S,
    POLICY_VALUES,
    OnDisconnect,
    ReasoningSummary,
    ResponseMessages,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from _typeshed import DataclassInstance
    from pydantic import ValidationInfo

T = TypeVar("T", bound="DataclassInstance")


MIB: Final = 1024 * 1024
PORT_MAX: Final = 65_535
INTEGER_MAX: Final = 2**31 - 1
"""Largest integer of PostgreSQL."""
TENANT_IMAGE_SHARE: Final = 0.25
"""Share of `Images.held_bytes_max`, and of all fetches of images."""
WEBHOOK_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what comes before one

Secret = Annotated[SecretStr, Field(min_length=1)]
NAME_PATTERN = r"^[^\s\x00-\x1f]+$"
KEY_ID_PATTERN = r"^[A-Za-z0-9_-]{1,32}$"
ID_RANGE_PATTERN = r"^[1-9][0-9]{0,8}-[1-9][0-9]{0,8}$"
PATTERNS = {
    NAME_PATTERN: "expected a name without spaces",
    KEY_ID_PATTERN: "expected 1 to 32 letters, digits, `_` and `-`",
    ID_RANGE_PATTERN: "expected two numbers from 1 on, such as 61184-61439",
}
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME_PATTERN)]
SECRET_CHARS_MIN = 16
HEARTBEAT_SHARE = 0.3
"""Part of a lease between two signs of life."""


def postgres_url(url: SecretStr) -> SecretStr:
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


PostgresUrl = Annotated[SecretStr, AfterValidator(postgres_url)]
BearerKey = Annotated[Secret, AfterValidator(_bearer)]
LongSecret = Annotated[SecretStr, AfterValidator(_long)]
Port = Annotated[int, Field(ge=1, le=PORT_MAX)]
KeptSeconds = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
ListenPort = Annotated[int, Field(ge=0, le=PORT_MAX)]
"""0: any that is free."""


def not_below(other: str) -> AfterValidator:
    """Compare with a field declared before; defaults need `validate_default`."""

    def check(value: int, info: ValidationInfo) -> int:
        least = info.data.get(other)
        if least is not None and value < least:
            raise ValueError(f"must not be less than {other}, which is {least}")
        return value

    return AfterValidator(check)


def none_or_from(least: int) -> AfterValidator:
    """Allow 0 (off); normal use would hit values below `least`."""

    def check(value: int) -> int:
        if 0 < value < least:
            raise ValueError(f"expected 0, or {least} or more")
        return value

    return AfterValidator(check)


def tenant_default(name: str, **options: Any) -> Any:
    value = POLICY_VALUES[name]
    if not value.words and not value.is_domains:
        options |= {"ge": value.least, "le": INTEGER_MAX}
    return Field(value.default, description=value.description, **options)


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    def fill(self, kind: type[T], **overrides: Any) -> T:
        """Make a dataclass; what has no setting of its name keeps its default."""
        same = (one.name for one in fields(kind) if one.name in type(self).model_fields)
        made: T = kind(**{**{name: getattr(self, name) for name in same}, **overrides})
        return made


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError("expected a network, such as 10.1.2.0/24 or fd00::/8") from None


Network = Annotated[str, AfterValidator(_network)]


def _host_and_port(
    text: str, expected: str = "a host and a port such as wiki.internal:8080"
) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"expected {expected}")
    return host.strip("[]").lower(), int(port)


def _check_host(text: str) -> str:
    _host_and_port(text)
    return text


def _named_server(server: str) -> str:
    _host_and_port(server, "an address with a port, such as 10.96.0.10:53")
    return server


def _origin(text: str) -> str:
    parts = urlsplit(text)
    is_one = parts.scheme in {"http", "https"} and parts.netloc and not parts.username
    if text != "*" and (not is_one or text != f"{parts.scheme}://{parts.netloc}".lower()):
        raise ValueError("expected an origin, such as https://app.example.com, or '*'")
    return text


Origin = Annotated[str, AfterValidator(_origin)]


class Server(Section):
    """The listening socket and the end of the process."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. Set 0.0.0.0 where clients or the proxy are elsewhere.",
    )
    port: ListenPort = Field(
        8000, description="Port to listen on; 0 picks a free one. Set it where the port is taken."
    )
    connections_max: PositiveInt = Field(
        4096,
        description="Open connections of this process. Raise it with the file descriptors it may "
        "have. For one more the oldest that has shown no valid API key is closed; where all have, "
        "one that is idle; where none is, a request is answered 503.",
    )
    connections_per_peer_max: PositiveInt | None = Field(
        None,
        description="Connections of one address; one more is answered 503. Default: no bound. Set "
        "it where clients connect directly, and not through a proxy with one address.",
    )
    trusted_proxies: tuple[Network, ...] = Field(
        (),
        description="Networks of the proxies whose X-Forwarded-For is believed. Set it where API "
        "keys are bound to networks; otherwise the address that connects is the client's.",
    )
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Origins whose pages may call this server from a browser, or '*' for any. Set "
        "it where pages call it without a server of their own, as https://app.example.com.",
    )
    head_timeout_s: PositiveFloat = Field(
        30.0,
        description="Seconds for the headers to arrive. Lower it where slow clients take the "
        "connections of others.",
    )
    keepalive_timeout_s: PositiveInt = Field(
        75,
        description="Seconds an idle client connection stays open. It must be longer than the "
        "proxy's, or requests meet a connection that is being closed.",
    )
    drain_grace_s: NonNegativeInt = Field(
        110,
        description="Seconds that streams may go on after SIGTERM. Keep it below the time after "
        "which the process is killed.",
    )
    drain_notice_s: NonNegativeFloat = Field(
        0.0,
        description="Seconds after SIGTERM in which /readyz says no and requests are still taken. "
        "Set it to the time that a load balancer takes to notice.",
    )


class Admin(Section):
    """OpenAI's admin API (/v1/organization) and the operator's own (/admin/v1)."""

    port: ListenPort | None = Field(
        None,
        description="Port of a listener of their own; 0 picks a free one. Set it to have the "
        "operator's API, which no other listener serves.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Address of that listener. Set a private one where operators are elsewhere.",
    )
    public: bool = Field(
        default=False,
        description="Serve the admin API of tenants at server.port, too. Set it where tenants "
        "manage their projects with OpenAI's SDKs, which know one base URL.",
    )
    key_lifetime_max_s: KeptSeconds | None = Field(
        None,
        description="Seconds after which a key ends that the admin API makes. Default: when it is "
        "deleted. Set it where a policy demands that keys are renewed.",
    )


class Database(Section):
    """PostgreSQL."""

    url: PostgresUrl | None = Field(
        None,
        description="Where PostgreSQL is: postgresql://…; without one an embedded one is started. "
        "Set it in production.",
    )
    pool_size_max: PositiveInt = Field(
        10,
        description="Connections this process holds, beside seven for logs, claims and LISTEN. "
        "Size it by the connections the database allows, divided by the processes.",
    )
    command_timeout_s: PositiveFloat = Field(
        10.0,
        description="Seconds one statement may take. Raise it where the database is slow at times; "
        "requests wait so long for one that hangs.",
    )
    commit_wait_s: PositiveFloat = Field(
        10.0,
        description="Seconds the end of a response waits for a database that is away. Raise it to "
        "the time a failover of the database takes.",
    )
    listen: bool = Field(
        default=True,
        description="Be notified by other replicas at once (LISTEN). Set false behind a pooler "
        "that has no LISTEN: each replica then looks for itself, a little later.",
    )
    listen_url: PostgresUrl | None = Field(
        None,
        description="A direct connection for LISTEN; default: url. Set it where url leads through "
        "a transaction pooler.",
    )


class Auth(Section):
    """API keys."""

    key_pepper: LongSecret | None = Field(
        None,
        description="Secret that API keys are hashed with, 16 characters or more. Set it with an "
        "external database, the same in all replicas; for the embedded one it is made once.",
    )
    previous_key_pepper: LongSecret | None = Field(
        None,
        description="The secret that key_pepper took the place of. Set it when you change the "
        "pepper: keys work on, and are hashed again once they are used. See docs/admin-api.md.",
    )
    key_cache_ttl_s: PositiveFloat = Field(
        5.0,
        description="Seconds until a disabled key is refused by every replica. Raise it to spare "
        "the database, lower it where a stolen key must end sooner.",
    )
    stale_keys_max_s: NonNegativeFloat = Field(
        900.0,
        description="Seconds a known key goes on working while the database is away. Set 0 where "
        "no request may be served that cannot be checked.",
    )


class Destinations(Section):
    """Hosts that may be connected to."""

    public: bool = Field(
        default=True,
        description="Connect to hosts of the public internet. Set false where nothing may leave "
        "one's own network.",
    )
    allowed_networks: tuple[Network, ...] = Field(
        (),
        description="Private networks that may be connected to, such as 10.20.0.0/16. Set those "
        "whose hosts are meant to be reached.",
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(_check_host)], ...] = Field(
        (),
        description="Private hosts that may be connected to, such as wiki.internal:80. Set those "
        "that are meant to be reached in a network that is not.",
    )

    @property
    def hosts(self) -> frozenset[tuple[str, int]]:
        return frozenset(map(_host_and_port, self.allowed_hosts))


class Federation(Destinations):
    """Tokens of issuers (OIDC), whose keys are fetched. See docs/authentication.md."""

    plain_http: bool = Field(
        default=False,
        description="Fetch keys without TLS, too. Set it for tests only: whoever is between could "
        "forge tokens.",
    )
    exchanged_token_s: PositiveInt = Field(
        3_600,
        le=86_400,
        description="Seconds that a token of POST /oauth/token lives at most. Lower it where a "
        "stolen one must end sooner.",
    )


class Model(Section):
    """A model as clients know it."""

    id: Name = Field(description="The name in requests and in GET /v1/models.")
    aliases: tuple[Name, ...] = Field(
        (), description="Other names for it. Set those that clients have in their code."
    )
    served_as: Name | None = Field(
        None, description="Its name at the backends. Set it where that is another."
    )
    context_length: PositiveInt | None = Field(
        None,
        description="Tokens of prompt and output together. Set it where backends do not report it, "
        "or report too much.",
    )
    reasoning_effort: Literal["low", "medium", "high"] = Field(
        "medium", description="Effort of requests that name none. Lower it to save tokens."
    )
    continue_preambles: bool = Field(
        default=True,
        description="Generate another turn where one ends after a preamble (`I will look now.`). "
        "Set false where an agent's client does that itself.",
    )
    format: Name = Field(
        "harmony",
        description="How it is spoken to: harmony, chat or passthrough. Set chat for models other "
        "than gpt-oss, whose servers render the chat template; passthrough for servers that take "
        "messages, return text, and know no token ids.",
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Its tokenizer.json, or the folder with it. Needed with format chat.",
    )
    reasoning: Name | None = Field(
        None,
        description="How it writes thoughts; none: not. Set it for a model whose name does not say "
        "of which family it is.",
    )
    calls: Name | None = Field(
        None,
        description="How it writes calls; none: not. Set it for a model whose name does not say of "
        "which family it is.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of its chat template. Set what its card asks for, as in "
        "{thinking: true}.",
    )
    modalities: tuple[Literal["text", "image"], ...] = Field(
        ("text",),
        description="What it can be shown. Add image for a model that sees, which servers do not "
        "report; not for harmony.",
    )
    adapters: bool = Field(
        default=False,
        description="Serve the LoRA adapters that backends list for it, too. Set it where clients "
        "ask for them by their names.",
    )
    tasks: tuple[Literal["generate", "embeddings", "rerank"], ...] = Field(
        ("generate",),
        description="What its backends do. Set it for models that embed or rank, which servers do "
        "not report.",
    )

    @field_validator("chat_template_kwargs")
    @classmethod
    def _is_json(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            orjson.dumps(kwargs, option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise ValueError(f"it is sent as JSON: {error}") from error
        return kwargs


class Prefill(Section):
    """The prefill server of an SGLang pair. Built from SGLang's source; it was not run."""

    url: HttpUrl = Field(description="Such as http://gpu-3:30000.")
    host: Name | None = Field(
        None,
        description="Where the decode server finds it. Set it where that is not the host of url.",
    )
    port: Port = Field(
        8998, description="Its --disaggregation-bootstrap-port. Set it where that is another."
    )


class Backend(Section):
    """Inference server."""

    name: Name = Field(description="Its name in logs and metrics.")
    url: HttpUrl = Field(description="Such as http://gpu-1:8000.")
    api_key: BearerKey | None = Field(
        None, description="Sent as a bearer token. Set it where the server asks for one."
    )
    admin_key: BearerKey | None = Field(
        None,
        description="To load adapters; default: api_key. Set it for an SGLang that has another.",
    )
    models: tuple[Name, ...] = Field(
        (), description="Names it serves. Set it for a server that does not list them."
    )
    dp_rank: NonNegativeInt | None = Field(
        None,
        description="The data parallel rank to ask. Set it where each rank is a backend of its "
        "own, so that its cache is found again.",
    )
    prefill: Prefill | None = Field(
        None,
        description="Reads prompts for this SGLang. Set it with PD disaggregation, where this one "
        "decodes.",
    )
    grammars: Literal["auto", "off"] = Field(
        "auto",
        description="Bind the model by grammars where the server's version can. Set off for a "
        "server whose grammars are broken or too slow.",
    )
    priorities: bool = Field(
        default=False,
        description="Send it service tiers. Set it for a vLLM with priority scheduling; SGLang "
        "reports it.",
    )


_NEEDED: Final = {"file": ("path",), "dns": ("host",), "srv": ("host",)}


class Discovery(Section):
    """A source of backends. All that it finds are treated alike, but those of a file."""

    name: Name = Field(description="Its name in logs, metrics and health checks.")
    kind: Literal["file", "dns", "srv"] = Field(
        description="file, dns or srv. A file has a list of backends, and is watched; dns: the "
        "addresses of a host, such as a headless service; srv: its SRV records."
    )
    path: Path | None = Field(
        None, description="file: `backends`, as in gateway.yaml. Needed with file."
    )
    host: Name | None = Field(None, description="dns, srv: the name to look up. Needed with both.")
    servers: tuple[Annotated[str, AfterValidator(_named_server)], ...] = Field(
        (),
        description="dns, srv: name servers, such as 10.96.0.10:53. Set it where the system's do "
        "not know the name.",
    )
    port: Port | None = Field(
        None, description="dns: the port of all backends. Set it where that is not 8000."
    )
    scheme: Literal["http", "https"] = Field(
        "http",
        description="How they are spoken to. Set https where they have certificates for their "
        "addresses.",
    )
    api_key: BearerKey | None = Field(
        None, description="Sent to all of them as a bearer token. Set it where they ask for one."
    )
    models: tuple[Name, ...] = Field(
        (), description="Names they serve. Set it for servers that do not list them."
    )
    grammars: Literal["auto", "off"] = Field(
        "auto", description="As of one of `backends`. Set off as there."
    )
    priorities: bool = Field(default=False, description="As of one of `backends`. Set it as there.")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for name in _NEEDED[self.kind]:
            if getattr(self, name) is None:
                raise ValueError(f"{self.kind} needs {name}")
        return self

    def backend(self, name: str, url: str) -> Backend:
        # Raises pydantic's `ValidationError`, a `ValueError`.
        return Backend(
            name=name,
            url=url,
            api_key=self.api_key,
            models=self.models,
            grammars=self.grammars,
            priorities=self.priorities,
        )


class Membership(Section):
    """Backends that join and leave."""

    refresh_s: PositiveFloat = Field(
        2.0,
        description="Seconds between two looks at a file or into DNS. Raise it where the name "
        "server is slow or shared.",
    )
    leave_s: NonNegativeFloat = Field(
        600.0,
        description="Seconds that streams may go on at a backend that has left. Lower it where "
        "machines are taken away at once: others then go on with the streams.",
    )


class Upstream(Section):
    """Talking to backends."""

    first_token_timeout_s: PositiveFloat = Field(
        600.0,
        description="Seconds to the first token. Raise it where backends queue longer than that.",
    )
    stall_timeout_s: PositiveFloat = Field(
        20.0,
        description="Seconds between two tokens, after which another backend goes on. Raise it "
        "where backends pause that are not broken.",
    )
    attempts_max: PositiveInt = Field(
        3,
        description="Backends tried in a row for one that begins to generate. Raise it where many "
        "may be away at once.",
    )
    hops_max: NonNegativeInt = Field(
        3,
        description="Times one response that has begun may go on at another backend. Raise it "
        "where machines are taken away often and responses are long.",
    )
    losses_max: PositiveInt = Field(
        2,
        description="Backends that may be lost on one request before it is given up. Raise it "
        "where machines are taken away often; a request that breaks servers breaks so many.",
    )
    hop_wait_s: NonNegativeFloat = Field(
        10.0,
        description="Seconds a response that has begun waits for another backend. Raise it to the "
        "time in which a single backend is restarted.",
    )
    probe_interval_s: PositiveFloat = Field(
        30.0,
        description="Seconds between two looks at a backend's models and version. Lower it where "
        "adapters are loaded often.",
    )
    health_interval_s: PositiveFloat = Field(
        2.0,
        description="Seconds between health checks. Lower it where a lost backend must be noticed "
        "sooner.",
    )


class Routing(Section):
    """Choice of the backend for a request, where a model has several."""

    policy: Literal["prefix", "round_robin"] = Field(
        "prefix",
        description="prefix or round_robin. Set round_robin where backends have no prefix cache; "
        "prefix: the backend that is expected to begin first, by what it has cached of the prompt "
        "and what it has to do.",
    )
    kv_tokens: PositiveInt = Field(
        2_000_000,
        description="Tokens of cache of a backend that does not report it. Set it to what its GPUs "
        "hold.",
    )


class Admission(Section):
    """Requests wait in the gateway when the backends have enough to do."""

    enabled: bool = Field(
        default=True,
        description="Let requests wait in the gateway. Set false where backends have a scheduler "
        "that should see all requests at once.",
    )
    slots_max: PositiveInt = Field(
        16_384,
        description="Requests that this process sends one backend at once, at most. How many it "
        "can do in time is learned; set it where a server should never hold more.",
    )
    first_token_target_s: PositiveFloat = Field(
        2.0,
        description="Seconds to the first token, beside those to read the prompt, that are late. "
        "Set what users expect: a backend that is late often is sent fewer requests at once.",
    )
    queue_length_max: PositiveInt = Field(
        1_000,
        description="Requests that wait for a backend in this process; one more is answered 503. "
        "Raise it with wait_max_s. Background responses wait in the database.",
    )
    wait_max_s: PositiveFloat = Field(
        3.0,
        description="Seconds a request may wait for a backend until it is answered 503. Raise it "
        "where clients do not try again by themselves, as OpenAI's SDKs do.",
    )


class Limits(Section):
    """Bounds of requests. A request beyond one is answered with a 4xx that says so."""

    body_bytes_max: PositiveInt = Field(
        16 * MIB, description="Bytes of a request's body. Raise it where requests have many images."
    )
    body_timeout_s: PositiveFloat = Field(
        30.0, description="Seconds for the body to arrive. Raise it for clients behind slow links."
    )
    tokenize_threads_max: PositiveInt = Field(
        2,
        description="Threads that parse and tokenise. Set it to the CPUs that this process may "
        "use beside its event loop.",
    )
    tokenize_threads_nice: Annotated[int, Field(ge=0, le=19)] = Field(
        10,
        description="How far these threads give way to streams, as in nice(1), on Linux. Set 0 "
        "where other processes use all CPUs and share them with no cgroup in between: streams "
        "would wait for a thread that waits for a CPU.",
    )
    responses_in_flight_max: PositiveInt = Field(
        1000,
        description="Responses, embeddings and rankings made at once by this process; one more is "
        "answered 429. Size it by the process's memory and CPU: see docs/sizing.md.",
    )
    request_timeout_s: PositiveFloat = Field(
        3600.0,
        description="Seconds one response may take from the request to its last token. Lower it "
        "where no useful response takes so long.",
    )


class RateLimits(Section):
    """Limits and budgets that replicas keep together: docs/limits.md.

    `harmony-gateway limits` sets them.
    """

    stale_max_s: PositiveFloat = Field(
        900.0,
        description="Seconds that limits hold while the database is away, each replica with its "
        "share. Lower it where a budget must not be overdrawn: then requests of keys that have "
        "limits are answered 503.",
    )
    reads_per_minute_max: NonNegativeInt = Field(
        6_000,
        description="Requests a minute of one key that only read (GET), in each replica. Raise it "
        "for clients that poll many responses; 0: any number. More are answered 429.",
    )


class Smtp(Section):
    """The server that mail is sent through."""

    host: str = Field(
        "", description="Name of the SMTP server; empty: no mail is sent. Set it to send mail."
    )
    port: Port = Field(587, description="Its port. Set 25 for a relay in one's own network.")
    sender: str = Field(
        "harmony-gateway@localhost",
        description="Who mail is from. Set an address that the server may send for.",
    )
    user: str = Field(
        "", description="User at the server; empty: nobody signs in. Set it where it asks for one."
    )
    password: Secret | None = Field(None, description="Password of that user. Needed with user.")
    starttls: bool = Field(
        default=True,
        description="Encrypt the connection before anything is sent. Set false only for a relay on "
        "this machine.",
    )
    recipients: tuple[str, ...] = Field(
        (),
        description="Who is written about alerts that name nobody. Set the operators: alerts of "
        "budgets name nobody.",
    )


class Alerts(Section):
    """Recipients of spend alerts, beside those that the alert names."""

    webhook_url: AnyUrl = Field(
        "",
        description="URL that every alert is posted to; empty: none. Set it to handle alerts by "
        "program: see docs/billing.md.",
    )
    webhook_secret: Secret | None = Field(
        None,
        description="What webhooks are signed with (Standard Webhooks). Needed with a URL: whsec_ "
        "and the key in base64, or another text.",
    )
    smtp: Smtp = Smtp()

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Self:
        if self.webhook_url and self.webhook_secret is None:
            raise ValueError("expected a webhook_secret with the webhook_url")
        return self

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_key(cls, secret: SecretStr | None) -> SecretStr | None:
        _key_of(secret)
        return secret

    @property
    def signing_key(self) -> bytes:
        return _key_of(self.webhook_secret)


def _key_of(secret: SecretStr | None) -> bytes:
    text = "" if secret is None else secret.get_secret_value()
    if not text.startswith(WEBHOOK_SECRET_PREFIX):
        return text.encode()
    try:
        key = base64.b64decode(text.removeprefix(WEBHOOK_SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError(f"expected base64 behind {WEBHOOK_SECRET_PREFIX}, or another text")
    return key


class Stream(Section):
    """Server-sent events."""

    start_grace_s: NonNegativeFloat = Field(
        1.0,
        description="Seconds a stream's status waits for the first token. Set 0 where clients want "
        "response.created at once; a failure before the first token is then no HTTP status.",
    )
    keepalive_event_s: PositiveFloat = Field(
        15.0,
        description="Seconds of silence until response.in_progress is sent again. Lower it for "
        "clients whose timers comments do not reset.",
    )


class Background(Section):
    """Responses that are generated whether or not anybody listens."""

    running_max: PositiveInt = Field(
        256,
        description="Background responses generated at once by this process. Size it by its memory "
        "and by what the backends can do.",
    )
    tenant_running_max: PositiveInt = tenant_default("background_running_max")
    tenant_queued_max: PositiveInt = tenant_default("background_queued_max")
    lease_s: PositiveFloat = Field(
        10.0,
        description="Seconds a replica may be silent until another goes on for it. Raise it where "
        "replicas are paused for longer and go on.",
    )
    attempts_max: PositiveInt = Field(
        4,
        le=1000,
        description="Replicas that may begin or take over one response; then it fails. Raise it "
        "where replicas are taken away often and responses are long.",
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
    idempotency_key_s: KeptSeconds = Field(
        DAY_S,
        description="Seconds an Idempotency-Key stands for the same response. Raise it where "
        "clients try again after longer.",
    )
    traces_s: KeptSeconds = Field(
        30 * DAY_S,
        description="Seconds that traces of agents are kept. Set what the law or the disk allows.",
    )
    tool_calls_s: KeptSeconds = Field(
        90 * DAY_S,
        description="Seconds that the audit of hosted tools is kept. Set what auditors ask for: it "
        "says who called what when, in numbers and digests.",
    )


class FileKeysSection(Section):
    """Keys in a file: a line has an id and 32 bytes in base64; the first one wraps."""

    path: Path | None = Field(
        None,
        description="The file, which nobody else may read (chmod 600). Set it for the provider "
        "file: `harmony-gateway encryption new-key` makes a line of it.",
    )


class VaultSection(Section):
    """HashiCorp Vault or OpenBao: a derived key of the transit engine."""

    url: HttpUrl | None = Field(
        None, description="Such as https://vault:8200. Set it for the provider vault-transit."
    )
    token: BearerKey | None = Field(
        None, description="May encrypt and decrypt with that key. Needed with url."
    )
    key: str = Field("harmony-gateway", description="Its name; made with derived=true. Set yours.")
    mount: str = Field("transit", description="Where the engine is mounted. Set yours.")
    namespace: str = Field("", description="Namespace of Vault Enterprise. Set yours.")


class KmsSection(Section):
    """AWS KMS: a symmetric key."""

    region: str | None = Field(
        None, description="Such as eu-central-1. Set it for the provider aws-kms."
    )
    key_id: str | None = Field(
        None, description="Id, ARN or alias/NAME of the key. Needed with region."
    )
    access_key_id: str | None = Field(
        None, description="May kms:Encrypt and kms:Decrypt with it. Needed with region."
    )
    secret_access_key: Secret | None = Field(
        None, description="Secret of the access key. Needed with region."
    )
    session_token: BearerKey | None = Field(
        None, description="Session token of a temporary access key. Set it where the key is one."
    )
    url: AnyUrl = Field(
        "", description="Where KMS is. Set it where that is not its region's public address."
    )


class Encryption(Section):
    """Encryption of tenants' content at rest, with a key for each tenant."""

    provider: Literal["none", "file", "vault-transit", "aws-kms"] = Field(
        "none",
        description="Who wraps new keys of tenants; none: nothing is sealed. Set it where stored "
        "content must be unreadable without a key. Others that are configured below go on to "
        "unwrap what they wrapped.",
    )
    tenants: Literal["all", "listed"] = Field(
        "all",
        description="Which tenants get a key when they are first met. Set listed where only those "
        "are sealed that `harmony-gateway encryption enable` was called for.",
    )
    keys_url: PostgresUrl | None = Field(
        None,
        description="The database of wrapped keys. Needed with a provider, and not that of the "
        "content: a destroyed key makes content unreadable in all backups without the key.",
    )
    fresh_s: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="Seconds until an unwrapped key is asked for again. Lower it where a key that "
        "was destroyed or withdrawn must end sooner.",
    )
    stale_s: float = Field(
        900.0,
        ge=1,
        le=86_400,
        description="Seconds that known tenants go on while whoever wraps keys is away. Raise it "
        "to the longest outage that must not be noticed.",
    )
    file: FileKeysSection = FileKeysSection()
    vault: VaultSection = VaultSection()
    kms: KmsSection = KmsSection()

    @property
    def is_on(self) -> bool:
        # Something is sealed, or may have been.
        return self.provider != "none"

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.is_on:
            return self
        if self.keys_url is None:
            raise ValueError("keys_url is missing: wrapped keys have a database of their own")
        kms = self.kms
        needed: Mapping[str, tuple[object, ...]] = {
            "file": (self.file.path,),
            "vault-transit": (self.vault.url, self.vault.token),
            "aws-kms": (kms.region, kms.key_id, kms.access_key_id, kms.secret_access_key),
        }
        if None in needed[self.provider]:
            raise ValueError(f"the provider {self.provider} is not configured")
        return self


class Sink(Section):
    """A receiver of usage lines, which are sent as they come."""

    name: Name = Field(description="What it is called; its place in the lines is kept under it.")
    url: WholeUrl = Field(description="What batches of CloudEvents 1.0 are posted to.")
    secret: BearerKey | None = Field(
        None, description="Sent as a bearer token. Set it where the receiver asks for one."
    )
    customers: dict[str, str] = Field(
        default_factory=dict,
        description="What it calls tenants, by their names or ids. Set those it knows otherwise.",
    )


class Ledger(Section):
    """Usage lines: one for each response, added up and sent on."""

    lines_s: KeptSeconds = Field(
        400 * DAY_S,
        ge=2 * DAY_S,
        description="Seconds that usage lines are kept, once they are added up and sent. Set how "
        "long a bill can be disputed.",
    )
    minutes_s: KeptSeconds = Field(
        2 * DAY_S,
        description="Seconds that sums by the minute are kept. Raise it for dashboards that look "
        "back further.",
    )
    hours_s: KeptSeconds = Field(
        35 * DAY_S,
        ge=4 * DAY_S,
        description="Seconds until sums by the hour become sums by the day. Raise it for reports "
        "by the hour that go back further.",
    )
    days_s: KeptSeconds = Field(
        400 * DAY_S,
        description="Seconds that sums by the day are kept. Set how far back reports must go.",
    )
    end_user_days_s: KeptSeconds = Field(
        90 * DAY_S,
        description="Seconds that sums by day and end user are kept. Lower it where the law wants "
        "less of persons.",
    )
    source: str = Field(
        "harmony-gateway",
        min_length=1,
        max_length=128,
        description="The source of CloudEvents. Set it where a receiver has several installations.",
    )
    sinks: tuple[Sink, ...] = Field(
        (), description="Where usage lines are sent as they come. Set it to bill elsewhere."
    )


class Harmony(Section):
    """The system message of every prompt."""

    identity: str = Field(
        "You are ChatGPT, a large language model trained by OpenAI.",
        max_length=4096,
        description="Its first sentence. Set it where the model should say that it is yours.",
    )
    knowledge_cutoff: str = Field(
        "2024-06",
        max_length=64,
        description="Knowledge cutoff line. Set it for a model that was trained later.",
    )
    date: Literal["utc", "off"] = Field(
        "utc",
        description="The date of the chain's first response, or none. Set off where prompts must "
        "be the same every day.",
    )
    commentary_without_tools: bool = Field(
        default=False,
        description="Offer the commentary channel to requests that have no tools. Set it where "
        "prompts must be as another server of gpt-oss renders them.",
    )


class Generation(Section):
    """Measures against a model that does not follow its instructions."""

    reasoning_budget_tokens: int = tenant_default("reasoning_budget_tokens")
    repeated_tokens_max: Annotated[int, none_or_from(64)] = Field(
        1024,
        ge=0,
        description="Repetitions of the 1 to 8 tokens before them, after which a response ends as "
        "incomplete. Raise it, or set 0 (any number), where long repetitions are wanted.",
    )
    refusals: bool = Field(
        default=True,
        description="Let grammars allow a refusal in words instead of an answer in JSON. Set false "
        "where clients can read nothing but JSON.",
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
        description="Keys for reasoning.encrypted_content, each with an id and a secret. Set it to "
        "renew keys apart from auth.key_pepper: the first one seals, all of them open. One made "
        "from the pepper opens, too, and seals where there is no other.",
    )


class Input(Section):
    """Treatment of request contents that the gateway or a model cannot honour."""

    strict: bool = Field(
        default=False,
        description="Refuse what this gateway cannot honour instead of ignoring it. Set it where "
        "clients are tested against what they will get.",
    )
    media: Literal["note", "reject"] = Field(
        "note",
        description="What becomes of images and files for models that read text only. Set reject "
        "to answer 400; note: the model is told in their place that they are missing.",
    )


class WebSockets(Section):
    """WebSocket mode of /v1/responses."""

    connections_max: PositiveInt = Field(
        1024,
        description="Connections at once, in this process. Size it by its memory: one may "
        "remember 64 MiB, all together 512 MiB.",
    )
    ping_interval_s: PositiveFloat = Field(
        20.0,
        description="Seconds between pings, and to answer one. Keep it below what proxies allow an "
        "idle connection.",
    )


class Images(Destinations):
    """Images in requests, for models whose modalities have image."""

    bytes_max: PositiveInt = Field(
        8 * MIB,
        description="Bytes of one image, as a file. Raise it, with limits.body_bytes_max, for "
        "models that see fine detail.",
    )
    images_max: PositiveInt = Field(
        32,
        description="Images of one context, those of earlier turns among them. Set what the "
        "servers allow (--limit-mm-per-prompt).",
    )
    context_bytes_max: PositiveInt = Field(
        32 * MIB,
        description="Bytes of all images of one context together, as files. Raise it with "
        "images_max.",
    )
    held_bytes_max: PositiveInt = Field(
        512 * MIB,
        description="Bytes of fetched images in this process, until their responses end. Size it "
        "by its memory; one tenant may have a quarter of it.",
    )

    @model_validator(mode="after")
    def _nested(self) -> Self:
        if self.bytes_max > self.context_bytes_max:
            raise ValueError("bytes_max of one image is above context_bytes_max of all of them")
        if self.context_bytes_max > self.held_bytes_max * TENANT_IMAGE_SHARE:
            raise ValueError(
                "context_bytes_max is above a quarter of held_bytes_max, which one tenant may "
                "have: such a context could never be shown"
            )
        return self


class Telemetry(Section):
    """Metrics by tenant; traces for the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."""

    tenant_label_max: NonNegativeInt = Field(
        0,
        description="Tenants that metrics name: those that use most, the others are `(other)`. Set "
        "it to see who uses what; each adds some ten series to every replica.",
        le=500,
    )
    traces: bool = Field(
        default=False, description="Whether spans are sent. Set it where there is a collector."
    )
    trace_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.01, description="The part of requests that is recorded. Raise it where there are few."
    )


class Log(Section):
    """Standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe level that is written. Set debug to look for a fault."
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto",
        description="auto: console on a terminal, json otherwise. Set it where a collector expects "
        "one of them.",
    )
