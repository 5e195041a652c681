"""Whether what a model wrote is what was asked for."""

from __future__ import annotations

from gateway.checking.checker import Checker, CheckLimits

__all__ = ["CheckLimits", "Checker"]
