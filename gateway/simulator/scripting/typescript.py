"""Read the TypeScript that describes tools back into JSON Schemas.

Total: what it cannot read becomes the schema of anything, or an absent property. It reads more than
the strict language, because descriptions with line breaks and unescaped quotes do occur in prompts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

Schema = dict[str, Any]

DEPTH_MAX: Final = 64
_TYPE: Final = re.compile(r"^type (\S+) = \((?:_: (?=\S)|\) => any;)", re.MULTILINE)
_BLANK: Final = re.compile(r"(?:\s+|//[^\n]*)*")
_KEY: Final = re.compile(r"""("(?:\\.|[^"\\\n])*"|[^\s:?{}|,;"]+)(\??)\s*:""")
_INDEX: Final = re.compile(r"\[key: string\]\s*:")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STRING: Final = re.compile(r'"([^\n]*?)"(?=\s*(?:[|,;\])}>\[]|//|\n|\Z))')
_LINE: Final = re.compile(r"[^\n]*\n?")
_NAMED: Final[dict[str, Schema]] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "object": {"type": "object"},
    "true": {"const": True},
    "false": {"const": False},
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that is offered: its name, the comment above it, the schema of its arguments."""

    name: str
    description: str
    parameters: Schema


def tools_of(message: str, namespace: str = "functions") -> list[Tool]:
    """Return the tools of a namespace in a message of the developer or the system, in order.

    The last namespace of that name counts: instructions, which may quote one, come before the
    tools.
    """
    begin, end = f"namespace {namespace} {{", f"}} // namespace {namespace}"
    whole = rf"^{re.escape(begin)}$(.*?)^{re.escape(end)}$"
    namespaces = re.findall(whole, message, re.MULTILINE | re.DOTALL)
    if not namespaces:
        return []
    text = namespaces[-1]
    return [_tool(text, match) for match in _TYPE.finditer(text)]


def _tool(text: str, match: re.Match[str]) -> Tool:
    above = text[: match.start()].rpartition("\n\n")[2]
    description = "\n".join(
        line.removeprefix("//").removeprefix(" ") for line in above.splitlines()
    )
    takes_nothing = match[0].endswith("any;")
    parameters = {"type": "object"} if takes_nothing else _Reader(text, match.end()).union(0)
    return Tool(name=match[1], description=description, parameters=parameters)


class _Reader:
    """Parser by recursive descent; `position` only ever grows, so it ends."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._position = position

    def union(self, depth: int) -> Schema:
        """Read `A | B | C[]`, one member or many."""
        leading = self._accept("|")
        members = [self._postfix(depth)]
        while self._accept("|"):
            members.append(self._postfix(depth))
        if len(members) == 1:
            return members[0]
        return _array_of_union(members) if not leading else {"anyOf": members}

    def _postfix(self, depth: int) -> Schema:
        schema = self._primary(depth)
        while self._accept("[]"):
            schema = {"type": "array", "items": schema}
        return schema

    def _primary(self, depth: int) -> Schema:
        if depth > DEPTH_MAX:
            return {}
        if self._accept("{"):
            return self._object(depth)
        if self._accept("["):
            return {"type": "array", "prefixItems": self._list("]", depth)}
        if self._accept("("):
            return self._list(")", depth)[0]
        if word := self._match(_WORD):
            return self._generic(word[0], depth)
        return self._literal()

    def _literal(self) -> Schema:
        if text := self._match(_STRING):
            return {"const": _unescape(text[1])}
        if number := self._match(_NUMBER):
            return {"const": json.loads(number[0])}
        return {}

    def _generic(self, name: str, depth: int) -> Schema:
        if not self._accept("<"):
            return dict(_NAMED.get(name, {}))
        arguments = self._list(">", depth)
        if name == "Array":
            return {"type": "array", "items": arguments[0]}
        if name == "Record":
            return {"type": "object", "additionalProperties": arguments[-1]}
        return {}

    def _list(self, end: str, depth: int) -> list[Schema]:
        # Takes `end`, too; at least one type.
        members = [self.union(depth + 1)]
        while self._accept(","):
            members.append(self.union(depth + 1))
        self._accept(end)
        return members

    def _object(self, depth: int) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        while not self._accept("}") and self._position < len(self._text):
            if self._match(_INDEX):
                schema["additionalProperties"] = self.union(depth + 1)
                self._accept(",")
                continue
            key = self._match(_KEY)
            if key is None:
                self._match(_LINE)
                continue
            name = _unescape(key[1][1:-1]) if key[1].startswith('"') else key[1]
            properties[name] = self.union(depth + 1)
            if not key[2]:
                required.append(name)
            self._accept(",") or self._accept(";")
        return schema

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip_blank()
        found = pattern.match(self._text, self._position)
        if found:
            self._position = found.end()
        return found

    def _accept(self, mark: str) -> bool:
        self._skip_blank()
        found = self._text.startswith(mark, self._position)
        self._position += len(mark) * found
        return found

    def _skip_blank(self) -> None:
        blank = _BLANK.match(self._text, self._position)
        self._position = blank.end() if blank else self._position


def _array_of_union(members: list[Schema]) -> Schema:
    # `"a" | "b"[]` and `string | null[]` mean an array of the union, though without parentheses.
    # openai-harmony writes them so; read strictly they would be types that nobody offers.
    last = members[-1].get("items")
    if last is not None and ("const" in last or last == {"type": "null"}):
        return {"type": "array", "items": {"anyOf": [*members[:-1], last]}}
    return {"anyOf": members}


def _unescape(literal: str) -> str:
    try:
        return str(json.loads(f'"{literal}"'))
    except ValueError:
        return literal
