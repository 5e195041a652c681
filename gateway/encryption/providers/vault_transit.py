"""HashiCorp Vault, or OpenBao: the transit secrets engine, with a derived key.

`context` is the tenant: the key must have been made with `derived=true`, so that what was wrapped
for one tenant does not unwrap for another. Paths and fields are those of the transit HTTP API
(`encrypt`, `decrypt`, `rewrap`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from gateway.encryption.providers.http import TIMEOUT_S, KeyServiceClient
from gateway.errors import ContentSealed, StoreUnavailable

if TYPE_CHECKING:
    from gateway.settings.sections import VaultSection
    from gateway.tenancy import TenantId

OK: Final = 200
REFUSED: Final = 400
"""For a key that is not there, or does not open this. All else (a token that has expired or may
not, 403; an engine that is not mounted, 404) says nothing of the key."""
_UNKNOWN_CALLER: Final = "missing client token"
"""With the same status, in releases that tell that from a wrong token."""


class VaultTransit:
    """Vault's Transit engine; the tenant is the context that its key is derived with."""

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

    async def rewrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        """Wrap the data key with the newest version of Vault's key, inside Vault."""
        data = await self._ask("rewrap", key_ref, tenant_id, {"ciphertext": wrapped.decode()})
        return self._ciphertext(data)

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
        found = data.get("ciphertext")
        if not isinstance(found, str) or not found.startswith("vault:"):
            raise StoreUnavailable("Vault's answer has no ciphertext")
        return found.encode()
