"""Explicit null means absent: LlamaIndex, pydantic-ai and others send every unset field."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from gateway.protocol.base import WireModel


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
