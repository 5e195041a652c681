"""Keys in a file of the operator's: for one machine, and for whoever mounts secrets.

A line has the id of a key, a space, and 32 bytes in base64; `#` begins a comment. The first key
wraps, all of them unwrap.
"""

from __future__ import annotations

import binascii
import stat
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError, ContentSealed
from gateway.sealing import DataKey, SealBroken

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.tenancy import TenantId

_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
_REMEDY: Final = (
    "Make a key with `harmony-gateway encryption new-key >> FILE`, and let nobody else read it:"
    " chmod 600 FILE."
)


class FileKeys:
    """A `KeyProvider`. It does no I/O once it is made."""

    name: Final = "file"

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` for a file without a key, and for one that others may read."""
        self._keys = _read(path)
        self._first = next(iter(self._keys))

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        """See `KeyProvider`."""
        return self._keys[self._first].seal(secret, _bound_to(tenant_id)), self._first

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        """See `KeyProvider`. Raises `ContentSealed`."""
        key = self._keys.get(key_ref)
        if key is None:
            raise ContentSealed(f"the key file has no key {key_ref!r}")
        try:
            return key.open(wrapped, _bound_to(tenant_id))
        except SealBroken as error:
            raise ContentSealed("a data key was not wrapped by the key of that id") from error

    async def close(self) -> None:
        """Do nothing: no connection or file is open."""


def _bound_to(tenant_id: TenantId) -> bytes:
    return b"tenant key" + tenant_id.bytes


def _read(path: Path) -> dict[str, DataKey]:
    where = "encryption.file.path"
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = f"the key file {path} cannot be read: {type(error).__name__}"
        raise ConfigError(why, where=where, remedy=_REMEDY) from None
    if mode & _OTHERS:
        why = f"others may read or change the key file {path}"
        raise ConfigError(why, where=where, remedy=_REMEDY)
    keys: dict[str, DataKey] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            id_, secret = words
            key = DataKey(b64decode(secret, validate=True))
        except (ValueError, binascii.Error) as error:
            # Never the line: it may hold a key.
            why = f"line {number} of the key file {path} is no key: {type(error).__name__}"
            raise ConfigError(why, where=where, remedy=_REMEDY) from None
        if keys.setdefault(id_, key) is not key:
            why = f"line {number} of the key file {path} has the id of another one"
            raise ConfigError(why, where=where, remedy=_REMEDY)
    if not keys:
        raise ConfigError(f"the key file {path} has no key", where=where, remedy=_REMEDY)
    return keys
