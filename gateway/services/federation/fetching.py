"""Fetches the keys of issuers, under the rules of the one way outside (`tools.egress`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from gateway.errors import IssuerUnavailable
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, normalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.services.federation.key_sets import KeyOrigin
    from gateway.telemetry.metrics import Metrics
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient

FETCH_TIMEOUT_S: Final = 5.0
"""To fetch the keys of one issuer, its configuration included."""
KEYS_BYTES_MAX: Final = 256 * 1024
"""Of the keys of one issuer, or of its configuration."""


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
        told = await self._document(source.discovery_url)
        if not isinstance(told, dict) or told.get("issuer") != origin.issuer:
            raise _unavailable(origin, "its configuration names another issuer")
        url = str(told.get("jwks_uri"))
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
