"""Types that fields of items and of other parameters share."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

T = TypeVar("T")

ITEM_ID_CHARS_MAX: Final = 512
"""OpenAI's bound is 64, but some servers make longer ids."""
CALL_ID_CHARS_MAX: Final = 64
COUNT_MAX: Final = 2**63 - 1

Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[
    str, StringConstraints(max_length=ITEM_ID_CHARS_MAX, pattern=r"^[A-Za-z0-9_-]+$")
]
CallId = Annotated[str, StringConstraints(min_length=1, max_length=CALL_ID_CHARS_MAX)]
Count = Annotated[int, Field(strict=False, ge=0, le=COUNT_MAX)]
"""Not strict, because JSON Schema calls `1.0` an integer, too."""

Many = Annotated[tuple[T, ...], Field(strict=False, fail_fast=True)]
"""A JSON array. Not strict, because JSON knows no tuples; the first mistake in it is enough."""


ITEMS_AT_ONCE: Final = 50
"""So many items are validated in one call, in which no other thread runs."""


def _piece_by_piece(value: object, whole: ValidatorFunctionWrapHandler) -> object:
    """What `whole` makes of an array: other threads run between two pieces of it."""
    if not isinstance(value, list) or len(value) <= ITEMS_AT_ONCE:
        return whole(value)
    members: list[object] = []
    for start in range(0, len(value), ITEMS_AT_ONCE):
        piece = value[start : start + ITEMS_AT_ONCE]
        try:
            members += whole(piece)
        except ValidationError:
            # The same mistake, told where it is: what is valid already is not looked into again.
            return whole([*members, *piece])
    return tuple(members)


VeryMany = Annotated[Many[T], WrapValidator(_piece_by_piece)]
"""The same, of so many that the others would notice."""


def _known_status(status: object) -> object:
    """What a client says of an item's status matters only where it is one that is known."""
    return None if isinstance(status, str) and status not in _STATUSES else status


_STATUSES: Final = frozenset(get_args(Status))
AnyStatus = Annotated[Status | None, BeforeValidator(_known_status)]
