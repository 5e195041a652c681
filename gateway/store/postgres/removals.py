"""Removals that concern all tenants at once, and the lock by which a hold waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from gateway.store.postgres.database import Connection

REMOVALS_LOCK: Final = 0x52656D6F76616C73
""""Removals", as the number of an advisory lock: who removes shares it, a hold has it alone."""
_WAIT_FOR_HOLDS: Final = Statement("SELECT pg_advisory_xact_lock_shared(:key)")


async def removing(connection: Connection) -> None:
    """Wait for holds that are being placed.

    Call it in a transaction that removes rows of all tenants without a hold, before the statement
    that reads which tenants these are.
    """
    await connection.execute(_WAIT_FOR_HOLDS, {"key": REMOVALS_LOCK})
