"""OpenID Connect for operators: authorization code
(https://openid.net/specs/openid-connect-core-1_0.html#CodeFlowAuth) with PKCE
(https://www.rfc-editor.org/rfc/rfc7636).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit
from uuid import UUID

from gateway.errors import IssuerUnavailable, PermissionDenied, shown
from gateway.services.federation import KeyOrigin, read, verified
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId
from gateway.tenancy.issuers import TOKEN_LIFETIME_MAX_S, IdentityProvider, discovered
from gateway.tenancy.permissions import OPERATOR_ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.services.federation import KeySets
    from gateway.settings.console import SignIn as SignInSettings
    from gateway.tenancy.permissions import OperatorRole

ATTEMPT_S: Final = 600
"""From the redirect to the provider to the way back."""
NAME_CHARS_MAX: Final = 128
SCOPE: Final = "openid email profile"
_SECRET_BYTES: Final = 32
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,64}")
_OF_SETTINGS: Final = datetime.fromtimestamp(0, UTC)
_REPEAT: Final = "Go back to the console, and sign in again."


@dataclass(frozen=True, slots=True)
class Attempt:
    """Secrets of one sign-in, which the browser keeps until it comes back."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> Attempt:
        return cls(*(secrets.token_urlsafe(_SECRET_BYTES) for _ in range(3)))

    @classmethod
    def parse(cls, text: str) -> Attempt | None:
        parts = text.split(".")
        return cls(*parts) if len(parts) == 3 and all(parts) else None

    def dump(self) -> str:
        return f"{self.state}.{self.nonce}.{self.verifier}"

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class SignedIn:
    name: str
    role: OperatorRole


class SignIn:
    def __init__(self, settings: SignInSettings, key_sets: KeySets) -> None:
        assert settings.issuer is not None, "the settings name a provider"
        assert settings.client_id is not None, "the settings are complete"
        self._settings = settings
        self._client_id = settings.client_id
        self._key_sets = key_sets
        self._provider = IdentityProvider(
            id=UUID(int=0),
            tenant_id=TenantId(EVERYONE),
            name="console",
            issuer=settings.issuer,
            audience=settings.client_id,
            created_at=_OF_SETTINGS,
            updated_at=_OF_SETTINGS,
            lifetime_max_s=TOKEN_LIFETIME_MAX_S,
            **discovered(settings.issuer)._asdict(),
        )
        self._origin = KeyOrigin(self._provider.issuer, self._provider.keys)

    @property
    def host(self) -> str:
        return urlsplit(self._provider.issuer).netloc

    async def redirect(self, attempt: Attempt, callback_url: str) -> str:
        configuration = await self._key_sets.client.configuration(self._origin)
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": callback_url,
            "scope": SCOPE,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        url = self._endpoint(configuration, "authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    async def complete(
        self, attempt: Attempt, callback_url: str, params: Mapping[str, str]
    ) -> SignedIn:
        """Check what the provider sends back; raises `PermissionDenied`, `TokenRefused`,
        `IssuerUnavailable`.
        """
        if "error" in params:
            # Anybody may have written it, and some providers leave out the state with it.
            code = params["error"] if _ERROR_CODE.fullmatch(params["error"]) else "for no reason"
            raise PermissionDenied(f"The provider did not sign you in: {code}. {_REPEAT}")
        if not hmac.compare_digest(params.get("state", "").encode(), attempt.state.encode()):
            raise PermissionDenied(f"This sign-in began in another browser, or long ago. {_REPEAT}")
        # https://www.rfc-editor.org/rfc/rfc9207#section-2.4
        if params.get("iss", self._provider.issuer) != self._provider.issuer:
            raise PermissionDenied(f"Another provider answered. {_REPEAT}")
        token = await self._exchange(attempt, callback_url, params.get("code", ""))
        # A provider with one key need not name it.
        unverified = read(token, needs_key_id=False)
        claims = (await verified(token, unverified, self._provider, self._key_sets)).claims
        if not hmac.compare_digest(str(claims.get("nonce")).encode(), attempt.nonce.encode()):
            raise PermissionDenied(f"The provider answered another sign-in. {_REPEAT}")
        if claims.get("azp", self._client_id) != self._client_id:
            raise PermissionDenied("The provider's token is for another application.")
        return SignedIn(name_of(claims), self._role(claims))

    async def _exchange(self, attempt: Attempt, callback_url: str, code: str) -> str:
        configuration = await self._key_sets.client.configuration(self._origin)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": callback_url,
            "client_id": self._client_id,
            "code_verifier": attempt.verifier,
        }
        headers, secret = {}, self._settings.client_secret
        if secret is not None:
            # https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderMetadata
            methods = configuration.get("token_endpoint_auth_methods_supported")
            if isinstance(methods, list) and "client_secret_basic" not in methods:
                form["client_secret"] = secret.get_secret_value()
            else:
                headers = _basic(self._client_id, secret.get_secret_value())
        url = self._endpoint(configuration, "token_endpoint")
        status, answer = await self._key_sets.client.submit(self._origin, url, form, headers)
        token = answer.get("id_token") if isinstance(answer, dict) else None
        if status == 200 and isinstance(token, str):
            return token
        reason = answer.get("error") if isinstance(answer, dict) else None
        raise PermissionDenied(
            f"The provider gave no ID token: {shown(str(reason or status))}. {_REPEAT}"
        )

    def _endpoint(self, configuration: Mapping[str, Any], name: str) -> str:
        url = configuration.get(name)
        scheme = urlsplit(self._provider.issuer).scheme
        with suppress(ValueError):  # it is malformed
            if isinstance(url, str) and urlsplit(url).scheme in {"https", scheme}:
                return url
        raise IssuerUnavailable(f"{self._provider.issuer} has no {name} that can be used")

    def _role(self, claims: Mapping[str, Any]) -> OperatorRole:
        claim = claims.get(self._settings.role_claim)
        values: Iterable[object] = claim if isinstance(claim, list) else (claim,)
        granted = {self._settings.roles.get(str(value)) for value in values}
        # Of several roles the most powerful counts.
        role = next((role for role in OPERATOR_ROLES if role in granted), None)
        if role is None:
            raise PermissionDenied(
                f"You are signed in as {name_of(claims)}, but none of your "
                f"'{self._settings.role_claim}' may use this console. Its operator lists those "
                "that may in console.sign_in.roles."
            )
        return role


def name_of(claims: Mapping[str, Any]) -> str:
    names = ["preferred_username", "sub"]
    if claims.get("email_verified") is not False:
        names.insert(0, "email")
    name = next(claims[name] for name in names if isinstance(claims.get(name), str))
    return "".join(one for one in str(name) if one.isprintable())[:NAME_CHARS_MAX]


def _basic(client_id: str, secret: str) -> dict[str, str]:
    # https://www.rfc-editor.org/rfc/rfc6749#section-2.3.1
    credentials = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
