"""Tokens of issuers that a tenant trusts: the attributes of their claims, and rules on these.

A rule maps tokens with all its attribute values to a service account, and so to a project.
Attributes are claims, and what the provider makes of them by expressions such as
`assertion['kubernetes.io'].namespace`. Tokens of operators' issuers name their tenant instead.

A bearer token that names no tenant belongs to the tenant of its issuer and audience, so these must
be one tenant's: the audience names it (`org-…`), or an operator has confirmed it. Any other token
takes the header `OpenAI-Organization` beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from gateway.tenancy.permissions import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from uuid import UUID

    from gateway.tenancy import ProjectId, TenantId

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
"""All have a public key. With a secret one (HS256) every verifier could sign, and a public key
could be taken for the secret."""
DEFAULT_ALGORITHMS: Final[tuple[Algorithm, ...]] = ("RS256", "ES256", "EdDSA")
END_USER: Final = "harmony.end_user"
SCOPES_GRANTED: Final = "harmony.scopes"
TENANT: Final = "harmony.tenant"
PROJECT: Final = "harmony.project"
ROLE: Final = "harmony.role"
OF_OPERATORS: Final = frozenset({TENANT, PROJECT, ROLE})
ANY_TENANT: Final = "*"
_OWN: Final = OF_OPERATORS | {END_USER, SCOPES_GRANTED}
END_USER_CHARS_MAX: Final = 1024
TOKEN_LIFETIME_MAX_S: Final = 86_400
"""ID tokens live for minutes to a day."""
EXPRESSION_CHARS_MAX: Final = 512

Value: TypeAlias = str | bool | int | float
Attribute: TypeAlias = Value | tuple[Value, ...]
"""A list has each of its values: `groups` that are [a, b] match `a`."""

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
_FIRST: Final = re.compile(r"assertion(?=[.\[])")
_ORGANIZATION: Final = re.compile(r"org-[0-9a-f]{32}(?![0-9a-f])")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\['([^']+)'\]|\[\"([^\"]+)\"\]")


class KeySource(NamedTuple):
    """Source of an issuer's keys; one field is not None. `jwks` is JSON."""

    discovery_url: str | None = None
    jwks_url: str | None = None
    jwks: bytes | None = None


def discovered(issuer: str, discovery_url: str | None = None) -> KeySource:
    """Return the key source with the usual discovery URL unless another is set.

    https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfigurationRequest
    """
    return KeySource(discovery_url=discovery_url or issuer.rstrip("/") + DISCOVERY_PATH)


