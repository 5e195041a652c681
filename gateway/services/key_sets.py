"""The public keys of issuers, kept in memory: fetched in the background, and bounded in every way.

fresh     for `fresh_s` they are used as they are; in the second half of that they are fetched
again, and nobody waits for it
stale     while the issuer does not answer they are good for `stale_s` more
unknown   a key id that is not among them has them fetched at once, but only every
`unknown_interval_s`, so that made-up ids do not become requests to the issuer
failed    an issuer that did not answer is not asked again for `retry_s`
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import orjson

from gateway.errors import IssuerUnavailable
from gateway.telemetry.logs import EventLog
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy.issuers import KeySource
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient

Jwk = dict[str, Any]
KEYS_MAX: Final = 100
"""Keys of one issuer, at most; those behind them are ignored."""
RSA_BITS: Final = (2048, 8192)
"""Bits of an RSA modulus: at least, at most. A shorter one can be factored; a longer one costs more
to use than anybody needs. Source of the lower bound:
https://www.rfc-editor.org/rfc/rfc7518#section-3.3"""
FETCH_TIMEOUT_S: Final = 5.0
"""To fetch the keys of one issuer, its configuration included."""
KEYS_BYTES_MAX: Final = 256 * 1024
"""Bytes of the keys of one issuer, or of its configuration, at most."""
_KTY: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class KeyOrigin:
    """An issuer, and the source of its keys."""

    issuer: str
    source: KeySource


@dataclass(frozen=True, slots=True)
class KeySetPolicy:
    """Times in seconds (see the module), and the maximum of cached issuers."""

    fresh_s: float = 3600.0
    stale_s: float = 86_400.0
    unknown_interval_s: float = 60.0
    retry_s: float = 5.0
    issuers_max: int = 1_000


KEY_SET_POLICY: Final = KeySetPolicy()


class Fetcher(Protocol):
    """Fetcher of the keys of issuers, from wherever their providers say."""

    async def keys(self, origin: KeyOrigin) -> Sequence[object]:
        """Fetch the keys of an issuer, unchecked. Raises `IssuerUnavailable`."""
        ...

    async def close(self) -> None:
        """Close all connections. Nothing is fetched afterwards."""
        ...


@dataclass(slots=True)
class _KeySet:
    """Keys by their ids, as they came at `fetched_at`; `failed_at`: when the last try failed."""

    keys: dict[str, list[Jwk]] = field(default_factory=dict)
    fetched_at: float = float("-inf")
    failed_at: float = float("-inf")
    asked_for_unknown_at: float = float("-inf")
    fetching: asyncio.Task[None] | None = None


