"""The code of a Python call, unwrapped from the JSON that some models write it in.

Plain code streams. Text that begins like `{"code": "…"}` waits for its end, which shows whether it
is JSON.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.eventlog.fold.custom_input import BEFORE_CHARS_MAX

_FRONT: Final = re.compile(r'\s*(?:\{\s*(?:"(?:c(?:o(?:d(?:e(?:"\s*(?::\s*)?)?)?)?)?)?)?)?')
_WRAPPED: Final = re.compile(r'\s*\{\s*"code"\s*:\s*"')


class PythonCode:
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
