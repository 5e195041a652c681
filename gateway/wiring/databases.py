"""The database, the keys of its tenants, and access: all that commands need, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.encryption.keyring import OFF, Keyring, KeyringPolicy
from gateway.services.access import Access
from gateway.store.postgres.database import CONNECT_TIMEOUT_S, Database
from gateway.store.tenant_keys import TenantKeys, in_database_of_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.encryption.keyring import KeyProvider
    from gateway.services.federation import Federation
    from gateway.settings import Settings

KEYS_POOL_SIZE: Final = 2
LIFELINE_POOL_SIZE: Final = 2
JOURNAL_POOL_SIZE: Final = 1
NOTICES_POOL_SIZE: Final = 2
COUNTERS_POOL_SIZE: Final = 1
LISTENING: Final = 1
CONNECTIONS_BESIDE_POOL: Final = (
    LIFELINE_POOL_SIZE + JOURNAL_POOL_SIZE + NOTICES_POOL_SIZE + COUNTERS_POOL_SIZE + LISTENING
)
"""Connections of a process beside `database.pool_size_max`."""


def keys_database(settings: Settings) -> Database | None:
    """Return the database of wrapped keys; None if nothing is sealed."""
    encryption = settings.encryption
    if encryption.keys_url is None or not encryption.is_on:
        return None
    url = encryption.keys_url.get_secret_value()
    if settings.database.url is not None and url == settings.database.url.get_secret_value():
        raise in_database_of_content()
    return Database(
        url, pool_size_max=KEYS_POOL_SIZE, command_timeout_s=settings.database.command_timeout_s
    )


def new_keyring(settings: Settings, database: Database | None) -> Keyring:
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
    if vault.url and vault.token:
        from gateway.encryption.providers import VaultTransit

        yield VaultTransit(vault)
    if kms.region and kms.key_id and kms.access_key_id and kms.secret_access_key:
        from gateway.encryption.providers import AwsKms

        yield AwsKms(kms)


def connect(
    settings: Settings,
    *,
    pool_size_max: int | None = None,
    answer_within_s: float | None = None,
    for_runs: bool = False,
    keyring: Keyring = OFF,
    on_failure: Callable[[str], None] | None = None,
) -> Database:
    """Return the database. `answer_within_s` is for callers that should learn soon that it does not
    answer.
    """
    database = settings.database
    patience_s = float("inf") if answer_within_s is None else answer_within_s
    return Database(
        settings.database_url,
        pool_size_max=pool_size_max or database.pool_size_max,
        command_timeout_s=min(database.command_timeout_s, patience_s),
        connect_timeout_s=min(CONNECT_TIMEOUT_S, patience_s),
        for_runs=for_runs,
        keyring=keyring,
        on_failure=on_failure,
    )


def access(settings: Settings, database: Database, federation: Federation | None = None) -> Access:
    auth = settings.auth
    return Access(
        database,
        settings.pepper,
        auth.key_cache_ttl_s,
        cache_stale_s=auth.stale_keys_max_s,
        previous_pepper=settings.previous_pepper,
        federation=federation,
        defaults=settings.tenant_policy,
    )
