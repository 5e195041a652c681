"""Advisory locks, all of transactions, so that they work through a pooler."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Connection


class Lock(IntEnum):
    """A word in ASCII."""

    CLAIMS = 0x436C61696D  # "Claim"
    HOUSEKEEPING = 0x486F7573656B6570  # "Housekep": whoever removes what has expired
    REMOVALS = 0x52656D6F76616C73  # "Removals": who removes shares it, a hold has it alone
    ROLLUP = 0x526F6C6C7570  # "Rollup"
    TENANT_KEYS = 0x54656E4B6579  # "TenKey"
    MIGRATION = 0x4861726D6F6E79  # "Harmony": held by a session, over all its transactions


class TenantLock(IntEnum):
    CONTAINERS = 0x436E7472  # "Cntr"
    FILES = 0x46696C65  # "File"
    BACKGROUND = 0x42636B67  # "Bckg"
    ADMINISTRATION = 0x41646D6E  # "Admn": projects, keys and all else that administrators change
    AUDIT_LOG = 0x41756474  # "Audt"
    HOLD = 0x486F6C64  # "Hold": who removes something shares it, a hold has it alone


_TAKE: Final = Statement("SELECT pg_advisory_xact_lock(CAST(:key AS bigint))")
_SHARE: Final = Statement("SELECT pg_advisory_xact_lock_shared(CAST(:key AS bigint))")
_TRY: Final = Statement("SELECT pg_try_advisory_xact_lock(CAST(:key AS bigint))")
_TAKE_OF_TENANT: Final = Statement("""
SELECT pg_advisory_xact_lock(CAST(:key AS integer), hashtext(CAST(:tenant AS text)))
""")
_SHARE_OF_TENANT: Final = Statement("""
SELECT pg_advisory_xact_lock_shared(CAST(:key AS integer), hashtext(CAST(:tenant AS text)))
""")


async def take(connection: Connection, lock: Lock) -> None:
    # Waits for others that have it.
    await connection.execute(_TAKE, {"key": int(lock)})


async def try_take(connection: Connection, lock: Lock) -> bool:
    return bool(await connection.scalar(_TRY, {"key": int(lock)}))


async def removing(connection: Connection) -> None:
    """Wait for holds that are being placed, before reading which tenants are held.

    For transactions that remove rows of all tenants.
    """
    await connection.execute(_SHARE, {"key": int(Lock.REMOVALS)})


async def removing_of(connection: Connection, tenant_id: UUID) -> None:
    # Like `removing`, for the rows of one tenant.
    await connection.execute(
        _SHARE_OF_TENANT, {"key": int(TenantLock.HOLD), "tenant": str(tenant_id)}
    )


async def take_turns(connection: Connection, tenant_id: UUID, lock: TenantLock) -> None:
    """Wait for other transactions of the tenant that have called this.

    The next statement sees their changes, so bounds hold when several requests read the same amount
    at once. Call it shortly before the commit, before locking rows that the others change.
    """
    await connection.execute(_TAKE_OF_TENANT, {"key": int(lock), "tenant": str(tenant_id)})
