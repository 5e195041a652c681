"""Schemas, patterns and grammars that would hang a check, or make it ask somebody else."""

from __future__ import annotations

import socket
from typing import Any, Literal

import orjson
import pytest

from gateway.constraints.output_rules import TextGrammar, UnusableGrammar, UnusableSchema
from gateway.constraints.validators import (
    PATTERNS_MAX,
    REFERENCES_MAX,
    Cost,
    GrammarValidator,
    SchemaValidator,
    TooMuchWork,
)
from tests.fakes.cases import each

WORK_MAX = 100_000


def document(schema: dict[str, Any]) -> SchemaValidator:
    return SchemaValidator(schema, work_max=WORK_MAX)


def forking(depth: int, word: str) -> dict[str, Any]:
    """Two paths at every step."""
    steps: dict[str, Any] = {
        f"s{at}": {word: [{"$ref": f"#/$defs/s{at + 1}"}, {"$ref": f"#/$defs/s{at + 1}"}]}
        for at in range(depth)
    }
    return {"$defs": {**steps, f"s{depth}": {"type": "integer"}}, "$ref": "#/$defs/s0"}


@each("word", ["allOf", "anyOf", "oneOf"])
@each("depth", range(1, 21))
def test_schemas_that_fork_are_checked_or_refused(word: str, depth: int) -> None:
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        nested = {word: [nested, {"type": "null"}]}
    assert document(nested).fault("[]") is not None
    if depth <= 12:
        assert document(forking(depth, word)).fault('"x"') is not None


@each("word", ["allOf", "anyOf", "oneOf"])
@each("depth", range(16, 21))
def test_schemas_that_fork_by_reference_are_refused(word: str, depth: int) -> None:
    with pytest.raises(UnusableSchema, match="fork"):
        document(forking(depth, word))


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_a_schema_of_a_thousand_forks_is_refused(word: str) -> None:
    with pytest.raises(UnusableSchema):
        document(forking(1_000, word))


def test_what_forks_only_where_a_value_goes_deeper_is_measured_with_the_value() -> None:
    step = {"properties": {"x": {"$ref": "#"}}}
    found = document({"allOf": [step, step]})
    assert found.fault('{"x":' * 5 + "1" + "}" * 5) is None
    assert found.fault('{"x":' * 60 + "1" + "}" * 60) is not None


@pytest.mark.slow
def test_each_item_against_each_schema_is_too_much() -> None:
    found = document({"items": {"allOf": [{"minimum": at} for at in range(2_000)]}})
    assert found.fault(orjson.dumps(list(range(2_000))).decode()) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"$ref": "#/not", "not": {"$ref": "#"}},
    ],
)
def test_a_reference_to_itself_ends(schema: dict[str, Any]) -> None:
    document(schema).fault("[1]")


@pytest.mark.parametrize("depth", [200, 5_000])
def test_a_chain_of_references_ends(depth: int) -> None:
    steps: dict[str, Any] = {f"s{at}": {"$ref": f"#/$defs/s{at + 1}"} for at in range(depth)}
    schema = {"$defs": {**steps, f"s{depth}": {"type": "integer"}}, "$ref": "#/$defs/s0"}
    try:
        assert document(schema).fault('"x"') is not None
    except UnusableSchema:
        assert depth > 200


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"items": schema}
    with pytest.raises(UnusableSchema):
        document(schema)


def test_a_value_that_is_too_deep_is_wrong() -> None:
    assert document({"items": {"$ref": "#"}}).fault("[" * 1_000 + "]" * 1_000) is not None
    deep: list[Any] = []
    for _ in range(3_000):
        deep = [deep]
    with pytest.raises(TooMuchWork):
        Cost({"items": {"$ref": "#"}}, WORK_MAX).count(deep)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)*$", "([a-z]+)*[0-9]$", "(.*)*x$"])
def test_patterns_that_backtrack_elsewhere_are_checked_in_one_go(pattern: str) -> None:
    found = document({"type": "string", "pattern": pattern})
    assert found.fault(f'"{"a" * 50_000}!"') is not None


def test_a_pattern_that_grows_too_large_is_refused() -> None:
    with pytest.raises(UnusableSchema):
        document({"pattern": "((a{1,100}){1,100}){1,100}"})


