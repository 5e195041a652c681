"""Turns that no well-meant script says: see `directives`."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.vocabulary import END, RETURN
from gateway.simulator.turns import ANALYSIS, CALL_PREFIX, COMMENTARY, FINAL, script_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.simulator.scripting.writer import ScriptWriter
    from gateway.simulator.turns import Part, Script

JUNK: Final = " to=functions.to=functions json code<|constrain|>json?!"
ENDLESS_IDS: Final = 131_072
"""As many ids as the longest context has."""
_JUNK_WORDS: Final = 400
_LOOP: Final = " one two three four five six seven eight"
_ENDLESS: Final = " And on I think, of this and of that, and one thing after another, with no end."
_UNDECLARED: Final = "nothing"


def turn_of(writer: ScriptWriter) -> Script:
    """The writer's script, unless it is to attack by more than its texts."""
    name, _, argument = (writer.directives.malformed.attack or "").partition(":")
    make = _ATTACKS.get(name)
    return script_of(make(writer, argument)) if make else writer.script()


def _call(writer: ScriptWriter, name: str) -> list[Part]:
    return [*writer.thinking(), writer.part(CALL_PREFIX + name)]


def _twice(writer: ScriptWriter, _: str) -> list[Part]:
    first, second = (_callable(writer) * 2)[:2]
    ongoing = replace(writer.part(first), terminator=END)
    return [*writer.thinking(), ongoing, writer.part(second)]


def _analysis_call(writer: ScriptWriter, _: str) -> list[Part]:
    kind = _callable(writer)[0]
    header = writer.header(f" to={kind} ", channel=ANALYSIS, is_json=True)
    return [*writer.thinking(), replace(writer.part(kind), header=header)]


def _header(writer: ScriptWriter, _: str) -> list[Part]:
    header = writer.header(JUNK, channel=COMMENTARY, is_json=True)
    return [*writer.thinking(), replace(writer.part(FINAL), header=header)]


def _long_header(writer: ScriptWriter, _: str) -> list[Part]:
    header = writer.header(" word" * _JUNK_WORDS, channel=COMMENTARY)
    return [*writer.thinking(), replace(writer.part(FINAL), header=header)]


def _endless(writer: ScriptWriter, _: str) -> list[Part]:
    return [_repeating(writer, ANALYSIS, writer.words(_ENDLESS))]


def _loop(writer: ScriptWriter, period: str) -> list[Part]:
    return [*writer.thinking(), _repeating(writer, FINAL, _loop_ids(writer, period))]


def _think_loop(writer: ScriptWriter, period: str) -> list[Part]:
    return [_repeating(writer, ANALYSIS, _loop_ids(writer, period))]


def _silent(writer: ScriptWriter, _: str) -> list[Part]:
    return [replace(writer.part(ANALYSIS), terminator=RETURN)]


_ATTACKS: Final[Mapping[str, Callable[[ScriptWriter, str], list[Part]]]] = {
    "call": _call,
    "twice": _twice,
    "analysis_call": _analysis_call,
    "header": _header,
    "long_header": _long_header,
    "endless": _endless,
    "loop": _loop,
    "think_loop": _think_loop,
    "silent": _silent,
}


def _callable(writer: ScriptWriter) -> list[str]:
    return writer.call_kinds or [CALL_PREFIX + _UNDECLARED]


def _loop_ids(writer: ScriptWriter, period: str) -> tuple[int, ...]:
    return writer.words(_LOOP)[: int(period)]


def _repeating(writer: ScriptWriter, kind: str, words: tuple[int, ...]) -> Part:
    return replace(writer.part(kind), body=tuple(islice(cycle(words), ENDLESS_IDS)))
