from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

APP_ROLE: Final = "harmony_gateway_app"
"""Role of tenant transactions: no login, no ownership, so row-level security binds it."""
RUNS_ROLE: Final = "harmony_gateway_runs"
"""Role for the runs of all tenants at once: claim, append, expire. It sees no item, body or key."""

EVERYONE: Final = UUID(int=0)
"""Tenant id of rows that all tenants see."""

RUNNING: Final = ("queued", "in_progress")
TERMINAL: Final = ("completed", "incomplete", "failed", "cancelled")

REVISION: Final = "7a1d4c60b2e9"

COST_COLUMNS: Final = (
    *("cost_nano", "input_cost_nano", "cached_cost_nano", "output_cost_nano"),
    "tools_cost_nano",
)
"""Billionths of a dollar: the sum of all costs, and its parts."""


_PACKAGE: Final = Path(__file__).parents[1]


def migrations_folder() -> Path:
    """Return `gateway/_migrations` of an installed wheel, or `migrations` of a checkout."""
    installed = _PACKAGE / "_migrations"
    return installed if installed.is_dir() else _PACKAGE.parent / "migrations"


def is_older(revision: str) -> bool:
    """Return True for a revision before `REVISION`. A revision without a file is newer."""
    files = (migrations_folder() / "versions").glob(f"*_{revision}_*.py")
    return revision != REVISION and any(files)
