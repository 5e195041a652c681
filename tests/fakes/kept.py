"""Lifetimes that are shorter than an operator may set."""

from __future__ import annotations

from gateway.settings.sections import Ledger, Retention


def retention(**seconds: int) -> Retention:
    return Retention().model_copy(update=seconds)


def ledger(**seconds: int) -> Ledger:
    return Ledger().model_copy(update=seconds)
