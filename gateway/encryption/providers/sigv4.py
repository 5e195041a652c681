"""AWS Signature Version 4 of a POST, as far as KMS needs it: no query, no chunks, one region.

It is no cipher, but a hash of what is sent under a key that is derived by four HMACs. The libraries
that have it are botocore (14 MB, with the models of all services), or need a newer Python than the
oldest that is supported here; it is tested with the vectors that AWS publishes.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """An access key. `session_token` is of temporary ones."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""


@dataclass(frozen=True, slots=True)
class AwsScope:
    """Region and service that a signature is for."""

    region: str
    service: str


def signed_headers(  # noqa: PLR0913 - what is signed
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credentials: AwsCredentials,
    scope: AwsScope,
    at: datetime,
) -> dict[str, str]:
    """Return the headers, in lower case, with date, token and signature. `at` is in UTC."""
    parts = urlsplit(url)
    moment = at.strftime("%Y%m%dT%H%M%SZ")
    sent = {name: " ".join(value.split()) for name, value in headers.items()}
    sent |= {"host": parts.netloc, "x-amz-date": moment}
    if credentials.session_token:
        sent["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    request = "\n".join(
        [method, parts.path or "/", "", lines, names, hashlib.sha256(body).hexdigest()]
    )
    day = moment[:8]
    within = f"{day}/{scope.region}/{scope.service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret_access_key}".encode()
    for step in (day, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, step.encode(), hashlib.sha256)
    text = "\n".join([_ALGORITHM, moment, within, digest])
    signature = hmac.digest(key, text.encode(), hashlib.sha256).hex()
    sent["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{within}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return sent
