"""Calls of DeepSeek-V3, R1 and V3.1. Bars and spaces in these markers are not ASCII's.

V3 and R1 (parser `deepseek_v3`) name the function behind the separator, and fence the arguments:

    <|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>get_weather
    ```json
    {"city": "Paris"}
    ```<|tool_call_end|><|tool_calls_end|>

V3.1 (parser `deepseek_v31`):

    <|tool_calls_begin|><|tool_call_begin|>get_weather<|tool_sep|>{"city": "Paris"}<|tool_call_end|>
    <|tool_calls_end|>

Either may write as the other does, and leave the marker in front of a call out.

Source: the chat templates of these models; vLLM's parsers of the same names.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gateway.models.chat.call_syntax import (
    Called,
    CallSyntax,
    Left,
    Mark,
    Noted,
    Rule,
    function_name,
    no_call,
)
from gateway.models.chat.syntax.json_call import JsonBody

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.call_syntax import CallEvent


def full_width(name: str) -> str:
    """Return a special token of DeepSeek by its name in ASCII, as in `tool_sep`."""
    spelled = name.replace("_", "\u2581")
    return f"<\uff5c{spelled}\uff5c>"


OPENING: Final = full_width("tool_calls_begin")
CLOSING: Final = full_width("tool_calls_end")
CALL: Final = full_width("tool_call_begin")
CALL_END: Final = full_width("tool_call_end")
SEPARATOR: Final = full_width("tool_sep")
TRAINED_KIND: Final = "function"
TRAINED_FENCE: Final = "```json\n"
TRAINED_END: Final = "\n```"
_FENCE_FRONT: Final = re.compile(r"(?:`{1,3}(?:j(?:s(?:on?)?)?)?\s?)?")
"""Text before the arguments, or the beginning of it."""


class _Where(Enum):
    OUTSIDE = auto()  # of a call, or in front of one without its marker
    FRONT = auto()  # before the separator
    NAME = auto()  # behind it, where the name is there
    FENCE = auto()  # behind that
    BODY = auto()
    JUNK = auto()  # no function is named


_BEFORE_NAME: Final = frozenset({_Where.OUTSIDE, _Where.FRONT})
_OPEN: Final = frozenset({_Where.FENCE, _Where.BODY})


class DeepSeekReader:
    """Reader of one region. `is_fenced`: as V3 writes them."""

    def __init__(self, opener: str, *, is_fenced: bool) -> None:
        self._is_fenced = is_fenced
        self._is_odd = opener == CALL  # the front of the region is missing
        self._where = _Where.FRONT if opener == CALL else _Where.OUTSIDE
        self._word: list[str] = []  # a name, or what is none
        self._kind = ""  # the word in front of the separator, if a name is to come
        self._fence = ""
        self._behind: list[str] = []  # the arguments
        self._body = JsonBody()
        self._rules: list[Rule] = []

    @property
    def is_junk(self) -> bool:
        word = "".join(self._word) if self._where in _BEFORE_NAME else ""
        return bool(word.strip()) and function_name(word) is None

    def quotes(self, _marker: str) -> bool:
        return self._where is _Where.BODY and self._body.in_string

    def text(self, text: str) -> Iterator[CallEvent]:
        if self._where is _Where.NAME:
            word, end, text = text.partition("\n")
            self._word.append(word)
            body = "".join(self._word).lstrip()
            if body.startswith("{") and self._kind != TRAINED_KIND:
                self._word, text = [self._kind], body + end + text
                yield from self._name(_Where.FENCE)
            elif end:
                yield from self._name(_Where.FENCE)
        if self._where is _Where.FENCE:
            text = self._behind_fence(text)
        if self._where is _Where.BODY:
            yield from self._in_body(text)
        elif self._where is _Where.JUNK or self._where in _BEFORE_NAME:
            self._word.append(text)

    def _behind_fence(self, text: str) -> str:
        front = self._fence + text
        fence = _FENCE_FRONT.match(front)
        assert fence is not None, "it may be empty"
        if fence.end() == len(front):
            self._fence = front
            return ""
        self._where = _Where.BODY
        if fence.group() != (TRAINED_FENCE if self._is_fenced else ""):
            self._rules.append(Rule.ODD_FRAME)
        return front[fence.end() :]

    def _in_body(self, text: str) -> Iterator[CallEvent]:
        events, rest = self._body.feed(text)
        yield from events
        self._behind.append(rest)

    def _name(self, following: _Where) -> Iterator[CallEvent]:
        name = function_name("".join(self._word))
        if name is None:
            self._where = _Where.JUNK
            return
        self._where, self._fence, self._behind, self._body = following, "", [], JsonBody()
        self._rules, self._is_odd = [Rule.ODD_FRAME] if self._is_odd else [], False
        yield Called(name)

    def mark(self, marker: str) -> Iterator[CallEvent]:
        if marker == SEPARATOR:
            word = "".join(self._word)
            is_outside = self._where is _Where.OUTSIDE
            if self._where in _OPEN:
                self._rules.append(Rule.MARKER_IN_BODY)
            elif self._where is _Where.FRONT or (is_outside and word.strip()):
                self._is_odd = self._is_odd or is_outside
                yield from self._separate(word)
            else:
                self._is_odd = True
            return
        yield from self._end_call(() if marker == CALL_END else (Rule.UNCLOSED_CALL,), cut=False)
        self._where = _Where.FRONT if marker == CALL else _Where.OUTSIDE
        if marker == CLOSING:
            yield Left()

    def _separate(self, word: str) -> Iterator[CallEvent]:
        if self._is_fenced or word.strip() == TRAINED_KIND:
            self._is_odd = self._is_odd or word != TRAINED_KIND or not self._is_fenced
            self._where, self._word, self._kind = _Where.NAME, [], word.strip()
        else:
            yield from self._name(_Where.FENCE)

    def _end_call(self, rules: tuple[Rule, ...], *, cut: bool) -> Iterator[CallEvent]:
        if self._where is _Where.NAME and not cut:
            yield from self._name(_Where.BODY)
        if self._where in _OPEN:
            yield from self._body.finish(*self._rules, *self._behind_body(), *rules, cut=cut)
        elif self._where is not _Where.OUTSIDE:
            yield no_call("" if cut else "".join(self._word).strip())
        elif "".join(self._word).strip():
            yield Noted(Rule.CALL_LEFTOVER)
        self._word = []

    def _behind_body(self) -> tuple[Rule, ...]:
        behind = "".join(self._behind)
        if behind.replace("`", "").strip():
            return (Rule.CALL_LEFTOVER,)
        is_odd = self._is_fenced and behind not in {"", TRAINED_END}
        return (Rule.ODD_FRAME,) if is_odd else ()

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        yield from self._end_call((Rule.UNCLOSED_CALL,), cut=cut)


_MARKERS: Final = (OPENING, CALL, SEPARATOR, CALL_END, CLOSING)

DEEPSEEK_V3: Final = CallSyntax(
    name="deepseek_v3",
    openers=(OPENING, CALL),
    markers=_MARKERS,
    reader=lambda opener, _schema_of: DeepSeekReader(opener, is_fenced=True),
    opened=(Mark(OPENING),),
    before_name=(Mark(CALL), TRAINED_KIND, Mark(SEPARATOR)),
    behind_name=("\n" + TRAINED_FENCE,),
    behind=(TRAINED_END, Mark(CALL_END)),
    between=("\n",),
    closed=(Mark(CLOSING),),
)
DEEPSEEK_V31: Final = CallSyntax(
    name="deepseek_v31",
    openers=(OPENING, CALL),
    markers=_MARKERS,
    reader=lambda opener, _schema_of: DeepSeekReader(opener, is_fenced=False),
    opened=(Mark(OPENING),),
    before_name=(Mark(CALL),),
    behind_name=(Mark(SEPARATOR),),
    behind=(Mark(CALL_END),),
    closed=(Mark(CLOSING),),
)
