"""The settings of limits that tenants, projects and keys have; the limits themselves are data."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from pydantic import Field, PositiveFloat, SecretStr, field_validator, model_validator

from gateway.settings.sections import Secret, Section

if TYPE_CHECKING:
    from typing import Self

WEBHOOK_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what comes before one


class RateLimits(Section):
    """Limits and budgets that replicas keep together: docs/limits.md.

    `harmony-gateway limits` sets them.
    """

    stale_max_s: PositiveFloat = Field(
        900.0,
        description="Seconds that limits hold while the database is away, each replica with its "
        "share; then requests of keys that have some are answered 503.",
    )
    reads_per_minute_max: int = Field(
        6_000,
        ge=0,
        description="Requests a minute of one key that only read (GET), in each replica; more are "
        "answered 429. 0: any number.",
    )


class Smtp(Section):
    """The server that mail is sent through."""

    host: str = Field("", description="Name of the SMTP server; empty: no mail is sent.")
    port: int = Field(587, ge=1, le=65_535, description="Its port.")
    sender: str = Field("harmony-gateway@localhost", description="Who mail is from.")
    user: str = Field("", description="User at the server; empty: nobody signs in.")
    password: Secret | None = Field(None, description="Password of that user.")
    starttls: bool = Field(
        default=True, description="Encrypt the connection before anything is said on it."
    )
    recipients: tuple[str, ...] = Field(
        (), description="Who is written about alerts that name nobody, such as those of budgets."
    )


class Alerts(Section):
    """Recipients of spend alerts, beside those whom the alert names."""

    webhook_url: str = Field(
        "", description="URL that every alert is posted to; empty: none. See docs/billing.md."
    )
    webhook_secret: Secret | None = Field(
        None,
        description="What webhooks are signed with (Standard Webhooks): whsec_ and the key in "
        "base64, or another text; needed with a URL.",
    )
    smtp: Smtp = Smtp()

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Self:
        if self.webhook_url and self.webhook_secret is None:
            raise ValueError("expected a webhook_secret with the webhook_url")
        if self.webhook_url and not self.webhook_url.startswith(("http://", "https://")):
            raise ValueError("expected an http or https URL for webhook_url")
        return self

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_key(cls, secret: SecretStr | None) -> SecretStr | None:
        _key_of(secret)
        return secret

    @property
    def signing_key(self) -> bytes:
        # The key itself, decoded, which signs webhooks.
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
