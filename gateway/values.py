"""Values of which there are many for each request, so that making one has to cost little."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """A slotted dataclass, equal and hashed by its fields, that nobody may change.

    The type checker is told that it is frozen, and nothing guards it at run time: with the guard
    each field is set through a call, and making the value takes four times as long.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
