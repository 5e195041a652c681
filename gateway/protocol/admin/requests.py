"""Bodies of the admin API. Keys that they lack are refused (`admin.routes.AdminCall.body`)."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from gateway.errors import InvalidRequest
from gateway.limits.money import ANY_TIER, Component, PriceTier
from gateway.protocol.admin.limits import KeyLimits
from gateway.protocol.base import WHOLE, Many, NullableModel, WireModel
from gateway.protocol.request_errors import invalid, wrong_value
from gateway.tenancy import (
    KeyTerms,
)
from gateway.tenancy.scopes import SCOPES

if TYPE_CHECKING:
    from gateway.tenancy import Network

NAME_CHARS_MAX: Final = 256
MODELS_MAX: Final = 256
NETWORKS_MAX: Final = 64
LIFETIME_MAX_S: Final = 10 * 366 * 24 * 3600
SECOND_MAX: Final = 253_402_300_799
"""The last one of the year 9999."""


def _printable(name: str) -> str:
    # PostgreSQL's `text` takes no NUL, and lists show one name a line.
    if not name.isprintable() or not name.strip():
        raise ValueError("must have printable characters alone, and one that is no space")
    return name


DisplayName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=NAME_CHARS_MAX),
    AfterValidator(_printable),
]
ModelId = DisplayName
Lifetime = Annotated[int, Field(ge=1, le=LIFETIME_MAX_S), WHOLE]
ShortText = Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX, pattern=r"^[^\x00]*$")]


class NoBody(WireModel):
    """Body of a call that takes none: an empty object at most."""


class SinkResume(WireModel):
    """`POST /admin/v1/usage/sinks/{name}/resume`. `delivered`: it has the batch that it was sent
    last, so that is not sent again.
    """

    delivered: bool = False


class KeyExtras(NullableModel):
    """`harmony` of a key that is made: what it may do beyond OpenAI's fields."""

    allowed_cidrs: Annotated[Many[str], Field(max_length=NETWORKS_MAX)] = ()
    allowed_models: Annotated[Many[ModelId], Field(max_length=MODELS_MAX)] = ()
    limits: KeyLimits = KeyLimits()


class ServiceAccountCreate(NullableModel):
    """`POST …/service_accounts`: an account, and unless only that is asked for a first key."""

    name: DisplayName
    create_service_account_only: bool = False
    expires_in_seconds: Lifetime | None = None
    harmony: KeyExtras = KeyExtras()

    def check_consistent(self) -> None:
        """Raise `InvalidRequest` for a key's lifetime or terms without a request for a key."""
        if not self.create_service_account_only:
            return
        for name in ("expires_in_seconds", "harmony"):
            if name in self.model_fields_set and getattr(self, name) is not None:
                why = "it is for the key, and 'create_service_account_only' asks for none"
                raise invalid(name, why)


class AccountKeyCreate(NullableModel):
    """`POST …/service_accounts/{id}/api_keys`: one more key of an account; no scopes mean all."""

    name: DisplayName | None = None
    scopes: Annotated[Many[str], Field(max_length=len(SCOPES))] = ()
    expires_in_seconds: Lifetime | None = None
    harmony: KeyExtras = KeyExtras()


class ProjectKeyUpdate(NullableModel):
    """`POST …/api_keys/{id}`: what is left out stays; no scopes at all mean all."""

    scopes: Annotated[Many[str], Field(max_length=len(SCOPES))] | None = None
    expires_in_seconds: Lifetime | None = None


class KeyRotate(NullableModel):
    """`POST …/api_keys/{id}/rotate`: how long the key that is replaced goes on."""

    overlap_seconds: Annotated[int, Field(ge=0, le=LIFETIME_MAX_S), WHOLE] | None = None


class AdminKeyCreate(NullableModel):
    """`POST /organization/admin_api_keys`: a key for the admin API alone."""

    name: DisplayName
    expires_in_seconds: Lifetime | None = None
    scopes: Annotated[Many[str], Field(max_length=1)] = ()


class PriceEnd(NullableModel):
    """`POST /admin/v1/prices/end`; without a `tenant` (its name) the price of all."""

    model: ModelId
    tier: PriceTier = ANY_TIER
    tenant: ShortText | None = None


class PriceCreate(PriceEnd):
    """`POST /admin/v1/prices`. `valid_from` is in unix seconds."""

    nano_per_unit: dict[Component, Annotated[int, Field(strict=True)]]
    valid_from: Annotated[int, Field(ge=0, le=SECOND_MAX), WHOLE] | None = None


def scopes_of(given: tuple[str, ...]) -> frozenset[str]:
    """Return the scopes as a set. Raises `InvalidRequest` for an unknown one."""
    for index, scope in enumerate(given):
        if scope not in SCOPES:
            raise wrong_value(f"scopes[{index}]", scope, tuple(SCOPES))
    return frozenset(given)


def terms_of(scopes: tuple[str, ...], extras: KeyExtras) -> KeyTerms:
    """Return what the requested key may do. Raises `InvalidRequest`."""
    return KeyTerms(
        scopes=scopes_of(scopes),
        networks=tuple(
            _network(f"harmony.allowed_cidrs[{index}]", text)
            for index, text in enumerate(extras.allowed_cidrs)
        ),
        models=tuple(dict.fromkeys(extras.allowed_models)),
    )


def _network(param: str, text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise InvalidRequest(
            f"Invalid '{param}': it is no network such as 203.0.113.0/24 or 2001:db8::/32, whose "
            "bits behind the length are zero.",
            code="invalid_value",
            param=param,
        ) from None
