"""What one source says, and where it says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

Path = tuple[str | int, ...]
"""The way to a value: keys of sections and indexes of lists."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong, and the `file:line` or variable where it can be mended."""

    where: str
    message: str

    @override
    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Nested values, the place of each, and what could not even be read."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def put(self, path: tuple[str, ...], value: object, place: str) -> None:
        """Set a value, making the sections on the way to it."""
        section = self.values
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
        self.places[path] = place
