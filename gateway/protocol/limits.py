"""Bounds on what a request may hold; the edge passes them in from the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What one body may ask of the parser and of the stages after it.

    `schema_depth_max` counts nested objects and arrays of a schema that binds the output. With
    `rejects_media` new messages must not hold images or files.
    """

    json_depth_max: int
    items_max: int
    tools_max: int
    schema_bytes_max: int
    text_chars_max: int
    json_containers_max: int
    grammar_bytes_max: int = 65_536
    pattern_chars_max: int = 1_024
    schema_depth_max: int = 32
    rejects_media: bool = False
