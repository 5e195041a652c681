"""Bodies and objects of the admin API, field for field those of openai-python 3.54.

What is ours stands under `harmony`: the SDK keeps fields that it does not know. Amounts of spend
limits are in cents, times in seconds. Keys that a body lacks are refused
(`admin.routes.AdminCall.body`).
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.limits.money import ANY_TIER, CENT, Component, PriceTier
from gateway.limits.terms import DAY_S, MINUTE_S
from gateway.protocol.base import AS_INTEGER, Count, Many, NullableModel, WireModel
from gateway.protocol.request_errors import invalid, unsupported, wrong_value
from gateway.tenancy import KeyTerms
from gateway.tenancy.permissions import role_of
from gateway.tenancy.scopes import SCOPES
from gateway.tenancy.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from uuid import UUID

    from gateway.limits.terms import Limit, Mode, What
    from gateway.tenancy import ApiKey, Network, ServiceAccount


Json = dict[str, Any]
UNLIMITED: Final = 1_000_000_000
"""Where there is no limit: OpenAI's object has a number there, always. So much or more that is set
in one of its fields means that there is none.
"""
CENTS_MAX: Final = 10**11
RECIPIENTS_MAX: Final = 20
RATE_LIMIT_PREFIX: Final = "rl-"


def _one_line(text: str) -> str:
    # The name becomes part of a mail's subject, which is one line.
    if not text.isprintable():
        raise ValueError("must have printable characters alone")
    return text


ADDRESS: Final = (
    r"^[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+)*"
    r"@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
)
"""One mailbox in ASCII: RFC 5322's dot-atom without the question mark, which begins an encoded word
of RFC 2047, and a host name."""
Address = Annotated[str, StringConstraints(max_length=254, pattern=ADDRESS)]
Subject = Annotated[str, StringConstraints(max_length=200), AfterValidator(_one_line)]
Cents = Annotated[int, Field(ge=0, le=CENTS_MAX), AS_INTEGER]
_FIELDS: Final[dict[str, tuple[What, int]]] = {
    "max_requests_per_1_minute": ("requests", MINUTE_S),
    "max_tokens_per_1_minute": ("tokens", MINUTE_S),
    "max_requests_per_1_day": ("requests", DAY_S),
}
_EXTRA_FIELDS: Final[dict[str, tuple[What, int]]] = {
    "max_tokens_per_1_day": ("tokens", DAY_S),
    "max_input_tokens_per_1_minute": ("input_tokens", MINUTE_S),
    "max_output_tokens_per_1_minute": ("output_tokens", MINUTE_S),
    "max_concurrent_responses": ("responses", 0),
    "max_stored_bytes": ("stored_bytes", 0),
    "max_running_background": ("background_running", 0),
    "max_queued_background": ("background_queued", 0),
}
_NEEDED: Final = frozenset({"max_requests_per_1_minute", "max_tokens_per_1_minute"})


class RateLimitExtras(WireModel):
    """`harmony` of a rate limit; null takes a limit away, and leaves the mode as it is."""

    max_tokens_per_1_day: Count | None = None
    max_input_tokens_per_1_minute: Count | None = None
    max_output_tokens_per_1_minute: Count | None = None
    max_concurrent_responses: Count | None = None
    max_stored_bytes: Count | None = None
    max_running_background: Count | None = None
    max_queued_background: Count | None = None
    mode: Literal["enforce", "observe"] | None = None


class KeyLimits(RateLimitExtras):
    """`harmony.limits` of a key that is made: for all models together, by the names that limits of
    a project have.
    """

    max_requests_per_1_minute: Count | None = None
    max_tokens_per_1_minute: Count | None = None
    max_requests_per_1_day: Count | None = None

    @property
    def values(self) -> dict[tuple[What, int], int | None]:
        # Nulls are left out.
        given = _given(self, _FIELDS) | _given(self, _EXTRA_FIELDS)
        return {what: value for what, value in given.items() if value is not None}


class RateLimitUpdate(WireModel):
    """`POST …/rate_limits/{id}`: what is left out stays, null takes a limit away; so does a number
    of 1,000,000,000 or more where it stands outside of `harmony`. The mode alone is that of all
    limits of the model.
    """

    max_requests_per_1_minute: Count | None = None
    max_tokens_per_1_minute: Count | None = None
    max_requests_per_1_day: Count | None = None
    batch_1_day_max_input_tokens: Count | None = None
    max_audio_megabytes_per_1_minute: Count | None = None
    max_images_per_1_minute: Count | None = None
    harmony: RateLimitExtras | None = None

    @property
    def mode(self) -> Mode | None:
        # None leaves the mode unchanged.
        return None if self.harmony is None else self.harmony.mode

    @property
    def values(self) -> dict[tuple[What, int], int | None]:
        """Return the new values by limit; None removes a limit.

        Raises `InvalidRequest` for limits that are not supported.
        """
        for name in self.model_fields_set - _FIELDS.keys() - {"harmony"}:
            if getattr(self, name) is not None:
                raise unsupported(name, "Leave it out: this server limits requests and tokens")
        more = {} if self.harmony is None else _given(self.harmony, _EXTRA_FIELDS)
        return _given(self, _FIELDS) | more


def _given(
    model: WireModel, fields: Mapping[str, tuple[What, int]]
) -> dict[tuple[What, int], int | None]:
    # OpenAI's value for "no limit" becomes None.
    found = {name: getattr(model, name) for name in fields if name in model.model_fields_set}
    return {
        fields[name]: None if name in _FIELDS and (value or 0) >= UNLIMITED else value
        for name, value in found.items()
    }


class SpendLimitUpdate(WireModel):
    """`POST …/spend_limit`: the hard limit of a month, in cents."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: Cents


