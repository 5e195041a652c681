"""Whether a constraint allows a turn, decided by hand: slow, and without any engine.

A turn is written as in Harmony's own notation. Markers are single symbols, text is matched letter
by letter, so it does not matter how it would be cut into ids.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import jsonschema_rs
import orjson

from gateway.generation import AnyText, Ebnf, InOrder, Json, Literal, Maybe, OneOf, Repeated, Token
from gateway.models.harmony.tokenizer import NAMED_SPECIALS
from tests.fakes.gbnf import allows_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.generation import Node

Symbols = tuple[int | str, ...]
_MARKER = re.compile(r"(<\|[a-z]+\|>)")


def symbols(turn: str) -> Symbols:
    """Ids of markers, and single characters."""
    found: list[int | str] = []
    for piece in _MARKER.split(turn):
        if piece in NAMED_SPECIALS:
            found.append(NAMED_SPECIALS[piece])
        else:
            found += piece
    return tuple(found)


def allows(node: Node, turn: str) -> bool:
    """Whether this is a whole turn, without the id that ends it."""
    return allows_symbols(node, symbols(turn))


def allows_symbols(node: Node, whole: Symbols) -> bool:
    """Whether these ids of markers and single characters are a whole turn."""
    return len(whole) in _ends(node, whole, 0)


def _ends(node: Node, turn: Symbols, at: int) -> set[int]:
    """Where a match that begins at `at` may end."""
    match node:
        case InOrder(parts):
            ends = {at}
            for part in parts:
                ends = {end for start in ends for end in _ends(part, turn, start)}
            return ends
        case OneOf(options):
            return {end for option in options for end in _ends(option, turn, at)}
        case Maybe(part):
            return {at, *_ends(part, turn, at)}
        case Repeated(part):
            return _repeated(part, turn, at)
        case _:
            return _leaf_ends(node, turn, at)


def _leaf_ends(node: Token | Literal | AnyText | Json | Ebnf, turn: Symbols, at: int) -> set[int]:
    match node:
        case Token(id_):
            return {at + 1} if turn[at : at + 1] == (id_,) else set()
        case Literal(text):
            return {at + len(text)} if turn[at : at + len(text)] == tuple(text) else set()
        case AnyText(excluded):
            return set(_run(turn, at, excluded))
        case _:
            return {end for end in _run(turn, at, ()) if _is_text_of(node, turn[at:end])}


def _repeated(part: Node, turn: Symbols, at: int) -> set[int]:
    found, fresh = {at}, {at}
    while fresh:
        fresh = {end for start in fresh for end in _ends(part, turn, start)} - found
        found |= fresh
    return found


def _run(turn: Symbols, at: int, excluded: tuple[int, ...]) -> Iterator[int]:
    """The places up to the next excluded id, or the next id at all where none is named."""
    yield at
    while at < len(turn) and (turn[at] not in excluded if excluded else isinstance(turn[at], str)):
        at += 1
        yield at


def _is_text_of(node: Json | Ebnf, body: Symbols) -> bool:
    text = "".join(map(str, body))
    if isinstance(node, Ebnf):
        return allows_text(node.grammar, text)
    try:
        return jsonschema_rs.is_valid(node.schema, orjson.loads(text))
    except orjson.JSONDecodeError:
        return False
