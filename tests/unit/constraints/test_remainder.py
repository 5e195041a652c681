"""What may follow the beginning of a body, as a part of a grammar."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.constraints.json_language import body_of, remainder_of
from gateway.generation import NOTHING, Ebnf, InOrder, OneOf, Token
from tests.fakes.cases import each
from tests.fakes.gbnf import Walker
from tests.fakes.harmony_oracle import vocabulary

WORDS = {"type": "array", "items": {"type": "string"}}


def rest(schema: dict[str, Any], said: str | bytes) -> Any:
    beginning = said.encode() if isinstance(said, str) else said
    return remainder_of(body_of(schema), beginning, vocabulary().byte_ids)


def test_the_rest_of_a_body_is_bound_exactly() -> None:
    found = rest(WORDS, '["a", "b')
    assert found.exact
    assert isinstance(found.node, Ebnf)
    assert Walker.of_ebnf(found.node.grammar).allows('c", "d"]')
    assert not Walker.of_ebnf(found.node.grammar).allows('c", 1]')


@pytest.mark.parametrize(
    ("said", "right", "wrong"),
    [
        ('["a"', ' , "b" ]', '  ,"b"]'),
        ('["a" ', ', "b"]', ' ,"b"]'),
        ('["a"\n    ', ',"b"]', ' ,"b"]'),
        ("[", " ]", "  ]"),
        ("[ ", "]", " ]"),
    ],
)
def test_of_white_space_the_rest_has_no_more_than_the_whole(
    said: str, right: str, wrong: str
) -> None:
    walker = Walker.of_ebnf(rest(WORDS, said).node.grammar)
    assert walker.allows(right)
    assert not walker.allows(wrong)


def test_names_may_be_long() -> None:
    schema = {"type": "object", "properties": {"a" * 1000: {"type": "integer"}}}
    assert rest(schema, '{"' + "a" * 999).exact
    for name, value in (("a" * 1000, "1"), ("a" * 32, '"x"'), ("a" * 31 + "b", '"x"'), ("b", "1")):
        assert rest(schema, f'{{"{name}": {value}}}').node == NOTHING
    assert not rest(schema, '{"' + "a" * 1000 + '": "').exact


def test_properties_may_be_many() -> None:
    properties = {f"name {number}": {"type": "integer"} for number in range(300)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    found = rest(schema, '{"name 7": 1, "na')
    walker = Walker.of_ebnf(found.node.grammar)
    assert found.exact
    assert walker.allows('me 299": 2}')
    assert not walker.allows('me 300": 2}')


def test_properties_of_schemas_that_are_combined_come_in_their_order() -> None:
    parts = [{"properties": {name: True}, "required": [name]} for name in "ab"]
    assert rest({"type": "object", "allOf": parts}, '{"a": 1, "b": 2}').node == NOTHING


def test_values_may_be_many() -> None:
    values = [f"number {number}" for number in range(500)]
    found = rest({"type": "array", "items": {"enum": [*values, "", 7]}}, '["number 499", "num')
    walker = Walker.of_ebnf(found.node.grammar)
    assert found.exact
    assert walker.allows('ber 12", "", 7, "number 130"]')
    assert not walker.allows('ber 500"]')


def test_behind_a_whole_body_comes_nothing() -> None:
    assert rest(WORDS, '["a"]').node == NOTHING


@pytest.mark.parametrize(
    ("schema", "said", "right"),
    [
        ({"$ref": "https://example.com"}, '{"a": [1', ',2], "b": 3}'),
        ({"properties": {"a": {}, "b": {}}, "additionalProperties": False}, '{"b": 1, "a', '":1}'),
        ({"type": "string", "minLength": 5}, '"a" '.strip(), ""),
    ],
    ids=["a schema that cannot be followed", "another order", "a body that is wrong"],
)
def test_what_cannot_be_followed_is_at_least_json(
    schema: dict[str, Any], said: str, right: str
) -> None:
    found = rest(schema, said)
    assert not found.exact
    assert found.node == NOTHING or Walker.of_ebnf(found.node.grammar).allows(right)


@pytest.mark.parametrize("said", ["Well, ", b'["\xff', b'["\xed', b'["\xe0\x80'])
def test_of_what_is_no_json_nothing_can_be_said(said: str | bytes) -> None:
    assert rest(WORDS, said) is None


@each(
    ("character", "cut", "seconds"),
    [
        ("é", 1, 64),
        ("ह", 1, 32),
        ("東", 1, 64),
        ("東", 2, 64),
        ("😀", 1, 48),
        ("😀", 3, 64),
        ("\U000f0000", 1, 64),
        ("\U00100000", 1, 16),
    ],
)
def test_a_character_of_which_some_bytes_are_there_is_completed(
    character: str, cut: int, seconds: int
) -> None:
    spelled = character.encode()
    found = rest(WORDS, b'["' + spelled[:cut])
    assert found.exact
    assert isinstance(found.node, InOrder)
    *missing, behind = found.node.parts
    assert len(missing) == len(spelled) - cut
    for options, byte in zip(missing, spelled[cut:], strict=True):
        assert isinstance(options, OneOf)
        pieces = [vocabulary().piece(one.id) for one in options.options if isinstance(one, Token)]
        assert bytes((byte,)) in pieces
    first = missing[0]
    assert isinstance(first, OneOf)
    assert len(first.options) == seconds
    assert isinstance(behind, Ebnf)
    assert Walker.of_ebnf(behind.grammar).allows('"]')


@pytest.mark.parametrize("schema", [{"enum": ["é"]}, {"pattern": "^([À-þ]|ÿb)$"}])
def test_where_only_some_characters_may_stand_any_is_better_than_none(
    schema: dict[str, Any],
) -> None:
    assert not rest(schema, b'"\xc3').exact
