"""Integers as JSON has them: it has one kind of number, of which `1.0` is as whole as `1`."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator

_EXACT_MAX: Final = 2**53
"""Beyond it not every integer has a double."""


def whole(value: object) -> object:
    """The integer that a double is; whatever else there is, as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_MAX:
        return int(value)
    return value


Integer = Annotated[int, BeforeValidator(whole)]
