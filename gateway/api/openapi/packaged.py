"""The document as it was packaged: making it needs types that nothing else in a process does."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

Json = dict[str, Any]

FILE: Final = "openapi.json"
REFERENCE: Final = "#/components/schemas/"


def packaged() -> bytes:
    """Its bytes."""
    return files(__package__).joinpath(FILE).read_bytes()
