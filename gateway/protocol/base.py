from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class WireModel(BaseModel):
    """Frozen model. Unknown keys are ignored, because clients send more than the API documents."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


def without_nulls(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping without None values; the same object if it has none."""
    if None not in mapping.values():
        return mapping
    return {key: value for key, value in mapping.items() if value is not None}


class NullableModel(WireModel):
    """Model in which a null is the field's default, or counts as missing."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        return without_nulls(value) if isinstance(value, dict) else value


class BodyModel(WireModel):
    ignored: tuple[str, ...] = Field((), exclude=True)
    """Unknown top-level keys that are fit for a header; not a parameter itself."""

    @classmethod
    def parameters(cls) -> frozenset[str]:
        return frozenset(name for name, field in cls.model_fields.items() if not field.exclude)


def by_shape(text: str, other: str, *kinds: type) -> Discriminator:
    """Return the discriminator of a union: `text` tags a string, `other` one of `kinds`."""

    def tag_of(value: object) -> str | None:
        if isinstance(value, str):
            return text
        return other if isinstance(value, kinds) else None

    return Discriminator(tag_of)


def string_or(
    what: str, kinds: tuple[type, ...], convert: Callable[[str], object]
) -> BeforeValidator:
    """Return the validator of a value of these `kinds` (`what` in the error), or of a string to
    convert.
    """

    def read(value: object) -> object:
        if isinstance(value, str):
            return convert(value)
        if isinstance(value, kinds):
            return value
        raise PydanticCustomError("expected", "", {"expected": f"one of a string or {what}"})

    return BeforeValidator(read)


def _to_first_fault(texts: object) -> object:
    # Each of a hundred thousand would take a kilobyte, to be told of one.
    items = texts.items() if isinstance(texts, dict) else ()
    return next(({name: text} for name, text in items if not isinstance(text, str)), texts)


FAIL_FAST: Final = BeforeValidator(_to_first_fault)
"""Leaves of a dict of texts only the first value that is none; pydantic's has no `fail_fast`."""
ITEM_ID_CHARS_MAX: Final = 512
"""OpenAI's bound is 64, but some servers make longer ids."""
CALL_ID_CHARS_MAX: Final = 64
COUNT_MAX: Final = 2**63 - 1
Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[
    str, StringConstraints(max_length=ITEM_ID_CHARS_MAX, pattern=r"^[A-Za-z0-9_-]+$")
]
CallId = Annotated[str, StringConstraints(min_length=1, max_length=CALL_ID_CHARS_MAX)]
Many = Annotated[tuple[T, ...], Field(strict=False, fail_fast=True)]
"""Not strict, because JSON has no tuples."""


def _defined_status(status: object) -> object:
    # Statuses that the API does not define are ignored.
    return None if isinstance(status, str) and status not in _STATUSES else status


_STATUSES: Final = frozenset(get_args(Status))
AnyStatus = Annotated[Status | None, BeforeValidator(_defined_status)]
_EXACT_MAX: Final = 2**53
"""Above it not every integer has a double."""


def as_integer(value: object) -> object:
    """Return a float with an integer value as int (`1.0` is an integer in JSON)."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_MAX:
        return int(value)
    return value


AS_INTEGER: Final = BeforeValidator(as_integer)
"""Must follow the bounds of an integer, or its JSON Schema lacks them."""
Integer = Annotated[int, AS_INTEGER]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX), AS_INTEGER]
IGNORED_NAMES_MAX: Final = 32
_HEADER_SAFE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def presentable(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if _HEADER_SAFE.fullmatch(name))[:IGNORED_NAMES_MAX]