@each(
    "place",
    [
        lambda uri: {"$ref": uri},
        lambda uri: {"properties": {"a": {"$ref": uri}}},
        lambda uri: {"$ref": f"{uri}#/$defs/a"},
        lambda uri: {"$schema": uri, "$ref": uri},
        lambda uri: {"$id": uri, "$ref": "other"},
        lambda uri: {"allOf": [{"$id": uri, "$ref": "#/$defs/a"}]},
        lambda uri: {"$dynamicRef": uri},
        lambda _: {"$ref": "file:///etc/passwd"},
    ],
)
def test_nobody_is_asked_for_a_schema(place: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        uri = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        with pytest.raises(UnusableSchema):
            document(place(uri))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_dialect_nobody_knows_is_not_asked_for_either() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        uri = f"http://127.0.0.1:{server.getsockname()[1]}/dialect"
        assert document({"$schema": uri, "type": "integer"}).fault('"x"') is not None
        with pytest.raises(BlockingIOError):
            server.accept()


def test_pointers_and_anchors_are_followed_when_work_is_counted() -> None:
    wide = {"enum": list(range(50))}
    schema: dict[str, Any] = {
        "$defs": {"a/b": wide, "list": {"allOf": [wide]}, "named": {"$anchor": "here", **wide}},
        "allOf": [
            {"$ref": "#/$defs/a~1b"},
            {"$ref": "#/$defs/list/allOf/0"},
            {"$ref": "#here"},
            {"$ref": "#/$defs/a%7E1b"},
        ],
    }
    assert document(schema).fault("1") is None
    assert Cost(schema, WORK_MAX).count(1) == 1 + 4 * (1 + 51)
    for nowhere in ("#/$defs/list/allOf/7", "#/$defs/list/allOf/x", "#/$defs/none/deeper"):
        assert Cost({**schema, "allOf": [{"$ref": nowhere}]}, WORK_MAX).count(1) == 3


def test_every_way_to_apply_a_schema_is_counted() -> None:
    part = {"enum": [1, 2, 3]}
    words = {
        **dict.fromkeys(("not", "if", "then", "else", "propertyNames"), part),
        **dict.fromkeys(("additionalProperties", "unevaluatedProperties"), part),
        "dependentSchemas": {"a": part},
        "properties": {"a": part},
        "patternProperties": {"^a": part},
    }
    assert Cost(words, WORK_MAX).count({"a": 1}) == 2 * (1 + 1 + 10 * 4)
    items = {
        **dict.fromkeys(("items", "contains", "unevaluatedItems"), part),
        "prefixItems": [part],
    }
    assert Cost(items, WORK_MAX).count([1]) == 2 * (1 + 4 * 4)
    assert Cost({"items": True}, WORK_MAX).count([1]) == 2


@pytest.mark.parametrize(
    ("syntax", "definition", "text"),
    [
        ("regex", "(a+)+b", "a" * 50_000),
        ("regex", "((a{1,100}){1,100}){1,100}", "a" * 50_000),
        ("regex", ".*a.{1000}", "ab" * 25_000),
        ("lark", 'start: e\ne: e e | "a" |', "a" * 50_000),
        ("lark", 'start: e\ne: e "+" e | "a"', "a+" * 25_000 + "a"),
        ("lark", 'start: "a" start | "b"', "a" * 50_000),
    ],
)
def test_ambiguous_languages_are_given_up(syntax: Any, definition: str, text: str) -> None:
    language = GrammarValidator(TextGrammar(syntax, definition), seconds_max=5.0)
    assert language.fault(text) is not None


@pytest.mark.slow
def test_a_long_text_of_a_plain_language_is_checked() -> None:
    language = GrammarValidator(
        TextGrammar("lark", 'start: line+\nline: "+" /.*/ "\\n"'), seconds_max=60.0
    )
    assert language.fault("+yyyyyy\n" * 6_000) is None
    assert language.fault("+yyyyyy\n" * 6_000 + "-") == "its grammar does not allow byte 48000"


def test_half_a_character_is_in_no_language() -> None:
    language = GrammarValidator(TextGrammar("lark", 'start: "+" /.*/'), seconds_max=60.0)
    assert language.fault("+\ud800") == "it is not valid Unicode"


@pytest.mark.parametrize(
    ("schema", "value", "work"),
    [
        ({"uniqueItems": True}, [[1, 2], "abc", {"k": 1}], 1 + 1 + 3 + 4 + 3),
        ({"uniqueItems": True}, "abc", 1),
        ({"uniqueItems": True, "allOf": [{"uniqueItems": True}]}, [7, 8], 1 + 3 + 1 + 3),
        ({"const": {"k": "abc"}}, 1, 1 + 6),
        ({"pattern": "a"}, "a" * 100, 1 + 100),
        ({"required": ["a", "b"]}, {}, 1 + 2),
        ({"patternProperties": {"^x": True, "^y": True}}, {"abc": 1}, 1 + 3 * 2 + 2),
    ],
)
def test_what_a_keyword_itself_costs_is_counted(
    schema: dict[str, Any], value: object, work: int
) -> None:
    assert Cost(schema, WORK_MAX).count(value) == work


def test_a_schema_has_only_so_many_patterns() -> None:
    def with_patterns(count: int) -> dict[str, Any]:
        return {
            "properties": {f"p{n}": {"type": "string", "pattern": f"^{n}$"} for n in range(count)}
        }

    assert (
        SchemaValidator(with_patterns(PATTERNS_MAX), work_max=WORK_MAX).fault('{"p1": "1"}') is None
    )
    with pytest.raises(UnusableSchema, match="257 patterns"):
        SchemaValidator(with_patterns(PATTERNS_MAX + 1), work_max=WORK_MAX)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [r"^[^/]{1,255}$", "^.{1,500}$", r"^\S{1,1000}$"])
