"""JSON Schemas of tools as the TypeScript that gpt-oss was trained to read.

openai-harmony 0.0.8 writes `any` for `anyOf` (every `Optional[...]` of pydantic), `$ref`, `allOf`,
`const` and untyped `enum`. Here `SchemaNormaliser` first brings them to few keywords: `title`,
`description`, `default`, `examples`; then either `oneOf`, or `enum`, or `type` with `properties`,
`required`, `additionalProperties`, `items`, `prefixItems`; and `nullable`.

Where openai-harmony 0.0.8 writes a schema correctly this module writes the same bytes, odd spacing
included. It differs where the library's text is broken or loses a type: quoted keys, escaped
literals, `null`, literals other than strings, tuples, index signatures, brackets around the union
of an array, and nothing behind a comment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.constraints.schemas import MISSING, TYPE_NAMES, as_dict, as_list, at_pointer, is_one_of
from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable


DEPTH_MAX: Final = 32
NODES_MAX: Final = 40_000
"""Schemas, properties and enum values of all tools of one request, `$ref`s inlined."""
INLINED_NODES_MAX: Final = 2_000
"""Nodes of one schema, from its `$ref`s: recursive definitions could fill a context window."""
CHARACTERS_MAX: Final = 2_000_000
"""Characters of all keys, descriptions, defaults and literals of one request."""
Refs = frozenset[str]
_NO_REFS: Final[Refs] = frozenset()
_OBJECT_KEYS: Final = ("properties", "additionalProperties", "patternProperties")
_ARRAY_KEYS: Final = ("items", "prefixItems")
_SHAPE_KEYS: Final = frozenset(
    {"type", "enum", "const", "anyOf", "oneOf", *_OBJECT_KEYS, *_ARRAY_KEYS}
)
_PUSHED_KEYS: Final = frozenset({*_SHAPE_KEYS, "required"} - {"anyOf", "oneOf"})
_INLINED_REFS: Final = (8, 3, 1, 0)
"""Nesting of `$ref`s that are followed: the next one applies if the result exceeds the limits."""
Schema = dict[str, Any]
_NAMES: Final = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "object",
    "array": "Array<any>",
}
_LINE_END: Final = re.compile(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""All line ends of `str.splitlines`: a model may take them for such, too."""
_ESCAPED: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Line ends that JSON may have within a string."""


class SchemaNormaliser:
    """Normaliser of the schemas of one request, with one budget for them. Not thread-safe.

    A recursive definition is written out once and is `any` inside of itself.
    """

    def __init__(self) -> None:
        self._inlined_refs = list(_INLINED_REFS)
        self._nodes = 0
        self._inlined_nodes = 0
        self._characters = 0
        self._root: Schema = {}
        self._param = ""

    def normalise(self, schema: Schema, *, param: str) -> Schema:
        """Normalise the schema; `param` names it in errors.

        Raises `InvalidRequest` when it exceeds the limits or holds a value that JSON cannot
        express.
        """
        self._root, self._param = schema, param
        spent = self._nodes, self._characters
        while True:
            self._inlined_nodes = 0
            try:
                return self._schema(schema, _NO_REFS, 0)
            except InvalidRequest:
                if len(self._inlined_refs) == 1:
                    raise
            self._inlined_refs.pop(0)
            self._nodes, self._characters = spent

    def _schema(self, schema: object, refs: Refs, depth: int) -> Schema:
        flat, refs = self._flatten(schema, refs, depth)
        return self._shape(flat, refs, depth)

    # `$ref` and `allOf` -------------------------------------------------------------------------

    def _flatten(self, schema: object, refs: Refs, depth: int) -> tuple[Schema, Refs]:
        if depth > DEPTH_MAX:
            raise self._error(f"it is nested more than {DEPTH_MAX} levels deep")
        if not isinstance(schema, dict):
            self._spend(1, refs)
            return {}, refs
        self._spend(1 + sum(len(v) for v in schema.values() if isinstance(v, dict | list)), refs)
        flat = {key: value for key, value in schema.items() if key not in {"$ref", "allOf"}}
        if "const" in flat:
            flat["enum"] = [flat.pop("const")]
        branches = as_list(schema.get("allOf"))
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref not in refs and len(refs) < self._inlined_refs[0]:
            refs |= {ref}
            branches = [self._resolve(ref), *branches]
        for branch in branches:
            inner, refs = self._flatten(branch, refs, depth + 1)
            flat = self._merge(flat, inner)
        return flat, refs

    def _resolve(self, ref: str) -> object:
        # A JSON pointer into this schema (RFC 6901); None for any other address.
        if ref != "#" and not ref.startswith("#/"):
            return None
        target = at_pointer(self._root, ref)
        return None if target is MISSING else target

    def _merge(self, first: Schema, second: Schema) -> Schema:
        # For keywords that both have, the first schema wins.
        self._spend(sum(len(as_dict(both.get("properties"))) for both in (first, second)))
        merged = second | first
        properties = dict(as_dict(first.get("properties")))
        for key, value in as_dict(second.get("properties")).items():
            own = properties.get(key, value)
            properties[key] = value if own is value else {"allOf": [own, value]}
        if properties:
            merged["properties"] = properties
        required = [*as_list(first.get("required")), *as_list(second.get("required"))]
        if required:
            self._spend(len(required))
            merged["required"] = required
        return merged

    # One schema ---------------------------------------------------------------------------------

    def _shape(self, flat: Schema, refs: Refs, depth: int) -> Schema:
        variants = as_list(flat.get("oneOf")) or as_list(flat.get("anyOf"))
        if variants:
            return self._union(flat, variants, refs, depth)
        return self._annotations(flat) | self._typed(flat, refs, depth)

    def _annotations(self, flat: Schema) -> Schema:
        kept: Schema = {}
        for key in ("title", "description"):
            if isinstance(flat.get(key), str):
                kept[key] = self._text(single_line(flat[key]))
        if "default" in flat:
            kept["default"] = self._value(flat["default"])
        examples = as_list(flat.get("examples"))
        if examples:
            kept["examples"] = [self._value(example) for example in examples]
        return kept

    def _union(self, flat: Schema, variants: list[Any], refs: Refs, depth: int) -> Schema:
        # Variants without a shape (`anyOf: [{required: [a]}, ...]`) have no TypeScript: then the
        # schema around them stands alone.
        outer = {k: v for k, v in flat.items() if k not in {"oneOf", "anyOf"}}
        pushed = {k: v for k, v in outer.items() if k in _PUSHED_KEYS}
        flattened = [self._flatten(variant, refs, depth + 1) for variant in variants]
        says_nothing = not any(_SHAPE_KEYS & v.keys() for v, _ in flattened)
        if _is_null(outer) or (_SHAPE_KEYS & pushed.keys() and says_nothing):
            return self._shape(outer, refs, depth)
        others = [(v, inner) for v, inner in flattened if not _is_null(v)]
        if len(others) == 1 and len(others) < len(flattened):
            only, inner = others[0]
            return self._shape(self._merge(outer | {"nullable": True}, only), inner, depth + 1)
        shapes = [
            self._shape(v if _is_null(v) else self._merge(v, pushed), inner, depth + 1)
            for v, inner in flattened
        ]
        if flat.get("nullable") is True and len(others) == len(flattened):
            shapes.append({"type": "null"})
        return self._annotations(flat) | {"oneOf": shapes}

    def _typed(self, flat: Schema, refs: Refs, depth: int) -> Schema:
        types = _types(flat)
        nullable = {"nullable": True} if flat.get("nullable") is True else {}
        values = [value for value in as_list(flat.get("enum")) if is_one_of(value, types)]
        if values:
            return self._enumerated(values) | nullable
        plain = [name for name in types if name != "null"]
        if len(types) < 2 or not any(_is_structured(flat, name) for name in plain):
            kind: object = types[0] if len(types) == 1 else types
            named = {"type": kind} if types else {}
            content = self._content(flat, types[0], refs, depth) if len(types) == 1 else {}
            return named | content | ({} if "null" in types else nullable)
        if len(plain) == 1:
            content = self._content(flat, plain[0], refs, depth)
            return {"type": plain[0], "nullable": True} | content
        shapes = [{"type": name} | self._content(flat, name, refs, depth) for name in types]
        return {"oneOf": shapes}

    def _enumerated(self, values: list[Any]) -> Schema:
        literals = [self._value(value) for value in values if value is not None]
        if not literals:
            return {"type": "null"}
        nullable = {"nullable": True} if len(literals) < len(values) else {}
        is_text = all(isinstance(value, str) for value in literals)
        return ({"type": "string"} if is_text else {}) | {"enum": literals} | nullable

    def _content(self, flat: Schema, kind: str, refs: Refs, depth: int) -> Schema:
        if kind == "object":
            return self._object(flat, refs, depth)
        if kind == "array":
            return self._array(flat, refs, depth)
        return {}

    def _object(self, flat: Schema, refs: Refs, depth: int) -> Schema:
        properties = {
            self._text(key): self._schema(value, refs, depth + 1)
            for key, value in as_dict(flat.get("properties")).items()
        }
        required = {name for name in as_list(flat.get("required")) if isinstance(name, str)}
        content: Schema = {
            "properties": properties,
            "required": [key for key in properties if key in required],
        }
        rest = _rest(flat)
        values = self._schema(rest, refs, depth + 1) if rest is not None else {}
        return content | ({"additionalProperties": values} if values else {})

    def _array(self, flat: Schema, refs: Refs, depth: int) -> Schema:
        items = flat.get("items")
        positions = as_list(flat.get("prefixItems")) or as_list(items)
        if positions:
            return {"prefixItems": [self._schema(item, refs, depth + 1) for item in positions]}
        return {} if items is None else {"items": self._schema(items, refs, depth + 1)}

    # The budget ---------------------------------------------------------------------------------

    def _spend(self, nodes: int, refs: Refs = _NO_REFS) -> None:
        self._nodes += nodes
        if refs:
            self._inlined_nodes += nodes
        if self._nodes > NODES_MAX:
            raise self._error(f"the tools' schemas hold more than {NODES_MAX} nodes")
        if self._inlined_nodes > INLINED_NODES_MAX:
            raise self._error(f"its references bring in more than {INLINED_NODES_MAX} nodes")

    def _text(self, text: str) -> str:
        self._characters += len(text)
        if self._characters > CHARACTERS_MAX:
            raise self._error(f"the tools' schemas hold more than {CHARACTERS_MAX} characters")
        return text

    def _value(self, value: object) -> object:
        try:
            self._text(orjson.dumps(value).decode())
        except orjson.JSONEncodeError as error:
            raise self._error(f"a value in it is not JSON ({error})") from error
        return value

    def _error(self, reason: str) -> InvalidRequest:
        return InvalidRequest(
            f"Invalid schema in '{self._param}': {reason}.",
            code="invalid_function_parameters",
            param=self._param,
        )


def _types(flat: Schema) -> list[str]:
    declared = flat.get("type")
    names: Iterable[object] = declared if isinstance(declared, list) else [declared]
    types = [name for name in names if isinstance(name, str) and name in TYPE_NAMES]
    if types or "enum" in flat or declared is not None:
        return types
    if any(isinstance(flat.get(key), dict) for key in _OBJECT_KEYS):
        return ["object"]
    return ["array"] if any(key in flat for key in _ARRAY_KEYS) else []


def _is_structured(flat: Schema, kind: str) -> bool:
    if kind == "object":
        return bool(as_dict(flat.get("properties"))) or _rest(flat) is not None
    return kind == "array"


def _rest(flat: Schema) -> Schema | None:
    candidates = [*as_dict(flat.get("patternProperties")).values()]
    if flat.get("additionalProperties"):
        candidates.append(flat["additionalProperties"])
    schemas = [candidate for candidate in candidates if isinstance(candidate, dict)]
    return {"oneOf": schemas} if len(schemas) > 1 else next(iter(schemas), None)


def _is_null(flat: Schema) -> bool:
    return flat.get("type") in ("null", ["null"]) or flat.get("enum") == [None]


def type_text(schema: Schema, indent: str = "") -> str:
    text = _bare_type(schema, indent)
    return f"{text} | null" if schema.get("nullable") else text


def function_text(name: str, parameters: Schema | None) -> str:
    if parameters is None:
        return f"type {name} = () => any;\n"
    return f"type {name} = (_: {_closed_type(parameters, '')}) => any;\n"


def _bare_type(schema: Schema, indent: str) -> str:
    if "oneOf" in schema:
        return _union(schema["oneOf"], indent)
    if "enum" in schema:
        return " | ".join(map(_json, schema["enum"]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(_NAMES[name] for name in kind)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return _array(schema, indent)
    return _NAMES.get(kind, "any")


def _closed_type(schema: Schema, indent: str) -> str:
    # More may follow on the type's line, and must not land in a comment.
    text = type_text(schema, indent)
    return f"{text}\n{indent}" if _ends_in_comment(schema) else text


def _ends_in_comment(schema: Schema) -> bool:
    if "oneOf" not in schema:
        return False
    last = schema["oneOf"][-1]
    return "description" in last or "default" in last or _ends_in_comment(last)


def _union(variants: list[Schema], indent: str) -> str:
    lines = []
    for variant in variants:
        comments = [variant["description"]] if "description" in variant else []
        if "default" in variant:
            comments.append(f"default: {_json(variant['default'])}")
        lines.append(f"\n{indent} | {_commented(variant, comments, indent)}")
    return "".join(lines)


def _commented(variant: Schema, comments: list[str], indent: str) -> str:
    text = type_text(variant, f"{indent}   ")
    return f"{text} // {' '.join(comments)}" if comments else text


def _array(schema: Schema, indent: str) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_closed_type(item, indent) for item in schema['prefixItems'])}]"
    if "items" not in schema:
        return "Array<any>"
    items = schema["items"]
    text = _closed_type(items, indent)
    if "oneOf" in items:
        return f"Array<{text}>"
    return f"({text})[]" if _is_alternatives(items) else f"{text}[]"


def _is_alternatives(schema: Schema) -> bool:
    kind = schema.get("type")
    several_types = isinstance(kind, list) and len(kind) > 1
    return several_types or len(schema.get("enum", ())) > 1 or "nullable" in schema


def _object(schema: Schema, indent: str) -> str:
    lines = [f"{indent}// {schema['description']}\n"] if "description" in schema else []
    lines.append("{\n")
    required = frozenset(schema.get("required", ()))
    for key, value in schema.get("properties", {}).items():
        label = _key(key) if key in required else f"{_key(key)}?"
        lines.extend(_property(label, value, indent))
    if "additionalProperties" in schema:
        lines.extend(_property("[key: string]", schema["additionalProperties"], indent))
    lines.append(f"{indent}}}")
    return "".join(lines)


def _property(label: str, schema: Schema, indent: str) -> list[str]:
    lines = [f"{indent}// {schema['title']}\n{indent}//\n"] if "title" in schema else []
    if "oneOf" in schema:
        return lines + _examples(schema, indent) + _union_property(label, schema, indent)
    if "description" in schema:
        lines.append(f"{indent}// {schema['description']}\n")
    lines.extend(_examples(schema, indent))
    default = f" // default: {_default(schema)}" if "default" in schema else ""
    lines.append(f"{indent}{label}: {type_text(schema, indent + '    ')},{default}\n")
    return lines


def _examples(schema: Schema, indent: str) -> list[str]:
    if "examples" not in schema:
        return []
    values = (f"{indent}// - {_json(example)}\n" for example in schema["examples"])
    return [f"{indent}// Examples:\n", *values]


def _union_property(label: str, schema: Schema, indent: str) -> list[str]:
    variants: list[Schema] = schema["oneOf"]
    described = schema.get("description")
    is_above = described is not None and described != variants[0].get("description")
    lines = [f"{indent}// {described}\n"] if is_above else []
    if "default" in schema:
        lines.append(f"{indent}// default: {_default(schema)}\n")
    lines.append(f"{indent}{label}:\n")
    for position, variant in enumerate(variants):
        own = variant.get("description")
        is_repeated = own is None or own == described or (position == 0 and is_above)
        comments: list[str] = [] if is_repeated else [variant["description"]]
        if "default" in variant:
            comments.append(f"default: {_default(variant)}")
        lines.append(f"{indent} | {_commented(variant, comments, indent)}\n")
    lines.append(f"{indent},\n")
    return lines


def _default(schema: Schema) -> str:
    # The default of an enum of strings has no quotes, as in the library.
    value = schema["default"]
    if isinstance(value, str) and "enum" in schema:
        return single_line(value)
    return _json(value)


def _key(key: str) -> str:
    return key if key.replace("$", "_").isidentifier() else _json(key)


def _json(value: object) -> str:
    # Exponents have no plus sign, as in the library.
    if isinstance(value, dict):
        pairs = (f"{_json(key)}:{_json(member)}" for key, member in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    text = json_line(value)
    return text.replace("e+", "e") if isinstance(value, float) else text


def json_line(value: object) -> str:
    return orjson.dumps(value).decode().translate(_ESCAPED)


def comment_lines(text: str) -> list[str]:
    *ended, last = _LINE_END.split(text)
    return [*ended, last] if last else ended


def single_line(text: str) -> str:
    """Return text that cannot leave the comment it is put into."""
    lines = text.splitlines()
    if lines == [text] or not text:
        return text
    return " ".join(line.strip() for line in lines if line.strip())