class NotificationChannel(NullableModel):
    """Channel and recipients of a notification: OpenAI has e-mail alone."""

    type: Literal["email"]
    recipients: Annotated[Many[Address], Field(min_length=1, max_length=RECIPIENTS_MAX)]
    subject_prefix: Subject | None = None


class SpendAlertUpdate(WireModel):
    """`POST …/spend_alerts` and `…/spend_alerts/{id}`."""

    currency: Literal["USD"]
    interval: Literal["month"]
    notification_channel: NotificationChannel
    threshold_amount: Cents

    @property
    def channel(self) -> Json:
        """Return the channel as it is stored and shown."""
        given = self.notification_channel
        return {
            "type": given.type,
            "recipients": list(given.recipients),
            "subject_prefix": given.subject_prefix,
        }


def rate_limit_body(model: str, limits: Iterable[Limit]) -> Json:
    """Return `project.rate_limit` from the limits of a project for a model."""
    values = {(one.what, one.window_s): one.value for one in limits}
    modes = {one.mode for one in limits}
    body: Json = {
        "id": f"{RATE_LIMIT_PREFIX}{model}", "object": "project.rate_limit", "model": model
    }  # fmt: skip
    for name, what in _FIELDS.items():
        if (value := values.get(what)) is not None or name in _NEEDED:
            body[name] = UNLIMITED if value is None else value
    extras = {name: values[what] for name, what in _EXTRA_FIELDS.items() if what in values}
    mode = "observe" if modes == {"observe"} else "enforce"
    return {**body, "harmony": {**extras, "mode": mode}}


def spend_limit_body(owner: str, cap: int, spent: int) -> Json:
    # Amounts are nano-dollars.
    return {
        "object": f"{owner}.spend_limit",
        "currency": "USD",
        "interval": "month",
        "threshold_amount": cap // CENT,
        "enforcement": {"status": "enforcing" if spent >= cap else "inactive"},
    }


def spend_alert_body(owner: str, alert_id: UUID, threshold: int, channel: Json) -> Json:
    # The threshold is in nano-dollars.
    return {
        "id": ids.spend_alert_id(alert_id),
        "object": f"{owner}.spend_alert",
        "currency": "USD",
        "interval": "month",
        "threshold_amount": threshold // CENT,
        "notification_channel": channel,
    }


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
Lifetime = Annotated[int, Field(ge=1, le=LIFETIME_MAX_S), AS_INTEGER]
ShortText = Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX, pattern=r"^[^\x00]*$")]


class NoBody(WireModel):
    """Body of a call that takes none: an empty object at most."""


class SinkResume(WireModel):
    """`POST /admin/v1/usage/sinks/{name}/resume`. `delivered`: it has the batch that it was sent
    last, so that is not sent again.
    """

    delivered: bool = False


class DataRetentionUpdate(WireModel):
    """Data retention to apply (`gateway.tenancy.retention`)."""

    retention_type: Annotated[str, Field(max_length=64)]


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

    overlap_seconds: Annotated[int, Field(ge=0, le=LIFETIME_MAX_S), AS_INTEGER] | None = None


class AdminKeyCreate(NullableModel):
    """`POST /organization/admin_api_keys`: a key for the admin API alone."""

    name: DisplayName
    expires_in_seconds: Lifetime | None = None
    scopes: Annotated[Many[str], Field(max_length=1)] = ()


