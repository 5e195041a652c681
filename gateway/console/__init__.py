"""The console: server-rendered pages for operators, over the services of the admin API."""

from __future__ import annotations

from typing import Final

BASE: Final = "/console"
