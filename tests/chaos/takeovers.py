"""How long responses were nobody's, by the clock of the database itself.

A trigger notes every claim of a response that had begun: how long after the end of the lease of
whoever had it before, or after it was released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg

_INSTALL: Final = """
CREATE TABLE chaos_claims (late_s float8, released boolean);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.chaos_claims VALUES (
        extract(epoch FROM clock_timestamp() - OLD.lease_until), OLD.owner IS NULL
    );
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER UPDATE OF epoch ON responses FOR EACH ROW
    WHEN (NEW.epoch > OLD.epoch AND OLD.status = 'in_progress' AND NEW.status = 'in_progress')
    EXECUTE FUNCTION chaos_note();
"""


@dataclass(frozen=True, slots=True)
class Takeover:
    """`late_s` are seconds since the lease ended, or since it was `released`."""

    late_s: float
    released: bool


async def install(url: str) -> None:
    """Note takeovers from now on."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_INSTALL)
    finally:
        await connection.close()


async def noted(url: str) -> list[Takeover]:
    """All of them so far."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT late_s, released FROM chaos_claims")
    finally:
        await connection.close()
    return [Takeover(*row) for row in rows]
