"""Find the revisions of the schema by the names of their files: Alembic is slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.store.schema import REVISION

_PACKAGE: Final = Path(__file__).parents[2]


def migrations_folder() -> Path:
    """Return `gateway/_migrations` of an installed wheel, or `migrations` of a checkout."""
    installed = _PACKAGE / "_migrations"
    return installed if installed.is_dir() else _PACKAGE.parent / "migrations"


def is_older(revision: str) -> bool:
    """Return True for a revision before `REVISION`.

    A revision without a file is of a newer release.
    """
    files = (migrations_folder() / "versions").glob(f"*_{revision}_*.py")
    return revision != REVISION and any(files)
