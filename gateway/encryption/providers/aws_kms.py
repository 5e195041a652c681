"""AWS KMS: `Encrypt` and `Decrypt` of a symmetric key, with the tenant as encryption context.

The JSON protocol of the service (`TrentService`); errors by the name in `__type`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.encryption.providers.http import TIMEOUT_S, KeyServiceClient
from gateway.encryption.providers.sigv4 import AwsCredentials, AwsScope, signed_headers
from gateway.errors import ContentSealed, StoreUnavailable

if TYPE_CHECKING:
    from gateway.settings.sections import KmsSection
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


class AwsKms:
    """AWS KMS: `Encrypt` and `Decrypt`, bound to the tenant by the encryption context."""

    name: Final = "aws-kms"

    def __init__(self, place: KmsSection, *, timeout_s: float = TIMEOUT_S) -> None:
        session = place.session_token
        assert place.key_id is not None, "it is configured"
        assert place.access_key_id is not None, "it is configured"
        assert place.secret_access_key is not None, "it is configured"
        self._key_id = place.key_id
        self._scope = AwsScope(place.region or "", "kms")
        self._url = place.url or f"https://kms.{place.region}.amazonaws.com/"
        self._credentials = AwsCredentials(
            place.access_key_id,
            place.secret_access_key.get_secret_value(),
            session.get_secret_value() if session else "",
        )
        self._client = KeyServiceClient(timeout_s)

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        key_id = self._key_id
        sent = {"KeyId": key_id, "Plaintext": b64encode(secret).decode()}
        answer = await self._ask("Encrypt", tenant_id, sent)
        return _bytes(answer, "CiphertextBlob"), str(answer.get("KeyId") or key_id)

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        sent = {"KeyId": key_ref, "CiphertextBlob": b64encode(wrapped).decode()}
        return _bytes(await self._ask("Decrypt", tenant_id, sent), "Plaintext")

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, act: str, tenant_id: TenantId, sent: dict[str, Any]) -> dict[str, Any]:
        body = orjson.dumps({**sent, "EncryptionContext": {"tenant": str(tenant_id)}})
        headers = signed_headers(
            "POST",
            self._url,
            {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"TrentService.{act}"},
            body,
            credentials=self._credentials,
            scope=self._scope,
            at=datetime.now(UTC),
        )
        status, answer = await self._client.post(self._url, body, headers)
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
