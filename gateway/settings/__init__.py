"""The only reader of configuration and environment. Everything else is given plain values."""

from __future__ import annotations

from gateway.settings.loading import load_settings
from gateway.settings.model import Settings
from gateway.settings.sections import (
    Auth,
    Backend,
    Database,
    Harmony,
    Input,
    Limits,
    Log,
    Model,
    Server,
    Stream,
    Upstream,
)

__all__ = [
    "Auth",
    "Backend",
    "Database",
    "Harmony",
    "Input",
    "Limits",
    "Log",
    "Model",
    "Server",
    "Settings",
    "Stream",
    "Upstream",
    "load_settings",
]
