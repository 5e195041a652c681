"""Calls as JSON, read as they come: `{"name": ..., "arguments": {...}}` (`JsonCall`), or the
arguments alone of a call that is named outside of its JSON (`JsonBody`).

Arguments stream once the name was read.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, Final

from gateway.models.chat.call_syntax import (
    Argued,
    Called,
    Ended,
    Rule,
    Unnamed,
    function_name,
    no_call,
)
from gateway.models.json_values import (
    WHITE,
    ValueScanner,
    escaped,
    is_json,
    string_in,
    with_escapes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.models.chat.call_syntax import CallEvent


class ArgumentsReader:
    """Value of the arguments: an object flows, a string is decoded, nothing at all is `{}`."""

    __slots__ = ("_begin", "_rules", "_scanner", "_text", "is_over")

    def __init__(self) -> None:
        self._scanner = ValueScanner()
        self._text: list[str] = []
        self._begin = ""
        self._rules: tuple[Rule, ...] = ()
        self.is_over = False

    @property
    def is_begun(self) -> bool:
        return bool(self._begin)

    @property
    def in_string(self) -> bool:
        return self._scanner.in_string

    @property
    def is_open(self) -> bool:
        # The end of a number can be guessed; that of these cannot.
        return not self.is_over and self._begin in {"", '"', "{", "["}

    @property
    def flows(self) -> bool:
        return self._begin in {"{", "["}

    def feed(self, text: str) -> tuple[str, str]:
        """Return text that can go out now, and the text behind a value that is over.

        White space in front of the value must not be fed.
        """
        self._begin = self._begin or text[0]
        end = self._scanner.end(text)
        self.is_over = end is not None
        mine, rest = (text, "") if end is None else (text[:end], text[end:])
        if self._scanner.controls and self.flows:
            mine, self._rules = escaped(mine, self._scanner.controls), (Rule.CONTROL_CHARACTER,)
        self._text.append(mine)
        return (mine if self.flows else ""), rest

    def finish(self) -> tuple[str, tuple[Rule, ...]]:
        text = "".join(self._text)
        if self.flows:
            whole = is_json(text, self._scanner.deepest)
            return "", self._rules if whole else (*self._rules, Rule.INVALID_ARGUMENTS)
        if text.strip() in {"", "null", '""'}:
            return "{}", (Rule.EMPTY_ARGUMENTS,)
        if (decoded := string_in(text)) is not None:
            written = with_escapes(decoded)
            rules = () if written == decoded else (Rule.CONTROL_CHARACTER,)
            return written, (Rule.QUOTED_ARGUMENTS, *rules)
        return text, (Rule.INVALID_ARGUMENTS,)


class _Phase(Enum):
    BEFORE = auto()  # the object has not begun
    FIRST_KEY = auto()  # in front of a key, or of the end
    KEY = auto()  # behind a comma
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()  # in front of a value
    IN_VALUE = auto()
    BEHIND = auto()  # behind a value
    OVER = auto()
    JUNK = auto()  # no such object

    # A key of the table: the hash of an Enum is made in Python, from its name.
    __hash__ = object.__hash__


_KEY_SIGNS: Final = {'"': _Phase.IN_KEY, ",": _Phase.KEY, "}": _Phase.OVER}
_SIGNS: Final[Mapping[_Phase, Mapping[str, _Phase]]] = {
    _Phase.BEFORE: {"{": _Phase.FIRST_KEY},
    _Phase.FIRST_KEY: _KEY_SIGNS,
    _Phase.KEY: _KEY_SIGNS,
    _Phase.COLON: {":": _Phase.VALUE},
    _Phase.BEHIND: {",": _Phase.KEY, "}": _Phase.OVER},
}
"""Signs that may come in each phase, and the phases that follow."""
_ARGUMENTS: Final = frozenset({"arguments", "parameters", "args"})
CALL_KEYS: Final = _ARGUMENTS | {"type", "id", "function", "name"}
_NAMING: Final = "function="
"""Begins a key without a value: Qwen3.5 mixes its tags with JSON, as in `{"function=f", …}`."""


class JsonCall:
    __slots__ = (
        "_arguments", "_is_nested", "_is_sloppy", "_junk", "_key", "_phase", "_raw", "_scanner",
        "_token", "_waiting", "is_reported", "keys", "name",
    )  # fmt: skip

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_reported = False
        self.keys: list[str] = []
        self._phase = _Phase.BEFORE
        self._raw: list[str] = []
        self._token: list[str] = []
        self._key = ""
        self._scanner = ValueScanner()
        self._arguments: ArgumentsReader | None = None
        self._waiting: list[str] = []
        self._junk: list[str] = []
        self._is_sloppy = False
        self._is_nested = False  # as in `{"function": {"name": ...}}` or `{{"name": ...}}`

    @property
    def is_over(self) -> bool:
        return self._phase is _Phase.OVER

    @property
    def is_junk(self) -> bool:
        return self._phase is _Phase.JUNK and self.name is None

    @property
    def in_string(self) -> bool:
        if self._phase is _Phase.IN_VALUE and self._arguments and not self._arguments.is_over:
            return self._arguments.in_string
        return self._phase in {_Phase.IN_KEY, _Phase.IN_VALUE} and self._scanner.in_string

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, text: str) -> tuple[list[CallEvent], str]:
        """Return the events of more text, and the text behind the object."""
        events: list[CallEvent] = []
        rest = text
        while rest and self._phase is not _Phase.OVER:
            rest = self._STEPS[self._phase](self, rest, events)
        if not self.is_reported:
            self._raw.append(text[: len(text) - len(rest)])
        return events, rest

    # Each step takes text from the front, and returns the rest.

    def _before_key(self, text: str, events: list[CallEvent]) -> str:
        front = text.lstrip(WHITE)
        sign = front[:1]
        if sign == "{" and self._phase is _Phase.FIRST_KEY and not self._is_nested:
            return self._nest(front)
        if sign == "," or (sign == "}" and self._phase is _Phase.KEY):
            self._is_sloppy = True
        rest = self._at_sign(text, events)
        if self._phase is _Phase.IN_KEY:
            self._scanner, self._token = ValueScanner(), []
            self._scanner.end('"')
        return rest

    def _in_key(self, text: str, _: list[CallEvent]) -> str:
        end = self._scanner.end(text)
        self._token.append(text[:end])
        if end is None:
            return ""
        self._key = string_in('"' + "".join(self._token)) or ""
        self._is_sloppy = self._is_sloppy or self._key in self.keys
        self.keys.append(self._key)
        self._phase = _Phase.COLON
        return text[end:]

    def _behind_key(self, text: str, events: list[CallEvent]) -> str:
        is_naming = self.name is None and self._key.startswith(_NAMING)
        if is_naming and text.lstrip(WHITE)[:1] in {",", "}"}:
            self._name(self._key.removeprefix(_NAMING), events)
            self._phase, self._is_sloppy = _Phase.BEHIND, True
        return self._at_sign(text, events)

    def _before_value(self, text: str, events: list[CallEvent]) -> str:
        rest = text.lstrip(WHITE)
        if not rest:
            return ""
        if rest[0] in ",}]:":
            return self._spoil(rest)
        if rest[0] == "{" and self._key == "function" and not self.name:
            return self._nest(rest)
        self._phase = _Phase.IN_VALUE
        self._scanner, self._token = ValueScanner(), []
        if self._key in _ARGUMENTS and self._arguments is None:
            self._arguments = ArgumentsReader()
            if self.name is None:
                events.append(Unnamed())
        return rest

    def _nest(self, rest: str) -> str:
        self._phase, self._is_nested, self._is_sloppy = _Phase.FIRST_KEY, True, True
        return rest[1:]

    def _in_value(self, text: str, events: list[CallEvent]) -> str:
        if self._arguments is not None and not self._arguments.is_over:
            return self._in_arguments(self._arguments, text, events)
        end = self._scanner.end(text)
        self._token.append(text[:end])
        if end is None:
            return ""
        self._phase = _Phase.BEHIND
        if self._key == "name" and self.name is None:
            self._name(string_in("".join(self._token)) or "", events)
        return text[end:]

    def _name(self, written: str, events: list[CallEvent]) -> None:
        self.name = function_name(written)
        self._is_sloppy = self._is_sloppy or written != written.strip()
        self._tell(events)

    def _in_arguments(self, arguments: ArgumentsReader, text: str, events: list[CallEvent]) -> str:
        ready, rest = arguments.feed(text)
        if arguments.is_over:
            self._phase = _Phase.BEHIND
        if not self.is_reported:
            self._waiting.append(ready)
            self._tell(events)
        elif ready:
            events.append(Argued(ready))
        return rest

    def _tell(self, events: list[CallEvent]) -> None:
        if self.name is None or self._arguments is None or not self._arguments.is_begun:
            return
        self.is_reported, self._raw = True, []
        events.append(Called(self.name))
        if waiting := "".join(self._waiting):
            events.append(Argued(waiting))
        self._waiting = []

    def _in_junk(self, text: str, _: list[CallEvent]) -> str:
        self._junk.append(text)
        return ""

    def _at_sign(self, text: str, _: list[CallEvent]) -> str:
        # Any other sign than those of the phase spoils the object.
        rest = text.lstrip(WHITE)
        if not rest:
            return ""
        following = _SIGNS[self._phase].get(rest[0])
        if following is None:
            return self._spoil(rest)
        self._phase = following
        if following is _Phase.OVER and self._is_nested:
            self._phase, self._is_nested = _Phase.BEHIND, False
        return rest[1:]

    def _spoil(self, rest: str) -> str:
        self._phase = _Phase.JUNK
        return rest

    _STEPS: ClassVar[Mapping[_Phase, Callable[[JsonCall, str, list[CallEvent]], str]]] = {
        _Phase.BEFORE: _at_sign,
        _Phase.FIRST_KEY: _before_key,
        _Phase.KEY: _before_key,
        _Phase.IN_KEY: _in_key,
        _Phase.COLON: _behind_key,
        _Phase.VALUE: _before_value,
        _Phase.IN_VALUE: _in_value,
        _Phase.BEHIND: _at_sign,
        _Phase.JUNK: _in_junk,
    }

    def finish(self, *, cut: bool) -> Iterator[CallEvent]:
        if self.name is None:
            yield no_call("" if cut and not self.is_over else self.raw.strip())
            return
        if not self.is_reported:
            yield Called(self.name)
        if self._arguments is None:
            yield from self._without_arguments(cut=cut)
        else:
            yield from self._with_arguments(self._arguments)

    def _without_arguments(self, *, cut: bool) -> Iterator[CallEvent]:
        junk = "".join(self._junk)
        if cut and not self.is_over:
            yield Ended(broken=True)
        elif junk.strip():
            yield Argued(junk)
            yield Ended(rules=(Rule.INVALID_ARGUMENTS,))
        else:
            yield Argued("{}")
            yield Ended(rules=(Rule.EMPTY_ARGUMENTS,))

    def _with_arguments(self, arguments: ArgumentsReader) -> Iterator[CallEvent]:
        if arguments.is_open:
            yield Ended(broken=True)
            return
        text, rules = arguments.finish()
        if text:
            yield Argued(text)
        if "".join(self._junk).strip():
            rules = (*rules, Rule.CALL_LEFTOVER)
        elif not self.is_over:
            rules = (*rules, Rule.UNCLOSED_JSON)
        elif self._is_sloppy:
            rules = (*rules, Rule.SLOPPY_JSON)
        yield Ended(rules=rules)


class JsonBody:
    """Reader of the arguments. It passes on text that is no JSON unchanged."""

    def __init__(self) -> None:
        self._value: ArgumentsReader | None = None
        self._raw: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._value is not None and self._value.is_over

    @property
    def in_string(self) -> bool:
        return self._value is not None and self._value.in_string

    def feed(self, text: str) -> tuple[list[CallEvent], str]:
        if self.is_over:
            return [], text
        if self._value is None:
            text = text if self._raw else text.lstrip(WHITE)
            if self._raw or (text and text[0] not in '{["'):
                self._raw.append(text)
                return [], ""
            if not text:
                return [], ""
            self._value = ArgumentsReader()
        ready, rest = self._value.feed(text)
        return ([Argued(ready)] if ready else []), rest

    def finish(self, *rules: Rule, cut: bool) -> Iterator[CallEvent]:
        value, raw = self._value, "".join(self._raw).strip()
        is_missing = value is None and not raw and cut
        if is_missing or (value is not None and not value.is_over):
            yield Ended(broken=True)
        elif value is not None:
            text, own_rules = value.finish()
            yield from [Argued(text)] if text else []
            yield Ended(rules=(*own_rules, *rules))
        else:
            is_empty = raw in {"", "null"}
            yield Argued("{}" if is_empty else raw)
            rule = Rule.EMPTY_ARGUMENTS if is_empty else Rule.INVALID_ARGUMENTS
            yield Ended(broken=cut and not is_empty, rules=(rule, *rules))
