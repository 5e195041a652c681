"""Inputs of calls, unwrapped from the streamed JSON that models write them in: of custom tools, and
the code of Python.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any, Final

import orjson

_BEFORE: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
BEFORE_CHARS_MAX: Final = 256
"""With more whitespace before the string, it is not meant as JSON."""
_SQUEEZED: Final = '{"input":"'
_EMPTY: Final = re.compile(r"\s*\{\s*\}\s*")
_MARK: Final = re.compile(r'["\\]')
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(rf"{_PAIR}|\\u[0-9a-fA-F]{{4}}|\\.", re.DOTALL)
_UNFINISHED: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
)
_SIMPLE: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Phase(Enum):
    BEFORE = auto()
    INSIDE = auto()
    AFTER = auto()  # behind a quote that may or may not end the string
    RAW = auto()


class CustomInput:
    """The model sees a function with one string, so it writes `{"input": "…"}`. Other text is
    itself the input. Escapes that JSON lacks are kept, and so is a quote that did not end the
    string.
    """

    def __init__(self) -> None:
        self._phase = _Phase.BEFORE
        self._held = ""
        self._after: list[str] = []

    def feed(self, text: str) -> str:
        if self._phase is _Phase.RAW:
            return text
        if self._phase is _Phase.AFTER:
            self._after.append(text)
            return ""
        self._held += text
        if self._phase is _Phase.BEFORE:
            return self._begin()
        return self._read_string()

    def finish(self, *, is_complete: bool) -> str:
        if self._phase is not _Phase.AFTER:
            is_nothing = not is_complete or _EMPTY.fullmatch(self._held)
            return "" if is_nothing else self._held
        after = "".join(self._after)
        if not is_complete or _ends_string(after):
            return ""
        return '"' + _ESCAPE.sub(_meaning, _without_end(after))

    def _begin(self) -> str:
        match = _BEFORE.match(self._held)
        if match and match.end() <= BEFORE_CHARS_MAX:
            self._held = self._held[match.end() :]
            self._phase = _Phase.INSIDE
            return self._read_string()
        squeezed = "".join(self._held.split())
        if len(self._held) < BEFORE_CHARS_MAX and _may_begin(squeezed):
            return ""
        self._phase = _Phase.RAW
        held, self._held = self._held, ""
        return held

    def _read_string(self) -> str:
        text, self._held = self._held, ""
        parts: list[str] = []
        at = 0
        while mark := _MARK.search(text, at):
            parts.append(text[at : mark.start()])
            at = mark.start()
            if mark.group() == '"':
                self._phase = _Phase.AFTER
                self._after.append(text[at + 1 :])
                return "".join(parts)
            escape = _ESCAPE.match(text, at)
            if escape is None or _UNFINISHED.fullmatch(text, at):
                self._held = text[at:]
                return "".join(parts)
            parts.append(_meaning(escape))
            at = escape.end()
        return "".join((*parts, text[at:]))


def _may_begin(squeezed: str) -> bool:
    return _SQUEEZED.startswith(squeezed) or squeezed == "{}"


def _meaning(escape: re.Match[str]) -> str:
    text = escape.group()
    if text[1] != "u" or len(text) == len(r"\u"):
        if text[1] in _SIMPLE:
            return _SIMPLE[text[1]]
        return text[1] if text[1] in '"\\/' else text
    units = b"".join(int(unit, 16).to_bytes(2, "little") for unit in text.split(r"\u")[1:])
    return units.decode("utf-16-le", "replace")


def _without_end(after: str) -> str:
    # No regular expression: white space before an optional end would take cubic time.
    inside = after.rstrip().removesuffix("}").rstrip()
    return inside.removesuffix('"') if inside.endswith('"') else inside


def _ends_string(after: str) -> bool:
    if not after.strip():
        return True
    try:
        orjson.loads('{"input": ""' + after)
    except ValueError:
        return False
    return True


_FRONT: Final = re.compile(r'\s*(?:\{\s*(?:"(?:c(?:o(?:d(?:e(?:"\s*(?::\s*)?)?)?)?)?)?)?)?')
_WRAPPED: Final = re.compile(r'\s*\{\s*"code"\s*:\s*"')


class PythonCode:
    """Plain code streams. Text that begins like `{"code": "…"}` waits for its end, which shows
    whether it is JSON.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_wrapped = False
        self._is_plain = False
        self._rest: list[str] = []

    def feed(self, text: str) -> str:
        if self._is_plain:
            return text
        if self._is_wrapped:
            self._rest.append(text)
            return ""
        self._held += text
        wrapped = _WRAPPED.match(self._held)
        if wrapped is not None and wrapped.end() <= BEFORE_CHARS_MAX:
            self._is_wrapped = True
            return ""
        if _FRONT.fullmatch(self._held) and len(self._held) <= BEFORE_CHARS_MAX:
            return ""
        self._is_plain = True
        held, self._held = self._held, ""
        return held

    def finish(self, *, is_complete: bool) -> str:
        held = self._held + "".join(self._rest)
        self._held = ""
        self._rest = []
        code = _code_in(held) if is_complete and self._is_wrapped else None
        return held if code is None else code


def _code_in(text: str) -> str | None:
    try:
        wrapped: Any = orjson.loads(text)
    except ValueError:
        return None
    is_code = isinstance(wrapped, dict) and isinstance(wrapped.get("code"), str)
    return wrapped["code"] if is_code and len(wrapped) == 1 else None
