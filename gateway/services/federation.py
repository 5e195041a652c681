"""Authentication by tokens: of an issuer that a tenant trusts, or of the gateway, in exchange for
such a token.

A token of an issuer is verified when it is first seen, and again whenever the cached decision is
too old (`services.access` decides, as for keys). A token of the gateway names a rule and its own
expiry: it is sealed, nothing of it is stored, and it is good for as long as its rule holds.

PyJWT reads and verifies tokens. It is imported with the first token: most gateways are sent none.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway import ids
from gateway.errors import TokenNotAdmitted, TokenRefused
from gateway.sealing import Binding, SealBroken
from gateway.services.key_sets import KeyOrigin
from gateway.store import callers
from gateway.store.limits import key_terms
from gateway.store.schema import EVERYONE
from gateway.telemetry.logs import EventLog
from gateway.tenancy import TenantId
from gateway.tenancy.issuers import (
    PROJECT,
    TENANT,
    attributes_of,
    end_user_of,
    matches,
    narrowed,
    scopes_granted,
    text_of,
)
from gateway.tenancy.policy import DEFAULT_POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.sealing import Sealer
    from gateway.services.key_sets import Jwk, KeySets
    from gateway.store.callers import Federated
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal
    from gateway.tenancy.issuers import IdentityProvider
    from gateway.tenancy.policy import TenantPolicy

PREFIX: Final = "sk-wif-"
"""Prefix of the tokens that the gateway issues; no key begins so."""
_PURPOSE: Final = "access token"
_FORM: Final = struct.Struct(">B16s16sQ16s")
"""Version, tenant, rule, when it ends (seconds since 1970), and random bytes; behind
that the scopes that were granted, with spaces between them, or nothing: all of the rule."""
_VERSION: Final = 1
_UNKNOWN: Final = (
    "The token is of no issuer and for no audience that is trusted here, or it does not say whose "
    "it is. Name your organization in the header OpenAI-Organization, which is 'organization' in "
    "OpenAI's SDKs."
)
_UNNAMED: Final = (
    "The token names no tenant that its issuer may speak for, no project of that tenant, or no "
    "role that is known here. The operator of this server decides about that."
)
_PARTS: Final = 3
_REQUIRED: Final = ["iss", "aud", "sub", "exp", "iat"]
_ID_CHARS_MAX: Final = 1024
_AUDIENCES_MAX: Final = 16
_log = EventLog(__name__)

TOKEN_BYTES_MAX: Final = 16_384
"""Bytes of a token of an issuer, at most."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """Header and claims of a token before verification. Anybody may have written them."""

    algorithm: str
    key_id: str
    issuer: str
    audiences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """The claims of a token that its issuer signed for us. `expires_at`: seconds since 1970, with
    what clocks may differ by.
    """

    claims: Mapping[str, Any]
    expires_at: float


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """Request to exchange a token of a provider for one of a service account."""

    token: str
    provider_id: str
    service_account_id: str


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A token of the gateway, and its lifetime in seconds."""

    token: str
    expires_in_s: int
    scopes: frozenset[str]


