"""Who wraps data keys: each for its tenant alone, in the forms of the real services."""

from __future__ import annotations

from base64 import b64encode
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import orjson
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from gateway.encryption.providers import (
    AwsCredentials,
    AwsKms,
    AwsScope,
    FileKeys,
    VaultTransit,
    signed_headers,
)
from gateway.errors import ConfigError, ContentSealed, StoreUnavailable
from gateway.settings.sections import KmsSection, VaultSection
from gateway.tenancy import TenantId
from tests.fakes.key_services import ACCESS_KEY, SECRET_KEY, VAULT_TOKEN, key_services
from tests.fakes.serving import serving
from tests.fakes.trickling import PAUSE_S, create_trickling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from gateway.encryption.keyring import KeyProvider
    from tests.fakes.key_services import KeyServices

TENANT, OTHER = TenantId(UUID(int=1)), TenantId(UUID(int=2))
SECRET = bytes(range(32))
CREDENTIALS = AwsCredentials(ACCESS_KEY, SECRET_KEY)


@pytest.fixture
def services() -> Iterator[KeyServices]:
    with key_services() as found:
        yield found


def key_file(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text("\n".join(lines))
    path.chmod(mode)
    return path


def line(id_: str, byte: int = 1) -> str:
    return f"{id_} {b64encode(bytes([byte] * 32)).decode()}"


def vault(
    services: KeyServices, token: str = VAULT_TOKEN, key: str = "harmony-gateway"
) -> VaultTransit:
    return VaultTransit(
        VaultSection(url=services.url, token=SecretStr(token), key=key), timeout_s=2
    )


def kms(services: KeyServices, key_id: str = "alias/harmony", secret: str = SECRET_KEY) -> AwsKms:
    section = KmsSection(
        region="eu-central-1",
        key_id=key_id,
        access_key_id=ACCESS_KEY,
        secret_access_key=SecretStr(secret),
        session_token=SecretStr("session"),
        url=services.url + "/",
    )
    return AwsKms(section, timeout_s=2)


@asynccontextmanager
async def closing(provider: KeyProvider) -> AsyncIterator[KeyProvider]:
    yield provider
    await provider.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["file", "vault-transit", "aws-kms"])
async def test_a_key_is_unwrapped_for_its_tenant_alone(
    services: KeyServices, tmp_path: Path, name: str
) -> None:
    made: dict[str, KeyProvider] = {
        "file": FileKeys(key_file(tmp_path, line("a"))),
        "vault-transit": vault(services),
        "aws-kms": kms(services),
    }
    async with closing(made[name]) as provider:
        assert provider.name == name
        wrapped, key_ref = await provider.wrap(TENANT, SECRET)
        assert SECRET not in wrapped
        assert await provider.unwrap(TENANT, wrapped, key_ref) == SECRET
        with pytest.raises(ContentSealed):
            await provider.unwrap(OTHER, wrapped, key_ref)
        with pytest.raises(ContentSealed):
            await provider.unwrap(TENANT, wrapped, key_ref + "x")


async def test_keys_of_a_file_are_rotated(tmp_path: Path) -> None:
    before = FileKeys(key_file(tmp_path, "# of 2026", line("old")))
    wrapped, key_ref = await before.wrap(TENANT, SECRET)
    after = FileKeys(key_file(tmp_path, line("new", 2), line("old")))
    assert await after.unwrap(TENANT, wrapped, key_ref) == SECRET
    assert (await after.wrap(TENANT, SECRET))[1] == "new"
    gone = FileKeys(key_file(tmp_path, line("old", 2)))
    with pytest.raises(ContentSealed):
        await gone.unwrap(TENANT, wrapped, key_ref)


async def test_a_file_of_keys_is_read_again_when_it_was_changed(tmp_path: Path) -> None:
    """A process that serves goes on while keys are added to its file, and taken out again."""
    serving = FileKeys(key_file(tmp_path, line("old")))
    wrapped = await serving.wrap(TENANT, SECRET)
    added = FileKeys(key_file(tmp_path, line("new", 2), line("old")))
    renewed = await added.wrap(TENANT, SECRET)
    assert renewed[1] == "new"
    assert await serving.unwrap(TENANT, *renewed) == SECRET
    assert await serving.unwrap(TENANT, *wrapped) == SECRET
    assert (await serving.wrap(TENANT, SECRET))[1] == "new"
    key_file(tmp_path, line("new", 2))
    with pytest.raises(ContentSealed, match="no key 'old'"):
        await serving.unwrap(TENANT, *wrapped)
    # In the middle of a change it says nothing of any key.
    key_file(tmp_path, "new")
    with pytest.raises(StoreUnavailable, match="line 1"):
        await serving.unwrap(TENANT, *renewed)
    (tmp_path / "keys").unlink()
    with pytest.raises(StoreUnavailable, match="FileNotFoundError"):
        await serving.wrap(TENANT, SECRET)
    key_file(tmp_path, line("new", 2))
    assert await serving.unwrap(TENANT, *renewed) == SECRET


