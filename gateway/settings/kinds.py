"""What a setting may be: text that must be there, URLs, and numbers that depend on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from gateway.tenancy import POLICY_VALUES

if TYPE_CHECKING:
    from pydantic import ValidationInfo

MIB = 1024 * 1024

Secret = Annotated[SecretStr, Field(min_length=1)]
NAME_PATTERN = r"^[^\s\x00-\x1f]+$"
KEY_ID_PATTERN = r"^[A-Za-z0-9_-]{1,32}$"
PATTERNS = {
    NAME_PATTERN: "expected a name without spaces",
    KEY_ID_PATTERN: "expected 1 to 32 letters, digits, `_` and `-`",
}
"""Patterns in words."""
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME_PATTERN)]
SECRET_CHARS_MIN = 16


def http_url(url: str) -> str:
    """Without a slash or `/v1` at its end. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("expected a URL such as http://gpu-1:8000")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("a backend's URL has no query, fragment or user; use api_key")
    return url.rstrip("/").removesuffix("/v1")


def postgres_url(url: SecretStr) -> SecretStr:
    """Raises `ValueError` for a URL of anything else."""
    scheme = url.get_secret_value().partition("://")[0]
    if scheme not in {"postgres", "postgresql", "postgresql+asyncpg"}:
        raise ValueError("expected a URL such as postgresql://user:password@host:5432/database")
    return url


def _long(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < SECRET_CHARS_MIN:
        raise ValueError(f"expected {SECRET_CHARS_MIN} characters or more")
    return secret


LongSecret = Annotated[SecretStr, AfterValidator(_long)]


def not_below(other: str) -> AfterValidator:
    """Compares with a field that is declared before; for a default only with `validate_default`."""

    def check(value: int, info: ValidationInfo) -> int:
        least = info.data.get(other)
        if least is not None and value < least:
            raise ValueError(f"must not be less than {other}, which is {least}")
        return value

    return AfterValidator(check)


def at_most_half_of(other: str) -> AfterValidator:
    """The same: there must be time for a second try."""

    def check(value: float, info: ValidationInfo) -> float:
        whole = info.data.get(other)
        if whole is not None and value > whole / 2:
            raise ValueError(f"must be at most half of {other}, which is {whole}")
        return value

    return AfterValidator(check)


def none_or_from(least: int) -> AfterValidator:
    """0 switches off; what lies between would be hit by what is meant to be there."""

    def check(value: int) -> int:
        if 0 < value < least:
            raise ValueError(f"expected 0, or {least} or more")
        return value

    return AfterValidator(check)


def tenant_default(name: str, **options: Any) -> Any:
    """The field for what counts where a tenant has no policy value `name` of its own."""
    value = POLICY_VALUES[name]
    least = None if value.words else value.least
    return Field(value.default, description=value.description, ge=least, **options)
