"""Failures as values, for work that goes on beside the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def failure_of(work: Awaitable[object]) -> Exception:
    """What it raised; it must."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return error
    raise AssertionError("it did not fail")
