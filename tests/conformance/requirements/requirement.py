"""What an entry of the manifest is."""

from __future__ import annotations

from dataclasses import dataclass

REFERENCE = "responses-api"


@dataclass(frozen=True, slots=True)
class Requirement:
    """`id` is what tests refer to it by, `source` a section of the reference and a row or bullet
    of it, `sentence` what holds.
    """

    id: str
    source: str
    sentence: str


def rules(section: str, *rows: tuple[str, str, str]) -> tuple[Requirement, ...]:
    """Those of one section: for each the id, the row or bullet, and the sentence."""
    return tuple(
        Requirement(name, f"{REFERENCE} {section} {row}", text) for name, row, text in rows
    )
