"""Tokens of issuers that a tenant trusts: the attributes of their claims, and rules on these.

An identity provider is an issuer with an audience and a source of keys. Its rules map tokens to a
service account, and so to a project: all attributes that a rule names must have the values that it
names. Attributes are the claims of a token by their names, and those that the provider makes of
claims by expressions such as `assertion.repository` or `assertion['kubernetes.io'].namespace`.

Two attributes have a meaning of their own: `harmony.end_user` is the end user of a request (by
default the claim `sub`), and `harmony.scopes` narrows the scopes that the token gets from its rule.

Issuers of operators have no rules: their tokens name their tenant (`harmony.tenant`), and may name
one of its projects (`harmony.project`) and a role (`harmony.role`).

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
"""Algorithms that can be allowed: all of them have a public key. With a secret one (HS256) every
verifier could sign, too, and a public key could be taken for the secret."""
DEFAULT_ALGORITHMS: Final[tuple[Algorithm, ...]] = ("RS256", "ES256", "EdDSA")
END_USER: Final = "harmony.end_user"
SCOPES_GRANTED: Final = "harmony.scopes"
TENANT: Final = "harmony.tenant"
PROJECT: Final = "harmony.project"
ROLE: Final = "harmony.role"
OF_OPERATORS: Final = frozenset({TENANT, PROJECT, ROLE})
"""Attributes that mean something of tokens of operators' issuers alone."""
ANY_TENANT: Final = "*"
"""In the place of a name, which none is."""
_OWN: Final = OF_OPERATORS | {END_USER, SCOPES_GRANTED}
END_USER_CHARS_MAX: Final = 1024
EXPRESSION_CHARS_MAX: Final = 512

Value: TypeAlias = str | bool | int | float
Attribute: TypeAlias = Value | tuple[Value, ...]
"""A list of values has each of them: `groups` that are [a, b] match `a`."""

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
_FIRST: Final = re.compile(r"assertion(?=[.\[])")
_ORGANIZATION: Final = re.compile(r"org-[0-9a-f]{32}(?![0-9a-f])")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\['([^']+)'\]|\[\"([^\"]+)\"\]")


class KeySource(NamedTuple):
    """Source of an issuer's keys: the one of these that is not None.

    `discovery_url` is that of its OpenID configuration, `jwks_url` that of its keys, `jwks` are the
    keys themselves, as JSON.
    """

    discovery_url: str | None = None
    jwks_url: str | None = None
    jwks: bytes | None = None


def discovered(issuer: str, discovery_url: str | None = None) -> KeySource:
    """Return the key source of an issuer, with the usual discovery URL unless another is given.

    https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfigurationRequest
    """
    return KeySource(discovery_url=discovery_url or issuer.rstrip("/") + DISCOVERY_PATH)


class Transformation(NamedTuple):
    """An attribute, and the expression that it is made by."""

    attribute: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityProvider:
    """An issuer that a tenant trusts, and the audience of its tokens; the fields are the columns of
    its row.

    `bearer`: its tokens are credentials themselves, not only to be exchanged. `unnamed_bearer`:
    they are also without the tenant's name in the request. A token may live for `lifetime_max_s`;
    clocks may differ by `clock_skew_s`.

    An operator's issuer is under the nil tenant: its tokens name one of `tenants` (names, or `*`:
    any), and may do what their roles may, if there are `roles` (scopes by role).
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
        """Return what ties a bearer token to this tenant. None: no bearer tokens are taken."""
        if not self.bearer:
            return None
        if organizations_named(self.audience):
            return "audience"
        return "operator" if self.unnamed_bearer else "header"

    def speaks_for(self, tenant_name: str) -> bool:
        return not {ANY_TENANT, tenant_name}.isdisjoint(self.tenants or ())

    def scopes(self, attributes: Mapping[str, Attribute]) -> frozenset[str] | None:
        """Return the scopes of an operator's token; empty scopes allow all of the project.

        Return None if none of its roles is listed, or nothing is left.
        """
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
    """Rule: some provider tokens act for a service account. `scopes` empty: all of the project. The
    fields are the columns of its row.
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
    """Return the claim names that an expression follows, outermost first. Raises `ValueError`."""
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
    """Return the attributes of a token: its scalar and list claims, and the transformed ones.

    Transformed ones take precedence. A missing claim makes no attribute, and neither does an
    expression that cannot be parsed, so it matches nothing.
    """
    attributes = dict(_values(claims))
    for one in transformations:
        attributes.pop(one.attribute, None)
        value = _attribute(_claim(claims, one.expression))
        if value is not None:
            attributes[one.attribute] = value
    return attributes


def matches(matchers: Mapping[str, Value], attributes: Mapping[str, Attribute]) -> bool:
    """Return True if a token's attributes match all matchers of a rule.

    No matchers match nothing.
    """
    return bool(matchers) and all(
        name in attributes and _has(attributes[name], value) for name, value in matchers.items()
    )


def scopes_granted(
    scopes: frozenset[str], attributes: Mapping[str, Attribute]
) -> frozenset[str] | None:
    """Return the token's scopes: those of its rule, narrowed to the token's own if it has any.

    Return None if nothing is left.
    """
    claim = attributes.get(SCOPES_GRANTED)
    if claim is None:
        return scopes
    words = claim if isinstance(claim, tuple) else str(claim).split()
    return narrowed(scopes, frozenset(map(str, words)) & SCOPES.keys())


def narrowed(scopes: frozenset[str], requested: frozenset[str]) -> frozenset[str] | None:
    """Return the `requested` scopes that a rule with these scopes allows.

    Return None if nothing is left and the token may do nothing; empty scopes would allow all.
    """
    return (requested & scopes if scopes else requested) or None


def text_of(attributes: Mapping[str, Attribute], name: str) -> str | None:
    """Return the attribute of that name if it is a single text that is not empty."""
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None


def end_user_of(attributes: Mapping[str, Attribute]) -> str | None:
    """Return the end user of requests with a token, or None if the token names none."""
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
