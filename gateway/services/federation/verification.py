"""JSON Web Tokens: read, and verified against the keys of their issuer. PyJWT does both.

It is imported with the first token that somebody sends: most gateways are sent none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import TokenRefused
from gateway.services.federation.key_sets import KeyOrigin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.services.federation.key_sets import Jwk, KeySets
    from gateway.tenancy.federation import IdentityProvider

_PARTS: Final = 3
_REQUIRED: Final = ["iss", "aud", "sub", "exp", "iat"]
_ID_CHARS_MAX: Final = 1024
_AUDIENCES_MAX: Final = 16


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


def is_token(secret: str) -> bool:
    """Return True if a credential has the form of a signed token (JWT), which no key has."""
    return secret.startswith("ey") and secret.count(".") == _PARTS - 1


def read(token: str, *, bytes_max: int) -> Unverified:
    """Parse a token without verifying it.

    Raises `TokenRefused` for a malformed token, and for one that names no key or no issuer.
    """
    import jwt

    if len(token) > bytes_max:
        raise TokenRefused(f"The token is longer than {bytes_max} bytes, which none may be.")
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
    terms = provider.terms
    if said.algorithm not in terms.algorithms:
        allowed = ", ".join(terms.algorithms)
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

    terms = provider.terms
    try:
        claims = jwt.decode(
            token,
            jwt.PyJWK(key, algorithm),
            algorithms=[algorithm],
            audience=provider.audience,
            issuer=provider.issuer,
            leeway=terms.clock_skew_s,
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
    if lifetime_s > terms.lifetime_max_s:
        raise TokenRefused(
            f"The token lives for longer than {terms.lifetime_max_s} seconds, which none may."
        )
    return Verified(claims, float(claims["exp"]) + terms.clock_skew_s)


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
