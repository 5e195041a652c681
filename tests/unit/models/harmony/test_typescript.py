from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway.models.harmony.tool_typescript import SchemaNormaliser, function_text, single_line
from tests.fakes.cases import each
from tests.fakes.harmony_oracle import library_declaration

if TYPE_CHECKING:
    from gateway.models.harmony.tool_typescript import Schema


def declaration(parameters: Schema) -> str:
    normaliser = SchemaNormaliser()
    return function_text("f", normaliser.normalise(parameters, param="tools[0].parameters"))


def object_of(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SAME: dict[str, Schema] = {
    "nothing known": {},
    "no properties": {"type": "object"},
    "not an object": {"type": "string"},
    "unknown type": {"type": "date"},
    "described": object_of(a={"type": "object", "description": "d"}) | {"description": "root"},
    "required": object_of(b={"type": "integer"}, a={"type": "boolean"}) | {"required": ["a"]},
    "defaults": object_of(
        a={"type": "string", "default": "x"},
        b={"type": "string", "enum": ["x", "y"], "default": "y"},
        c={"type": "number", "default": 1e22},
        d={"type": "array", "default": [1.0, None, {"k": True, "j": "é"}]},
        e={"type": "string", "default": None},
    ),
    "titles and examples": object_of(
        a={"type": "string", "title": "T", "description": "d", "examples": ["x", "y"]}
    ),
    "arrays": object_of(
        a={"type": "array"},
        b={"type": "array", "items": {"type": "string"}},
        c={"type": "array", "items": object_of(x={"type": "string"}) | {"description": "d"}},
        d={"type": "array", "items": {}},
        e={"type": "array", "items": True},
    ),
    "type lists": object_of(
        a={"type": ["string", "null"]},
        b={"type": ["integer", "boolean"]},
        c={"type": ["object", "null"]},
        d={"type": ["string"]},
    ),
    "nullable": object_of(
        a={"type": "string", "nullable": True},
        b={"type": ["string", "null"], "nullable": True},
        c={"type": "number", "nullable": False},
    ),
    "a union": object_of(
        a={
            "description": "d",
            "default": "k",
            "oneOf": [
                {"type": "string", "description": "first", "default": "x"},
                {"type": "integer", "description": "second", "default": 2},
                {"type": "string", "enum": ["p", "q"], "default": "q", "nullable": True},
                object_of(x={"oneOf": [{"type": "string"}, {"type": "boolean"}]}),
            ],
        },
        b={"description": "d", "oneOf": [{"type": "string", "description": "d"}]},
        c={"oneOf": [{"type": "string", "description": "first"}, {"type": "number"}]},
        d={"oneOf": [{"oneOf": [{"type": "string"}, {"type": "number"}]}, {"type": "boolean"}]},
    ),
    "a union at the top": {
        "oneOf": [object_of(a={"type": "string"}) | {"description": "d"}, {"type": "string"}]
    },
    "keys with a dollar sign or letters of any script": object_of(
        **{"$ref_": {"type": "string"}, "naïve": {"type": "string"}, "_x1": {"type": "string"}}
    ),
}


@each("schema", SAME.values())
def test_what_the_library_writes_well_is_written_alike(schema: Schema) -> None:
    assert declaration(schema) == library_declaration(schema)


def test_a_function_without_parameters_takes_none() -> None:
    assert function_text("f", None) == library_declaration(None)


class Difference(NamedTuple):
    """The property `a` of an object, as the library writes it and as we do, and why."""

    reason: str
    schema: Schema
    library: str
    ours: str


DIFFERENCES = [
    Difference(
        "anyOf has no type in the library; one variant and null is the variant or null",
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "a?: any, // default: null",
        "a?: string | null, // default: null",
    ),
    Difference(
        "anyOf has no type in the library; it is written like oneOf",
        {"anyOf": [{"type": "string"}, {"type": "number"}], "description": "d"},
        "// d\na?: any,",
        "// d\na?:\n | string\n | number\n,",
    ),
    Difference(
        "null has no type in the library",
        {"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
        "a?:\n | string\n | number\n | any\n,",
        "a?:\n | string\n | number\n | null\n,",
    ),
    Difference("null has no type in the library", {"type": "null"}, "a?: any,", "a?: null,"),
    Difference(
        "nullable is not read beside oneOf",
        {"oneOf": [{"type": "string"}, {"type": "number"}], "nullable": True},
        "a?:\n | string\n | number\n,",
        "a?:\n | string\n | number\n | null\n,",
    ),
    Difference(
        "nullable is not believed where the text holds the letters null",
        {"type": "string", "enum": ["nullify"], "nullable": True},
        'a?: "nullify",',
        'a?: "nullify" | null,',
    ),
    Difference("$ref is not followed", {"$ref": "#/$defs/P"}, "a?: any,", "a?: number,"),
    Difference("allOf is not read", {"allOf": [{"type": "string"}]}, "a?: any,", "a?: string,"),
    Difference(
        "allOf is not read; objects in it are one object",
        {
            "allOf": [
                object_of(x={"type": "string"}) | {"required": ["x"]},
                object_of(y={"type": "string"}),
            ]
        },
        "a?: any,",
        "a?: {\n    x: string,\n    y?: string,\n    },",
    ),
    Difference("const is not read", {"const": 5}, "a?: any,", "a?: 5,"),
    Difference("const is not read", {"type": "string", "const": "x"}, "a?: string,", 'a?: "x",'),
    Difference(
        "an enum is only read beside type string",
        {"enum": ["a", "b", None, 1]},
        "a?: any,",
        'a?: "a" | "b" | 1 | null,',
    ),
    Difference(
        "an enum is only read beside type string",
        {"type": ["string", "null"], "enum": ["a", None]},
        "a?: string | null,",
        'a?: "a" | null,',
    ),
    Difference(
        "an enum is only read beside type string",
        {"type": "integer", "enum": [1, 2]},
        "a?: number,",
        "a?: 1 | 2,",
    ),
    Difference(
        "string literals are not escaped",
        {"type": "string", "enum": ['say "x"', "two\nlines"]},
        'a?: "say "x"" | "two\nlines",',
        'a?: "say \\"x\\"" | "two\\nlines",',
    ),
    Difference(
        "string literals are not escaped",
        {"type": "string", "default": 'a"\nb', "examples": ["x\ny"]},
        '// Examples:\n// - "x\ny"\na?: string, // default: "a"\nb"',
        '// Examples:\n// - "x\\ny"\na?: string, // default: "a\\"\\nb"',
    ),
    Difference(
        "the second line of a text leaves its comment",
        {"type": "string", "title": "T\nU", "description": "one\n  two\n\nthree"},
        "// T\nU\n//\n// one\n  two\n\nthree\na?: string,",
        "// T U\n//\n// one two three\na?: string,",
    ),
    Difference(
        "the second line of a text leaves its comment",
        {"type": "string", "enum": ["x"], "default": "x\ny"},
        'a?: "x", // default: x\ny',
        'a?: "x", // default: x y',
    ),
    Difference(
        "only examples that are strings are written",
        {"type": "integer", "examples": [1, 2]},
        "// Examples:\na?: number,",
        "// Examples:\n// - 1\n// - 2\na?: number,",
    ),
    Difference(
        "an array of alternatives reads as alternatives of which the last is an array",
        {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
        'a?: "x" | "y"[],',
        'a?: ("x" | "y")[],',
    ),
    Difference(
        "an array of alternatives reads as alternatives of which the last is an array",
        {"type": "array", "items": {"type": ["string", "number"]}},
        "a?: string | number[],",
        "a?: (string | number)[],",
    ),
    Difference(
        "the brackets of an array of a union can end up in a comment",
        {
            "type": "array",
            "items": {"oneOf": [{"type": "string"}, {"type": "number", "description": "d"}]},
        },
        "a?: \n     | string\n     | number // d[],",
        "a?: Array<\n     | string\n     | number // d\n    >,",
    ),
    Difference(
        "nullable is not read in an array",
        {"type": "array", "items": {"type": "string", "nullable": True}},
        "a?: string[],",
        "a?: (string | null)[],",
    ),
    Difference(
        "tuples have no types",
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
        "a?: Array<any>,",
        "a?: [string, number],",
    ),
    Difference(
        "arrays and objects in a list of types lose what is in them",
        {"type": ["array", "null"], "items": {"type": "string"}},
        "a?: array | null,",
        "a?: string[] | null,",
    ),
    Difference(
        "arrays and objects in a list of types lose what is in them",
        {"type": ["string", "array"], "items": {"type": "string"}},
        "a?: string | array,",
        "a?:\n | string\n | string[]\n,",
    ),
    Difference(
        "unknown names in a list of types are written as they are",
        {"type": ["string", "x) => any; // "]},
        "a?: string | x) => any; // ,",
        "a?: string,",
    ),
    Difference(
        "values of additionalProperties have no type",
        {"type": "object", "additionalProperties": {"type": "string", "description": "d"}},
        "a?: {\n    },",
        "a?: {\n    // d\n    [key: string]: string,\n    },",
    ),
    Difference(
        "values of patternProperties have no type",
        {"patternProperties": {"^x": {"type": "string"}, "^y": {"type": "number"}}},
        "a?: any,",
        "a?: {\n    [key: string]:\n     | string\n     | number\n    ,\n    },",
    ),
    Difference(
        "a type that other keywords imply is not seen",
        {"properties": {"x": {"items": {"type": "string"}}}},
        "a?: any,",
        "a?: {\n    x?: string[],\n    },",
    ),
    Difference(
        "an empty oneOf is written as a type without text",
        {"oneOf": [], "type": "string"},
        "a?:\n,",
        "a?: string,",
    ),
    Difference(
        "what stands beside oneOf is lost",
        {
            **object_of(x={"type": "string"}),
            "oneOf": [object_of(y={"type": "string"}), object_of(z={"type": "string"})],
        },
        "a?:\n | {\n   y?: string,\n   }\n | {\n   z?: string,\n   }\n,",
        "a?:\n | {\n   y?: string,\n   x?: string,\n   }\n"
        " | {\n   z?: string,\n   x?: string,\n   }\n,",
    ),
    Difference(
        "what stands beside oneOf is lost",
        {**object_of(x={"type": "string"}), "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
        "a?:\n | any\n | any\n,",
        "a?: {\n    x?: string,\n    },",
    ),
]


def difference_id(difference: Difference) -> str:
    return difference.reason


@each("difference", DIFFERENCES)
def test_what_the_library_writes_badly_is_written_well(difference: Difference) -> None:
    schema = object_of(a=difference.schema) | {"$defs": {"P": {"type": "number"}}}
    frame = "type f = (_: {{\n{}\n}}) => any;\n"
    assert library_declaration(schema) == frame.format(difference.library)
    assert declaration(schema) == frame.format(difference.ours)


@pytest.mark.parametrize(
    ("key", "written"),
    [("kebab-key", '"kebab-key"'), ("1", '"1"'), ("", '""'), ("a\nb", '"a\\nb"'), ("a b", '"a b"')],
)
def test_a_key_that_is_no_identifier_is_quoted(key: str, written: str) -> None:
    schema = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    assert declaration(schema) == f"type f = (_: {{\n{written}: string,\n}}) => any;\n"


def test_the_end_of_a_declaration_is_never_in_a_comment() -> None:
    schema = {"oneOf": [{"type": "string"}, {"type": "number", "description": "d"}]}
    assert library_declaration(schema).endswith("| number // d) => any;\n")
    assert declaration(schema) == "type f = (_: \n | string\n | number // d\n) => any;\n"


def test_a_nested_union_that_ends_in_a_comment_is_closed() -> None:
    inner = {"oneOf": [{"type": "number"}, {"type": "string", "default": "x"}]}
    schema = {"oneOf": [{"type": "boolean"}, inner]}
    assert declaration(schema).endswith('| string // default: "x"\n) => any;\n')


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), (" a ", " a "), ("a\n", "a"), ("a\r\n b\u2028c", "a b c"), ("\n", "")],
)
def test_text_is_brought_to_one_line_only_when_it_has_several(text: str, line: str) -> None:
    assert single_line(text) == line
