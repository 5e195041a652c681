"""The only reader of configuration and environment. Everything else is given plain values."""

from __future__ import annotations

from gateway.settings.loading import load_settings
from gateway.settings.model import Settings
from gateway.settings.sections import Server
from gateway.settings.sources import inherited

__all__ = ["Server", "Settings", "inherited", "load_settings"]
