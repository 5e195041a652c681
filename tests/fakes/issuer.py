"""An issuer of tokens: real keys, and an HTTP server that lists them as OpenID Connect has it."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from starlette.responses import Response
from starlette.routing import Route, Router

from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
AUDIENCE = "https://gateway.example.com"


@dataclass(frozen=True)
class SigningKey:
    """A private key, and under which id and for which algorithm its public one is listed."""

    id: str
    algorithm: str
    private: PrivateKey

    @classmethod
    def new(cls, key_id: str, algorithm: str = "ES256", *, bits: int = 2048) -> SigningKey:
        private: PrivateKey
        if algorithm.startswith(("RS", "PS")):
            private = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        elif algorithm == "EdDSA":
            private = ed25519.Ed25519PrivateKey.generate()
        else:
            private = ec.generate_private_key(ec.SECP256R1())
        return cls(key_id, algorithm, private)

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key, as issuers list it."""
        public: Any = self.private.public_key()
        kind: Any = {"RS": RSAAlgorithm, "PS": RSAAlgorithm, "Ed": OKPAlgorithm}.get(
            self.algorithm[:2], ECAlgorithm
        )
        shown: dict[str, Any] = json.loads(kind.to_jwk(public))
        shown.pop("key_ops", None)
        return shown | {"kid": self.id, "alg": self.algorithm, "use": "sig"}

    @property
    def public_pem(self) -> bytes:
        """What an attacker knows of it."""
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        """A token of these claims."""
        return jwt.encode(
            claims, self.private, algorithm=self.algorithm, headers={"kid": self.id, **headers}
        )


@dataclass
class Issuer:
    """`keys` are those that it lists; the first one signs. `audience` is whom its tokens are for.
    `asked`: the paths of all requests.
    """

    url: str = ""
    audience: str = AUDIENCE
    keys: list[SigningKey] = field(default_factory=lambda: [SigningKey.new("first")])
    asked: list[str] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    status: int = 200

    @property
    def jwks(self) -> dict[str, Any]:
        return {"keys": [key.jwk for key in self.keys]}

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Those of a good token; None leaves one out."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": self.audience,
            "sub": "alice",
            "iat": now,
            "exp": now + 600,
            **changed,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, **changed: Any) -> str:
        """A good token, but for the claims that are changed."""
        return self.keys[0].sign(self.claims(**changed))

    async def configured(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        told = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.configuration}
        return Response(json.dumps(told), self.status, media_type="application/json")

    async def listed(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        body = json.dumps(self.jwks).encode() if self.body is None else self.body
        return Response(body, self.status, media_type="application/json")


@asynccontextmanager
async def running_issuer(*keys: SigningKey) -> AsyncIterator[Issuer]:
    """An issuer on a socket of its own; when this is left it does not answer any more."""
    issuer = Issuer(keys=list(keys)) if keys else Issuer()
    app = Router(
        [
            Route("/.well-known/openid-configuration", issuer.configured),
            Route("/keys", issuer.listed),
        ]
    )
    async with serving(app) as url:
        issuer.url = url
        yield issuer