class Transformation(NamedTuple):
    attribute: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityProvider:
    """Issuer and audience that a tenant trusts. The fields are the row's columns.

    `bearer`: its tokens are credentials themselves, not only to be exchanged. `unnamed_bearer`:
    also without the tenant's name in the request. An operator's issuer is under the nil tenant: its
    tokens name one of `tenants` (names, or `*`), and may do what their `roles` may (scopes by
    role).
    """

    id: UUID
    tenant_id: TenantId
    name: str
    issuer: str
    audience: str
    created_at: datetime
    updated_at: datetime
    description: str | None = None
    discovery_url: str | None = None
    jwks_url: str | None = None
    jwks: bytes | None = None
    transformations: tuple[Transformation, ...] = ()
    algorithms: tuple[Algorithm, ...] = DEFAULT_ALGORITHMS
    clock_skew_s: int = 60
    lifetime_max_s: int = 3600
    bearer: bool = False
    unnamed_bearer: bool = False
    enabled: bool = True
    tenants: tuple[str, ...] | None = None
    roles: Mapping[str, tuple[str, ...]] | None = None

    @property
    def keys(self) -> KeySource:
        return KeySource(self.discovery_url, self.jwks_url, self.jwks)

    @property
    def tenant_binding(self) -> Literal["audience", "operator", "header"] | None:
        """Return what ties a bearer token to this tenant; None: bearer tokens are refused."""
        if not self.bearer:
            return None
        if organizations_named(self.audience):
            return "audience"
        return "operator" if self.unnamed_bearer else "header"

    def speaks_for(self, tenant_name: str) -> bool:
        return not {ANY_TENANT, tenant_name}.isdisjoint(self.tenants or ())

    def scopes(self, attributes: Mapping[str, Attribute]) -> frozenset[str] | None:
        """Return the scopes of an operator's token: empty allow all, None nothing."""
        granted: frozenset[str] = frozenset()
        if self.roles:
            roles = attributes.get(ROLE, ())
            named = roles if isinstance(roles, tuple) else (roles,)
            granted = granted.union(*(self.roles.get(str(one), ()) for one in named))
            if not granted:
                return None
        return scopes_granted(granted, attributes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationRule:
    """Rule: some tokens act for a service account. `scopes` empty: all of the project. The fields
    are the row's columns.
    """

    id: UUID
    tenant_id: TenantId
    provider_id: UUID
    project_id: ProjectId
    service_account_id: UUID
    matchers: Mapping[str, Value]
    scopes: frozenset[str]
    created_at: datetime
    updated_at: datetime
    name: str | None = None
    description: str | None = None
    enabled: bool = True


def organizations_named(audience: str) -> frozenset[str]:
    """Return the tenant ids in an audience, such as `https://gateway.example.com/org-…`."""
    return frozenset(_ORGANIZATION.findall(audience))


def path_of(expression: str) -> tuple[str, ...]:
    """Return the claim names, outermost first. Raises `ValueError`."""
    began = _FIRST.match(expression)
    if began is None or len(expression) > EXPRESSION_CHARS_MAX:
        raise ValueError(
            "must be like assertion.repository or assertion['kubernetes.io'].namespace"
        )
    names, place = [], began.end()
    while place < len(expression):
        step = _STEP.match(expression, place)
        if step is None:
            raise ValueError(f"cannot be read from character {place + 1} on")
        names.append(next(one for one in step.groups() if one is not None))
        place = step.end()
    return tuple(names)


def attributes_of(
    claims: Mapping[str, Any], transformations: Iterable[Transformation]
) -> dict[str, Attribute]:
    """Return scalar and list claims, and transformed ones, which take precedence.

    A missing claim, or an invalid expression, makes no attribute, so it matches nothing.
    """
    attributes = dict(_values(claims))
    for one in transformations:
        attributes.pop(one.attribute, None)
        value = _attribute(_claim(claims, one.expression))
        if value is not None:
            attributes[one.attribute] = value
    return attributes


def matches(matchers: Mapping[str, Value], attributes: Mapping[str, Attribute]) -> bool:
    """Return True if a token matches a rule. No matchers match nothing."""
    return bool(matchers) and all(
        name in attributes and _has(attributes[name], value) for name, value in matchers.items()
    )


def scopes_granted(
    scopes: frozenset[str], attributes: Mapping[str, Attribute]
) -> frozenset[str] | None:
    """Return the rule's scopes, narrowed to the token's own if any; None if nothing is left."""
    claim = attributes.get(SCOPES_GRANTED)
    if claim is None:
        return scopes
    words = claim if isinstance(claim, tuple) else str(claim).split()
    return narrowed(scopes, frozenset(map(str, words)) & SCOPES.keys())


def narrowed(scopes: frozenset[str], requested: frozenset[str]) -> frozenset[str] | None:
    """Return the `requested` scopes that are allowed; None if nothing is left (empty would allow
    all).
    """
    return (requested & scopes if scopes else requested) or None


def text_of(attributes: Mapping[str, Attribute], name: str) -> str | None:
    """Return the attribute if it is a single text that is not empty."""
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None


def end_user_of(attributes: Mapping[str, Attribute]) -> str | None:
    named = attributes.get(END_USER, attributes.get("sub"))
    if named is None or isinstance(named, tuple):
        return None
    return str(named)[:END_USER_CHARS_MAX] or None


def _values(claims: Mapping[str, Any]) -> Iterable[tuple[str, Attribute]]:
    for name, claim in claims.items():
        if name not in _OWN and (value := _attribute(claim)) is not None:
            yield name, value


def _claim(claims: Mapping[str, Any], expression: str) -> object:
    try:
        names = path_of(expression)
    except ValueError:
        return None
    value: Any = claims
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _attribute(claim: object) -> Attribute | None:
    if isinstance(claim, str | bool | int | float):
        return claim
    if isinstance(claim, list):
        return tuple(one for one in claim if isinstance(one, str | bool | int | float))
    return None


def _has(attribute: Attribute, value: Value) -> bool:
    values = attribute if isinstance(attribute, tuple) else (attribute,)
    return any(_equal(one, value) for one in values)


def _equal(one: Value, other: Value) -> bool:
    # JSON's equality: true is not 1, and 1 is 1.0.
    return isinstance(one, bool) == isinstance(other, bool) and one == other
