"""What is left of JSON behind any beginning: the true rest is allowed, and nothing wrong is."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from gateway.constraints.gbnf import SPACES_MAX, Chain, Quotient, grammar_of
from gateway.constraints.json_language import JsonLanguage, between
from tests.fakes.gbnf import Walker
from tests.fakes.random_schemas import random_schema

_LINK = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]},
    },
    "required": ["v", "next"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "number"},
            "ab": {"enum": ["x/y", "é😀", 1, None, 2.0, True]},
        },
        "additionalProperties": {"type": "integer"},
    },
    {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "number", "minimum": 0},
            "c": {"const": {"k": [1, "z"]}},
        },
        "required": ["b"],
        "additionalProperties": False,
    },
    {"$ref": "#/$defs/link", "$defs": {"link": _LINK}},
    {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "x": value},
                "required": ["kind", "x"],
                "additionalProperties": False,
            }
            for kind, value in (("a", {"type": "integer"}), ("ab", {"type": "boolean"}))
        ]
    },
    {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": {"type": "null"},
        "minItems": 1,
        "maxItems": 4,
    },
    {"type": "array", "items": {"type": "integer", "minimum": -120, "exclusiveMaximum": 4711}},
    {"type": ["string", "null", "integer"], "maxLength": 5},
]


def written(schema: dict[str, Any], seed: int) -> Any:
    """A document as another engine writes it: its properties are in the order of the schema."""
    said = Walker.of_schema(schema).some(Random(seed))
    assume(said is not None)
    assert said is not None
    try:
        return json.loads(said, parse_constant=lambda _: assume(condition=False))
    except ValueError:  # half of a surrogate pair
        assume(condition=False)


def rest(schema: dict[str, Any], beginning: str) -> Walker | None:
    """None where nothing may follow."""
    documents = JsonLanguage(schema)
    assert documents.exact
    left = Quotient(documents.root, documents.rules).behind(beginning)
    return None if left == Chain(()) else Walker.of_ebnf(grammar_of(left, documents.rules))


@pytest.mark.slow
@given(st.data())
@settings(deadline=None)
def test_behind_any_beginning_the_true_rest_is_allowed_and_whatever_is_allowed_is_valid(
    data: st.DataObject,
) -> None:
    seed = data.draw(st.integers(0, 10**6))
    some = st.sampled_from(SCHEMAS) | st.just(random_schema(Random(seed)))
    schema = data.draw(some)
    document = written(schema, seed)
    validator = validator_for(schema)
    assume(validator.is_valid(document))
    indent = data.draw(st.sampled_from([None, 1, 3]))
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=(",", ":"))
    assume("Infinity" not in text)
    cut = data.draw(st.integers(0, len(text)))
    walker = rest(schema, text[:cut])
    if walker is None:
        assert cut == len(text)
        return
    # What another engine indented is read, and goes on without.
    assert indent is not None or walker.allows(text[cut:]), (text[:cut], text[cut:])
    other = walker.some(Random(seed))
    if other is not None:
        assert validator.is_valid(json.loads(text[:cut] + other.decode())), (text[:cut], other)


@pytest.mark.slow
@given(st.data())
@settings(deadline=None)
def test_behind_any_beginning_of_a_text_comes_what_makes_another_text_and_nothing_else(
    data: st.DataObject,
) -> None:
    """White space included: of it the rest has no more than the whole may have."""
    seed = data.draw(st.integers(0, 10**6))
    schema = data.draw(st.sampled_from(SCHEMAS) | st.just(random_schema(Random(seed))))
    documents = JsonLanguage(schema)
    whole = Walker.of_ebnf(grammar_of(documents.root, documents.rules))
    engines = Walker.of_schema(schema, spaces_max=SPACES_MAX)
    said = whole.some(Random(seed))
    assume(said is not None)
    assert said is not None
    text = said.decode()
    cut = data.draw(st.integers(0, len(text) - 1))
    # Behind a backslash any escape of the character may come, where the whole has one of them.
    assume(not re.search(r"\\(u[0-9a-f]{0,3})?$", text[:cut]))
    walker = rest(schema, text[:cut])
    assert walker is not None
    assert walker.allows(text[cut:]), (text[:cut], text[cut:])
    other = walker.some(Random(seed + cut))
    if other is not None:
        both = text[:cut] + other.decode()
        assert whole.allows(both), (text[:cut], other)
        # llguidance has fewer forms of a character.
        assert re.search(r"[\\\x7f]", both) or engines.allows(both), (text[:cut], other)


@pytest.mark.slow
@given(st.text(max_size=20), st.data())
@settings(deadline=None)
def test_a_string_may_be_cut_anywhere_however_its_characters_are_escaped(
    word: str, data: st.DataObject
) -> None:
    text = json.dumps(word, ensure_ascii=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text) - 1))
    free, fixed = {"type": "string"}, {"enum": [word, word + "x"]}
    for schema in (free, fixed):
        walker = rest(schema, text[:cut])
        assert walker is not None
        if schema is free or "\\" not in text:
            assert walker.allows(text[cut:])
        said = walker.some(Random(cut))
        if said is not None:
            value = json.loads(text[:cut] + said.decode())
            assert schema is free or value in {word, word + "x"}


_BOUND = st.none() | st.integers(-12_000, 12_000)


@pytest.mark.slow
@given(_BOUND, _BOUND, st.integers(-13_000, 13_000))
def test_integers_keep_their_bounds(low: int | None, high: int | None, number: int) -> None:
    assume(low is None or high is None or low <= high)
    walker = Walker.of_ebnf(grammar_of(between(low, high), {}))
    is_within = (low is None or low <= number) and (high is None or number <= high)
    assert walker.allows(str(number)) is is_within
    assert not walker.allows(f"0{abs(number)}")
