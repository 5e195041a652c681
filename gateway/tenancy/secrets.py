"""Secrets of API keys: their form, and the keyed hash that a database stores.

A secret is a prefix that tells what the key opens, 256 random bits in base64url, and a checksum of
both, so that a scanner can tell a mistyped key from a wrong one. Older keys, with the prefix `sk-`
and no checksum, stay good.

With 256 random bits, one HMAC-SHA256 under a pepper is enough. While a pepper is replaced, a secret
that matches under the previous one is hashed again.
"""

from __future__ import annotations

import base64
import hmac
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

SecretKind = Literal["project", "admin", "operator"]
PREFIXES: Final[dict[SecretKind, str]] = {
    "project": "sk-proj-",
    "admin": "sk-admin-",
    "operator": "sk-op-",
}
RANDOM_BYTES: Final = 32
HINT_CHARS: Final = 4
_CHECK_CHARS: Final = 6
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PEPPER_IDS: Final = 2**15
"""Non-negative values of a `smallint`."""


def secret_of(kind: SecretKind, random: bytes) -> str:
    """Make a secret from `RANDOM_BYTES` random bytes."""
    text = PREFIXES[kind] + base64.urlsafe_b64encode(random).rstrip(b"=").decode()
    return text + _check(text)


def kind_of(secret: str) -> SecretKind | None:
    """Return the kind of a secret; None: an old one, which opens a project."""
    kinds = [kind for kind, prefix in PREFIXES.items() if secret.startswith(prefix)]
    return kinds[0] if kinds else None


def is_mistyped(secret: str) -> bool:
    """Return True if the secret has a prefix, but a wrong checksum."""
    if kind_of(secret) is None:
        return False
    text, check = secret[:-_CHECK_CHARS], secret[-_CHECK_CHARS:]
    return not (secret.isascii() and _check(text) == check)


def hint_of(secret: str) -> str:
    # The part of a secret that is stored, so that people can recognise theirs.
    return secret[-HINT_CHARS:]


def redacted(kind: SecretKind, hint: str) -> str:
    return f"{PREFIXES[kind]}***{hint}"


def _check(text: str) -> str:
    rest, digits = zlib.crc32(text.encode()), ""
    for _ in range(_CHECK_CHARS):
        rest, digit = divmod(rest, len(_BASE62))
        digits += _BASE62[digit]
    return digits


@dataclass(frozen=True, slots=True)
class Pepper:
    secret: bytes

    @property
    def id(self) -> int:
        """Return an id that reveals nothing of the secret. One in 32,768 pairs shares its id."""
        digest = hmac.digest(self.secret, b"pepper id", sha256)
        return int.from_bytes(digest[:2], "big") % _PEPPER_IDS

    def hash(self, secret: str) -> bytes:
        # The database stores this keyed hash, 32 bytes, instead of the key.
        return hmac.digest(self.secret, secret.encode("utf-8", "surrogatepass"), sha256)
