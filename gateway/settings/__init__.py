"""The only reader of configuration and environment."""

from __future__ import annotations

from gateway.settings.loading import inherited, load_settings
from gateway.settings.model import Settings
from gateway.settings.sections import Server

__all__ = ["Server", "Settings", "inherited", "load_settings"]
