"""The only reader of configuration and environment. Everything else is given plain values."""

from __future__ import annotations

from gateway.settings.environment import inherited
from gateway.settings.loading import load_settings
from gateway.settings.model import Settings
from gateway.settings.sections import (
    Auth,
    Backend,
    Background,
    Database,
    Harmony,
    Input,
    Journal,
    Limits,
    Log,
    Model,
    Retention,
    Server,
    Stream,
    Upstream,
)

__all__ = [
    "Auth",
    "Backend",
    "Background",
    "Database",
    "Harmony",
    "Input",
    "Journal",
    "Limits",
    "Log",
    "Model",
    "Retention",
    "Server",
    "Settings",
    "Stream",
    "Upstream",
    "inherited",
    "load_settings",
]
