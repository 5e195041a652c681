"""The base of every model that mirrors something on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """Frozen; unknown keys are ignored, because real clients send more than the API documents."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


def type_of(value: object) -> str | None:
    """The tag of a union's member, raw or typed; None when it has none that could be looked up."""
    tag = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return tag if isinstance(tag, str) else None
