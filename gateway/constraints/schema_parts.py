"""A schema in parts, each compiled by itself: the library lets no other thread run meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.constraints.schema_cost import count_references, patterns_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    Schema = dict[str, Any]

PART_BYTES: Final = 16 * 1024
"""Compiling so much takes about a millisecond."""
PATTERN_BYTES: Final = 4 * 1024
"""A regular expression takes as long as so many other bytes."""
_DRAFT: Final = "$schema"


def parts_of(schema: Schema) -> Iterator[Schema]:
    """Schemas that a value has to satisfy, all of them, to satisfy this one.

    A schema that refers to parts of itself is one part, however large, and so is one that is nested
    too deeply to be written as JSON.
    """
    try:
        is_one = _weight(schema) <= PART_BYTES or count_references(schema) > 0
    except orjson.JSONEncodeError:
        is_one = True
    if is_one:
        yield schema
        return
    draft = {_DRAFT: schema[_DRAFT]} if _DRAFT in schema else {}
    for part in _parts(schema):
        yield draft | part


def _parts(schema: Any) -> Iterator[Schema]:
    """What stands around its large members, and these by groups."""
    members = schema.get("properties") if isinstance(schema, dict) else None
    items = schema.get("items") if isinstance(schema, dict) else None
    if _weight(schema) <= PART_BYTES:
        yield schema
    elif isinstance(members, dict) and members:
        yield schema | {"properties": dict.fromkeys(members, True)}
        yield from _groups(members)
    elif isinstance(items, dict) and "prefixItems" not in schema:
        yield schema | {"items": True}
        yield from ({"items": part} for part in _parts(items))
    else:
        yield schema


def _groups(members: dict[str, Any]) -> Iterator[Schema]:
    group: dict[str, Any] = {}
    room = PART_BYTES
    for name, member in members.items():
        weight = _weight(member)
        if weight > PART_BYTES:
            yield from ({"properties": {name: part}} for part in _parts(member))
            continue
        if weight > room:
            yield {"properties": group}
            group, room = {}, PART_BYTES
        group[name] = member
        room -= weight
    if group:
        yield {"properties": group}


def _weight(schema: Any) -> int:
    return len(orjson.dumps(schema)) + PATTERN_BYTES * len(patterns_in(schema))
