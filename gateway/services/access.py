"""Authentication by keys and tokens.

Secrets are 256 random bits, so a keyed hash (HMAC-SHA256 under the pepper) is safe to store and to
look up. Decisions are cached for seconds, for which a disabled key still works on other replicas;
known keys work through a bounded outage of the database.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.errors import (
    AuthenticationError,
    IssuerUnavailable,
    StoreError,
    StoreUnavailable,
    TokenRefused,
)
from gateway.services.federation import is_token
from gateway.store import callers, tenants
from gateway.store.ledger import rollup
from gateway.store.limits import key_terms
from gateway.telemetry.logs import EventLog
from gateway.tenancy.policy import DEFAULT_POLICY, TenantPolicy
from gateway.tenancy.secrets import (
    HINT_CHARS,
    RANDOM_BYTES,
    Pepper,
    hint_of,
    is_mistyped,
    secret_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from gateway.limits.accounting import Figures
    from gateway.replication.limiter import Limiter
    from gateway.services.federation import Federation
    from gateway.store.ledger.rollup import KeyUsage
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal, TenantId
    from gateway.tenancy.secrets import SecretKind


CACHE_KEYS_MAX: Final = 10_000
KEY_USE_INTERVAL_S: Final = 60.0
"""Between writes of which keys were used."""
MARK_BYTES: Final = 32
RENEWED_SHARE: Final = 0.5
"""Share of `cache_ttl_s` after which a used key is looked up again."""
_SHOWABLE: Final = re.compile(r"[!-~]{13,}\Z")
_log = EventLog(__name__)


@dataclass(slots=True)
class _Decision:
    """Principal of a secret (None: unknown) as of `at`.

    `is_renewed`: a newer lookup has begun. `ends_at` (Unix time) is the expiry of key or token:
    this process checks it between lookups.
    """

    principal: Principal | None
    at: float
    is_renewed: bool = False
    refusal: str | None = None
    ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        expires_at = None if self.principal is None else self.principal.key.expires_at
        self.ends_at = math.inf if expires_at is None else expires_at.timestamp()


@dataclass(slots=True)
class _Lookup:
    """Database lookup that concurrent requests share. Once `over` without a result, its request was
    cancelled.
    """

    over: asyncio.Event = field(default_factory=asyncio.Event)
    decision: _Decision | None = None
    failure: Exception | None = None


class Access:
    def __init__(  # noqa: PLR0913 - what it knows, three bounds of its cache, a clock
        self,
        database: Database,
        pepper: bytes,
        cache_ttl_s: float,
        cache_keys_max: int = CACHE_KEYS_MAX,
        *,
        cache_stale_s: float = 900.0,
        previous_pepper: bytes | None = None,
        federation: Federation | None = None,
        defaults: TenantPolicy = DEFAULT_POLICY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Cache for `cache_ttl_s`, and `cache_stale_s` longer during an outage.

        Known and unknown keys are cached apart, `cache_keys_max` each: a flood of wrong keys must
        not evict the right ones. Without `federation` tokens are unknown keys.
        """
        self._database = database
        self.peppers = Peppers(
            Pepper(pepper), None if previous_pepper is None else Pepper(previous_pepper)
        )
        self.uses = KeyUses(database)
        self._federation = federation
        # Copied for each request, which is quicker than a new one.
        self._marking = blake2b(digest_size=MARK_BYTES, key=os.urandom(MARK_BYTES))
        self._cache_ttl_s = cache_ttl_s
        self._cache_stale_s = cache_stale_s
        self.defaults = defaults
        self._clock = clock
        # By mark, the least recently used first.
        self._accepted: OrderedDict[bytes, _Decision] = OrderedDict()
        self._unknown: OrderedDict[bytes, _Decision] = OrderedDict()
        self._cache_keys_max = cache_keys_max
        self._lookups: dict[bytes, _Lookup] = {}
        self._aging: deque[tuple[str, str | None]] = deque()
        self._has_aged = asyncio.Event()

    def cached(self, secret: str, organization: str | None = None) -> Principal | None:
        """Return the principal of a cached key; None: call `authenticate`."""
        mark = self._mark(secret, organization)
        decision = self._accepted.get(mark)
        if decision is None:
            return None
        self._accepted.move_to_end(mark)
        age_s = self._clock() - decision.at
        principal = decision.principal
        if age_s > self._cache_ttl_s or principal is None or decision.ends_at <= time.time():
            return None
        if age_s > RENEWED_SHARE * self._cache_ttl_s and not decision.is_renewed:
            decision.is_renewed = True
            self._aging.append((secret, organization))
            self._has_aged.set()
        self.uses.note(principal)
        return principal

    async def run(self) -> None:
        # Look up keys in use again before their decision expires, so that no request waits.
        while True:
            await self._has_aged.wait()
            self._has_aged.clear()
            while self._aging:
                credential = self._aging.popleft()
                mark = self._mark(*credential)
                try:
                    await self._decide(credential, mark, self._clock())
                except (StoreError, IssuerUnavailable) as error:
                    _log.warning("a key was not looked up again, its next request is", error=error)

    async def authenticate(self, secret: str, organization: str | None = None) -> Principal:
        """Return the principal of a key or token.

        `organization`, from the request's header, selects the tenant of a token.
        `AuthenticationError` is the same for unknown and disabled keys and for those of disabled
        tenants. Raises `StoreUnavailable` if the database is down and the key is not cached, and
        `IssuerUnavailable`.
        """
        if (principal := self.cached(secret, organization)) is not None:
            return principal
        if is_mistyped(secret):
            raise _incorrect(secret)
        mark, now = self._mark(secret, organization), self._clock()
        decision = self._unknown.get(mark)
        if decision is not None:
            self._unknown.move_to_end(mark)
        if decision is None or now - decision.at > self._cache_ttl_s:
            decision = await self._decide((secret, organization), mark, now)
        if decision.principal is None or decision.ends_at <= time.time():
            raise self._refusal(secret, decision)
        self.uses.note(decision.principal)
        return decision.principal

    def _refusal(self, secret: str, decision: _Decision) -> AuthenticationError:
        if self._federation is None or not self._federation.knows(secret):
            return _incorrect(secret)
        return TokenRefused(decision.refusal or "The token has expired. Get a new one.")

    async def _decide(
        self, credential: tuple[str, str | None], mark: bytes, now: float
    ) -> _Decision:
        # One lookup serves all requests that wait for a key: they all miss an expired decision at
        # the same time. While the database is down, that is valid for `cache_stale_s` more.
        while (lookup := self._lookups.get(mark)) is not None:
            await lookup.over.wait()
            if lookup.failure is not None:
                raise lookup.failure
            if lookup.decision is not None:
                return lookup.decision
        lookup = self._lookups[mark] = _Lookup()
        try:
            lookup.decision = await self._look_up(*credential, now)
            # Unless `forget` has dropped it, as a tenant or key changed meanwhile.
            if self._lookups.get(mark) is lookup:
                self._keep(mark, lookup.decision)
        except (StoreUnavailable, IssuerUnavailable) as error:
            cached = self._accepted.get(mark)
            if cached is None or now - cached.at > self._cache_ttl_s + self._cache_stale_s:
                lookup.failure = error
                raise
            lookup.decision = cached
        except Exception as error:
            lookup.failure = error
            raise
        finally:
            if self._lookups.get(mark) is lookup:
                del self._lookups[mark]
            lookup.over.set()
        return lookup.decision

    async def _look_up(self, secret: str, organization: str | None, now: float) -> _Decision:
        if self._federation is None or not self._federation.knows(secret):
            return _Decision(await self._principal(secret), now)
        try:
            return _Decision(await self._federation.principal(secret, organization), now)
        except TokenRefused as refusal:
            return _Decision(None, now, refusal=refusal.message)

    async def _principal(self, secret: str) -> Principal | None:
        database = self._database
        current, previous = self.peppers.current, self.peppers.previous
        principal = await callers.find_principal(database, current.hash(secret), self.defaults)
        if principal is None and previous is not None:
            principal = await callers.find_principal(database, previous.hash(secret), self.defaults)
            if principal is not None:
                self.uses.rehashes[principal.key_id] = Rehash(current.hash(secret), current.id)
        if principal is None:
            return None
        terms = await key_terms.terms_of(database, principal)
        return replace(principal, terms=terms)

    def forget(self) -> None:
        """Drop all decisions, also of lookups in progress, after a change of a tenant or key."""
        self._accepted.clear()
        self._unknown.clear()
        self._lookups.clear()

    def _keep(self, mark: bytes, decision: _Decision) -> None:
        cache, other = self._accepted, self._unknown
        if decision.principal is None:
            cache, other = other, cache
        other.pop(mark, None)
        cache[mark] = decision
        cache.move_to_end(mark)
        if len(cache) > self._cache_keys_max:
            cache.popitem(last=False)

    def _mark(self, secret: str, organization: str | None = None) -> bytes:
        # A digest, so that no secret stays in memory; it costs a quarter of an HMAC. The same token
        # may be sent with different organizations.
        marking = self._marking.copy()
        marking.update(secret.encode("utf-8", "surrogatepass"))
        if organization is not None and is_token(secret):
            marking.update(b"\0" + organization.encode("utf-8", "surrogatepass"))
        return marking.digest()


