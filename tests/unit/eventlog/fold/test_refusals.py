"""How an answer begins that should be JSON."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.constraints.rules import AnswerFormat
from gateway.eventlog.fold.refusals import Beginning, Verdict
from gateway.models.harmony.grammar import REFUSALS

OBJECT = AnswerFormat("json_object", {"type": "object"})


def verdict(text: str, answer: AnswerFormat = OBJECT) -> Verdict:
    whole = Beginning(answer).read(text)
    beginning = Beginning(answer)
    decided = (one for one in map(beginning.read, text) if one is not Verdict.UNKNOWN)
    assert next(decided, Verdict.UNKNOWN) is whole
    return whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Verdict.UNKNOWN),
        ("\n ", Verdict.UNKNOWN),
        ("\n {", Verdict.JSON),
        ("I", Verdict.UNKNOWN),
        ("I'm sor", Verdict.UNKNOWN),
        ("I'm sorry, but", Verdict.REFUSAL),
        ("I\u2019m sorry", Verdict.REFUSAL),
        ("I can see", Verdict.PROSE),
        ("Sure! {", Verdict.PROSE),
        ("```json", Verdict.PROSE),
        ("[", Verdict.PROSE),
    ],
)
def test_the_first_words_decide(text: str, expected: Verdict) -> None:
    assert verdict(text) is expected


@pytest.mark.parametrize("words", REFUSALS)
def test_what_the_grammar_lets_the_model_say_is_a_refusal(words: str) -> None:
    assert verdict(words) is Verdict.REFUSAL


@pytest.mark.parametrize(
    ("schema", "first"),
    [
        ({"type": "array"}, "["),
        ({"type": "string"}, '"'),
        ({"type": "integer"}, "-9"),
        ({"type": ["boolean", "null"]}, "tfn"),
        ({"type": ["object", "unheard-of"]}, '{["-9tfn'),
        ({"anyOf": [{"type": "object"}]}, '{["-9tfn'),
    ],
)
def test_json_begins_as_its_schema_says(schema: dict[str, Any], first: str) -> None:
    answer = AnswerFormat("json_schema", schema)
    for character in '{["-9tfn':
        expected = Verdict.JSON if character in first else Verdict.PROSE
        assert verdict(character, answer) is expected
