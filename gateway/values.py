"""Values of which there is one for each token, so that making one has to cost little."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import dataclass_transform

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: _Class) -> _Class:
    """A slotted dataclass, equal and hashed by its fields, that nobody may change.

    The type checker is told that it is frozen, and nothing guards it at run time: the guard makes
    a dataclass set each field through a call, which takes four times as long as all the rest.
    """
    made: _Class = dataclass(slots=True, unsafe_hash=True)(cls)
    return made
