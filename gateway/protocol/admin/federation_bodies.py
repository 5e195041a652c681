"""Bodies and objects of identity providers and their rules, as openai-python 3.52 has them.

What is ours stands under `harmony`: whether tokens of a provider are credentials themselves, and
what they have to be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, Discriminator, Field, StringConstraints

from gateway import ids
from gateway.protocol.admin.bodies import DisplayName, ShortText, scopes_of
from gateway.protocol.base import AS_INTEGER, Many, NullableModel, WireModel
from gateway.protocol.request_errors import invalid
from gateway.tenancy.federation import (
    ALGORITHMS,
    EXPRESSION_CHARS_MAX,
    Algorithm,
    KeySource,
    TokenTerms,
    Transformation,
    path_of,
)
from gateway.tenancy.scopes import SCOPES

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.tenancy.federation import FederationRule, IdentityProvider, OperatorIssuer, Value


Json = dict[str, Any]
URL_CHARS_MAX: Final = 512
"""Of an issuer and an audience, which are in one index entry."""
ATTRIBUTES_MAX: Final = 32
JWKS_BYTES_MAX: Final = 64 * 1024
CLOCK_SKEW_MAX_S: Final = 300
LIFETIME_MAX_S: Final = 86_400
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
    lifetime_max_seconds: Annotated[int, Field(ge=1, le=LIFETIME_MAX_S), AS_INTEGER] | None = None

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
        "created_at": _seconds(provider.created_at),
        "updated_at": _seconds(provider.updated_at),
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
        "created_at": _seconds(rule.created_at),
        "updated_at": _seconds(rule.updated_at),
        "harmony": {"api_key_id": ids.api_key_id(rule.id)},
    }


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())
