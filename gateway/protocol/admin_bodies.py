"""Bodies and objects of the admin API, field for field those of openai-python 3.54.

What is ours stands under `harmony`: the SDK keeps fields that it does not know. Amounts of spend
limits are in cents, times in seconds. Keys that a body lacks are refused
(`admin.routes.AdminCall.body`).
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, Discriminator, Field, StringConstraints

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.limits.money import ANY_TIER, CENT, Component, PriceTier
from gateway.limits.terms import DAY_S, MINUTE_S
from gateway.protocol.base import AS_INTEGER, Count, Many, NullableModel, WireModel
from gateway.protocol.request_errors import invalid, unsupported, wrong_value
from gateway.tenancy import KeyTerms
from gateway.tenancy.federation import (
    ALGORITHMS,
    EXPRESSION_CHARS_MAX,
    Algorithm,
    KeySource,
    TokenTerms,
    Transformation,
    path_of,
)
from gateway.tenancy.permissions import role_of
from gateway.tenancy.scopes import SCOPES
from gateway.tenancy.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from uuid import UUID

    from gateway.limits.terms import Limit, Mode, What
    from gateway.tenancy import ApiKey, Network, ServiceAccount
    from gateway.tenancy.federation import FederationRule, IdentityProvider, OperatorIssuer, Value


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


class Hold(WireModel):
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
    body: Json = {"object": f"{kind}.deleted", "deleted": True}
    return body if id_ is None else {"id": id_, **body}


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


URL_CHARS_MAX: Final = 512
"""Of an issuer and an audience, which are in one index entry."""
ATTRIBUTES_MAX: Final = 32
JWKS_BYTES_MAX: Final = 64 * 1024
CLOCK_SKEW_MAX_S: Final = 300
TOKEN_LIFETIME_MAX_S: Final = 86_400
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"


def _url(url: str) -> str:
    # A URL with user info is refused: it would be shown with its password.
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        is_one = is_one and "@" not in parts.netloc
    except ValueError:
        is_one = False
    if not is_one or not url.isascii() or not url.isprintable() or " " in url or "#" in url:
        raise ValueError("must be a URL such as https://issuer.example.com, without user info")
    return url


def _expression(expression: str) -> str:
    path_of(expression)
    return expression


Url = Annotated[
    str, StringConstraints(min_length=1, max_length=URL_CHARS_MAX), AfterValidator(_url)
]
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Audience = Annotated[
    str, StringConstraints(min_length=1, max_length=URL_CHARS_MAX, pattern=r"^[!-~ ]+$")
]
MatcherValue = (
    Annotated[str, StringConstraints(max_length=1024)]
    | bool
    | Annotated[int, Field(ge=-(2**53), le=2**53)]
    | Annotated[float, Field(allow_inf_nan=False)]
)
Matchers = Annotated[
    dict[AttributeName, MatcherValue], Field(min_length=1, max_length=ATTRIBUTES_MAX)
]


class AttributeTransformation(WireModel):
    """An attribute that is made of claims."""

    attribute: AttributeName
    expression: Annotated[
        str, StringConstraints(max_length=EXPRESSION_CHARS_MAX), AfterValidator(_expression)
    ]


class Discovery(NullableModel):
    """Keys located by the issuer's OpenID configuration. `discovery_url` None: the usual place."""

    type: Literal["discovery"]
    discovery_url: Url | None = None


class UploadedJwks(WireModel):
    """The keys themselves, for an issuer that cannot be reached from here."""

    type: Literal["uploaded_jwks"]
    jwks: dict[str, Any]


Verification = Annotated[Discovery | UploadedJwks, Discriminator("type")]