def _incorrect(secret: str) -> AuthenticationError:
    # Quote only as much of the secret as its owner needs to recognise it.
    shown = f"{secret[:5]}***{secret[-HINT_CHARS:]}" if _SHOWABLE.match(secret) else "***"
    return AuthenticationError(
        f"Incorrect API key provided: {shown}. Check it, or ask the operator of this server for a "
        "new one.",
        code="invalid_api_key",
    )


class NewSecret(NamedTuple):
    """Secret, which cannot be read again, and what is stored of it."""

    value: str
    hint: str
    hash: bytes
    pepper_id: int


@dataclass(frozen=True, slots=True)
class Peppers:
    """Peppers of key hashes. Keys under `previous` are hashed again when used."""

    current: Pepper
    previous: Pepper | None = None

    def new_secret(self, kind: SecretKind) -> NewSecret:
        value = secret_of(kind, os.urandom(RANDOM_BYTES))
        return NewSecret(value, hint_of(value), self.current.hash(value), self.current.id)


class Rehash(NamedTuple):
    hash: bytes
    pepper_id: int


class KeyUses:
    """Recent uses of keys, written from time to time together with new hashes. What the database
    refuses is lost; hashes are computed again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._used: dict[UUID, Principal] = {}
        self.rehashes: dict[UUID, Rehash] = {}

    def note(self, principal: Principal) -> None:
        if principal.credential == "key":  # a token has none
            self._used[principal.key_id] = principal

    async def run(self) -> None:
        while True:
            await asyncio.sleep(KEY_USE_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        used, self._used = self._used, {}
        rehashes, self.rehashes = self.rehashes, {}
        by_tenant: dict[TenantId, list[UUID]] = {}
        for principal in used.values():
            by_tenant.setdefault(principal.tenant_id, []).append(principal.key_id)
        for tenant_id, keys in by_tenant.items():
            hashed = {key: rehashes[key] for key in keys if key in rehashes}
            try:
                await tenants.note_uses(
                    self._database, tenant_id, keys, hashed, interval_s=KEY_USE_INTERVAL_S
                )
            except StoreError as error:
                _log.warning("uses of keys were not written down", error=error)


@dataclass(frozen=True, slots=True)
class KeyState:
    """Usage for `total`, `day`, `week` and `month`, and state of the limits."""

    usage: Mapping[str, KeyUsage]
    figures: Figures


class OwnKey:
    def __init__(self, database: Database, limiter: Limiter) -> None:
        self._database = database
        self._limiter = limiter

    async def state(self, principal: Principal) -> KeyState:
        usage = await rollup.usage_of_key(self._database, principal.tenant_id, principal.key_id)
        return KeyState(usage, await self._limiter.figures(principal.tenant_id, principal.terms))