def test_one_pattern_may_be_large(pattern: str) -> None:
    schema = {"properties": {f"p{n}": {"type": "string", "pattern": pattern} for n in range(300)}}
    assert SchemaValidator(schema, work_max=WORK_MAX).fault('{"p1": "abc"}') is None


def test_the_more_patterns_there_are_the_smaller_each_has_to_be() -> None:
    large = [{"type": "string", "pattern": f"^.{{1,500}}{n}$"} for n in range(100)]
    SchemaValidator({"allOf": large[:2]}, work_max=WORK_MAX)
    with pytest.raises(UnusableSchema, match="repeats too much"):
        SchemaValidator({"allOf": large}, work_max=WORK_MAX)


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(?<!a)b"])
def test_what_is_not_linear_is_said_to_be_the_reason(pattern: str) -> None:
    with pytest.raises(UnusableSchema, match="look-around and back-references"):
        SchemaValidator({"pattern": pattern}, work_max=WORK_MAX)


def test_a_chain_of_references_is_refused_before_anything_is_checked() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(REFERENCES_MAX)}
    schema = {
        "$defs": {**chain, f"d{REFERENCES_MAX}": {}},
        "properties": {"a": {"$ref": "#/$defs/d0"}},
    }
    with pytest.raises(UnusableSchema, match="more than 2000 references"):
        SchemaValidator(schema, work_max=WORK_MAX)


def doubled(levels: int, leaf: str) -> str:
    """Terminals each of which names the next one twice."""
    steps = [f"A{level}: A{level + 1} A{level + 1}" for level in range(levels)]
    return "\n".join(["start: A0", *steps, f"A{levels}: {leaf}"])


@each(
    ("syntax", "definition", "fault"),
    [
        ("regex", r"\w*" * 20_000, "may be empty or repeat"),
        ("regex", r"(\p{L}\w|)" * 5000, "may be empty or repeat"),
        ("lark", r"start: /(\w|)*/" + r"/\w*/" * 1000 + r"/" + r"\w?" * 1000 + "/", "may be empty"),
        ("lark", doubled(12, r"/\w*/"), "may be empty or repeat"),
        ("lark", doubled(12, "/a/?"), "may be empty or repeat"),
        ("lark", doubled(30, '"a"'), "written out, are too long"),
        ("lark", doubled(1000, '"a"'), "name each other too deeply"),
        ("lark", "start: A\nA: /(.|\\n)*a.{9}/ & /(.|\\n)*b.{9}/", "`&`, which is not of Lark"),
        ("lark", "start: A\nA: ~(/a/ | /b/)", "`~`, which is not of Lark"),
        ("lark", 'start: %json {"type": "string"}', "`%json`, which is not of Lark"),
        ("lark", 'start: "' + '\\"' * 30_000, "has no end"),
        ("lark", "start: /" + "\\/" * 30_000, "has no end"),
    ],
)
def test_grammars_that_take_too_long_to_compile_are_refused(
    syntax: Literal["lark", "regex"], definition: str, fault: str
) -> None:
    with pytest.raises(UnusableGrammar, match=fault):
        GrammarValidator(TextGrammar(syntax, definition), seconds_max=1.0)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ('start: "a"~3 B ~ 1..2 // & ~ %json\nB: "&~%json" | C? # &\nC: /[&~]+/i', "aaa&~%json"),
        ("start: W\nW: " + " | ".join(f'"kw{number}"' for number in range(3000)), "kw2999"),
        ("start: (W S)*\nW: /[a-z]*[0-9]?/\nS: / */\n%ignore /\\t*/", "ab3 c "),
        ('start: A "/"\nA: /a\nb?/ // "', "a\n/"),
    ],
)
def test_ordinary_grammars_are_compiled(definition: str, text: str) -> None:
    grammar = TextGrammar("lark", definition)
    assert GrammarValidator(grammar, seconds_max=1.0).fault(text) is None
