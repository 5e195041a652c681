"""Calls of Qwen3-Coder and Qwen3.5, with a tag for each parameter:

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

The line breaks next to the tags of a parameter are not part of its value. A call without the outer
markers is one, too, if another tag follows that of its function: else text speaks of such a tag.
JSON in place of the parameters is the arguments.

Source: the chat template of Qwen3-Coder; vLLM's and SGLang's parser `qwen3_coder`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gateway.models.chat.call_syntax import (
    QUOTES,
    Argued,
    Called,
    CallSyntax,
    Ended,
    Left,
    Mark,
    Noted,
    Rule,
    Tags,
    function_name,
    no_call,
)
from gateway.models.chat.syntax.json_call import JsonBody
from gateway.models.chat.syntax.tagged_arguments import TaggedArguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.call_syntax import CallEvent, SchemaOf

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
PARAMETER: Final = "<parameter="
PARAMETER_END: Final = "</parameter>"


_CLOSING_TAGS: Final = re.compile(r"(?:</\w+>\s*)+")
"""They close nothing; models write them behind a call."""


class _Where(Enum):
    OUTSIDE = auto()  # of a function
    NAME = auto()
    FUNCTION = auto()  # between its parameters
    KEY = auto()
    VALUE = auto()
    BODY = auto()  # of JSON


_OPEN: Final = frozenset({_Where.FUNCTION, _Where.KEY, _Where.VALUE, _Where.BODY})


class Qwen3CoderReader:
    def __init__(self, opener: str, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._is_wrapped = opener == OPENING
        self._has_called = self._has_text = False
        self._where = _Where.OUTSIDE if self._is_wrapped else _Where.NAME
        self._word: list[str] = []  # of a tag that is not complete
        self._arguments = TaggedArguments({})
        self._has_parameter = False
        self._body = JsonBody()
        self._named = ""  # the function of what may be a call without outer markers
        self._quoted = 0  # calls that a value speaks of, and that are open
        self._value = ""  # a line break that may be in front of a tag
        self._is_front = False
        self._stray: list[str] = []
        self._rules: list[Rule] = []

    @property
    def is_junk(self) -> bool:
        if self._where is _Where.NAME:
            word = "".join(self._word)
            return bool(word.strip()) and function_name(word) is None
        is_stray = any(map(str.strip, self._stray))
        return self._where is _Where.OUTSIDE and not self._has_called and is_stray

    def quotes(self, marker: str) -> bool:
        if self._where is _Where.BODY:
            return self._body.in_string
        if self._where is not _Where.VALUE or marker in {PARAMETER, PARAMETER_END, FUNCTION_END}:
            return False
        return marker != CLOSING or self._quoted > 0

    # Text.

    def text(self, text: str) -> Iterator[CallEvent]:
        if self._where in {_Where.NAME, _Where.KEY}:
            word, end, text = text.partition(">")
            self._word.append(word)
            if end:
                yield from self._close_tag()
        if not text:
            return
        if self._where is _Where.VALUE:
            yield from self._in_value(text)
        elif self._where is _Where.FUNCTION:
            yield from self._between(text)
        elif self._where is _Where.BODY:
            yield from self._in_body(text)
        else:
            yield from self._outside(text)

    def _outside(self, text: str) -> Iterator[CallEvent]:
        if self._has_called and not self._is_wrapped and text.strip():
            yield Left(text)
        else:
            self._stray.append(text)

    def _close_tag(self) -> Iterator[CallEvent]:
        word, self._word = "".join(self._word), []
        if self._where is _Where.KEY:
            self._where, self._is_front, self._value = _Where.VALUE, True, ""
            yield Argued(self._arguments.begin(word.strip().strip(QUOTES)))
        elif (name := function_name(word)) is None:
            self._where = _Where.OUTSIDE
            self._stray.append(word)
        else:
            self._where, self._rules, self._named = _Where.FUNCTION, [], name
            self._arguments = TaggedArguments(self._schema_of(name) or {})
            self._has_parameter = False
            if self._is_wrapped or self._has_called:
                yield from self._begin_call()

    def _begin_call(self) -> Iterator[CallEvent]:
        if self._named:
            self._has_called = True
            yield Called(self._named)
            self._named = ""

    def _in_value(self, text: str) -> Iterator[CallEvent]:
        self._quoted += (text == OPENING) - (text == CLOSING)
        if self._is_front:
            self._is_front = False
            text = text.removeprefix("\n")
        text = self._value + text
        self._value = "\n" if text.endswith("\n") else ""
        if json := self._arguments.text(text.removesuffix("\n")):
            yield Argued(json)

    def _between(self, text: str) -> Iterator[CallEvent]:
        is_json = not self._has_parameter and text.lstrip().startswith("{")
        if is_json and (not self._named or self._schema_of(self._named) is not None):
            yield from self._begin_call()
            self._where, self._body = _Where.BODY, JsonBody()
            self._rules.append(Rule.ODD_FRAME)
            yield from self._in_body(text)
        elif text.strip() and self._named:
            self._leave_tag()
            self._stray.append(text)
        elif text.strip():
            self._rules.append(Rule.CALL_LEFTOVER)

    def _in_body(self, text: str) -> Iterator[CallEvent]:
        events, rest = self._body.feed(text)
        yield from events
        if rest.strip():
            self._rules.append(Rule.CALL_LEFTOVER)

    def _leave_tag(self) -> None:
        # It begins no call.
        self._where = _Where.OUTSIDE
        self._stray.append(f"{FUNCTION}{self._named}>")
        self._named = ""

    # Markers.

    def mark(self, marker: str) -> Iterator[CallEvent]:
        if marker == PARAMETER:
            yield from self._at_parameter()
        elif marker == PARAMETER_END:
            if self._where is _Where.VALUE:
                yield from self._end_value()
            else:
                self._rules.append(Rule.MARKER_IN_BODY)
        else:
            yield from self._at_end(marker)

    def _at_parameter(self) -> Iterator[CallEvent]:
        if self._where is _Where.NAME:  # whose tag was not closed
            yield from self._close_tag()
            self._rules.append(Rule.UNCLOSED_TAG)
        if self._where is _Where.KEY:
            self._rules.append(Rule.UNCLOSED_TAG)
        if self._where is _Where.VALUE:
            self._rules.append(Rule.UNCLOSED_PARAMETER)
            yield from self._end_value()
        if self._where is _Where.BODY:
            self._rules.append(Rule.MARKER_IN_BODY)
        elif self._where in _OPEN:
            yield from self._begin_call()
            self._where, self._word, self._has_parameter = _Where.KEY, [], True

    def _end_value(self) -> Iterator[CallEvent]:
        self._where = _Where.FUNCTION
        yield Argued(self._arguments.end())

    def _at_end(self, marker: str) -> Iterator[CallEvent]:
        if self._where is _Where.NAME and marker in {FUNCTION_END, CLOSING}:
            yield from self._close_tag()
            self._rules.append(Rule.UNCLOSED_TAG)
        elif self._where is _Where.NAME:
            yield Noted(Rule.ABANDONED_CALL)
        if self._where in _OPEN:
            rules = () if marker == FUNCTION_END else (Rule.UNCLOSED_CALL,)
            yield from self._end_call(*rules)
        if marker == CLOSING:
            yield from self._end_stray()
            yield Left()
        else:
            if "".join(self._stray).strip():
                yield from self._end_stray()
            self._where = _Where.NAME if marker == FUNCTION else _Where.OUTSIDE
            self._word, self._stray = [], []

    def _end_call(self, *rules: Rule) -> Iterator[CallEvent]:
        yield from self._begin_call()
        if self._where is _Where.VALUE:
            self._rules.append(Rule.UNCLOSED_PARAMETER)
            yield from self._end_value()
        elif self._where is _Where.KEY:
            self._rules.append(Rule.UNCLOSED_TAG)
        if self._where is _Where.BODY:
            yield from self._body.finish(*self._rules, *rules, cut=False)
        else:
            yield Argued(self._arguments.finish())
            yield Ended(rules=(*self._rules, *rules))
        self._where = _Where.OUTSIDE

    def _end_stray(self) -> Iterator[CallEvent]:
        stray, self._stray = "".join(self._stray).strip(), []
        if stray and self._has_called and _CLOSING_TAGS.fullmatch(stray):
            yield Noted(Rule.CALL_LEFTOVER)
        elif stray or not (self._has_called or self._has_text):
            self._has_text = True
            yield no_call(stray)

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        if self._named:
            self._leave_tag()
        if self._where is _Where.BODY:
            yield from self._body.finish(*self._rules, Rule.UNCLOSED_CALL, cut=cut)
        elif self._where in _OPEN and (cut or self._where is not _Where.FUNCTION):
            yield Ended(broken=True, rules=tuple(self._rules))
        elif self._where in _OPEN:
            yield from self._end_call(Rule.UNCLOSED_CALL)
        elif not cut:
            self._stray += self._word
            yield from self._end_stray()


QWEN3_CODER: Final = CallSyntax(
    name="qwen3_coder",
    openers=(OPENING, FUNCTION),
    markers=(OPENING, FUNCTION, PARAMETER, PARAMETER_END, FUNCTION_END, CLOSING),
    reader=Qwen3CoderReader,
    before_name=(Mark(OPENING), "\n", Mark(FUNCTION)),
    behind_name=(">\n",),
    behind=(Mark(FUNCTION_END), "\n", Mark(CLOSING)),
    between=("\n",),
    tags=Tags((Mark(PARAMETER),), (">\n",), ("\n", Mark(PARAMETER_END), "\n")),
)
