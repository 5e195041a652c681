"""The base of every model that mirrors something on the wire."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

M = TypeVar("M", bound=BaseModel)

_set = object.__setattr__  # the models are frozen


class WireModel(BaseModel):
    """Frozen; unknown keys are ignored, because real clients send more than the API documents."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


def changed(model: M, **fields: Any) -> M:
    """`model.model_copy(update=fields)`, but in one step: this is done for every request.

    For models without private attributes and without fields of no name.
    """
    copy = object.__new__(type(model))
    _set(copy, "__dict__", {**model.__dict__, **fields})
    _set(copy, "__pydantic_extra__", None)
    _set(copy, "__pydantic_fields_set__", {*model.__pydantic_fields_set__, *fields})
    _set(copy, "__pydantic_private__", None)
    return copy


def type_of(value: object) -> str | None:
    """The tag of a union's member, raw or typed; None when it has none that could be looked up."""
    tag = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return tag if isinstance(tag, str) else None
