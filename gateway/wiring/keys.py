"""The keys of tenants in one process: where they are kept, and who wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.encryption.keyring import OFF, Keyring, KeyringPolicy
from gateway.store.postgres.database import Database
from gateway.store.tenant_keys import TenantKeys, in_database_of_content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import SecretStr

    from gateway.encryption.keyring import KeyProvider
    from gateway.settings import Settings

POOL_SIZE: int = 2


def keys_database(settings: Settings) -> Database | None:
    """Return the database of wrapped keys; None if nothing is sealed. Raises `ConfigError`."""
    encryption = settings.encryption
    if encryption.keys_url is None or not encryption.is_on:
        return None
    url = encryption.keys_url.get_secret_value()
    if settings.database.url is not None and url == settings.database.url.get_secret_value():
        raise in_database_of_content()
    database = settings.database
    return Database(
        url,
        pool_size_max=POOL_SIZE,
        command_timeout_s=database.command_timeout_s,
        connect_timeout_s=database.connect_timeout_s,
        statement_cache_size=database.statement_cache_size,
    )


def new_keyring(settings: Settings, database: Database | None) -> Keyring:
    """Return the keyring over `keys_database`. Raises `ConfigError` for an invalid key file."""
    if database is None:
        return OFF
    encryption = settings.encryption
    policy = KeyringPolicy(
        seals_all=encryption.tenants == "all",
        fresh_s=encryption.fresh_s,
        stale_s=encryption.stale_s,
    )
    return Keyring(TenantKeys(database), providers(settings), policy)


def providers(settings: Settings) -> list[KeyProvider]:
    """Return all configured providers; the first one wraps new keys."""
    wraps = settings.encryption.provider
    return sorted(_configured(settings), key=lambda one: one.name != wraps)


def _configured(settings: Settings) -> Iterator[KeyProvider]:
    # Each is imported where it is used: most processes have none of them.
    encryption = settings.encryption
    file, vault, kms = encryption.file, encryption.vault, encryption.kms
    if file.path is not None:
        from gateway.encryption.providers import FileKeys

        yield FileKeys(file.path)
    if vault.url is not None and vault.token is not None:
        from gateway.encryption.providers import VaultPlace, VaultTransit

        yield VaultTransit(
            VaultPlace(
                vault.url,
                vault.token.get_secret_value(),
                vault.key,
                vault.mount,
                vault.namespace,
            )
        )
    if kms.region and kms.key_id and kms.access_key_id and kms.secret_access_key:
        from gateway.encryption.providers import AwsCredentials, AwsKms, KmsPlace

        credentials = AwsCredentials(
            kms.access_key_id,
            kms.secret_access_key.get_secret_value(),
            _plain(kms.session_token),
        )
        place = KmsPlace(kms.region, kms.key_id, credentials, kms.url)
        yield AwsKms(place)


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
