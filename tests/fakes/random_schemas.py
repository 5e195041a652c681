"""Random JSON Schemas in the form that strict structured output takes, from a seed alone.

Every object names all of its properties as required and allows no others. The values are long
enough that a backend can die in the middle of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Maker = Callable[[Random, int], dict[str, Any]]

DEPTH_MAX: Final = 3
_NAMES: Final = ("id", "title", "tags", "when", "score", "owner", "items", "note", "state", "size")
_WORDS: Final = ("red", "green", "blue", "naïve", "東京", "a b", 'say "hi"', "tab\there", "")


def random_schema(rng: Random) -> dict[str, Any]:
    """An object schema; some have definitions that they refer to."""
    root = _object(rng, DEPTH_MAX)
    if rng.random() < 0.4:
        root["$defs"] = {"part": _object(rng, 1)}
        root["properties"]["part"] = {"$ref": "#/$defs/part"}
        root["required"].append("part")
    return root


def _object(rng: Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(2, 5))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth - 1) for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


def _value(rng: Random, depth: int) -> dict[str, Any]:
    makers: list[Maker] = [_text, _number, _choice, _flag, _date]
    if depth > 0:
        makers += [_list, _object, _nullable]
    return rng.choice(makers)(rng, depth)


def _text(rng: Random, _: int) -> dict[str, Any]:
    least = rng.randint(0, 6)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(4, 24)}


def _date(_: Random, __: int) -> dict[str, Any]:
    return {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]$"}


def _number(rng: Random, _: int) -> dict[str, Any]:
    least = rng.randint(-50, 50)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 10**6)}


def _choice(rng: Random, _: int) -> dict[str, Any]:
    return {"type": "string", "enum": rng.sample(_WORDS, rng.randint(1, 4))}


def _flag(_: Random, __: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _list(rng: Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _value(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.randint(1, 3),
    }


def _nullable(rng: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth - 1), {"type": "null"}]}
