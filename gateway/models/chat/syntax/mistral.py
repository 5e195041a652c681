"""Calls of Mistral's models. Since version 11 of their tokenizers, one for each marker:

    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}

also with an id between `[CALL_ID]` and `[ARGS]`, or without `[ARGS]`; before that, a list:

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]

Source: mistral-common; the chat templates of these models; vLLM's and SGLang's parser `mistral`.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, Final

from gateway.models.chat.call_syntax import (
    NAME_CHARS_MAX,
    Called,
    CallSyntax,
    Left,
    Mark,
    Noted,
    Rule,
    function_name,
    no_call,
)
from gateway.models.chat.syntax.json_call import JsonBody, JsonCall
from gateway.models.json_values import WHITE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.models.chat.call_syntax import CallEvent

Step = Generator["CallEvent", None, str]

OPENING: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
CLOSING: Final = "[/TOOL_CALLS]"
"""No template has it, but models write it behind a call."""


class _Where(Enum):
    FRONT = auto()  # before the arguments, or a list
    ID = auto()  # whose text says nothing
    BODY = auto()
    LIST = auto()  # between its objects
    OBJECT = auto()
    BEHIND = auto()  # behind all of that
    JUNK = auto()  # no function is named


class MistralReader:
    def __init__(self) -> None:
        self._where = _Where.FRONT
        self._word = ""
        self._junk: list[str] = []
        self._is_list = self._has_object = self._is_behind_object = False
        self._body = JsonBody()
        self._call = JsonCall()
        self._rules: list[Rule] = []

    @property
    def is_junk(self) -> bool:
        word = self._word if self._where is _Where.FRONT else ""
        is_word = bool(word.strip()) and function_name(word) is None
        return is_word or self._where is _Where.JUNK

    def quotes(self, _marker: str) -> bool:
        if self._where is _Where.BODY:
            return self._body.in_string
        return self._where is _Where.OBJECT and self._call.in_string

    def text(self, text: str) -> Iterator[CallEvent]:
        while text:
            if self._where is _Where.BEHIND and text.strip():
                yield Left(text)
            if self._where is _Where.JUNK:
                self._junk.append(text)
            if self._where not in self._STEPS:
                return
            text = yield from self._STEPS[self._where](self, text)

    # Each takes text from the front, and returns the rest.

    def _in_front(self, text: str) -> Step:
        self._word = (self._word + text).lstrip()
        front, brace, body = self._word.partition("{")
        if self._word.startswith("["):
            rest, self._word = self._word[1:], ""
            self._where, self._is_list = _Where.LIST, True
            self._has_object = self._is_behind_object = False
            return rest
        if brace and not front:
            yield Noted(Rule.ODD_FRAME)
            self._where, self._word, self._call = _Where.OBJECT, "", JsonCall()
            return brace + body
        if brace or len(front) > NAME_CHARS_MAX:
            yield from self._name(front, _Where.BODY)
            return "" if self._where is _Where.JUNK else brace + body
        return ""

    def _name(self, word: str, following: _Where) -> Iterator[CallEvent]:
        name = function_name(word)
        if name is None:
            self._where, self._junk = _Where.JUNK, [self._word]
            return
        self._where, self._word, self._body, self._rules = following, "", JsonBody(), []
        yield Called(name)

    def _in_body(self, text: str) -> Step:
        events, rest = self._body.feed(text)
        yield from events
        if self._body.is_over:
            yield from self._body.finish(*self._rules, cut=False)
            self._where = _Where.BEHIND
        return rest

    def _in_object(self, text: str) -> Step:
        events, rest = self._call.feed(text)
        yield from events
        if self._call.is_over:
            yield from self._call.finish(cut=False)
            self._where = _Where.LIST if self._is_list else _Where.BEHIND
            self._has_object = self._is_behind_object = True
        return rest

    def _in_list(self, text: str) -> Step:
        rest = text.lstrip(WHITE)
        if rest.startswith("{"):
            if self._is_behind_object:
                yield Noted(Rule.SLOPPY_JSON)
            self._where, self._call = _Where.OBJECT, JsonCall()
            return rest
        if rest.startswith(","):
            if not self._is_behind_object:
                yield Noted(Rule.SLOPPY_JSON)
            self._is_behind_object = False
            return rest[1:]
        if rest.startswith("]"):
            if not self._has_object:
                yield Noted(Rule.ABANDONED_CALL)
            self._where = _Where.BEHIND
            return rest[1:]
        if rest:
            self._where, self._junk = _Where.JUNK, []
            return rest
        return ""

    _STEPS: ClassVar[Mapping[_Where, Callable[[MistralReader, str], Step]]] = {
        _Where.FRONT: _in_front,
        _Where.BODY: _in_body,
        _Where.LIST: _in_list,
        _Where.OBJECT: _in_object,
    }

    def mark(self, marker: str) -> Iterator[CallEvent]:
        if marker == OPENING:
            yield from self._end(cut=False)
            self._where, self._word, self._is_list = _Where.FRONT, "", False
        elif self._where is _Where.FRONT:
            yield from self._name(self._word, _Where.BODY if marker == ARGUMENTS else _Where.ID)
        elif self._where is _Where.ID and marker == ARGUMENTS:
            self._where = _Where.BODY
        elif self._where in {_Where.BODY, _Where.ID}:
            self._rules.append(Rule.MARKER_IN_BODY)
        else:
            yield Noted(Rule.MARKER_IN_BODY)

    def _end(self, *, cut: bool) -> Iterator[CallEvent]:
        if self._where in {_Where.BODY, _Where.ID}:
            yield from self._body.finish(*self._rules, cut=cut)
        elif self._where is _Where.OBJECT:
            yield from self._call.finish(cut=cut)
        elif self._where is _Where.LIST:
            yield Noted(Rule.UNCLOSED_CALL)
        elif self._where in {_Where.FRONT, _Where.JUNK}:
            junk = [self._word] if self._where is _Where.FRONT else self._junk
            yield no_call("" if cut else "".join(junk).strip())

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        yield from self._end(cut=cut)


_MARKERS: Final = (OPENING, ARGUMENTS, CALL_ID, CLOSING)

MISTRAL: Final = CallSyntax(
    name="mistral",
    openers=(OPENING,),
    markers=_MARKERS,
    reader=lambda _opener, _schema_of: MistralReader(),
    before_name=(Mark(OPENING),),
    behind_name=(Mark(ARGUMENTS),),
    behind=(),
)
MISTRAL_V3: Final = CallSyntax(
    name="mistral_v3",
    openers=(OPENING,),
    markers=_MARKERS,
    reader=lambda _opener, _schema_of: MistralReader(),
    opened=(Mark(OPENING), "["),
    before_name=('{"name": "',),
    behind_name=('", "arguments": ',),
    behind=("}",),
    between=(", ",),
    closed=("]",),
)
