"""Grammars of the arguments that a model may write in tags for a schema, as part of a turn.

The parameters come in the order of the schema, those that are not required or not at all. A value
that may be text is text, in which no marker stands; any other one is JSON of its schema.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from gateway.generation import Ebnf, InOrder, Json, Literal, Maybe, OneOf, Repeated
from gateway.models.chat.syntax.tagged_arguments import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.generation import Node
    from gateway.models.chat.syntax.contract import Tags, Written

_WHITE: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_IN_CLASS: Final = {one: f"\\{one}" for one in "\\]^-["} | _WHITE
_IN_STRING: Final = {one: f"\\{one}" for one in '\\"'} | _WHITE
DEFINITIONS: Final = ("$defs", "definitions")
KEY: Final = Ebnf('root ::= [^<>"\\n\\r]{1,128}')
"""The name of a parameter that no schema tells."""


def arguments_in_tags(
    tags: Tags, schema: Mapping[str, Any] | None, spelled: Callable[[Written], Node], text: Node
) -> tuple[Node, bool]:
    """Return the grammar, and True if all that it lets through fits the schema.

    `spelled` makes a node of markers and texts, `text` is the node of a text value.
    """
    properties = schema.get("properties") if schema else None
    if not schema or not _are_schemas(properties):
        any_one = (spelled(tags.before_key), KEY, spelled(tags.behind_key), text)
        return Repeated(InOrder((*any_one, spelled(tags.behind_value)))), schema is None
    required = schema.get("required", ())
    parts: list[Node] = []
    is_exact = True
    for key, property_ in properties.items():
        front = (*tags.before_key, key, *tags.behind_key)
        value, exact = _value(property_, schema, text)
        is_exact = is_exact and exact
        part = InOrder((spelled(front), value, spelled(tags.behind_value)))
        parts.append(part if key in required else Maybe(part))
    return InOrder(tuple(parts)), is_exact


def _are_schemas(properties: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    if not isinstance(properties, dict):
        return False
    return all(isinstance(one, dict) for one in properties.values())


def _value(property_: dict[str, Any], root: Mapping[str, Any], text: Node) -> tuple[Node, bool]:
    options = property_.get("enum")
    if isinstance(options, list) and options and all(isinstance(one, str) for one in options):
        return OneOf(tuple(map(Literal, options))), True
    types = types_of(property_, root)
    if "string" in types:
        bounds = set(property_) - {"type", "description", "title", "default", "examples"}
        return text, not bounds and len(types) == 1
    shared = {name: root[name] for name in DEFINITIONS if name in root}
    return Json(shared | property_), True


def text_between(markers: Sequence[str], *, front: str = "") -> Node:
    """Return a grammar of text that contains none of these markers, which are not one id each.

    It is an automaton: each rule stands for the beginning of a marker just written. With
    `front` the text is not empty and begins with none of these characters.
    """
    return Ebnf(_automaton(tuple(markers), front))


@lru_cache(maxsize=64)
def _automaton(markers: tuple[str, ...], front: str) -> str:
    begun = sorted({marker[:size] for marker in markers for size in range(len(marker))})
    names = {text: f"s{at}" for at, text in enumerate(begun)}  # the empty one is the first
    begin = _ways(_following("", markers, begun), names, without=front)
    rules = [f"root ::= {begin}" if front else "root ::= s0"]
    for text in begun:
        ways = _ways(_following(text, markers, begun), names)
        rules.append(f'{names[text]} ::= "" | {ways}')
    return "\n".join(rules)


def _ways(following: Mapping[str, str | None], names: Mapping[str, str], without: str = "") -> str:
    others = "".join(_IN_CLASS.get(one, one) for one in dict.fromkeys((*following, *without)))
    told = [
        f'"{_IN_STRING.get(character, character)}" {names[state]}'
        for character, state in following.items()
        if state is not None and character not in without
    ]
    return " | ".join([f"[^{others}] s0", *told])


def _following(text: str, markers: tuple[str, ...], begun: Sequence[str]) -> dict[str, str | None]:
    # None where a marker would be complete.
    following: dict[str, str | None] = {}
    for character in sorted({character for marker in markers for character in marker}):
        said = text + character
        tails = [said[at:] for at in range(len(said))]
        if any(tail in markers for tail in tails):
            following[character] = None
        elif state := next((tail for tail in tails if tail in begun), ""):
            following[character] = state
    return following