class Federation:
    """Verifies tokens, and finds whose they are."""

    def __init__(
        self,
        database: Database,
        key_sets: KeySets,
        sealer: Sealer,
        *,
        token_lifetime_s: int,
        defaults: TenantPolicy = DEFAULT_POLICY,
    ) -> None:
        """Apply `defaults` where a tenant has no policy of its own.

        A token of the gateway lives for `token_lifetime_s` at most.
        """
        self._database = database
        self._key_sets = key_sets
        self._sealer = sealer
        self._token_lifetime_s = token_lifetime_s
        self._defaults = defaults

    @property
    def body_bytes_max(self) -> int:
        # The body of a token exchange has little besides the token.
        return 2 * TOKEN_BYTES_MAX

    @staticmethod
    def knows(secret: str) -> bool:
        return secret.startswith(PREFIX) or is_token(secret)

    async def principal(self, secret: str, organization: str | None = None) -> Principal:
        """Return the principal of a token; `organization` (id or name) is what the request names.

        Raises `TokenRefused`, `IssuerUnavailable` and `StoreUnavailable`.
        """
        if secret.startswith(PREFIX):
            return await self._of_ours(secret)
        said = read(secret)
        issuer = await self._operator_issuer(said)
        if issuer is not None:
            return await self._of_operator(secret, said, issuer)
        provider = await self._bearer_provider(said, organization)
        token = await verified(secret, said, provider, self._key_sets)
        attributes = attributes_of(token.claims, provider.transformations)
        admitted = await self._admit(provider, token, None)
        principal = await self._complete(admitted.principal, token.expires_at)
        return replace(principal, credential="token", end_user=end_user_of(attributes))

    async def exchange(self, asked: ExchangeRequest) -> Exchanged:
        """Exchange a token of an issuer for one of a service account.

        Raises as `principal` does: the same error for an unknown provider and for one without a
        rule that admits this token.
        """
        provider_id = ids.parse_identity_provider_id(asked.provider_id)
        account_id = ids.parse_service_account_id(asked.service_account_id)
        said = read(asked.token)
        if provider_id is None or account_id is None:
            raise _not_admitted()
        found = await callers.find_issuers(self._database, provider_id)
        if len(found) != 1:
            raise _not_admitted()
        provider = found[0]
        token = await verified(asked.token, said, provider, self._key_sets)
        admitted = await self._admit(provider, token, account_id)
        now = int(time.time())
        # It does not outlive the token that it is given for.
        ends_at = min(now + self._token_lifetime_s, int(token.claims["exp"]))
        if ends_at <= now:
            raise TokenRefused("The token has expired. Get a new one from its issuer.")
        rule, scopes = admitted.rule, admitted.principal.key.scopes
        _log.info(
            "a token was exchanged",
            tenant=str(rule.tenant_id),
            rule=ids.federation_rule_id(rule.id),
        )
        sealed = self._seal(rule.tenant_id, rule.id, ends_at, scopes)
        return Exchanged(sealed, ends_at - now, scopes)

    async def close(self) -> None:
        await self._key_sets.close()

    def _seal(
        self, tenant_id: TenantId, rule_id: UUID, ends_at: int, scopes: frozenset[str]
    ) -> str:
        content = _FORM.pack(_VERSION, tenant_id.bytes, rule_id.bytes, ends_at, os.urandom(16))
        content += " ".join(sorted(scopes)).encode()
        binding = Binding(EVERYONE, _PURPOSE, self._sealer.key_id)
        sealed = self._sealer.seal(binding, content)
        assert sealed is not None, "its key is the sealer's own"
        return PREFIX + sealed

    async def _of_ours(self, secret: str) -> Principal:
        try:
            content = self._sealer.open(secret.removeprefix(PREFIX), EVERYONE, _PURPOSE)
            version, tenant, rule, ends_at, _ = _FORM.unpack_from(content)
        except (SealBroken, struct.error) as error:
            raise TokenRefused("The token was not issued here, or was changed since.") from error
        if version != _VERSION or ends_at <= time.time():
            raise TokenRefused("The token has expired. Exchange another one.")
        tenant_id, rule_id = TenantId(UUID(bytes=tenant)), UUID(bytes=rule)
        given = frozenset(content[_FORM.size :].decode().split())
        for one in await callers.find_federated(
            self._database, tenant_id, self._defaults, rule_id=rule_id
        ):
            scopes = narrowed(one.rule.scopes, given) if given else one.rule.scopes
            if scopes is not None:
                admitted = with_scopes(one, scopes)
                principal = await self._complete(admitted.principal, float(ends_at))
                return replace(principal, credential="exchanged")
        raise TokenRefused("The token has been revoked. Exchange another one.")

    async def _operator_issuer(self, said: Unverified) -> IdentityProvider | None:
        # A token of an operator's issuer belongs to no tenant's provider, whatever the tenant
        # configured.
        found = await callers.find_of_operators(self._database, said.issuer, said.audiences)
        if not found:
            return None
        if len(found) > 1 or not found[0].enabled:
            raise TokenNotAdmitted(_UNKNOWN)
        return found[0]

    async def _of_operator(
        self, secret: str, said: Unverified, issuer: IdentityProvider
    ) -> Principal:
        token = await verified(secret, said, issuer, self._key_sets)
        attributes = attributes_of(token.claims, issuer.transformations)
        tenant, scopes = text_of(attributes, TENANT), issuer.scopes(attributes)
        project_id = None
        if PROJECT in attributes:
            project_id = ids.parse_project_id(text_of(attributes, PROJECT) or "")
            tenant = None if project_id is None else tenant
        if tenant is None or scopes is None or "\0" in tenant:
            raise TokenNotAdmitted(_UNNAMED)
        found = await callers.find_named(
            self._database, issuer.id, tenant, project_id, self._defaults
        )
        if found is None or not issuer.speaks_for(found.tenant_name):
            raise TokenNotAdmitted(_UNNAMED)
        principal = replace(found, key=replace(found.key, scopes=scopes))
        completed = await self._complete(principal, token.expires_at)
        return replace(completed, credential="token", end_user=end_user_of(attributes))

    async def _bearer_provider(
        self, said: Unverified, organization: str | None
    ) -> IdentityProvider:
        # A provider of the named organization comes first, then one that needs no name.
        found: Sequence[IdentityProvider] = ()
        if organization is not None:
            found = await callers.find_bearers(
                self._database, said.issuer, said.audiences, organization
            )
        if not found:
            found = await callers.find_issuers(self._database, None, said.issuer, said.audiences)
        if len(found) > 1:
            # Only where a token is for several audiences: it could be anybody.
            _log.warning("several identity providers trust one token")
        if len(found) != 1:
            raise TokenNotAdmitted(_UNKNOWN)
        return found[0]

    async def _admit(
        self, provider: IdentityProvider, token: Verified, account_id: UUID | None
    ) -> Federated:
        attributes = attributes_of(token.claims, provider.transformations)
        for one in await callers.find_federated(
            self._database, provider.tenant_id, self._defaults, provider_id=provider.id
        ):
            rule = one.rule
            is_meant = account_id is None or rule.service_account_id == account_id
            if not is_meant or not matches(rule.matchers, attributes):
                continue
            scopes = scopes_granted(rule.scopes, attributes)
            if scopes is not None:
                return with_scopes(one, scopes)
        raise _not_admitted()

    async def _complete(self, principal: Principal, expires_at: float) -> Principal:
        # The decision ends with the token; a lookup before that verifies the token again.
        terms = await key_terms.terms_of(self._database, principal)
        ends = datetime.fromtimestamp(expires_at, UTC)
        return replace(principal, terms=terms, key=replace(principal.key, expires_at=ends))


