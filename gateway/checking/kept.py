"""Compiled schemas that the same clients send again and again."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from gateway.checking.documents import Document


class _Kept(NamedTuple):
    document: Document
    json_bytes: int


class KeptDocuments:
    """Least recently used first to go. Shared by threads.

    What a schema costs must not depend on what another tenant sent before: so each is kept for one
    scope. One with patterns is not kept: they may take megabytes.
    """

    def __init__(self, *, json_bytes_max: int = 1 << 20) -> None:
        """Compiled a schema takes about thirty times as much memory as it is long."""
        self._json_bytes_max = json_bytes_max
        self._json_bytes = 0
        self._by_digest: OrderedDict[bytes, _Kept] = OrderedDict()
        self._lock = Lock()

    def get(self, scope: bytes, schema: dict[str, Any]) -> Document | None:
        """The schema, compiled; None where it has to be compiled anew."""
        digest = _digest(scope, orjson.dumps(schema))
        with self._lock:
            kept = self._by_digest.get(digest)
            if kept is None:
                return None
            self._by_digest.move_to_end(digest)
        return kept.document

    def put(self, scope: bytes, schema: dict[str, Any], document: Document) -> None:
        """Keep it, unless it is too long to be kept at all."""
        spelled = orjson.dumps(schema)
        if document.has_patterns or len(spelled) > self._json_bytes_max:
            return
        digest = _digest(scope, spelled)
        with self._lock:
            replaced = self._by_digest.pop(digest, None)
            self._by_digest[digest] = _Kept(document, len(spelled))
            self._json_bytes += len(spelled) - (replaced.json_bytes if replaced else 0)
            while self._json_bytes > self._json_bytes_max:
                _, dropped = self._by_digest.popitem(last=False)
                self._json_bytes -= dropped.json_bytes


def _digest(scope: bytes, spelled: bytes) -> bytes:
    return sha256(b"%d:%b%b" % (len(scope), scope, spelled)).digest()
