"""Makes the secrets of keys, and what is stored of them; knows which peppers count."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.tenancy.secrets import RANDOM_BYTES, Pepper, hint_of, secret_of

if TYPE_CHECKING:
    from gateway.tenancy.secrets import SecretKind


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A secret, which nobody can have again, and what of it is stored."""

    value: str
    hint: str
    hash: bytes
    pepper_id: int


@dataclass(frozen=True, slots=True)
class Peppers:
    """Peppers of the hashes of keys: `current` for new keys. Keys hashed under `previous` stay
    valid, and each is hashed again once it is used.
    """

    current: Pepper
    previous: Pepper | None = None

    def new_secret(self, kind: SecretKind) -> NewSecret:
        """Make a secret of 256 random bits."""
        value = secret_of(kind, os.urandom(RANDOM_BYTES))
        return NewSecret(value, hint_of(value), self.current.hash(value), self.current.id)
