"""Bounds on what a request may hold; the edge passes them in from the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What one body may ask of the parser and of the stages after it."""

    json_depth_max: int
    items_max: int
    tools_max: int
    schema_bytes_max: int
    text_chars_max: int
    json_containers_max: int
