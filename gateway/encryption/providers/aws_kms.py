"""AWS KMS: `Encrypt` and `Decrypt` of a symmetric key, with the tenant as encryption context.

The JSON protocol of the service (`TrentService`); errors by the name in `__type`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.encryption.providers.http import KeyServiceClient
from gateway.encryption.providers.sigv4 import AwsScope, signed_headers
from gateway.errors import ContentSealed, StoreUnavailable

if TYPE_CHECKING:
    from gateway.encryption.providers.sigv4 import AwsCredentials
    from gateway.tenancy import TenantId

OK: Final = 200
REFUSALS: Final = frozenset(
    {
        *("DisabledException", "NotFoundException", "KMSInvalidStateException"),
        *("InvalidCiphertextException", "IncorrectKeyException", "InvalidKeyUsageException"),
    }
)
"""Errors of `Encrypt` and `Decrypt` that are said of the key, or of what it wrapped. All others may
pass, or are of who asks: credentials that have expired, a policy, a clock that is wrong."""


@dataclass(frozen=True, slots=True)
class KmsPlace:
    """AWS KMS key: `key_id` is an id, an ARN or an alias; `url` empty: the region's public
    address.
    """

    region: str
    key_id: str
    credentials: AwsCredentials
    url: str = ""
    timeout_s: float = 5.0

    @property
    def address(self) -> str:
        return self.url or f"https://kms.{self.region}.amazonaws.com/"


class AwsKms:
    """AWS KMS: `Encrypt` and `Decrypt`, bound to the tenant by the encryption context."""

    name: Final = "aws-kms"

    def __init__(self, place: KmsPlace) -> None:
        self._place = place
        self._client = KeyServiceClient(place.timeout_s)

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        key_id = self._place.key_id
        sent = {"KeyId": key_id, "Plaintext": b64encode(secret).decode()}
        answer = await self._ask("Encrypt", tenant_id, sent)
        return _bytes(answer, "CiphertextBlob"), str(answer.get("KeyId") or key_id)

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        sent = {"KeyId": key_ref, "CiphertextBlob": b64encode(wrapped).decode()}
        return _bytes(await self._ask("Decrypt", tenant_id, sent), "Plaintext")

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, act: str, tenant_id: TenantId, sent: dict[str, Any]) -> dict[str, Any]:
        place = self._place
        body = orjson.dumps({**sent, "EncryptionContext": {"tenant": str(tenant_id)}})
        headers = signed_headers(
            "POST",
            place.address,
            {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"TrentService.{act}"},
            body,
            credentials=place.credentials,
            scope=AwsScope(place.region, "kms"),
            at=datetime.now(UTC),
        )
        status, answer = await self._client.post(place.address, body, headers)
        if status == OK:
            return answer
        name = str(answer.get("__type", "")).rpartition("#")[2]
        if name in REFUSALS:
            raise ContentSealed(f"KMS refuses to {act}: {name}")
        raise StoreUnavailable(f"KMS cannot be asked to {act}: {name or status}")


def _bytes(answer: dict[str, Any], name: str) -> bytes:
    try:
        return b64decode(answer[name], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreUnavailable(f"KMS's answer has no {name}") from error
