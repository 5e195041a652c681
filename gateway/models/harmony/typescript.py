"""JSON Schema, normalised, as the TypeScript that gpt-oss was trained to read.

Where openai-harmony 0.0.8 writes a schema correctly this module writes the same bytes, odd spacing
included. It differs where the library's text is broken or loses a type: keys that are no
identifiers are quoted, string literals are escaped, `null`, literals other than strings, tuples and
index signatures exist, an array of a union is bracketed, and nothing is put behind a comment.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

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
"""All that `str.splitlines` takes for one, and so a model may."""
_ESCAPED: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""The ends of lines that JSON may have within a string."""


def type_text(schema: Schema, indent: str = "") -> str:
    """The type of a normalised schema (see `harmony.schema`), written at `indent`."""
    text = _bare_type(schema, indent)
    return f"{text} | null" if schema.get("nullable") else text


def function_text(name: str, parameters: Schema | None) -> str:
    """The declaration of one function, without its description."""
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
    """The type, fit to be followed by more on its line: that must not land in a comment."""
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
    """A property with variants: its description is not repeated at the first of them."""
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
    """A default; that of an enum of strings stands without quotes, as in the library."""
    value = schema["default"]
    if isinstance(value, str) and "enum" in schema:
        return single_line(value)
    return _json(value)


def _key(key: str) -> str:
    return key if key.replace("$", "_").isidentifier() else _json(key)


def _json(value: object) -> str:
    """Compact JSON; exponents have no plus sign, as in the library."""
    if isinstance(value, dict):
        pairs = (f"{_json(key)}:{_json(member)}" for key, member in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    text = json_line(value)
    return text.replace("e+", "e") if isinstance(value, float) else text


def json_line(value: object) -> str:
    """Compact JSON on one line, whatever a reader takes for the end of a line."""
    return orjson.dumps(value).decode().translate(_ESCAPED)


def comment_lines(text: str) -> list[str]:
    """The lines of a text, each of which is to be a comment; a last empty one is left out."""
    *ended, last = _LINE_END.split(text)
    return [*ended, last] if last else ended


def single_line(text: str) -> str:
    """Text that cannot leave the comment it is put into."""
    lines = text.splitlines()
    if lines == [text] or not text:
        return text
    return " ".join(line.strip() for line in lines if line.strip())
