"""Keys in a file of the operator's: for one machine, and for whoever mounts secrets.

A line has the id of a key, a space, and 32 bytes in base64; `#` begins a comment. The first key
wraps, all of them unwrap. A file that was changed is read again before it is used next: keys of
another process, which `encryption rotate` is, may have been wrapped with what was added to it.
"""

from __future__ import annotations

import binascii
import stat
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError, ContentSealed, StoreUnavailable
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
    """A `KeyProvider`. A file that cannot be read any more counts as a provider that is away."""

    name: Final = "file"

    def __init__(self, path: Path) -> None:
        # Raises `ConfigError` for a file without a key, and for one that other users may read.
        self._path = path
        self._state = _state(path)
        self._keys = _read(path)

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        first, key = next(iter(self._current().items()))
        return key.seal(secret, _bound_to(tenant_id)), first

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        """Unwrap as `KeyProvider` describes. Raises `ContentSealed`."""
        key = self._current().get(key_ref)
        if key is None:
            raise ContentSealed(f"the key file has no key {key_ref!r}")
        try:
            return key.open(wrapped, _bound_to(tenant_id))
        except SealBroken as error:
            raise ContentSealed("a data key was not wrapped by the key of that id") from error

    async def close(self) -> None:
        pass

    def _current(self) -> dict[str, DataKey]:
        # Reads the file again when it has changed. Raises `StoreUnavailable`.
        try:
            state = _state(self._path)
            if state != self._state:
                self._keys = _read(self._path)
                self._state = state
        except ConfigError as error:
            raise StoreUnavailable(f"{error}") from error
        return self._keys


def _bound_to(tenant_id: TenantId) -> bytes:
    return b"tenant key" + tenant_id.bytes


def _state(path: Path) -> tuple[int, ...]:
    # Differs once the file was changed or replaced.
    try:
        found = path.stat()
    except OSError as error:
        raise _refused(f"the key file {path} cannot be read: {type(error).__name__}") from None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode


def _refused(why: str) -> ConfigError:
    return ConfigError(why, where="encryption.file.path", remedy=_REMEDY)


def _read(path: Path) -> dict[str, DataKey]:
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"the key file {path} cannot be read: {type(error).__name__}") from None
    if mode & _OTHERS:
        raise _refused(f"others may read or change the key file {path}")
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
            raise _refused(why) from None
        if keys.setdefault(id_, key) is not key:
            raise _refused(f"line {number} of the key file {path} has the id of another one")
    if not keys:
        raise _refused(f"the key file {path} has no key")
    return keys
