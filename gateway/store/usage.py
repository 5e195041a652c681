"""Metering: one line per response, kept when the response is deleted or was never stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy.dialects.postgresql import insert

from gateway.store.tables import usage

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from gateway.store.execution import Connection

    from gateway.generation import TokenUsage
    from gateway.store.engine import Database
    from gateway.tenancy import TenantId

# Statements are built once: building one costs more than running it.
_ADD: Final = insert(usage).on_conflict_do_nothing()


@dataclass(frozen=True, slots=True)
class UsageLine:
    """What one response cost, and whom. Tokens are those of `TokenUsage`."""

    response: UUID
    key_id: UUID
    model: str
    at: datetime
    tokens: TokenUsage


async def record(database: Database, tenant_id: TenantId, line: UsageLine) -> None:
    """Write the line of a response that is not stored; a second one for it changes nothing."""
    async with database.transaction(tenant_id) as connection:
        await add(connection, tenant_id, line)


async def add(connection: Connection, tenant_id: TenantId, line: UsageLine) -> None:
    """The same inside a transaction of the caller's."""
    row = {
        "tenant_id": tenant_id,
        "response_id": line.response,
        "key_id": line.key_id,
        "model": line.model,
        "at": line.at,
        "input_tokens": line.tokens.input_tokens,
        "cached_tokens": line.tokens.cached_tokens,
        "output_tokens": line.tokens.output_tokens,
        "reasoning_tokens": line.tokens.reasoning_tokens,
        "recomputed_tokens": line.tokens.recomputed_tokens,
    }
    await connection.execute(_ADD, row)
