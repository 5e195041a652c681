"""How an answer begins that should be JSON: as JSON, as a refusal in words, or as neither."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.constraints.rules import AnswerFormat

REFUSALS: Final = (
    *("I'm sorry", "I am sorry", "Sorry,"),
    *("I can't", "I cannot", "I can not", "I won't", "I will not"),
    *("I'm unable", "I am unable", "I'm not able", "I am not able"),
)
"""First words of what gpt-oss says when it will not. None of them can begin JSON."""

_FIRST_BY_TYPE: Final = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}
_CURLY_APOSTROPHE: Final = "\u2019"


class Verdict(Enum):
    """What a beginning is the beginning of."""

    UNKNOWN = auto()  # more of it must come
    JSON = auto()
    REFUSAL = auto()
    PROSE = auto()


class Beginning:
    """Reads the first words of one answer. They are kept by whoever feeds it."""

    def __init__(self, answer: AnswerFormat) -> None:
        self._first = _first_characters(answer)
        self._words = ""

    def read(self, text: str) -> Verdict:
        """What the answer is, as far as this text and those before it tell."""
        self._words = (self._words + text).lstrip()
        words = self._words.replace(_CURLY_APOSTROPHE, "'")
        if not words:
            return Verdict.UNKNOWN
        if words[0] in self._first:
            return Verdict.JSON
        if words.startswith(REFUSALS):
            return Verdict.REFUSAL
        may_refuse = any(refusal.startswith(words) for refusal in REFUSALS)
        return Verdict.UNKNOWN if may_refuse else Verdict.PROSE


def _first_characters(answer: AnswerFormat) -> frozenset[str]:
    """What the JSON that the format asks for can begin with."""
    types: Any = "object" if answer.kind == "json_object" else answer.schema.get("type")
    named = types if isinstance(types, list) else [types]
    firsts = [_FIRST_BY_TYPE.get(name) for name in named]
    if None in firsts:
        firsts = list(_FIRST_BY_TYPE.values())
    return frozenset("".join(filter(None, firsts)))
