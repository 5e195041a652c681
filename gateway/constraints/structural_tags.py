"""Constraints as structural tags of xgrammar (0.2 and later).

Source: https://xgrammar.mlc.ai/docs/structural_tag/structural_tag.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.gbnf import SPACES_MAX
from gateway.constraints.schemas import subschemas
from gateway.generation import AnyText, Ebnf, InOrder, Json, Literal, Maybe, OneOf, Repeated, Token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.generation import Constraint, Node

Format = dict[str, Any]

NESTING_MAX: Final = 32
"""vLLM refuses tags whose JSON is nested deeper than 80 levels, 64 of them a schema's."""
NODES_MAX: Final = 100_000
_IGNORED: Final = {
    "not",
    "if",
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
}
"""Keywords that xgrammar (0.2.8) allows and does not enforce. It takes `oneOf` for `anyOf`, but a
value of two alternatives is rare, and unions are common: these are believed."""


class Unsayable(ValueError):
    """Refusal of a constraint without a tag within the bounds."""


def tag_of(constraint: Constraint, *, max_whitespace: bool) -> Format:
    """Return the tag as JSON data. `max_whitespace`: the engine can bound white space in JSON.

    Engines refuse empty sequences, alternatives and strings: what might be empty is optional.
    """
    writer = _Writer(constraint.markers, max_whitespace=max_whitespace)
    format_ = writer.format(constraint.turn, NESTING_MAX)
    if format_ is None:
        raise Unsayable("the constraint allows nothing but an end")
    return {"type": "structural_tag", "format": format_}


def is_enforced(constraint: Constraint) -> bool:
    """Return True if the tag allows nothing but what the request demands."""
    return constraint.exact and all(
        _is_whole(part) for schema in _schemas_of(constraint.turn) for part in subschemas(schema)
    )


def _schemas_of(node: Node) -> Iterator[dict[str, Any]]:
    match node:
        case Json(schema):
            yield schema
        case InOrder(nodes) | OneOf(nodes):
            for inner in nodes:
                yield from _schemas_of(inner)
        case Maybe(inner) | Repeated(inner):
            yield from _schemas_of(inner)
        case _:
            pass


def _is_whole(schema: Mapping[str, Any]) -> bool:
    if "pattern" in schema and not schema.keys().isdisjoint({"minLength", "maxLength"}):
        return False
    is_plain = schema.get("uniqueItems") is not True and len(schema.get("allOf", ())) <= 1
    return is_plain and schema.keys().isdisjoint(_IGNORED)


class _Writer:
    """Writer of nodes as formats; None stands for the empty text."""

    def __init__(self, markers: Sequence[int], *, max_whitespace: bool) -> None:
        self._markers = markers
        self._json: Format = {"max_whitespace_cnt": SPACES_MAX} if max_whitespace else {}
        self._nodes_left = NODES_MAX

    def format(self, node: Node, depth_left: int) -> Format | None:
        self._nodes_left -= 1
        if depth_left < 0 or self._nodes_left < 0:
            raise Unsayable("the constraint has too many parts, or is nested too deeply")
        match node:
            case InOrder(parts):
                return self._in_order(parts, depth_left - 1)
            case OneOf(options):
                return self._one_of(options, depth_left - 1)
            case Maybe(part):
                return _around("optional", self.format(part, depth_left - 1))
            case Repeated(part):
                return _around("star", self.format(part, depth_left - 1))
            case _:
                return self._leaf(node)

    def _leaf(self, node: Token | Literal | AnyText | Json | Ebnf) -> Format | None:
        match node:
            case Token(id_):
                return self._token(id_)
            case Literal(text):
                return {"type": "const_string", "value": text} if text else None
            case AnyText(excluded):
                return {"type": "any_tokens", "exclude_tokens": list(excluded)}
            case Json(schema):
                return {"type": "json_schema", "json_schema": schema, **self._json}
            case _:
                return {"type": "grammar", "grammar": node.grammar}

    def _in_order(self, parts: Sequence[Node], depth_left: int) -> Format | None:
        formats = [self.format(part, depth_left) for part in parts]
        return _joined("sequence", [format_ for format_ in formats if format_ is not None])

    def _one_of(self, options: Sequence[Node], depth_left: int) -> Format | None:
        if not options:
            raise Unsayable("an alternative without options")
        formats = [self.format(option, depth_left) for option in options]
        alternative = _joined("or", [format_ for format_ in formats if format_ is not None])
        return _around("optional", alternative) if None in formats else alternative

    def _token(self, id_: int) -> Format:
        # xgrammar (0.2.8) reuses compiled automata of the same shape, whichever id they allow. So
        # each id gets a shape of its own: an alternative of as many equal ids as no other id has.
        markers = self._markers
        copies = 1 + (markers.index(id_) if id_ in markers else len(markers))
        token = {"type": "token", "token": id_}
        return token if copies == 1 else {"type": "or", "elements": [token] * copies}


def _joined(kind: str, elements: list[Format]) -> Format | None:
    if len(elements) > 1:
        return {"type": kind, "elements": elements}
    return elements[0] if elements else None


def _around(kind: str, content: Format | None) -> Format | None:
    return {"type": kind, "content": content} if content is not None else None
