"""Bounds on what a request may hold; the edge passes them in from the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What one body may ask of the parser and of the stages after it.

    The defaults of the last two: OpenAI's documented bound on any text, and enough containers for
    the largest request that the other bounds allow.
    """

    json_depth_max: int
    items_max: int
    tools_max: int
    schema_bytes_max: int
    text_chars_max: int = 10_485_760
    json_containers_max: int = 500_000
