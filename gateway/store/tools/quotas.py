"""Turns of a tenant's transactions that read, decide, and write: bounds hold when several requests
read how much there is at once, and no change is lost.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import TenantId

_TAKE_TURNS: Final = Statement("""
SELECT pg_advisory_xact_lock(CAST(:quota AS integer), hashtext(CAST(:tenant AS text)))
""")


class Quota(IntEnum):
    """First number of an advisory lock, by the purpose of the turn; the tenant is the second."""

    CONTAINERS = 0x436E7472  # "Cntr"
    FILES = 0x46696C65  # "File"
    BACKGROUND = 0x42636B67  # "Bckg"
    ADMINISTRATION = 0x41646D6E  # "Admn": projects, keys and all else that administrators change


async def take_turns(connection: Connection, tenant_id: TenantId, quota: Quota) -> None:
    """Wait for other transactions of the tenant that have called this.

    The next statement sees what they wrote. Call it shortly before the commit, and before locking
    rows that the others change.
    """
    parameters = {"quota": int(quota), "tenant": str(tenant_id)}
    await connection.execute(_TAKE_TURNS, parameters)