@pytest.mark.parametrize(
    ("lines", "mode", "why"),
    [
        ([], 0o600, "has no key"),
        ([line("a")], 0o644, "others may read"),
        ([line("a")], 0o660, "others may read"),
        (["a short"], 0o600, "line 1"),
        ([line("a"), "a b c"], 0o600, "line 2"),
        ([line("a"), line("a", 2)], 0o600, "id of another"),
    ],
)
def test_a_file_of_keys_that_is_none_is_refused(
    tmp_path: Path, lines: list[str], mode: int, why: str
) -> None:
    path = key_file(tmp_path, *lines, mode=mode)
    with pytest.raises(ConfigError, match=why) as refused:
        FileKeys(path)
    assert "short" not in str(refused.value)


def test_a_file_of_keys_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        FileKeys(tmp_path / "none")


async def test_vault_opens_what_an_older_version_of_its_key_wrapped(services: KeyServices) -> None:
    provider = vault(services)
    wrapped, key_ref = await provider.wrap(TENANT, SECRET)
    assert wrapped.startswith(b"vault:v1:")
    services.versions.append(AESGCM(bytes([1] * 32)))
    newer, _ = await provider.wrap(TENANT, SECRET)
    assert newer.startswith(b"vault:v2:")
    assert await provider.unwrap(TENANT, wrapped, key_ref) == SECRET
    assert services.asked == ["vault encrypt", "vault encrypt", "vault decrypt"]
    await provider.close()


@pytest.mark.slow
async def test_what_the_services_refuse_is_told_from_what_passes(services: KeyServices) -> None:
    refused: dict[VaultTransit | AwsKms, type[Exception]] = {
        vault(services, key="other"): ContentSealed,
        kms(services, key_id="other"): ContentSealed,
        # Credentials that have expired say nothing of the key: what it opened goes on to open.
        vault(services, token="wrong"): StoreUnavailable,
        kms(services, secret="wrong"): StoreUnavailable,
    }
    for asked, kind in refused.items():
        with pytest.raises(kind):
            await asked.wrap(TENANT, SECRET)
        await asked.close()
    by_kms, by_vault = kms(services), vault(services)
    for services.error in (
        *("ThrottlingException", "KeyUnavailableException", "AccessDeniedException"),
        *("ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"),
    ):
        with pytest.raises(StoreUnavailable):
            await by_kms.wrap(TENANT, SECRET)
    services.error = "com.amazonaws.kms#DisabledException"
    with pytest.raises(ContentSealed, match="DisabledException"):
        await by_kms.wrap(TENANT, SECRET)
    services.error, services.errors = None, ["missing client token"]
    services.status = 400
    with pytest.raises(StoreUnavailable):
        await by_vault.wrap(TENANT, SECRET)
    services.errors = ["ciphertext or signature version is disallowed by policy (too old)"]
    with pytest.raises(ContentSealed):
        await by_vault.wrap(TENANT, SECRET)
    for status in (307, 403, 404, 429, 500, 503):
        services.status = status
        for provider in (by_kms, by_vault):
            with pytest.raises(StoreUnavailable):
                await provider.wrap(TENANT, SECRET)
    services.status = 200  # from somebody in between: it has not what was asked for
    for provider in (by_kms, by_vault):
        with pytest.raises(StoreUnavailable):
            await provider.wrap(TENANT, SECRET)
        await provider.close()


async def test_a_service_that_is_not_there_is_away() -> None:
    with key_services() as gone:
        provider = vault(gone)
    with pytest.raises(StoreUnavailable):
        await provider.wrap(TENANT, SECRET)
    await provider.close()


async def test_a_service_that_answers_byte_by_byte_is_away() -> None:
    answer = orjson.dumps({"data": {"ciphertext": "vault:v1:" + "A" * 20}})
    async with serving(create_trickling(answer)) as url:
        section = VaultSection(url=url, token=SecretStr(VAULT_TOKEN), key="k")
        async with closing(VaultTransit(section, timeout_s=10 * PAUSE_S)) as provider:
            with pytest.raises(StoreUnavailable, match="does not answer: TimeoutError"):
                await provider.wrap(TENANT, SECRET)


def test_signatures_are_those_of_aws() -> None:
    """`post-vanilla` of the test suite that AWS publishes for Signature Version 4."""
    signed = signed_headers(
        "POST",
        "https://example.amazonaws.com/",
        {},
        b"",
        credentials=CREDENTIALS,
        scope=AwsScope("us-east-1", "service"),
        at=datetime(2015, 8, 30, 12, 36, tzinfo=UTC),
    )
    assert signed["authorization"].endswith(
        "Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    )
