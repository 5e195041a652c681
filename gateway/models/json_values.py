"""JSON values in text that comes in pieces."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


_STRUCTURE: Final = re.compile(r'["{}\[\]]')
_STRING: Final = re.compile(r'["\\\x00-\x1f]')
_SCALAR_END: Final = re.compile(r"[,}\]\s]")
WHITE: Final = " \t\n\r"
DEPTH_MAX: Final = 128
"""A value nested deeper is no JSON: what Python's decoder accepts depends on the caller's stack."""


def no_number(name: str) -> None:
    # Python accepts NaN and infinities as JSON.
    raise ValueError(name)


# Models break lines inside of strings.
_DECODER: Final = json.JSONDecoder(strict=False, parse_int=str, parse_constant=no_number)


class ValueScanner:
    """Scanner for the end of one JSON value that begins with the first character fed."""

    __slots__ = (
        "_depth", "_escaped", "_is_scalar", "controls", "deepest", "in_string", "is_begun",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_begun = False
        self.deepest = 0
        self.controls: list[int] = []
        """Offsets of control characters in strings of the last piece."""
        self._depth = 0
        self.in_string = self._escaped = self._is_scalar = False

    def end(self, text: str) -> int | None:
        """Return the offset behind the value if it ends in this piece."""
        self.controls.clear()
        if not self.is_begun and text:
            self.is_begun = True
            self._is_scalar = text[0] not in '{["'
        if self._is_scalar:
            match = _SCALAR_END.search(text)
            return None if match is None else match.start()
        return self._end_of_nested(text)

    def _end_of_nested(self, text: str) -> int | None:
        at = 0
        if self._escaped and text:
            self._escaped, at = False, 1
        while match := (_STRING if self.in_string else _STRUCTURE).search(text, at):
            at = match.end()
            mark = match.group()
            if mark == "\\":
                self._escaped = at == len(text)
                at += 1
            elif mark == '"':
                self.in_string = not self.in_string
            elif mark < " ":
                self.controls.append(at - 1)
            else:
                self._depth += 1 if mark in "{[" else -1
                self.deepest = max(self.deepest, self._depth)
            if not self.in_string and self._depth <= 0:
                return at
        return None


def escaped(text: str, controls: Sequence[int]) -> str:
    parts: list[str] = []
    at = 0
    for control in controls:
        parts += (text[at:control], json.dumps(text[control])[1:-1])
        at = control + 1
    return "".join((*parts, text[at:]))


def with_escapes(text: str) -> str:
    scanner = ValueScanner()
    scanner.end(text)
    return escaped(text, scanner.controls)


def is_json(text: str, deepest: int = 0) -> bool:
    """Return True for a JSON value nested `deepest` levels."""
    if deepest > DEPTH_MAX:
        return False
    try:
        _DECODER.decode(text.strip())
    except ValueError:
        return False
    return True


def string_in(text: str) -> str | None:
    """Decode a JSON string; None if the text is none."""
    if not text.startswith('"'):
        return None
    try:
        value: str = _DECODER.decode(text)
    except ValueError:
        return None
    return value
