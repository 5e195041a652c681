"""Whether what a model wrote is what was asked for."""

from __future__ import annotations

from gateway.checking.checker import Checker, CheckLimits
from gateway.checking.kept import KeptDocuments
from gateway.checking.loading import load

__all__ = ["CheckLimits", "Checker", "KeptDocuments", "load"]
