from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai_harmony import ToolDescription

from gateway.models.harmony.tokenizer import CALL, CHANNEL, CONSTRAIN, FINAL_HEADER, MESSAGE, RETURN
from gateway.simulator.argument_values import Tool
from tests.fakes.cases import each
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.random_schemas import random_schema
from tests.fakes.simulated_conversation import (
    WEATHER,
    continuation,
    developer,
    formatted,
    obeyed,
    prompt_of,
    user,
)
from tests.fakes.turn_tags import answer, json_of, turn
from tests.fakes.wayward_engine.scripted_misbehaviour import REFUSAL
from tests.fakes.wayward_engine.shapes import Shape

DATE = {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]$"}
LETTERS = {"type": "string", "pattern": "^[a-z]{3,5}$"}
WORDS = ["naïve 👩‍👩‍👧", "東京", 'say "hi"', "tab\there", "back\\slash"]


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


FORM = _object(when=DATE, word={"type": "string", "enum": WORDS}, n={"type": "integer"})
CALL_HEADER = [
    *vocabulary().encode(" to=functions.get_weather"), CHANNEL,
    *vocabulary().encode("commentary "), CONSTRAIN, *vocabulary().encode("json"), MESSAGE,
]  # fmt: skip


def _answer_to(schema: dict[str, Any], text: str = "Something 7 in Berlin") -> list[int]:
    """A prompt that ends where the body of the answer begins."""
    return [*prompt_of(formatted(schema), user(text)), *FINAL_HEADER]


@cache
def _bytes_as_ids() -> list[int]:
    return sorted(range(256), key=vocabulary().piece)


def _by_byte(text: str) -> list[int]:
    return [_bytes_as_ids()[byte] for byte in text.encode()]


def _whole(prompt: list[int], begun: list[int]) -> str:
    """A body that was begun with these ids, brought to its end."""
    rest = continuation([*prompt, *begun])
    assert rest[-1] in {RETURN, CALL}
    return b"".join(map(vocabulary().piece, [*begun, *rest[:-1]])).decode()


def _is_valid(schema: dict[str, Any], body: str) -> bool:
    return bool(Draft202012Validator(schema).is_valid(json.loads(body)))


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=examples(60), deadline=None)
def test_an_answer_follows_the_schema_that_is_shown(seed: int) -> None:
    schema = random_schema(Random(seed))
    assert _is_valid(schema, _whole(_answer_to(schema), []))


SPELLINGS = {
    "as usual": lambda value: vocabulary().encode(json.dumps(value, ensure_ascii=False)),
    "byte by byte": lambda value: _by_byte(json.dumps(value, ensure_ascii=False)),
    "with escapes": lambda value: vocabulary().encode(json.dumps(value)),
    "with blanks": lambda value: vocabulary().encode(json.dumps(value, indent=2)),
}


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from(sorted(SPELLINGS)))
@settings(max_examples=examples(12), deadline=None)
def test_an_answer_cut_at_any_id_is_completed_to_a_valid_one(seed: int, spelling: str) -> None:
    schema = random_schema(Random(seed))
    held = obeyed(prompt_of(user("Hello")), turn(answer(json_of(schema))), ids_max=2000)
    value = json.loads(held.text.rpartition("<|message|>")[2].rpartition("<|")[0])
    ids, prompt = SPELLINGS[spelling](value), _answer_to(schema)
    for cut in range(len(ids) + 1):
        assert _is_valid(schema, _whole(prompt, ids[:cut]))


@pytest.mark.slow
@each(
    ("word", "spelling"),
    [
        (word, name)
        for word in WORDS
        for name in SPELLINGS
        if name == "byte by byte" or word == WORDS[0]
    ],
)
def test_a_word_of_a_list_may_be_cut_anywhere(word: str, spelling: str) -> None:
    ids = SPELLINGS[spelling]({"when": "2031-05-06", "word": word, "n": -17})
    for cut in range(len(ids) + 1):
        body = _whole(_answer_to(FORM), ids[:cut])
        assert _is_valid(FORM, body)
        assert body.startswith(vocabulary().decode(ids[:cut]).rstrip("\N{REPLACEMENT CHARACTER}"))


@pytest.mark.parametrize("begun", ['{"when":"20', '{ "when" : "2024-1', '{"when":"2024-12-31","wo'])
@pytest.mark.parametrize("spelling", [vocabulary().encode, _by_byte])
def test_a_completion_goes_on_the_same_after_any_cut(begun: str, spelling: Any) -> None:
    prompt = [*_answer_to(FORM), *spelling(begun)]
    out = continuation(prompt)
    assert [continuation([*prompt, *out[:cut]]) for cut in range(len(out))] == [
        out[cut:] for cut in range(len(out))
    ]


def test_properties_may_come_in_another_order() -> None:
    body = _whole(_answer_to(FORM), vocabulary().encode('{"n": 4, "word": "東'))
    assert list(json.loads(body)) == ["n", "word", "when"]
    assert _is_valid(FORM, body)


def test_a_complete_body_only_ends() -> None:
    body = '{"when":"2024-12-31","word":"東京","n":1}'
    assert continuation([*_answer_to(FORM), *vocabulary().encode(body)]) == [RETURN]


