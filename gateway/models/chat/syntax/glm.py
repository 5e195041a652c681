"""Calls of GLM-4.5 and its successors, with a tag for each key and each value:

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

These models leave out the tag in front of a key or of a value now and then, or write JSON in place
of the tags.

Source: the chat templates of GLM-4.5 to GLM-4.7; vLLM's parsers `glm45` and `glm47`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gateway.models.chat.call_syntax import (
    NAME_CHARS_MAX,
    Argued,
    Called,
    CallSyntax,
    Ended,
    Left,
    Mark,
    Rule,
    Tags,
    function_name,
    no_call,
)
from gateway.models.chat.syntax.json_call import JsonBody
from gateway.models.chat.syntax.tagged_arguments import ANY, TaggedArguments

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gateway.models.chat.call_syntax import CallEvent, SchemaOf

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
KEY: Final = "<arg_key>"
KEY_END: Final = "</arg_key>"
VALUE: Final = "<arg_value>"
VALUE_END: Final = "</arg_value>"


class _Where(Enum):
    NAME = auto()
    CALL = auto()  # between its arguments
    KEY = auto()
    BEHIND_KEY = auto()
    VALUE = auto()
    BODY = auto()  # of JSON
    JUNK = auto()  # no function is named


class GlmReader:
    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._where = _Where.NAME
        self._word: list[str] = []  # a name, a key, or what is none
        self._arguments = TaggedArguments({})
        self._body = JsonBody()
        self._quoted = 0  # calls that a value speaks of, and that are open
        self._rules: list[Rule] = []

    @property
    def is_junk(self) -> bool:
        words = "".join(self._word).split() if self._where is _Where.NAME else ()
        match words:
            case [name]:
                return function_name(name) is None
            case [name, _]:  # a key, whose tag is missing, behind a declared function
                return self._schema_of(name) is None
            case _:
                return bool(words)

    def quotes(self, marker: str) -> bool:
        if self._where is _Where.BODY:
            return self._body.in_string
        is_of_value = marker in {KEY, KEY_END, VALUE, VALUE_END}
        is_end = marker == CLOSING and not self._quoted
        return self._where is _Where.VALUE and not (is_of_value or is_end)

    def text(self, text: str) -> Iterator[CallEvent]:
        if self._where is _Where.NAME and "{" in text:
            text = yield from self._begin_body(text)
        if self._where is _Where.BODY:
            yield from self._in_body(text)
        elif self._where is _Where.VALUE:
            self._quoted += (text == OPENING) - (text == CLOSING)
            if json := self._arguments.text(text):
                yield Argued(json)
        elif self._where is _Where.BEHIND_KEY and text.strip():
            self._rules.append(Rule.ODD_FRAME)
            yield from self._begin_value()
            yield from self.text(text.lstrip())
        elif self._where not in {_Where.CALL, _Where.BEHIND_KEY}:
            self._word.append(text)
        elif text.strip():
            self._rules.append(Rule.CALL_LEFTOVER)

    def _begin_body(self, text: str) -> Generator[CallEvent, None, str]:
        # A brace behind a declared function begins its arguments.
        front, _, _ = text.partition("{")
        name = "".join((*self._word, front)).strip()
        if self._schema_of(name) is None:
            return text
        self._where, self._rules, self._body = _Where.BODY, [Rule.ODD_FRAME], JsonBody()
        yield Called(name)
        return text[len(front) :]

    def _in_body(self, text: str) -> Iterator[CallEvent]:
        events, rest = self._body.feed(text)
        yield from events
        if rest.strip():
            self._rules.append(Rule.CALL_LEFTOVER)

    def mark(self, marker: str) -> Iterator[CallEvent]:
        if self._where is _Where.NAME:
            yield from self._name(has_key=marker == KEY_END)
        if self._where is _Where.BODY and marker not in {OPENING, CLOSING}:
            self._rules.append(Rule.MARKER_IN_BODY)
        elif marker == VALUE:
            yield from self._begin_value()
        elif marker == VALUE_END and self._where is _Where.VALUE:
            yield from self._end_value()
        elif marker == KEY:
            yield from self._begin_key()
        elif marker == KEY_END and self._where is _Where.KEY:
            self._where = _Where.BEHIND_KEY
        elif marker not in {OPENING, CLOSING}:
            self._rules.append(Rule.MARKER_IN_BODY)
        else:
            yield from self._end_call(() if marker == CLOSING else (Rule.UNCLOSED_CALL,))
            self._where, self._word = _Where.NAME, []
            if marker == CLOSING:
                yield Left()

    def _name(self, *, has_key: bool = False) -> Iterator[CallEvent]:
        word, key = "".join(self._word).strip(), ""
        if has_key:
            word, key = self._name_and_key(word)
        name = function_name(word)
        if name is None:
            self._where = _Where.JUNK
            return
        self._where, self._word, self._rules = _Where.CALL, [], []
        if key:
            self._where, self._word, self._rules = _Where.KEY, [key], [Rule.ODD_FRAME]
        # Its template writes texts as they are, and any other value as JSON.
        self._arguments = TaggedArguments(self._schema_of(name) or {}, ANY)
        yield Called(name)

    def _name_and_key(self, word: str) -> tuple[str, str]:
        # The name of a function that is declared, and one word behind it: the tag is missing.
        for end in range(len(word) if len(word) <= NAME_CHARS_MAX else 0, 0, -1):
            name, key = word[:end], word[end:].strip()
            if len(key.split()) < 2 and self._schema_of(name) is not None:
                return name, key
        return word, ""

    def _begin_key(self) -> Iterator[CallEvent]:
        if self._where is _Where.VALUE:
            self._rules.append(Rule.UNCLOSED_PARAMETER)
            yield from self._end_value()
        if self._where in {_Where.KEY, _Where.BEHIND_KEY}:
            self._rules.append(Rule.UNCLOSED_TAG)
        if self._where is not _Where.JUNK:
            self._where, self._word = _Where.KEY, []

    def _begin_value(self) -> Iterator[CallEvent]:
        if self._where is _Where.KEY:
            self._rules.append(Rule.UNCLOSED_TAG)
        elif self._where is not _Where.BEHIND_KEY:
            self._rules.append(Rule.MARKER_IN_BODY)
        if self._where in {_Where.KEY, _Where.BEHIND_KEY}:
            self._where, self._quoted = _Where.VALUE, 0
            yield Argued(self._arguments.begin("".join(self._word).strip()))

    def _end_value(self) -> Iterator[CallEvent]:
        self._where = _Where.CALL
        yield Argued(self._arguments.end())

    def _end_call(self, rules: tuple[Rule, ...]) -> Iterator[CallEvent]:
        if self._where is _Where.JUNK:
            yield no_call("".join(self._word).strip())
            return
        if self._where is _Where.BODY:
            yield from self._body.finish(*self._rules, *rules, cut=False)
            return
        if self._where is _Where.VALUE:
            self._rules.append(Rule.UNCLOSED_PARAMETER)
            yield from self._end_value()
        elif self._where is not _Where.CALL:
            self._rules.append(Rule.UNCLOSED_TAG)
        yield Argued(self._arguments.finish())
        yield Ended(rules=(*self._rules, *rules))

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        if self._where is _Where.NAME and not cut:
            yield from self._name()
        is_call = self._where not in {_Where.NAME, _Where.JUNK}
        if self._where is _Where.BODY:
            yield from self._body.finish(*self._rules, Rule.UNCLOSED_CALL, cut=cut)
        elif is_call and (cut or self._where is not _Where.CALL):
            yield Ended(broken=True, rules=tuple(self._rules))
        elif not cut:
            yield from self._end_call((Rule.UNCLOSED_CALL,))


GLM: Final = CallSyntax(
    name="glm",
    openers=(OPENING,),
    markers=(OPENING, KEY, KEY_END, VALUE, VALUE_END, CLOSING),
    reader=lambda _opener, schema_of: GlmReader(schema_of),
    before_name=(Mark(OPENING),),
    behind_name=("\n",),
    behind=(Mark(CLOSING),),
    between=("\n",),
    tags=Tags((Mark(KEY),), (Mark(KEY_END), "\n", Mark(VALUE)), (Mark(VALUE_END), "\n")),
)