class TenantCreate(WireModel):
    """`POST /admin/v1/tenants`; the name is checked as that of the command line is."""

    name: ShortText


class TenantUpdate(WireModel):
    """`POST /admin/v1/tenants/{name}`: values of its policy, null for that of the settings."""

    policy: dict[str, str | int | None]


class TenantKeyCreate(NullableModel):
    """`POST /admin/v1/tenants/{name}/admin_api_keys`: the first admin key of a tenant."""

    name: ShortText = "owner"


class PriceEnd(NullableModel):
    """`POST /admin/v1/prices/end`; without a `tenant` (its name) the price of all."""

    model: ModelId
    tier: PriceTier = ANY_TIER
    tenant: ShortText | None = None


class PriceCreate(PriceEnd):
    """`POST /admin/v1/prices`. `valid_from` is in unix seconds."""

    nano_per_unit: dict[Component, Annotated[int, Field(strict=True)]]
    valid_from: Annotated[int, Field(ge=0, le=SECOND_MAX), AS_INTEGER] | None = None


class HoldUpdate(WireModel):
    """`POST /admin/v1/tenants/{name}/hold`: while it is held nothing of a tenant is deleted."""

    held: bool = True


class Erasure(WireModel):
    """`POST /admin/v1/tenants/{name}/erasure`: a `safety_identifier` or `user` of requests."""

    end_user: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Export(WireModel):
    """`POST /admin/v1/tenants/{name}/export`. `content`: what requests and responses say, too."""

    content: bool = False


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


def seconds_of(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def account_key_body(key: ApiKey, secret: str) -> Json:
    # The only response that contains the key's value.
    return {
        "id": ids.api_key_id(key.id),
        "object": "organization.project.service_account.api_key",
        "name": key.name,
        "value": secret,
        "created_at": seconds_of(key.created_at),
        "expires_at": seconds_of(key.terms.expires_at),
        "harmony": _extras(key),
    }


def project_key_body(key: ApiKey, account: ServiceAccount | None) -> Json:
    # A key of no service account is shown as the operator's.
    return {
        "id": ids.api_key_id(key.id),
        "object": "organization.project.api_key",
        "name": key.name,
        "redacted_value": redacted("project", key.hint),
        "created_at": seconds_of(key.created_at),
        "last_used_at": seconds_of(key.last_used_at),
        "expires_at": seconds_of(key.terms.expires_at),
        "owner_project_access": "active",
        "owner": _key_owner(key, account),
        "harmony": _extras(key),
    }


def admin_key_body(key: ApiKey) -> Json:
    role = role_of(key.terms.scopes)
    return {
        "id": ids.api_key_id(key.id),
        "object": "organization.admin_api_key",
        "name": key.name,
        "redacted_value": redacted("admin", key.hint),
        "created_at": seconds_of(key.created_at),
        "last_used_at": seconds_of(key.last_used_at),
        "expires_at": seconds_of(key.terms.expires_at),
        "owner": {
            "type": "user",
            "object": "organization.user",
            "id": ids.user_id(key.created_by or key.tenant_id),
            "name": key.name,
            "created_at": seconds_of(key.created_at),
            "role": "owner",
        },
        "harmony": {"role": role, **_extras(key)},
    }


def deleted_body(kind: str, id_: str | None = None) -> Json:
    """Return the answer to a deletion; `kind` is the type of the deleted object."""
    told: Json = {"object": f"{kind}.deleted", "deleted": True}
    return told if id_ is None else {"id": id_, **told}


def _key_owner(key: ApiKey, account: ServiceAccount | None) -> Json:
    if account is None:
        user = {
            "id": ids.user_id(key.tenant_id),
            "name": "Operator",
            "email": "",
            "role": "owner",
            "created_at": seconds_of(key.created_at),
        }
        return {"type": "user", "user": user, "service_account": None}
    shown = {
        "id": ids.service_account_id(account.id),
        "name": account.name,
        "role": account.role,
        "created_at": seconds_of(account.created_at),
    }
    return {"type": "service_account", "service_account": shown, "user": None}


def _extras(key: ApiKey) -> Json:
    return {
        "scopes": sorted(key.terms.scopes),
        "allowed_cidrs": [str(network) for network in key.terms.networks],
        "allowed_models": list(key.terms.models),
        "replaced_by": None if key.replaced_by is None else ids.api_key_id(key.replaced_by),
    }
