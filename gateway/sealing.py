"""The one door to ciphers: `reasoning.encrypted_content`, and the keys of content at rest.

A seal of reasoning is bound to a tenant and a model. It is deterministic, so that a log that is
folded again gives the same bytes: the nonce is derived from key, binding and content (as in
AES-SIV), so that one never serves two contents.

    seal      "hgw1." and unpadded base64url of: a byte, the length of the key's id; the key's id;
              the nonce, 12 bytes; content and tag under AES-256-GCM
    content   a byte, 0 for ids or 1 for text; then ids, unsigned 32-bit little-endian, or UTF-8
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from base64 import b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION: Final = "hgw1"

_PREFIX: Final = f"{VERSION}."
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_KEY_ID_BYTES_MAX: Final = 255
_ID_BYTES: Final = 4
_IDS, _TEXT = b"\0", b"\1"


class SealBroken(ValueError):
    """Refusal of a seal that was not made here for this tenant and model, or was changed since."""


@dataclass(frozen=True, slots=True)
class Binding:
    tenant: UUID
    model: str
    key_id: str


@dataclass(frozen=True, slots=True)
class SealingSecret:
    id: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class Unsealed:
    """Reasoning as the next prompt repeats it: `ids`, or without these `text`."""

    ids: tuple[int, ...] | None = None
    text: str = ""

    @property
    def content(self) -> bytes:
        """Return the bytes to seal. Raises `struct.error` for an id that has more than 32 bits."""
        if self.ids is None:
            return _TEXT + self.text.encode()
        return _IDS + struct.pack(f"<{len(self.ids)}I", *self.ids)

    @classmethod
    def of(cls, content: bytes) -> Unsealed:
        kind, body = content[:1], content[1:]
        if kind == _IDS and len(body) % _ID_BYTES == 0:
            return cls(ids=struct.unpack(f"<{len(body) // _ID_BYTES}I", body))
        if kind != _TEXT:
            raise SealBroken("the content is of no known kind")
        try:
            return cls(text=body.decode())
        except UnicodeDecodeError as error:
            raise SealBroken("the content is not UTF-8") from error


class Sealer:
    """Keys for seals: the first one seals, all of them open. Immutable, shared by threads."""

    def __init__(self, keys: Sequence[SealingSecret]) -> None:
        self._keys = {key.id: _Key(key) for key in keys}
        if not keys or len(self._keys) < len(keys):
            raise ValueError("sealing keys must differ in their ids, and there must be one")
        self.key_id = keys[0].id

    def seal(self, binding: Binding, content: bytes) -> str | None:
        """Return the seal, always the same for the same content; None if its key is gone."""
        key = self._keys.get(binding.key_id)
        if key is None:
            return None
        bound_to = _bound_to(binding.tenant, binding.model, key.name)
        return _spelled(bytes([len(key.name)]) + key.name + key.cipher.seal(content, bound_to))

    def open(self, seal: str, tenant: UUID, model: str) -> bytes:
        name, sealed = _parts(seal)
        key = self._keys.get(name.decode(errors="replace"))
        if key is None:
            raise SealBroken("its key is not known here")
        return key.cipher.open(sealed, _bound_to(tenant, model, name))


class _Cipher:
    def __init__(self, secret: bytes, info: bytes) -> None:
        self._key, self._nonce_key = derived_keys(secret, info)

    @cached_property
    def _aes(self) -> AESGCM:
        # It takes 6 MiB of a process, which may never seal anything.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        return AESGCM(self._key)

    def seal(self, content: bytes, bound_to: bytes, nonce: bytes | None = None) -> bytes:
        # Without a `nonce` it is derived from what is sealed: same content, same bytes.
        if nonce is None:
            derived = hmac.digest(self._nonce_key, bound_to + content, hashlib.sha256)
            nonce = derived[:_NONCE_BYTES]
        return nonce + self._aes.encrypt(nonce, content, bound_to)

    def open(self, sealed: bytes, bound_to: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return self._aes.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError) as error:
            raise SealBroken("it was made for others, or it was changed") from error


class _Key:
    def __init__(self, key: SealingSecret) -> None:
        self.name = key.id.encode()
        if not 0 < len(self.name) <= _KEY_ID_BYTES_MAX:
            raise ValueError(f"a sealing key's id has 1 to {_KEY_ID_BYTES_MAX} bytes")
        self.cipher = _Cipher(key.secret, f"{VERSION} seal".encode())


class DataKey:
    """Key for content at rest: AES-256-GCM. Immutable, shared by threads.

    Nonces are random, 96 bits: a key must not seal more than 2^32 contents (NIST SP 800-38D, 8.3),
    so keys are renewed. `seal_name` derives them instead, so that names can be looked up.
    """

    OVERHEAD_BYTES: Final = 28
    """A nonce of 12 bytes, and a tag of 16."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _KEY_BYTES:
            raise ValueError(f"a data key has {_KEY_BYTES} bytes")
        self._cipher = _Cipher(secret, b"hgc1 content")

    def seal(self, content: bytes, bound_to: bytes) -> bytes:
        return self._cipher.seal(content, bound_to, secrets.token_bytes(_NONCE_BYTES))

    def seal_name(self, name: bytes, bound_to: bytes) -> bytes:
        """Seal a name. Anyone who sees two sealed names sees whether they differ."""
        return self._cipher.seal(name, bound_to)

    def open(self, sealed: bytes, bound_to: bytes) -> bytes:
        return self._cipher.open(sealed, bound_to)


def derived_keys(secret: bytes, info: bytes) -> tuple[bytes, bytes]:
    """Return two keys: HKDF-SHA256 (RFC 5869) without a salt."""
    extracted = hmac.digest(bytes(_KEY_BYTES), secret, hashlib.sha256)
    first = hmac.digest(extracted, info + b"\1", hashlib.sha256)
    return first, hmac.digest(extracted, first + info + b"\2", hashlib.sha256)


def _bound_to(tenant: UUID, model: str, key_name: bytes) -> bytes:
    # Length prefixes make the encoding of the fields unambiguous.
    fields = (VERSION.encode(), tenant.bytes, model.encode(), key_name)
    return b"".join(struct.pack("<I", len(field)) + field for field in fields)


def _spelled(packed: bytes) -> str:
    return _PREFIX + urlsafe_b64encode(packed).decode().rstrip("=")


def _parts(seal: str) -> tuple[bytes, bytes]:
    # Key name, and nonce with ciphertext. Raises `SealBroken` for text that was never spelled.
    body = seal.removeprefix(_PREFIX)
    try:
        packed = b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise SealBroken("it is not base64url") from error
    # Several texts decode to the same bytes; only one of them was ever made.
    if _spelled(packed) != seal or not packed:
        raise SealBroken("it was not made here")
    nonce_at = 1 + packed[0]
    return packed[1:nonce_at], packed[nonce_at:]