class TokenExtras(NullableModel):
    """`harmony` of a provider: see `gateway.tenancy.federation.TokenTerms`. `jwks_url` locates its
    keys, where it has no configuration that does.
    """

    bearer: bool | None = None
    jwks_url: Url | None = None
    algorithms: (
        Annotated[Many[Algorithm], Field(min_length=1, max_length=len(ALGORITHMS))] | None
    ) = None
    clock_skew_seconds: Annotated[int, Field(ge=0, le=CLOCK_SKEW_MAX_S), AS_INTEGER] | None = None
    lifetime_max_seconds: (
        Annotated[int, Field(ge=1, le=TOKEN_LIFETIME_MAX_S), AS_INTEGER] | None
    ) = None

    def terms(self, before: TokenTerms) -> TokenTerms:
        # Terms that the request leaves out stay.
        given: dict[str, Any] = {
            "bearer": self.bearer,
            "algorithms": self.algorithms and tuple(dict.fromkeys(self.algorithms)),
            "clock_skew_s": self.clock_skew_seconds,
            "lifetime_max_s": self.lifetime_max_seconds,
        }
        return replace(
            before, **{name: value for name, value in given.items() if value is not None}
        )


class _ProviderFields(NullableModel):
    attribute_transformations: (
        Annotated[Many[AttributeTransformation], Field(max_length=ATTRIBUTES_MAX)] | None
    ) = None
    description: ShortText | None = None
    enabled: bool | None = None
    verification: Verification | None = None
    harmony: TokenExtras = TokenExtras()

    @property
    def transformations(self) -> tuple[Transformation, ...] | None:
        """Return the transformations as they are stored; None if the request has none."""
        given = self.attribute_transformations
        if given is None:
            return None
        return tuple(Transformation(one.attribute, one.expression) for one in given)

    def keys(self, issuer: str) -> KeySource | None:
        """Return the source of the issuer's keys; None if the request has none.

        Raises `InvalidRequest`.
        """
        given = self.verification
        if self.harmony.jwks_url is not None:
            if given is not None:
                raise invalid(
                    "harmony.jwks_url", "'verification' says whence the keys come already"
                )
            return KeySource(jwks_url=self.harmony.jwks_url)
        if isinstance(given, UploadedJwks):
            jwks = orjson.dumps(given.jwks)
            if len(jwks) > JWKS_BYTES_MAX or not isinstance(given.jwks.get("keys"), list):
                raise invalid(
                    "verification.jwks",
                    f"it has to be a JSON Web Key Set of {JWKS_BYTES_MAX} bytes at most",
                )
            return KeySource(jwks=jwks)
        if given is None:
            return None
        return discovered(issuer, given.discovery_url)


class ProviderCreate(_ProviderFields):
    """`POST /organization/workload_identity_providers`: an issuer whose tokens are to be taken."""

    name: DisplayName
    type: Literal["oidc"]
    issuer: Url
    audience: Audience


class ProviderUpdate(_ProviderFields):
    """`POST …/{id}`: what is left out stays."""

    name: DisplayName | None = None
    issuer: Url | None = None
    audience: Audience | None = None


TenantNames = Annotated[Many[ShortText], Field(min_length=1, max_length=1000)]
Roles = Annotated[
    dict[AttributeName, Annotated[Many[str], Field(min_length=1, max_length=len(SCOPES))]],
    Field(max_length=ATTRIBUTES_MAX),
]


class _OperatorIssuerFields(_ProviderFields):
    roles: Roles | None = None

    def scopes_by_role(self) -> dict[str, tuple[str, ...]] | None:
        """Return the scopes of each role; None if the request has none.

        Raises `InvalidRequest` for an unknown scope.
        """
        if self.roles is None:
            return None
        return {name: tuple(sorted(scopes_of(scopes))) for name, scopes in self.roles.items()}


class OperatorIssuerCreate(_OperatorIssuerFields):
    """`POST /admin/v1/issuers`. `tenants`: names of those that its tokens may name; `*`: any."""

    name: DisplayName
    issuer: Url
    audience: Audience
    tenants: TenantNames


class OperatorIssuerUpdate(_OperatorIssuerFields):
    """`POST /admin/v1/issuers/{id}`: what is left out stays."""

    name: DisplayName | None = None
    issuer: Url | None = None
    audience: Audience | None = None
    tenants: TenantNames | None = None


class DefaultPermissions(WireModel):
    """Permissions of a token equal to those of a service account of the project."""

    type: Literal["service_account_default"]


class RestrictedPermissions(WireModel):
    """Permissions of a token limited to these scopes, such as `responses.read`."""

    type: Literal["restricted"]
    scopes: Annotated[Many[str], Field(min_length=1, max_length=len(SCOPES))]


