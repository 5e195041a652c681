"""End user of a usage line, as a digest, and the tags that the tenant declares.

The line outlives the response, so it has no other metadata. The digest is an HMAC with a key of the
tenant: it adds up lines of one end user, and does not reveal the identity.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

LineKind = Literal["response", "compact", "count", "embeddings", "rerank", "adjustment"]
"""An adjustment corrects another line, with signed figures."""

TAGS_MAX: Final = 5
TAG_CHARS_MAX: Final = 64
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
"""PostgreSQL takes neither into `jsonb`."""
_PURPOSE: Final = b"end user of "


@dataclass(frozen=True, slots=True)
class Metering:
    """End user and tags of a line of usage; `end_user` is 16 bytes."""

    end_user: bytes | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        # For a plan: any replica may have to end the response.
        return {"end_user": self.end_user.hex() if self.end_user else None, "tags": self.tags}

    @classmethod
    def of_json(cls, kept: Mapping[str, Any]) -> Metering:
        """Reverse `as_json`. Raises `ValueError`, `TypeError` or `LookupError`."""
        end_user = kept["end_user"]
        return cls(None if end_user is None else bytes.fromhex(end_user), dict(kept["tags"]))


NOBODY: Final = Metering()


def who_asks(secret: bytes, tenant: UUID, named: str | None, tags: Mapping[str, str]) -> Metering:
    return Metering(end_user_of(secret, tenant, named) if named else None, tags)


def end_user_of(secret: bytes, tenant: UUID, named: str) -> bytes:
    key = hmac.digest(secret, _PURPOSE + tenant.bytes, hashlib.sha256)
    return hmac.digest(key, named.encode("utf-8", "surrogatepass"), hashlib.sha256)[:16]


def tags_of(metadata: Mapping[str, str] | None, declared: Sequence[str]) -> dict[str, str]:
    if not metadata:
        return {}
    return {
        name: _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", metadata[name][:TAG_CHARS_MAX])
        for name in declared[:TAGS_MAX]
        if name in metadata
    }
