"""Authentication by tokens of trusted issuers, or by the gateway's own, exchanged for such tokens.

A token of the gateway is sealed and names a rule and its expiry; nothing of it is stored, and it is
good for as long as its rule holds. Public keys of issuers are cached (`KeySets`):

fresh     used for `fresh_s`; in the second half they are fetched again, and nobody waits for it
stale     good for `stale_s` more while the issuer does not answer
unknown   a key id that is not cached has them fetched at once, but only every
          `unknown_interval_s`, so that made-up ids do not become requests to the issuer
failed    an issuer that did not answer is left alone for `retry_s`
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from gateway import ids
from gateway.errors import IssuerUnavailable, TokenNotAdmitted, TokenRefused
from gateway.sealing import Binding, SealBroken
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
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, normalised

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from gateway.sealing import Sealer
    from gateway.store.callers import Federated
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import Principal
    from gateway.tenancy.issuers import IdentityProvider, KeySource
    from gateway.tenancy.policy import TenantPolicy
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient


PREFIX: Final = "sk-wif-"
_PURPOSE: Final = "access token"
_FORM: Final = struct.Struct(">B16s16sQ16s")
"""Version, tenant, rule, expiry (Unix seconds), random bytes; then the granted scopes, separated by
spaces, or nothing for all of the rule.
"""
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
Jwk = dict[str, Any]
KEYS_MAX: Final = 100
RSA_BITS: Final = (2048, 8192)
"""Bits of an RSA modulus. A shorter one can be factored
(https://www.rfc-editor.org/rfc/rfc7518#section-3.3); a longer one costs too much.
"""
FETCH_TIMEOUT_S: Final = 5.0
"""For an issuer's keys and its configuration."""
KEYS_BYTES_MAX: Final = 256 * 1024
_KTY: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_PUBLIC: Final = frozenset({"kty", "kid", "alg", "use", "n", "e", "crv", "x", "y"})
_BITS_OF_CHARACTER: Final = 6


@dataclass(frozen=True, slots=True)
class Unverified:
    """Token before verification: anybody may have written it."""

    algorithm: str
    key_id: str | None
    issuer: str
    audiences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """Verified claims. `expires_at` (Unix time) includes the tolerated clock skew."""

    claims: Mapping[str, Any]
    expires_at: float


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    token: str
    provider_id: str
    service_account_id: str


@dataclass(frozen=True, slots=True)
class Exchanged:
    token: str
    expires_in_s: int
    scopes: frozenset[str]


class Federation:
    def __init__(
        self,
        database: Database,
        key_sets: KeySets,
        sealer: Sealer,
        *,
        token_lifetime_s: int,
        defaults: TenantPolicy = DEFAULT_POLICY,
    ) -> None:
        self._database = database
        self.key_sets = key_sets
        self._sealer = sealer
        self._token_lifetime_s = token_lifetime_s
        self.defaults = defaults

    @staticmethod
    def knows(secret: str) -> bool:
        return secret.startswith(PREFIX) or is_token(secret)

    async def principal(self, secret: str, organization: str | None = None) -> Principal:
        """Return the principal of a token; `organization` (id or name) comes from the request."""
        if secret.startswith(PREFIX):
            return await self._of_ours(secret)
        unverified = read(secret)
        issuer = await self._operator_issuer(unverified)
        if issuer is not None:
            return await self._of_operator(secret, unverified, issuer)
        provider = await self._bearer_provider(unverified, organization)
        token = await verified(secret, unverified, provider, self.key_sets)
        attributes = attributes_of(token.claims, provider.transformations)
        admitted = await self._admit(provider, attributes, None)
        principal = await self._complete(admitted.principal, token.expires_at)
        return replace(principal, credential="token", end_user=end_user_of(attributes))

    async def exchange(self, request: ExchangeRequest) -> Exchanged:
        """Exchange a token; an unknown provider raises the same error as one without a matching
        rule.
        """
        provider_id = ids.parse_identity_provider_id(request.provider_id)
        account_id = ids.parse_service_account_id(request.service_account_id)
        unverified = read(request.token)
        if provider_id is None or account_id is None:
            raise _not_admitted()
        issuers = await callers.find_issuers(self._database, provider_id)
        if len(issuers) != 1:
            raise _not_admitted()
        provider = issuers[0]
        token = await verified(request.token, unverified, provider, self.key_sets)
        attributes = attributes_of(token.claims, provider.transformations)
        admitted = await self._admit(provider, attributes, account_id)
        now = int(time.time())
        # It must not outlive the token that it is exchanged for.
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
        granted = frozenset(content[_FORM.size :].decode().split())
        for one in await callers.find_federated(
            self._database, tenant_id, self.defaults, rule_id=rule_id
        ):
            scopes = narrowed(one.rule.scopes, granted) if granted else one.rule.scopes
            if scopes is not None:
                admitted = with_scopes(one.principal, scopes)
                principal = await self._complete(admitted, float(ends_at))
                return replace(principal, credential="exchanged")
        raise TokenRefused("The token has been revoked. Exchange another one.")

    async def _operator_issuer(self, unverified: Unverified) -> IdentityProvider | None:
        # If an operator's issuer made the token, no tenant's provider applies, whatever the tenant
        # configured.
        issuers = await callers.find_of_operators(
            self._database, unverified.issuer, unverified.audiences
        )
        if not issuers:
            return None
        if len(issuers) > 1 or not issuers[0].enabled:
            raise TokenNotAdmitted(_UNKNOWN)
        return issuers[0]

    async def _of_operator(
        self, secret: str, unverified: Unverified, issuer: IdentityProvider
    ) -> Principal:
        token = await verified(secret, unverified, issuer, self.key_sets)
        attributes = attributes_of(token.claims, issuer.transformations)
        tenant, scopes = text_of(attributes, TENANT), issuer.scopes(attributes)
        project_id = None
        if PROJECT in attributes:
            project_id = ids.parse_project_id(text_of(attributes, PROJECT) or "")
            tenant = None if project_id is None else tenant
        if tenant is None or scopes is None or not tenant.isprintable():
            raise TokenNotAdmitted(_UNNAMED)
        caller = await callers.find_named(
            self._database, issuer.id, tenant, project_id, self.defaults
        )
        if caller is None or not issuer.speaks_for(caller.tenant_name):
            raise TokenNotAdmitted(_UNNAMED)
        completed = await self._complete(with_scopes(caller, scopes), token.expires_at)
        return replace(completed, credential="token", end_user=end_user_of(attributes))

    async def _bearer_provider(
        self, unverified: Unverified, organization: str | None
    ) -> IdentityProvider:
        # A provider of the named organization comes first, then one that needs no name.
        providers: Sequence[IdentityProvider] = ()
        if organization is not None:
            providers = await callers.find_bearers(
                self._database, unverified.issuer, unverified.audiences, organization
            )
        if not providers:
            providers = await callers.find_issuers(
                self._database, None, unverified.issuer, unverified.audiences
            )
        if len(providers) > 1:
            # Only possible for a token with several audiences.
            _log.warning("several identity providers trust one token")
        if len(providers) != 1:
            raise TokenNotAdmitted(_UNKNOWN)
        return providers[0]

    async def _admit(
        self, provider: IdentityProvider, attributes: Mapping[str, Any], account_id: UUID | None
    ) -> Federated:
        for one in await callers.find_federated(
            self._database, provider.tenant_id, self.defaults, provider_id=provider.id
        ):
            rule = one.rule
            is_meant = account_id is None or rule.service_account_id == account_id
            if not is_meant or not matches(rule.matchers, attributes):
                continue
            scopes = scopes_granted(rule.scopes, attributes)
            if scopes is not None:
                return replace(one, principal=with_scopes(one.principal, scopes))
        raise _not_admitted()

    async def _complete(self, principal: Principal, expires_at: float) -> Principal:
        # The decision ends with the token; an earlier lookup verifies the token again.
        terms = await key_terms.terms_of(self._database, principal)
        ends = datetime.fromtimestamp(expires_at, UTC)
        return replace(principal, terms=terms, key=replace(principal.key, expires_at=ends))


def with_scopes(principal: Principal, scopes: frozenset[str]) -> Principal:
    return replace(principal, key=replace(principal.key, scopes=scopes))


def _not_admitted() -> TokenNotAdmitted:
    return TokenNotAdmitted(
        "No rule of its identity provider admits the token, or none for this service account. "
        "Compare its claims with the attribute_matchers of the rules."
    )


def is_token(secret: str) -> bool:
    return secret.startswith("ey") and secret.count(".") == _PARTS - 1


def read(token: str, *, needs_key_id: bool = True) -> Unverified:
    """Parse an unverified token; raises `TokenRefused`."""
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
    is_named = needs_key_id or "kid" in header
    return Unverified(
        _text(header.get("alg"), "algorithm (alg)"),
        _text(header.get("kid"), "key (kid)") if is_named else None,
        _text(claims.get("iss"), "issuer (iss)"),
        tuple(_text(one, "audience (aud)") for one in audiences[:_AUDIENCES_MAX]),
    )


async def verified(
    token: str, unverified: Unverified, provider: IdentityProvider, key_sets: KeySets
) -> Verified:
    """Verify a token; raises `TokenRefused`, or `IssuerUnavailable` without the issuer's keys."""
    if unverified.algorithm not in provider.algorithms:
        allowed = ", ".join(provider.algorithms)
        raise TokenRefused(
            f"The token is signed by an algorithm that is not allowed. Allowed are: {allowed}."
        )
    origin = KeyOrigin(provider.issuer, provider.keys)
    key = await key_sets.find(origin, unverified.key_id, unverified.algorithm)
    if key is None:
        raise TokenRefused("The token is signed by a key that its issuer does not list.")
    return _decode(token, unverified.algorithm, key, provider)


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
    # PyJWT lets through errors of deep nesting and of times that are no numbers or too large.
    import jwt

    return (jwt.PyJWTError, RecursionError, ValueError, TypeError, OverflowError)


def _reason(error: Exception) -> str:
    # The error's message quotes the token, which must not be logged.
    return type(error).__name__.removesuffix("Error")


def _text(value: object, what: str) -> str:
    # PostgreSQL's text can hold neither a NUL nor half of a surrogate pair.
    if isinstance(value, str) and 0 < len(value) <= _ID_CHARS_MAX and value.isprintable():
        return value
    raise TokenRefused(f"The token names no {what}.")


@dataclass(frozen=True, slots=True)
class KeyOrigin:
    issuer: str
    source: KeySource


@dataclass(frozen=True, slots=True)
class KeySetPolicy:
    """Times in seconds, explained above."""

    fresh_s: float = 3600.0
    stale_s: float = 86_400.0
    unknown_interval_s: float = 60.0
    retry_s: float = 5.0
    issuers_max: int = 1_000


KEY_SET_POLICY: Final = KeySetPolicy()


@dataclass(slots=True)
class _KeySet:
    keys: dict[str, list[Jwk]] = field(default_factory=dict)
    fetched_at: float = float("-inf")
    failed_at: float = float("-inf")
    sought_unknown_at: float = float("-inf")
    fetching: asyncio.Task[None] | None = None


class KeySets:
    def __init__(
        self,
        client: IssuerClient,
        policy: KeySetPolicy = KEY_SET_POLICY,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._policy = policy
        self._clock = clock
        self._sets: OrderedDict[KeyOrigin, _KeySet] = OrderedDict()

    async def find(self, origin: KeyOrigin, key_id: str | None, algorithm: str) -> Jwk | None:
        """Return a key, None if the issuer has none; raises `IssuerUnavailable` if no keys are
        cached.
        """
        key_set = self._sets.setdefault(origin, _KeySet())
        self._sets.move_to_end(origin)
        if len(self._sets) > self._policy.issuers_max:
            self._sets.popitem(last=False)
        age_s = self._clock() - key_set.fetched_at
        if age_s > self._policy.fresh_s + self._policy.stale_s:
            await self._refresh(origin, key_set)
            return key_for(key_set.keys, key_id, algorithm)
        if age_s > self._policy.fresh_s / 2 and self._may_fetch(key_set):
            self._begin(origin, key_set)
        key = key_for(key_set.keys, key_id, algorithm)
        if key is None and self._may_look_for_unknown(key_set):
            key_set.sought_unknown_at = self._clock()
            await self._refresh(origin, key_set)
            key = key_for(key_set.keys, key_id, algorithm)
        return key

    async def close(self) -> None:
        tasks = [one.fetching for one in self._sets.values() if one.fetching is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def _may_fetch(self, key_set: _KeySet) -> bool:
        return key_set.fetching is None and self._clock() - key_set.failed_at > self._policy.retry_s

    def _may_look_for_unknown(self, key_set: _KeySet) -> bool:
        since_s = self._clock() - key_set.sought_unknown_at
        return since_s > self._policy.unknown_interval_s

    async def _refresh(self, origin: KeyOrigin, key_set: _KeySet) -> None:
        # If no new keys can be fetched, old ones remain valid for `stale_s`.
        if self._may_fetch(key_set):
            self._begin(origin, key_set)
        if key_set.fetching is not None:
            # Others wait for it, too: it goes on when one of them leaves.
            await asyncio.shield(key_set.fetching)
        age_s = self._clock() - key_set.fetched_at
        if age_s > self._policy.fresh_s + self._policy.stale_s:
            raise IssuerUnavailable(
                f"the keys of {origin.issuer} could not be fetched",
                retry_after_s=self._policy.retry_s,
            )

    def _begin(self, origin: KeyOrigin, key_set: _KeySet) -> None:
        # Not an eager task, which might be over before it is kept here.
        key_set.fetching = asyncio.get_running_loop().create_task(self._fetch(origin, key_set))

    async def _fetch(self, origin: KeyOrigin, key_set: _KeySet) -> None:
        try:
            key_set.keys = by_id(await self.client.keys(origin))
            key_set.fetched_at = self._clock()
        except IssuerUnavailable as error:
            key_set.failed_at = self._clock()
            _log.warning("the keys of an issuer were not fetched", error=error)
        finally:
            key_set.fetching = None


def by_id(keys: Sequence[object]) -> dict[str, list[Jwk]]:
    """Return the public keys that can verify signatures
    (https://www.rfc-editor.org/rfc/rfc7517#section-4).
    """
    keys_by_id: dict[str, list[Jwk]] = {}
    for key in keys[:KEYS_MAX]:
        if isinstance(key, dict) and _verifies(key):
            public = {name: value for name, value in key.items() if name in _PUBLIC}
            keys_by_id.setdefault(key["kid"], []).append(public)
    return keys_by_id


def key_for(keys: Mapping[str, Sequence[Jwk]], key_id: str | None, algorithm: str) -> Jwk | None:
    """Return the first matching key; without an id, only if there is no other."""
    named = chain(*keys.values()) if key_id is None else keys.get(key_id, ())
    kind = _KTY.get(algorithm[:2])
    fitting = [
        key for key in named if key["kty"] == kind and key.get("alg", algorithm) == algorithm
    ]
    if key_id is None and len(fitting) > 1:
        return None
    return fitting[0] if fitting else None


def _verifies(key: Jwk) -> bool:
    kid, operations = key.get("kid"), key.get("key_ops", ["verify"])
    if not isinstance(kid, str) or key.get("kty") not in _KTY.values():
        return False
    if key.get("use", "sig") != "sig" or not isinstance(operations, list):
        return False
    return "verify" in operations and (key["kty"] != "RSA" or _is_sound(key.get("n")))


def _is_sound(modulus: object) -> bool:
    least, most = RSA_BITS
    # A base64 character has six bits, and the first byte need not be full.
    return isinstance(modulus, str) and (
        least - 8 < len(modulus) * _BITS_OF_CHARACTER < most + 2 * _BITS_OF_CHARACTER
    )


class IssuerClient:
    """Client of all issuers. `client` bounds the length of an answer."""

    def __init__(self, client: EgressClient, policy: NetworkPolicy, *, metrics: Metrics) -> None:
        self._client = client
        self._policy = policy
        self._metrics = metrics

    async def keys(self, origin: KeyOrigin) -> Sequence[object]:
        # Unchecked. Raises `IssuerUnavailable`.
        if origin.source.jwks is not None:
            return _keys(origin, orjson.loads(origin.source.jwks))
        async with self._reaching(origin):
            return _keys(origin, await self._document(await self._jwks_url(origin)))

    async def configuration(self, origin: KeyOrigin) -> Mapping[str, Any]:
        async with self._reaching(origin):
            return await self._configuration(origin)

    async def submit(
        self, origin: KeyOrigin, url: str, form: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, Any]:
        async with self._reaching(origin):
            self._policy.origin(url)
            answer = await self._client.post(
                normalised(url), data=dict(form), headers={"accept": "application/json", **headers}
            )
            return answer.status_code, orjson.loads(answer.content)

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _reaching(self, origin: KeyOrigin) -> AsyncIterator[None]:
        # Bounds the time of what is inside, and translates its errors.
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                yield
        except EgressRefused as error:
            self._metrics.egress_refused(purpose="issuer", reason=error.reason)
            raise _unavailable(origin, str(error)) from error
        except TimeoutError as error:
            raise _unavailable(origin, f"no answer within {FETCH_TIMEOUT_S:g} s") from error
        except EGRESS_ERRORS as error:
            raise _unavailable(origin, str(error) or type(error).__name__) from error

    async def _configuration(self, origin: KeyOrigin) -> dict[str, Any]:
        # https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfigurationValidation
        assert origin.source.discovery_url is not None, "its keys are found by it"
        configuration = await self._document(origin.source.discovery_url)
        if not isinstance(configuration, dict) or configuration.get("issuer") != origin.issuer:
            raise _unavailable(origin, "its configuration names another issuer")
        return configuration

    async def _jwks_url(self, origin: KeyOrigin) -> str:
        source = origin.source
        if source.jwks_url is not None:
            return source.jwks_url
        assert source.discovery_url is not None, "one of the three is there"
        url = str((await self._configuration(origin)).get("jwks_uri"))
        if urlsplit(source.discovery_url).scheme == "https" != urlsplit(url).scheme:
            raise ValueError("its configuration is behind TLS, and its keys are not")
        return url

    async def _document(self, url: str) -> Any:
        self._policy.origin(url)
        answer = await self._client.get(
            normalised(url), headers={"accept": "application/json, application/jwk-set+json"}
        )
        if not answer.is_success:
            raise ValueError(f"it answered {answer.status_code} to GET {url}")
        return orjson.loads(answer.content)


def _keys(origin: KeyOrigin, document: object) -> Sequence[object]:
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise _unavailable(origin, "what it answers is no JSON Web Key Set")
    return keys


def _unavailable(origin: KeyOrigin, why: str) -> IssuerUnavailable:
    return IssuerUnavailable(f"{origin.issuer} could not be reached: {why}")
