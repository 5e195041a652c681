from __future__ import annotations

import hmac
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from gateway.errors import ConfigError
from gateway.settings.console import Console
from gateway.settings.sections import (
    Admin,
    Admission,
    Alerts,
    Auth,
    Backend,
    Background,
    Database,
    Debugging,
    Discovery,
    Encryption,
    Federation,
    Generation,
    Harmony,
    Images,
    Input,
    Ledger,
    Limits,
    Log,
    Membership,
    Model,
    RateLimits,
    Reasoning,
    Retention,
    Routing,
    Secret,
    Server,
    Stream,
    Telemetry,
    Upstream,
    WebSockets,
)
from gateway.settings.tools import Tools
from gateway.tenancy.policy import TenantPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable


def default_data_dir() -> Path:
    """Return the platform's data directory of this user.

    Root's is not in its home: PostgreSQL refuses to run as root, and other users cannot enter
    there.
    """
    home = os.path.expanduser("~")
    if os.geteuid() == 0 or home == "~":  # a user without a home, as in some containers
        return Path("/var/lib/harmony-gateway")
    if sys.platform == "darwin":
        return Path(home, "Library", "Application Support", "harmony-gateway")
    base = os.environ.get("XDG_DATA_HOME") or Path(home, ".local", "share")
    return Path(base) / "harmony-gateway"


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("there is no such home") from error


def _refuse_repeated(what: str, names: Iterable[str]) -> None:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"{what} must differ: {', '.join(repeated)}")


PEPPER_KEY_ID: Final = "auth.key_pepper"
"""Id of the key made from the pepper. Its dot keeps others from having it."""


class Settings(BaseModel):
    """Settings of a process. Built in code they are arguments and defaults; `load_settings` adds
    file and environment.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    data_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=default_data_dir,
        description="Folder of the embedded PostgreSQL, its pepper and demo.env. Set it where a "
        "volume is mounted elsewhere. Root's default is /var/lib/harmony-gateway: its PostgreSQL "
        "runs as another user, who cannot enter its home.",
    )
    cache_salt_secret: Secret | None = Field(
        None,
        description="Secret that keeps tenants' prefix caches apart; default: from the pepper. Set "
        "it so that caches stay useful when the pepper is changed.",
    )
    server: Server = Server()
    admin: Admin = Admin()
    console: Console = Console()
    database: Database = Database()
    auth: Auth = Auth()
    federation: Federation = Federation()
    models: tuple[Model, ...] = Field(
        (),
        description="Models offered; empty: every model that a backend serves. Set it to name "
        "them, and for models other than gpt-oss.",
    )
    backends: tuple[Backend, ...] = Field(
        (), description="The inference servers. Set those whose addresses do not change."
    )
    discovery: tuple[Discovery, ...] = Field(
        (), description="Where further inference servers are found. Set it where they come and go."
    )
    membership: Membership = Membership()
    upstream: Upstream = Upstream()
    routing: Routing = Routing()
    admission: Admission = Admission()
    limits: Limits = Limits()
    rate_limits: RateLimits = RateLimits()
    alerts: Alerts = Alerts()
    stream: Stream = Stream()
    background: Background = Background()
    retention: Retention = Retention()
    encryption: Encryption = Encryption()
    ledger: Ledger = Ledger()
    harmony: Harmony = Harmony()
    generation: Generation = Generation()
    reasoning: Reasoning = Reasoning()
    websockets: WebSockets = WebSockets()
    tools: Tools = Tools()
    input: Input = Input()
    images: Images = Images()
    debugging: Debugging = Debugging()
    telemetry: Telemetry = Telemetry()
    log: Log = Log()

    @model_validator(mode="after")
    def _names_are_unambiguous(self) -> Self:
        _refuse_repeated("names of backends", (backend.name for backend in self.backends))
        _refuse_repeated(
            "names of sources in discovery", ("settings", *(one.name for one in self.discovery))
        )
        _refuse_repeated(
            "ids and aliases of models",
            (name for model in self.models for name in (model.id, *model.aliases)),
        )
        _refuse_repeated("ids of sealing keys", (key.id for key in self.reasoning.sealing_keys))
        return self

    @model_validator(mode="after")
    def _console_has_a_listener(self) -> Self:
        if self.console.enabled and self.admin.port is None:
            raise ValueError("console.enabled: the console needs admin.port, which is not set")
        return self

    @property
    def database_url(self) -> str:
        if self.database.url is None:
            raise ConfigError(
                "there is no database URL",
                where="database.url",
                remedy="Set DATABASE_URL=postgresql://USER:PASSWORD@HOST:5432/DATABASE.",
            )
        return self.database.url.get_secret_value()

    @property
    def pepper(self) -> bytes:
        if self.auth.key_pepper is None:
            raise ConfigError(
                "no secret to hash API keys with; all replicas must share one",
                where="auth.key_pepper",
                remedy="Set GATEWAY_AUTH__KEY_PEPPER to the output of: openssl rand -hex 32",
            )
        return self.auth.key_pepper.get_secret_value().encode()

    @property
    def previous_pepper(self) -> bytes | None:
        previous = self.auth.previous_key_pepper
        return None if previous is None else previous.get_secret_value().encode()

    @property
    def cache_salt_key(self) -> bytes:
        if self.cache_salt_secret is None:
            return hmac.digest(self.pepper, b"cache salt", "sha256")
        return self.cache_salt_secret.get_secret_value().encode()

    @property
    def sealing_secrets(self) -> tuple[tuple[str, bytes], ...]:
        """Return ids and secrets, the one that seals first.

        The key from the pepper opens what it sealed before there were others.
        """
        own = ((key.id, key.secret.get_secret_value()) for key in self.reasoning.sealing_keys)
        made = hmac.digest(self.pepper, b"reasoning seal", "sha256")
        return (*((name, secret.encode()) for name, secret in own), (PEPPER_KEY_ID, made))

    @property
    def mcp_identity_key(self) -> bytes:
        # Key of the stored digests of MCP servers' URLs and headers. Derived from the pepper,
        # because that stays as long as API keys do.
        return hmac.digest(self.pepper, b"mcp identity", "sha256")

    @property
    def model_aliases(self) -> dict[str, str]:
        return {alias: model.id for model in self.models for alias in model.aliases}

    @property
    def tenant_policy(self) -> TenantPolicy:
        # For tenants without a policy of their own.
        return TenantPolicy.of_settings(self)

    def with_database_url(self, url: str) -> Settings:
        database = self.database.model_copy(update={"url": SecretStr(url)})
        return self.model_copy(update={"database": database})

    def with_pepper(self, pepper: str) -> Settings:
        auth = self.auth.model_copy(update={"key_pepper": SecretStr(pepper)})
        return self.model_copy(update={"auth": auth})
