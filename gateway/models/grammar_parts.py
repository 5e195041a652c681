"""Parts of the grammars of turns that all formats share.

A model that is to answer in JSON may refuse in words, which have to begin in one of a few ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.constraints.lark import languages_of
from gateway.generation import AnyText, InOrder, Json, Literal, Node, OneOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.constraints.output_rules import OutputRules, ToolRule

_REFUSALS: Final = (
    "I'm sorry",
    "I am sorry",
    "Sorry,",
    "I can't",
    "I cannot",
    "I won't",
    "I'm unable",
)
REFUSALS: Final = tuple(dict.fromkeys((*_REFUSALS, *(w.replace("'", "\u2019") for w in _REFUSALS))))
"""None of them begins JSON."""


def one_of(options: Sequence[Node]) -> Node:
    return options[0] if len(options) == 1 else OneOf(tuple(options))


def arguments_of(tool: ToolRule, rules: OutputRules) -> Node:
    if tool.grammar is not None:
        return languages_of(rules)[tool.grammar]
    return Json(tool.arguments)


def refusal(text: AnyText) -> Node:
    return InOrder((OneOf(tuple(Literal(words) for words in REFUSALS)), text))


def rest_of_refusal(begun_text: bytes, text: AnyText) -> Node | None:
    """Return what may follow the beginning of a refusal; None if it is none."""
    try:
        words = begun_text.decode()
    except UnicodeDecodeError:  # it ends within a character
        return None
    if words.startswith(REFUSALS):
        return text
    begun = [one[len(words) :] for one in REFUSALS if one.startswith(words)]
    if not begun:
        return None
    return InOrder((one_of([Literal(rest) for rest in begun]), text))