class KeySets:
    """Cached keys of all issuers of a process."""

    def __init__(
        self,
        fetcher: Fetcher,
        policy: KeySetPolicy = KEY_SET_POLICY,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over the fetcher: `close` closes it."""
        self._fetcher = fetcher
        self._policy = policy
        self._clock = clock
        # The least recently used first.
        self._sets: OrderedDict[KeyOrigin, _KeySet] = OrderedDict()

    async def find(self, origin: KeyOrigin, key_id: str, algorithm: str) -> Jwk | None:
        """Return the issuer's key with this id and algorithm; None if there is none.

        Raises `IssuerUnavailable` if no keys are cached and none can be fetched.
        """
        known = self._sets.setdefault(origin, _KeySet())
        self._sets.move_to_end(origin)
        if len(self._sets) > self._policy.issuers_max:
            self._sets.popitem(last=False)
        age_s = self._clock() - known.fetched_at
        if age_s > self._policy.fresh_s + self._policy.stale_s:
            await self._refresh(origin, known)
            return key_for(known.keys, key_id, algorithm)
        if age_s > self._policy.fresh_s / 2 and self._may_fetch(known):
            self._begin(origin, known)
        found = key_for(known.keys, key_id, algorithm)
        if found is None and self._may_look_for_unknown(known):
            known.asked_for_unknown_at = self._clock()
            await self._refresh(origin, known)
            found = key_for(known.keys, key_id, algorithm)
        return found

    async def close(self) -> None:
        """Cancel fetches in progress and close the fetcher."""
        tasks = [one.fetching for one in self._sets.values() if one.fetching is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fetcher.close()

    def _may_fetch(self, known: _KeySet) -> bool:
        return known.fetching is None and self._clock() - known.failed_at > self._policy.retry_s

    def _may_look_for_unknown(self, known: _KeySet) -> bool:
        since_s = self._clock() - known.asked_for_unknown_at
        return since_s > self._policy.unknown_interval_s

    async def _refresh(self, origin: KeyOrigin, known: _KeySet) -> None:
        # If no new keys can be fetched, old ones remain valid for `stale_s`.
        if self._may_fetch(known):
            self._begin(origin, known)
        if known.fetching is not None:
            # Others wait for it, too: it goes on when one of them leaves.
            await asyncio.shield(known.fetching)
        age_s = self._clock() - known.fetched_at
        if age_s > self._policy.fresh_s + self._policy.stale_s:
            raise IssuerUnavailable(
                f"the keys of {origin.issuer} could not be fetched",
                retry_after_s=self._policy.retry_s,
            )

    def _begin(self, origin: KeyOrigin, known: _KeySet) -> None:
        # Not one that may be over before it is kept here.
        known.fetching = asyncio.get_running_loop().create_task(self._fetch(origin, known))

    async def _fetch(self, origin: KeyOrigin, known: _KeySet) -> None:
        try:
            known.keys = by_id(await self._fetcher.keys(origin))
            known.fetched_at = self._clock()
        except IssuerUnavailable as error:
            known.failed_at = self._clock()
            _log.warning("the keys of an issuer were not fetched", error=error)
        finally:
            known.fetching = None


def by_id(keys: Sequence[object]) -> dict[str, list[Jwk]]:
    """Return the public keys that can verify signatures, by key id; other keys are left out.

    https://www.rfc-editor.org/rfc/rfc7517#section-4
    """
    found: dict[str, list[Jwk]] = {}
    for key in keys[:KEYS_MAX]:
        if isinstance(key, dict) and _verifies(key):
            public = {name: value for name, value in key.items() if name in _PUBLIC}
            found.setdefault(key["kid"], []).append(public)
    return found


def key_for(keys: Mapping[str, Sequence[Jwk]], key_id: str, algorithm: str) -> Jwk | None:
    kind = _KTY.get(algorithm[:2])
    for key in keys.get(key_id, ()):
        if key["kty"] == kind and key.get("alg", algorithm) == algorithm:
            return key
    return None


_PUBLIC: Final = frozenset({"kty", "kid", "alg", "use", "n", "e", "crv", "x", "y"})
_BITS_OF_CHARACTER: Final = 6


def _verifies(key: Jwk) -> bool:
    kid, operations = key.get("kid"), key.get("key_ops", ["verify"])
    if not isinstance(kid, str) or key.get("kty") not in _KTY.values():
        return False
    if key.get("use", "sig") != "sig" or not isinstance(operations, list):
        return False
    return "verify" in operations and (key["kty"] != "RSA" or _is_sound(key.get("n")))


def _is_sound(modulus: object) -> bool:
    least, most = RSA_BITS
    # A character has six bits, and the first byte need not be full.
    return isinstance(modulus, str) and (
        least - 8 < len(modulus) * _BITS_OF_CHARACTER < most + 2 * _BITS_OF_CHARACTER
    )


class KeyFetcher:
    """Fetcher of keys for all issuers of a process. `client` bounds the length of an answer."""

    def __init__(self, client: EgressClient, policy: NetworkPolicy, *, metrics: Metrics) -> None:
        self._client = client
        self._policy = policy
        self._metrics = metrics

    async def keys(self, origin: KeyOrigin) -> Sequence[object]:
        """Fetch the `keys` of a JSON Web Key Set, unchecked. Raises `IssuerUnavailable`."""
        if origin.source.jwks is not None:
            return _keys(origin, orjson.loads(origin.source.jwks))
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return _keys(origin, await self._document(await self._jwks_url(origin)))
        except EgressRefused as error:
            self._metrics.egress_refused(purpose="issuer", reason=error.reason)
            raise _unavailable(origin, str(error)) from error
        except TimeoutError as error:
            raise _unavailable(origin, f"no answer within {FETCH_TIMEOUT_S:g} s") from error
        except (*EGRESS_ERRORS, ValueError) as error:
            raise _unavailable(origin, str(error) or type(error).__name__) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _jwks_url(self, origin: KeyOrigin) -> str:
        # https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfigurationValidation
        source = origin.source
        if source.jwks_url is not None:
            return source.jwks_url
        assert source.discovery_url is not None, "one of the three is there"
        configuration = await self._document(source.discovery_url)
        if not isinstance(configuration, dict) or configuration.get("issuer") != origin.issuer:
            raise _unavailable(origin, "its configuration names another issuer")
        url = str(configuration.get("jwks_uri"))
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
    return IssuerUnavailable(f"the keys of {origin.issuer} could not be fetched: {why}")
