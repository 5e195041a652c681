"""The libraries that check, which are not imported by what only names them."""

from __future__ import annotations

from importlib import import_module


def load() -> None:
    """Import them: call it before there are requests."""
    for name in ("gateway.checking.documents", "gateway.checking.languages"):
        import_module(name)
