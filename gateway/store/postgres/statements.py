"""Statements: SQL as it is written here, with named parameters, and as PostgreSQL takes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z]\w*)")
"""Neither the second colon of a cast, nor one behind a word."""


class Statement:
    """SQL in which `:name` stands for the parameter of that name, however often.

    Wherever it stands: a literal or a comment must not have anything that looks like one.
    """

    __slots__ = ("names", "sql", "text")

    def __init__(self, text: str) -> None:
        places: dict[str, str] = {}

        def place(found: re.Match[str]) -> str:
            return places.setdefault(found[1], f"${len(places) + 1}")

        self.text = text
        """As it was written."""
        self.sql = _PARAMETER.sub(place, text)
        """With `$1`, `$2` … for the parameters `names`, in this order."""
        self.names = tuple(places)

    def arguments(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The values in the order of `names`. Raises `KeyError` for one that is missing."""
        return list(map(parameters.__getitem__, self.names))


def insert_into(table: str, columns: Iterable[str]) -> str:
    """SQL that adds one row; its parameters have the names of the columns."""
    names = tuple(columns)
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})"  # noqa: S608 - constants
