"""The libraries that check: 7 MiB and 40 ms, for those who have something to check."""

from __future__ import annotations

from functools import cache
from importlib import import_module


@cache
def load() -> None:
    """Import them, unless they are; for a thread."""
    for name in ("gateway.checking.documents", "gateway.checking.languages"):
        import_module(name)


def is_loaded() -> bool:
    """Does nothing have to be imported before something is compiled?"""
    return load.cache_info().currsize > 0
