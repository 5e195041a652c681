from __future__ import annotations

import asyncio
import binascii
import hashlib
import hmac
import stat
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from gateway.errors import ConfigError, ContentSealed, StoreUnavailable
from gateway.sealing import DataKey, SealBroken

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gateway.settings.sections import KmsSection, VaultSection
    from gateway.tenancy import TenantId

OK: Final = 200
REFUSED: Final = 400
"""Vault's status for a key that is not there, or does not open this. All else (a token that has
expired or may not, 403; an engine that is not mounted, 404) says nothing of the key."""
TOO_MANY: Final = 429
SERVER_FAULT: Final = 500
TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024
_UNKNOWN_CALLER: Final = "missing client token"
"""Vault's error for a missing token, in releases that distinguish it; the status is `REFUSED`."""
REFUSALS: Final = frozenset(
    {
        *("DisabledException", "NotFoundException", "KMSInvalidStateException"),
        *("InvalidCiphertextException", "IncorrectKeyException", "InvalidKeyUsageException"),
    }
)
"""KMS's errors about the key. All others may pass, or are about the caller: expired credentials, a
policy, a wrong clock."""
_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
_REMEDY: Final = (
    "Make a key with `harmony-gateway encryption new-key >> FILE`, and let nobody else read it:"
    " chmod 600 FILE."
)
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class FileKeys:
    """Keys in a file of the operator's.

    A line has the id of a key, a space, and 32 bytes in base64; `#` begins a comment. The first key
    wraps, all of them unwrap. A changed file is read again before its next use: `encryption rotate`
    may have wrapped keys with a new one. An unreadable file counts as a provider that is away.
    """

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
        status = path.stat()
    except OSError as error:
        raise _refused(f"the key file {path} cannot be read: {type(error).__name__}") from None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_mode


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


class KeyServiceClient:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout_s),
            headers={"accept-encoding": "identity"},
            follow_redirects=False,
            trust_env=False,
        )

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """Return the status (below 500) and the JSON object, empty where it is none.

        Raises `StoreUnavailable` while the service cannot answer.
        """
        try:
            # The client's timeout bounds each part of the exchange, not all of it.
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                content = bytearray()
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > ANSWER_BYTES_MAX:
                        raise StoreUnavailable("the key service answers with too much")
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise StoreUnavailable(
                f"the key service does not answer: {type(error).__name__}"
            ) from error
        if answer.status_code >= SERVER_FAULT or answer.status_code == TOO_MANY:
            raise StoreUnavailable(f"the key service answers with {answer.status_code}")
        try:
            parsed = orjson.loads(content)
        except orjson.JSONDecodeError:
            parsed = None
        return answer.status_code, parsed if isinstance(parsed, dict) else {}

    async def close(self) -> None:
        await self._client.aclose()


class VaultTransit:
    """HashiCorp Vault, or OpenBao: the transit secrets engine.

    The key must have been made with `derived=true`, so that a wrapped key of one tenant, the
    `context`, cannot be unwrapped for another.
    """

    name: Final = "vault-transit"

    def __init__(self, place: VaultSection, *, timeout_s: float = TIMEOUT_S) -> None:
        assert place.token is not None, "it is configured"
        self._place = place
        self._token = place.token.get_secret_value()
        self._client = KeyServiceClient(timeout_s)

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        sent = {"plaintext": b64encode(secret).decode()}
        data = await self._ask("encrypt", self._place.key, tenant_id, sent)
        return self._ciphertext(data), self._place.key

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        data = await self._ask("decrypt", key_ref, tenant_id, {"ciphertext": wrapped.decode()})
        try:
            return b64decode(data["plaintext"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreUnavailable("Vault's answer has no plaintext") from error

    async def close(self) -> None:
        await self._client.close()

    async def _ask(
        self, act: str, key: str, tenant_id: TenantId, sent: dict[str, str]
    ) -> dict[str, Any]:
        place = self._place
        headers = {"x-vault-token": self._token, "content-type": "application/json"}
        if place.namespace:
            headers["x-vault-namespace"] = place.namespace
        body = orjson.dumps({**sent, "context": b64encode(tenant_id.bytes).decode()})
        url = f"{place.url}/v1/{quote(place.mount)}/{act}/{quote(key, safe='')}"
        status, answer = await self._client.post(url, body, headers)
        data = answer.get("data")
        if status == OK and isinstance(data, dict):
            return data
        if status == REFUSED and _UNKNOWN_CALLER not in str(answer.get("errors")):
            raise ContentSealed(f"Vault refuses to {act} with {key!r}: {status}")
        raise StoreUnavailable(f"Vault cannot be asked to {act} with {key!r}: {status}")

    @staticmethod
    def _ciphertext(data: dict[str, Any]) -> bytes:
        ciphertext = data.get("ciphertext")
        if not isinstance(ciphertext, str) or not ciphertext.startswith("vault:"):
            raise StoreUnavailable("Vault's answer has no ciphertext")
        return ciphertext.encode()


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    access_key_id: str
    secret_access_key: str
    session_token: str = ""


@dataclass(frozen=True, slots=True)
class AwsScope:
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
    """Return headers with AWS Signature Version 4, as far as KMS needs it.

    Libraries that do it are botocore (14 MB), or need a newer Python than we support.
    """
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


class AwsKms:
    """AWS KMS: its JSON protocol (`TrentService`), bound to the tenant by the encryption
    context.
    """

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
        return _kms_bytes(answer, "CiphertextBlob"), str(answer.get("KeyId") or key_id)

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        sent = {"KeyId": key_ref, "CiphertextBlob": b64encode(wrapped).decode()}
        return _kms_bytes(await self._ask("Decrypt", tenant_id, sent), "Plaintext")

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


def _kms_bytes(answer: dict[str, Any], name: str) -> bytes:
    try:
        return b64decode(answer[name], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreUnavailable(f"KMS's answer has no {name}") from error