def with_scopes(admitted: Federated, scopes: frozenset[str]) -> Federated:
    """Return a copy of the principal with these scopes."""
    principal = admitted.principal
    return replace(
        admitted, principal=replace(principal, key=replace(principal.key, scopes=scopes))
    )


def _not_admitted() -> TokenNotAdmitted:
    return TokenNotAdmitted(
        "No rule of its identity provider admits the token, or none for this service account. "
        "Compare its claims with the attribute_matchers of the rules."
    )


def is_token(secret: str) -> bool:
    """Return True if a credential has the form of a signed token (JWT), which no key has."""
    return secret.startswith("ey") and secret.count(".") == _PARTS - 1


def read(token: str) -> Unverified:
    """Parse a token without verifying it.

    Raises `TokenRefused` for a malformed token, and for one that names no key or no issuer.
    """
    import jwt

    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefused(f"The token is longer than {TOKEN_BYTES_MAX} bytes, which none may be.")
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except _unreadable() as error:
        raise TokenRefused(f"The token is no JSON Web Token: {_reason(error)}.") from error
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    return Unverified(
        _text(header.get("alg"), "algorithm (alg)"),
        _text(header.get("kid"), "key (kid)"),
        _text(claims.get("iss"), "issuer (iss)"),
        tuple(_text(one, "audience (aud)") for one in audiences[:_AUDIENCES_MAX]),
    )


async def verified(
    token: str, said: Unverified, provider: IdentityProvider, key_sets: KeySets
) -> Verified:
    """Verify a token. Raises `TokenRefused`, and `IssuerUnavailable` without the issuer's keys."""
    if said.algorithm not in provider.algorithms:
        allowed = ", ".join(provider.algorithms)
        raise TokenRefused(
            f"The token is signed by an algorithm that is not allowed. Allowed are: {allowed}."
        )
    origin = KeyOrigin(provider.issuer, provider.keys)
    key = await key_sets.find(origin, said.key_id, said.algorithm)
    if key is None:
        raise TokenRefused("The token is signed by a key that its issuer does not list.")
    return _decode(token, said.algorithm, key, provider)


def _decode(token: str, algorithm: str, key: Jwk, provider: IdentityProvider) -> Verified:
    import jwt

    try:
        claims = jwt.decode(
            token,
            jwt.PyJWK(key, algorithm),
            algorithms=[algorithm],
            audience=provider.audience,
            issuer=provider.issuer,
            leeway=provider.clock_skew_s,
            options={"require": _REQUIRED, "enforce_minimum_key_length": True},
        )
        lifetime_s = float(claims["exp"]) - float(claims["iat"])
    except jwt.ExpiredSignatureError as error:
        raise TokenRefused("The token has expired. Get a new one from its issuer.") from error
    except jwt.ImmatureSignatureError as error:
        raise TokenRefused("The token is not valid yet. Compare the clocks.") from error
    except jwt.InvalidAudienceError as error:
        raise TokenRefused("The token is for another audience.") from error
    except jwt.InvalidSignatureError as error:
        raise TokenRefused("The signature of the token is wrong.") from error
    except _unreadable() as error:
        raise TokenRefused(f"The token cannot be accepted: {_reason(error)}.") from error
    if lifetime_s > provider.lifetime_max_s:
        raise TokenRefused(
            f"The token lives for longer than {provider.lifetime_max_s} seconds, which none may."
        )
    return Verified(claims, float(claims["exp"]) + provider.clock_skew_s)


def _unreadable() -> tuple[type[Exception], ...]:
    # Besides its own errors PyJWT lets through those of endless nesting and of times that are no
    # numbers or too large.
    import jwt

    return (jwt.PyJWTError, RecursionError, ValueError, TypeError, OverflowError)


def _reason(error: Exception) -> str:
    # Without the error's message: it quotes the token, which must not be logged.
    return type(error).__name__.removesuffix("Error")


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _ID_CHARS_MAX:
        raise TokenRefused(f"The token names no {what}.")
    return value
