"""`Idempotency-Key`: a client's name for one request, so that sending it again is not asking again.

OpenAI promises none for these routes. What holds here: the same key with the same body stands for
the same response, as long as the operator says (`retention.idempotency_key_s`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

PARAM: Final = "Idempotency-Key"
KEY_CHARS_MAX: Final = 255

_KEY: Final = re.compile(rb"[!-~]{1,%d}" % KEY_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """SHA-256 of the key, and of the body it came with."""

    key_hash: bytes
    fingerprint: bytes


def request_key(values: Sequence[bytes], body: bytes, *, store: bool) -> RequestKey | None:
    """The key among a request's headers (`values` are those of `Idempotency-Key`), if it has one.

    `store`: whether the response is kept. Raises `InvalidRequest` for a key that is none, for more
    than one, and for a response that could not be returned again because it is not kept.
    """
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise InvalidRequest(
            f"Invalid '{PARAM}': expected one header of 1 to {KEY_CHARS_MAX} visible ASCII "
            "characters, such as a UUID.",
            code="invalid_value",
            param=PARAM,
        )
    if not store:
        raise InvalidRequest(
            f"'{PARAM}' cannot be used when 'store' is false, because the response is not kept and "
            "cannot be returned again. Set 'store' to true, or leave the header out.",
            code="unsupported_parameter",
            param=PARAM,
        )
    return RequestKey(sha256(values[0]).digest(), sha256(body).digest())


def reused_key() -> InvalidRequest:
    """The key stands for a request with another body."""
    return InvalidRequest(
        f"This '{PARAM}' was used with another request body. Use a new key for a new request.",
        code="idempotency_key_reused",
        param=PARAM,
    )
