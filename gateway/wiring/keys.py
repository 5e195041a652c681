"""The keys of tenants in one process: where they are kept, and who wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.encryption.keyring import OFF, Keyring, KeyringPolicy
from gateway.store.postgres.database import Database
from gateway.store.tenant_keys import TenantKeys, in_database_of_content

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    return Database(
        url, pool_size_max=POOL_SIZE, command_timeout_s=settings.database.command_timeout_s
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
        from gateway.encryption.providers.file import FileKeys

        yield FileKeys(file.path)
    if vault.url and vault.token:
        from gateway.encryption.providers.vault_transit import VaultTransit

        yield VaultTransit(vault)
    if kms.region and kms.key_id and kms.access_key_id and kms.secret_access_key:
        from gateway.encryption.providers.aws_kms import AwsKms

        yield AwsKms(kms)
