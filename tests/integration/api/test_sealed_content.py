"""What a tenant stored under a key that is gone: nobody reads it, and it can be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.services.tenant_encryption import TenantEncryption
from gateway.store import tenants
from gateway.store.tenant_keys import TenantKeys
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.key_services import sealing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.observation import Backends

MODEL = "gpt-oss-20b"


@pytest.mark.slow
async def test_a_response_that_nobody_can_open_can_be_deleted(
    own_database_url: str, empty_database_url: str, backends: Backends, tmp_path: Path
) -> None:
    settings = gateway_settings(
        own_database_url, backends.urls, encryption=sealing(tmp_path, empty_database_url)
    )
    async with running_gateway(settings) as running:
        base = running.process.foundation
        keys, database = base.keys, base.database
        assert keys is not None
        headers = {"authorization": f"Bearer {running.key}"}
        async with http_client(f"{running.url}/v1/", headers=headers) as client:
            asked: dict[str, Any] = {"model": MODEL, "input": "[[sim think=none say=hi]]"}
            made = (await client.post("responses", json=asked)).json()
            place = f"responses/{made['id']}"
            assert (await client.get(place)).status_code == 200
            tenant = await tenants.tenant_named(database, "acme")
            await TenantEncryption(database, TenantKeys(keys)).shred(tenant.id)
            database.keyring.forget(tenant.id)
            refused = await client.get(place)
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "external_key_unavailable"
            deleted = await client.delete(place)
            assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)
            for gone in (await client.get(place), await client.delete(place)):
                assert gone.status_code == 404