@pytest.mark.parametrize("begun", ["I think that", '{"when": 5', '{"when":"2024-12-31"}}'])
def test_a_body_that_cannot_become_valid_goes_on_as_scripted(begun: str) -> None:
    body = _whole(_answer_to(FORM), vocabulary().encode(begun))
    assert body == f"{begun}\N{HORIZONTAL ELLIPSIS} and so on, as the script has it."


def test_markers_in_a_body_make_it_no_json() -> None:
    rest = continuation([*_answer_to(FORM), *vocabulary().encode('{"n'), CONSTRAIN])
    assert vocabulary().decode(rest).endswith("as the script has it.")


@pytest.mark.parametrize(
    ("directive", "body"),
    [("say=Never.", "Never."), ("drift=refusal", REFUSAL), ("tokens=2", " The script")],
)
def test_what_directives_dictate_is_written(directive: str, body: str) -> None:
    assert _whole(_answer_to(FORM, f"Hello [[sim {directive}]]"), []) == body


def test_a_drift_of_types_is_one_of_a_valid_answer() -> None:
    body = _whole(_answer_to(_object(word=LETTERS), "Hello [[sim drift=types]]"), [])
    assert 3 <= json.loads(body)["word"] <= 5


def test_a_body_cut_under_a_directive_goes_on_as_scripted() -> None:
    prompt = _answer_to(FORM, "Hello [[sim drift=prose]]")
    assert _whole(prompt, vocabulary().encode('{"n": ')).endswith("as the script has it.")


@pytest.mark.parametrize(
    "begun", ['{"', '{"lo', '{"location"', '{"location":"Be', '{"location": "']
)
def test_a_call_cut_anywhere_is_completed_to_one_of_its_types(begun: str) -> None:
    prompt = [*prompt_of(developer(WEATHER), user("Hello")), *CALL_HEADER]
    body = json.loads(_whole(prompt, vocabulary().encode(begun)))
    assert list(body) == ["location"]
    assert isinstance(body["location"], str)


def test_a_call_may_have_more_than_its_types_say_if_somebody_wrote_so() -> None:
    prompt = [*prompt_of(developer(WEATHER), user("Hello")), *CALL_HEADER]
    body = _whole(prompt, vocabulary().encode('{"location": "R", "place": "h'))
    assert json.loads(body) == {"location": "R", "place": "h"}


def _told(language: str, definition: str, properties: dict[str, Any]) -> list[int]:
    description = f"Runs it.\n\nThe input must match this {language}:\n{definition}"
    tool = ToolDescription.new("get_weather", description, _object(**properties))
    return [*prompt_of(developer(tool), user("Hello")), *CALL_HEADER]


LARK = 'start: "ls" " " NAME\n    | "cat" " " NAME\nNAME: /[a-z]+/'


@each("begun", ["", '{"', '{"input":"c', '{"input":"cat '])
@each(
    ("language", "definition"), [("Lark grammar", LARK), ("regular expression", "(ls|cat) [a-z]+")]
)
def test_the_input_of_a_custom_tool_follows_its_grammar(
    begun: str, language: str, definition: str
) -> None:
    prompt = _told(language, definition, {"input": {"type": "string"}})
    program, _, name = json.loads(_whole(prompt, vocabulary().encode(begun)))["input"].partition(
        " "
    )
    assert program in {"ls", "cat"}
    assert name.isalpha()


@pytest.mark.parametrize("begun", ["", '{"when": "20'])
def test_arguments_follow_a_schema_that_the_description_tells(begun: str) -> None:
    schema = _object(when=DATE, word={"type": "string", "minLength": 20})
    words = {"when": {"type": "string"}, "word": {"type": "string"}}
    prompt = _told("JSON Schema", json.dumps(schema), words)
    assert _is_valid(schema, _whole(prompt, vocabulary().encode(begun)))


@pytest.mark.parametrize(
    ("language", "definition"),
    [
        ("Lark grammar", "start"),
        ("Lark grammar", 'start: start "a"'),
        ("regular expression", "(?=a)"),
        ("JSON Schema", "{"),
        ("JSON Schema", "[]"),
        ("JSON Schema", '{"type": 5}'),
    ],
)
def test_a_description_that_tells_nonsense_is_passed_over(language: str, definition: str) -> None:
    prompt = _told(language, definition, {"input": {"type": "string"}})
    assert isinstance(json.loads(_whole(prompt, []))["input"], str)


def test_a_shape_that_no_matcher_takes_leaves_the_draft() -> None:
    shape = Shape.of_answer({"type": 5})
    assert shape.written("{}", vocabulary()) == "{}"
    assert shape.rest(vocabulary().encode("{"), vocabulary()) is None


@pytest.mark.slow
def test_a_shape_without_an_end_leaves_the_draft() -> None:
    schema = _object(text={"type": "string", "minLength": 100_000})
    assert Shape.of_answer(schema).written("{}", vocabulary()) == "{}"
    assert Shape.of_answer(schema).rest(vocabulary().encode('{"text": "'), vocabulary()) is None


def test_a_tool_without_types_takes_any_object() -> None:
    shape = Shape.of_arguments(Tool("f", "", {"type": "object"}))
    assert shape.written('{"a": [1, null]}', vocabulary()) == '{"a": [1, null]}'
    rest = shape.rest(vocabulary().encode('{"a": [1'), vocabulary())
    assert rest is not None
    assert json.loads('{"a": [1' + vocabulary().decode(rest)) == {"a": [1]}
