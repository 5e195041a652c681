"""Whether what a model wrote is what was asked for."""

from __future__ import annotations

from gateway.checking.checker import Checker, CheckLimits
from gateway.checking.kept import KeptDocuments
from gateway.checking.loading import is_loaded, load

__all__ = ["CheckLimits", "Checker", "KeptDocuments", "is_loaded", "load"]
