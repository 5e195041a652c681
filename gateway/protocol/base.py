"""The bases of all models that mirror something on the wire, and what null fields mean in them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class WireModel(BaseModel):
    """Frozen; unknown keys are ignored, because real clients send more than the API documents."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


def type_of(value: object) -> str | None:
    """The tag of a union's member, raw or typed; None when it has none that could be looked up."""
    tag = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return tag if isinstance(tag, str) else None


def without_nulls(mapping: dict[str, Any]) -> dict[str, Any]:
    """The same without keys whose value is None; itself, where there are none."""
    if None not in mapping.values():
        return mapping
    return {key: value for key, value in mapping.items() if value is not None}


class NullableModel(WireModel):
    """A model in which a null takes the field's default, or is missing if there is none."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        return without_nulls(value) if isinstance(value, dict) else value
