"""Wrapped data keys of tenants, in a database of their own.

Destroying a key makes its content unreadable in every backup only if no backup of the content has
the wrapped key. So this database has a short backup retention, and is one table without migrations.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Final

from gateway.encryption.keyring import WrappedKey
from gateway.errors import ConfigError, StoreError
from gateway.store import locks
from gateway.store.locks import Lock
from gateway.store.postgres.statements import Statement
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database

_PREPARE: Final = """
CREATE TABLE IF NOT EXISTS tenant_keys (
    tenant_id uuid NOT NULL, number integer NOT NULL, wrapped bytea NOT NULL,
    provider text NOT NULL, key_ref text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    retired_at timestamptz, destroyed_at timestamptz,
    CONSTRAINT pk_tenant_keys PRIMARY KEY (tenant_id, number)
)
"""
_IS_THERE: Final = Statement("SELECT to_regclass('tenant_keys') IS NOT NULL")
_IS_OF_CONTENT: Final = Statement("SELECT to_regclass('responses') IS NOT NULL")
_COLUMNS: Final = ", ".join(field.name for field in fields(WrappedKey))
_KEYS: Final = Statement(f"""
SELECT {_COLUMNS} FROM tenant_keys WHERE tenant_id = :tenant ORDER BY number
""")  # noqa: S608 - constants only
_ADD: Final = Statement("""
INSERT INTO tenant_keys (tenant_id, number, wrapped, provider, key_ref)
VALUES (:tenant, :number, :wrapped, :provider, :key_ref)
""")
_AGE: Final = Statement("""
SELECT CAST(extract(epoch FROM clock_timestamp() - created_at) AS double precision)
FROM tenant_keys WHERE tenant_id = :tenant AND number = :number
""")
_RETIRE: Final = Statement("""
UPDATE tenant_keys SET retired_at = coalesce(retired_at, now())
WHERE tenant_id = :tenant AND number < :before AND destroyed_at IS NULL
""")
_REPLACE: Final = Statement("""
UPDATE tenant_keys SET wrapped = :wrapped, provider = :provider, key_ref = :key_ref
WHERE tenant_id = :tenant AND number = :number AND destroyed_at IS NULL
""")
_DESTROY: Final = Statement("""
UPDATE tenant_keys SET wrapped = '', destroyed_at = now()
WHERE tenant_id = :tenant AND number < :before AND destroyed_at IS NULL
""")
_HAS_DESTROYED: Final = Statement("""
SELECT EXISTS (
    SELECT FROM tenant_keys
    WHERE tenant_id = :tenant AND number < :before AND destroyed_at IS NOT NULL
)
""")
_TENANTS: Final = Statement("SELECT DISTINCT tenant_id FROM tenant_keys ORDER BY tenant_id")
_SEALING: Final = Statement("""
SELECT tenant_id, max(number) AS number FROM tenant_keys
WHERE retired_at IS NULL AND destroyed_at IS NULL
GROUP BY tenant_id
HAVING max(created_at) < clock_timestamp() - make_interval(secs => :settled_s)
ORDER BY tenant_id
""")
# Overwritten keys stay in dead rows until a full vacuum, which rewrites the pages.
_VACUUM: Final = "VACUUM FULL tenant_keys"
ALL: Final = 2**31 - 1


def in_database_of_content() -> ConfigError:
    # Wrapped keys must not be stored beside the content that they open.
    return ConfigError(
        "wrapped keys are to be in the database of the content",
        where="encryption.keys_url",
        remedy="Give them a database of their own, with a short retention of backups: a key that "
        "is destroyed must not be in the backups of what it sealed.",
    )


class TenantKeys:
    """A `KeyStore`, also for operators."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self) -> None:
        # A login that may not create the table can serve if it exists. Raises `ConfigError` for the
        # database of the content, however its URL is spelled, and for one that cannot be used.
        try:
            await self._prepare()
        except StoreError as error:
            raise ConfigError(
                f"the database of wrapped keys cannot be used: {error}",
                where="encryption.keys_url",
                remedy="Is it running, and is that its URL? Its user makes the table tenant_keys.",
            ) from error

    async def _prepare(self) -> None:
        async with self._database.owner_transaction() as connection:
            if await connection.scalar(_IS_OF_CONTENT):
                raise in_database_of_content()
            if await connection.scalar(_IS_THERE):
                return
            # Replicas that start together would make it at the same moment.
            await locks.take(connection, Lock.TENANT_KEYS)
            await connection.script(_PREPARE)

    async def keys(self, tenant_id: TenantId) -> list[WrappedKey]:
        async with self._database.owner_transaction() as connection:
            rows = await connection.execute(_KEYS, {"tenant": tenant_id})
        return [WrappedKey(*row) for row in rows]

    async def add(self, tenant_id: TenantId, key: WrappedKey) -> None:
        async with self._database.owner_transaction() as connection:
            await connection.execute(_ADD, {"tenant": tenant_id, **asdict(key)})
            await connection.execute(_RETIRE, {"tenant": tenant_id, "before": key.number})

    async def age_s(self, tenant_id: TenantId, number: int) -> float:
        async with self._database.owner_transaction() as connection:
            parameters = {"tenant": tenant_id, "number": number}
            age_s: float = await connection.scalar(_AGE, parameters)
        return age_s

    async def replace(self, tenant_id: TenantId, key: WrappedKey) -> None:
        async with self._database.owner_transaction() as connection:
            await connection.execute(_REPLACE, {"tenant": tenant_id, **asdict(key)})

    async def retire(self, tenant_id: TenantId) -> int:
        # Returns the number of keys that can still open content.
        async with self._database.owner_transaction() as connection:
            return await connection.count(_RETIRE, {"tenant": tenant_id, "before": ALL})

    async def destroy(self, tenant_id: TenantId, *, before: int = ALL) -> int:
        """Overwrite wrapped keys with smaller numbers for good; return the number of rows."""
        async with self._database.owner_transaction() as connection:
            of_it = {"tenant": tenant_id, "before": before}
            destroyed = await connection.count(_DESTROY, of_it)
            has_destroyed = await connection.scalar(_HAS_DESTROYED, of_it)
        if has_destroyed:
            # Those of an earlier call, too: it may have ended before this.
            await self._database.maintain(_VACUUM)
        return destroyed

    async def sealing(self, *, settled_s: float) -> dict[TenantId, int]:
        """Return the sealing key of each tenant that has one older than `settled_s`."""
        async with self._database.owner_transaction() as connection:
            rows = await connection.execute(_SEALING, {"settled_s": settled_s})
        return {TenantId(row.tenant_id): row.number for row in rows}

    async def tenants(self) -> list[TenantId]:
        # Tenants whose keys were destroyed are included.
        async with self._database.owner_transaction() as connection:
            return list(await connection.scalars(_TENANTS))