Permissions = Annotated[DefaultPermissions | RestrictedPermissions, Discriminator("type")]


class _RuleFields(NullableModel):
    name: DisplayName | None = None
    description: ShortText | None = None
    enabled: bool | None = None
    permissions: Permissions | None = None

    def scopes(self) -> frozenset[str] | None:
        """Return the scopes: empty for all, None if the request has none.

        Raises `InvalidRequest` for an unknown scope.
        """
        given = self.permissions
        if given is None:
            return None
        return scopes_of(given.scopes) if isinstance(given, RestrictedPermissions) else frozenset()


class RuleCreate(_RuleFields):
    """`POST …/federation_rules`: which tokens of a provider stand for a service account."""

    attribute_matchers: Matchers
    project_id: ShortText
    service_account_id: ShortText


class RuleUpdate(_RuleFields):
    """`POST …/federation_rules/{id}`: what is left out stays."""

    attribute_matchers: Matchers | None = None


def discovered(issuer: str, discovery_url: str | None = None) -> KeySource:
    """Return the key source of an issuer, with the usual discovery URL unless another is given.

    https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfigurationRequest
    """
    return KeySource(discovery_url=discovery_url or issuer.rstrip("/") + DISCOVERY_PATH)


def provider_body(provider: IdentityProvider) -> Json:
    # Uploaded keys are public keys, so they are shown.
    keys, terms = provider.keys, provider.terms
    return {
        "id": ids.identity_provider_id(provider.id),
        "object": "organization.workload_identity_provider",
        "type": "oidc",
        "name": provider.name,
        "description": provider.description,
        "issuer": provider.issuer,
        "audience": provider.audience,
        "attribute_transformations": [
            {"attribute": one.attribute, "expression": one.expression}
            for one in provider.transformations
        ],
        "verification": {"type": "discovery", "discovery_url": keys.discovery_url}
        if keys.jwks is None
        else {"type": "uploaded_jwks", "jwks": orjson.loads(keys.jwks)},
        "enabled": provider.enabled,
        "created_at": _unix_seconds(provider.created_at),
        "updated_at": _unix_seconds(provider.updated_at),
        "harmony": {
            "bearer": terms.bearer,
            "tenant_told_by": provider.tenant_told_by,
            "jwks_url": keys.jwks_url,
            "algorithms": list(terms.algorithms),
            "clock_skew_seconds": terms.clock_skew_s,
            "lifetime_max_seconds": terms.lifetime_max_s,
        },
    }


def operator_issuer_body(issuer: OperatorIssuer) -> Json:
    # Tokens of an operator's issuer are always bearer tokens.
    body = provider_body(issuer.provider)
    own = {"bearer", "tenant_told_by"}
    return body | {
        "id": ids.operator_issuer_id(issuer.provider.id),
        "object": "issuer",
        "tenants": list(issuer.tenants),
        "roles": {name: list(scopes) for name, scopes in issuer.roles.items()},
        "harmony": {name: one for name, one in body["harmony"].items() if name not in own}
        | {"api_key_id": ids.api_key_id(issuer.provider.id)},
    }


def rule_body(rule: FederationRule) -> Json:
    # Usage has the rule's id as `api_key_id`.
    matchers: dict[str, Value] = dict(rule.matchers)
    return {
        "id": ids.federation_rule_id(rule.id),
        "object": "organization.workload_identity_federation_rule",
        "workload_identity_provider_id": ids.identity_provider_id(rule.provider_id),
        "project_id": ids.project_id(rule.project_id),
        "service_account_id": ids.service_account_id(rule.service_account_id),
        "name": rule.name,
        "description": rule.description,
        "attribute_matchers": matchers,
        "permissions": {"type": "restricted", "scopes": sorted(rule.scopes)}
        if rule.scopes
        else {"type": "service_account_default"},
        "enabled": rule.enabled,
        "created_at": _unix_seconds(rule.created_at),
        "updated_at": _unix_seconds(rule.updated_at),
        "harmony": {"api_key_id": ids.api_key_id(rule.id)},
    }


def _unix_seconds(moment: datetime) -> int:
    return int(moment.timestamp())
