"""Arguments of a call, while they come: one JSON value.

Models also put it in a code fence, add a bracket, write it twice, or nothing, or no JSON. A
possible fence is held until it is clear whether a value follows. Text flows up to the end of the
first complete value; text behind it is held until the message is over. Whitespace, exact repeats,
and brackets and quotes that close nothing are dropped there, anything else is passed on. Control
characters in the strings of the value, such as line breaks, become escapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, auto

from gateway.models.harmony.recovery import Rule
from gateway.models.json_values import ValueScanner, escaped, is_json

_NOT_SPACE = re.compile(r"\S")
_FENCE = re.compile(r"`{1,4}[A-Za-z]{0,16}\s*")
_FENCE_MAX = 64
"""More characters before the value are no fence."""
_CLOSERS = frozenset("}])>`\"';,")


class _Phase(Enum):
    BLANK = auto()  # whitespace only, so far
    VALUE = auto()  # inside of the first value
    AFTER = auto()  # the first value is complete and valid
    RAW = auto()  # not JSON: everything flows


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Last piece, and the rules that applied. `is_broken`: the arguments end within a value."""

    text: str
    is_json: bool
    rules: tuple[Rule, ...]
    is_broken: bool = False


class Arguments:
    def __init__(self) -> None:
        self._phase = _Phase.BLANK
        self._held = ""
        self._value = bytearray()  # UTF-8: a list of short texts takes ten times as much.
        self._scanner = ValueScanner()
        self._tail: list[str] = []
        self._padded = False
        self._fenced = False
        self._escapes = False

    def feed(self, text: str) -> str:
        if self._phase is _Phase.BLANK:
            text = self._begin(text)
        if self._phase is _Phase.VALUE:
            return self._scan(text)
        if self._phase is _Phase.AFTER:
            self._tail.append(text)
            return ""
        return text

    def finish(self) -> Conclusion:
        conclusion = self._conclude()
        if not self._escapes:
            return conclusion
        return replace(conclusion, rules=(*conclusion.rules, Rule.CONTROL_CHARACTER))

    def _conclude(self) -> Conclusion:
        if self._phase is _Phase.BLANK and not self._fenced:
            return Conclusion("{}", is_json=True, rules=(Rule.EMPTY_ARGUMENTS,))
        if self._phase is not _Phase.AFTER:
            is_broken = self._phase is _Phase.VALUE
            rules = (Rule.INVALID_ARGUMENTS,)
            return Conclusion(self._held, is_json=False, rules=rules, is_broken=is_broken)
        tail = "".join(self._tail)
        if (rules_of_tail := self._rules_of(tail)) is None:
            return Conclusion(tail, is_json=False, rules=(Rule.INVALID_ARGUMENTS,))
        return Conclusion("", is_json=True, rules=rules_of_tail)

    def _rules_of(self, tail: str) -> tuple[Rule, ...] | None:
        # None if the text must be passed on.
        fenced = (Rule.FENCED_ARGUMENTS,) if self._fenced else ()
        if not tail.strip():
            is_padded = (self._padded or bool(tail)) and not fenced
            return (Rule.PADDED_ARGUMENTS,) if is_padded else fenced
        if _only_repeats(tail, self._value.decode()):
            return (*fenced, Rule.REPEATED_ARGUMENTS)
        behind = tail.strip().strip("`").strip() if fenced else tail
        if not behind:
            return fenced
        closes = all(mark in _CLOSERS or mark.isspace() for mark in behind)
        return (*fenced, Rule.STRAY_CLOSER) if closes else None

    def _begin(self, text: str) -> str:
        # Whitespace or the front of a code fence may precede the value.
        if not self._fenced:
            rest = text.lstrip()
            if not rest:
                self._held += text
                return ""
            if rest[0] != "`":
                return self._begin_value(text, rest)
            self._fenced = True
        held, self._held = self._held + text, ""
        return self._begin_fenced(held)

    def _begin_fenced(self, text: str) -> str:
        fence = _FENCE.match(text.lstrip())
        assert fence is not None, "it begins with a backtick"
        rest = text.lstrip()[fence.end() :]
        is_fence = fence.end() <= _FENCE_MAX
        if is_fence and not rest:
            self._held = text
            return ""
        self._fenced = is_fence and rest[0] in "{["
        return self._begin_value(text, rest if self._fenced else text)

    def _begin_value(self, text: str, rest: str) -> str:
        if rest[0] not in '{["':
            self._phase = _Phase.RAW
            held, self._held = self._held, ""
            return held + text
        self._padded = bool(self._held) or rest != text
        self._held = ""
        self._phase = _Phase.VALUE
        return rest

    def _scan(self, text: str) -> str:
        end = self._scanner.end(text)
        value, rest = (text, "") if end is None else (text[:end], text[end:])
        self._value += value.encode()
        if self._scanner.controls:
            self._escapes = True
            value = escaped(value, self._scanner.controls)
        if end is None:
            return value
        if not is_json(self._value.decode(), self._scanner.deepest):
            self._phase = _Phase.RAW
            return value + rest
        self._phase = _Phase.AFTER
        self._tail.append(rest)
        return value


def is_object(text: str) -> bool:
    """Return True if arguments are a JSON object, or can be made one."""
    arguments = Arguments()
    arguments.feed(text)
    return text.lstrip().startswith("{") and arguments.finish().is_json


def _only_repeats(tail: str, value: str) -> bool:
    at = 0
    while match := _NOT_SPACE.search(tail, at):
        at = match.start()
        if not tail.startswith(value, at):
            return False
        at += len(value)
    return True
