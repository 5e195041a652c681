from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.structural_tags import (
    NESTING_MAX,
    NODES_MAX,
    Unsayable,
    is_enforced,
    tag_of,
)
from gateway.generation import (
    AnyText,
    Constraint,
    Ebnf,
    InOrder,
    Json,
    Literal,
    Maybe,
    Node,
    OneOf,
    Repeated,
    Token,
)
from gateway.models.harmony.tokenizer import CHANNEL, CONSTRAIN, END, MESSAGE, START
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"type": "integer"}}}
A, B = ({"type": "const_string", "value": text} for text in "ab")
Words = frozenset[tuple[str, ...]]
EMPTY: Words = frozenset({()})


def tag_for(node: Node, *, max_whitespace: bool = False) -> dict[str, Any]:
    markers = (START, CHANNEL, CONSTRAIN, MESSAGE, END)
    return tag_of(Constraint(node, markers=markers), max_whitespace=max_whitespace)


def format_of(node: Node, *, max_whitespace: bool = False) -> Any:
    tag = tag_for(node, max_whitespace=max_whitespace)
    assert tag["type"] == "structural_tag"
    return tag["format"]


@each(
    ("node", "format_"),
    [
        (Token(START), {"type": "token", "token": START}),
        (Literal("final"), {"type": "const_string", "value": "final"}),
        (AnyText((1, 2)), {"type": "any_tokens", "exclude_tokens": [1, 2]}),
        (AnyText(()), {"type": "any_tokens", "exclude_tokens": []}),
        (Json(SCHEMA), {"type": "json_schema", "json_schema": SCHEMA}),
        (Ebnf('root ::= "a"'), {"type": "grammar", "grammar": 'root ::= "a"'}),
        (Maybe(Literal("a")), {"type": "optional", "content": A}),
        (Repeated(Literal("a")), {"type": "star", "content": A}),
        (InOrder((Literal("a"), Literal("b"))), {"type": "sequence", "elements": [A, B]}),
        (OneOf((Literal("a"), Literal("b"))), {"type": "or", "elements": [A, B]}),
    ],
)
def test_every_node_has_a_format(node: Node, format_: dict[str, Any]) -> None:
    assert format_of(node) == format_


def test_white_space_is_bounded_where_that_can_be_said() -> None:
    format_ = format_of(Maybe(Json(SCHEMA)), max_whitespace=True)
    assert format_["content"]["max_whitespace_cnt"] == 1


def test_the_properties_of_a_schema_keep_their_order() -> None:
    assert b'"properties":{"b":{},"a":' in orjson.dumps(format_of(Json(SCHEMA)))


@pytest.mark.parametrize(
    "node",
    [InOrder(()), Literal(""), Maybe(InOrder(())), Repeated(Literal("")), OneOf((Literal(""),))],
)
def test_that_nothing_may_come_cannot_be_said(node: Node) -> None:
    with pytest.raises(Unsayable, match="nothing but an end"):
        tag_for(node)


def test_an_alternative_needs_options() -> None:
    with pytest.raises(Unsayable, match="without options"):
        tag_for(InOrder((Token(1), OneOf(()))))


def test_what_is_empty_is_left_out() -> None:
    assert format_of(InOrder((Literal(""), Literal("a"), InOrder(())))) == A
    assert format_of(OneOf((Literal(""), Literal("a")))) == {"type": "optional", "content": A}
    assert format_of(OneOf((Literal("a"),))) == A


def test_each_marker_has_a_shape_of_its_own() -> None:
    """Because what was compiled for one is reused for another of the same shape."""
    shapes = []
    for marker in (START, CHANNEL, CONSTRAIN, MESSAGE, END, 1):
        format_ = format_of(Token(marker))
        tokens = format_.get("elements", [format_])
        assert tokens == [{"type": "token", "token": marker}] * len(tokens)
        shapes.append(len(tokens))
    assert len(set(shapes)) == len(shapes)


def nested(levels: int) -> Node:
    node: Node = Token(1)
    for _ in range(levels):
        node = Maybe(node)
    return node


def test_nesting_is_bounded() -> None:
    tag_for(nested(NESTING_MAX))
    for levels in (NESTING_MAX + 1, 100_000):
        with pytest.raises(Unsayable, match="nested"):
            tag_for(nested(levels))


@pytest.mark.slow
def test_size_is_bounded() -> None:
    tag_for(InOrder((Token(1),) * (NODES_MAX - 1)))
    with pytest.raises(Unsayable, match="too many parts"):
        tag_for(InOrder((Token(1),) * NODES_MAX))


def joined(words: Iterable[Words]) -> Words:
    """Every concatenation of one word of each."""
    return frozenset(tuple(s for word in choice for s in word) for choice in product(*words))


def words_of_node(node: Node) -> Words:
    """The language, with leaves for letters and repetitions of two at most."""
    match node:
        case InOrder(parts):
            return joined(map(words_of_node, parts))
        case OneOf(options):
            return frozenset().union(*map(words_of_node, options))
        case Maybe(part):
            return EMPTY | words_of_node(part)
        case Repeated(part):
            words = words_of_node(part)
            return EMPTY | words | joined([words, words])
        case Literal(""):
            return EMPTY
        case _:
            return frozenset({(repr(node),)})


LEAVES: list[Node] = [
    Token(1),
    Literal("a"),
    AnyText((1,)),
    Json({"type": "object"}),
    Ebnf("root ::= x"),
]


def words_of_format(format_: dict[str, Any]) -> Words:
    """The same of a tag; empty sequences, alternatives and strings are what engines refuse."""
    for leaf in LEAVES:
        if format_of(leaf) == format_:
            return frozenset({(repr(leaf),)})
    match format_["type"]:
        case "sequence":
            assert len(format_["elements"]) > 1
            return joined(map(words_of_format, format_["elements"]))
        case "or":
            assert len(format_["elements"]) > 1
            return frozenset().union(*map(words_of_format, format_["elements"]))
        case "optional":
            return EMPTY | words_of_format(format_["content"])
        case "star":
            words = words_of_format(format_["content"])
            return EMPTY | words | joined([words, words])
        case other:
            raise AssertionError(other)


NODES = st.recursive(
    st.sampled_from([*LEAVES, Literal("")]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: InOrder(tuple(parts)))
        | st.lists(inner, min_size=1, max_size=3).map(lambda options: OneOf(tuple(options)))
        | inner.map(Maybe)
        | inner.map(Repeated)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@given(NODES)
@settings(deadline=None)
def test_a_tag_describes_the_same_words_as_its_constraint(node: Node) -> None:
    try:
        format_ = format_of(node)
    except Unsayable:
        assert words_of_node(node) == EMPTY
        return
    assert words_of_format(format_) == words_of_node(node)
    orjson.dumps(format_)


@each(
    ("schema", "enforced"),
    [
        (SCHEMA, True),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, False),
        ({"type": "array", "uniqueItems": False}, True),
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, False),
        ({"type": "string", "pattern": "^a*$"}, True),
        ({"allOf": [SCHEMA]}, True),
        ({"allOf": [SCHEMA, {"required": ["a"]}]}, False),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, True),
        ({"properties": {"not": {}, "if": {}}}, True),
        ({"properties": {"a": {"not": {"const": 1}}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {"const": 1}}}}, False),
    ],
)
def test_what_xgrammar_ignores_is_not_believed(schema: dict[str, Any], *, enforced: bool) -> None:
    whole = Constraint(Repeated(OneOf((Token(START), InOrder((Maybe(Json(schema)),))))))
    assert is_enforced(whole) is enforced
    assert not is_enforced(Constraint(Json(schema), exact=False))
