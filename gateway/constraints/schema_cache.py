"""Compiled schemas that the same clients send again and again."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from gateway.cache import LruCache

if TYPE_CHECKING:
    from gateway.constraints.schema_validation import SchemaValidator


class SchemaCache:
    """Shared by threads.

    What a schema costs must not depend on what another tenant sent before: so each is kept for one
    scope. One with patterns is not kept: they may take megabytes.
    """

    def __init__(self, *, json_bytes_max: int = 1 << 20) -> None:
        """Compiled a schema takes about thirty times as much memory as it is long."""
        self._by_digest: LruCache[bytes, SchemaValidator] = LruCache(size_max=json_bytes_max)

    def get(self, scope: bytes, schema: dict[str, Any]) -> SchemaValidator | None:
        """The schema, compiled; None where it has to be compiled anew."""
        return self._by_digest.get(_digest(scope, orjson.dumps(schema)))

    def put(self, scope: bytes, schema: dict[str, Any], document: SchemaValidator) -> None:
        """Keep it, unless it is too long to be kept at all."""
        if not document.has_patterns:
            spelled = orjson.dumps(schema)
            self._by_digest.put(_digest(scope, spelled), document, size=len(spelled))


def _digest(scope: bytes, spelled: bytes) -> bytes:
    return sha256(b"%d:%b%b" % (len(scope), scope, spelled)).digest()
