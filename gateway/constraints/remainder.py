"""What is left of a body behind the beginning that was said already, as a part of a grammar."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.constraints.gbnf import Chain, Quotient, UntranslatableGrammar, grammar_of
from gateway.constraints.json_language import JsonLanguage
from gateway.generation import NOTHING, Ebnf, InOrder, OneOf, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.constraints.gbnf import Language, Rules
    from gateway.generation import Node

_SIZES: Final = ((0xF0, 4), (0xE0, 3), (0xC0, 2))
"""From which first byte on a character of UTF-8 has so many."""
_FOLLOWING: Final = range(0x80, 0xC0)
_SECOND: Final = {0xE0: range(0xA0, 0xC0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
"""What the second byte may be, where it may not be every one."""
_HALF_SURROGATES: Final = 0xED


@dataclass(frozen=True, slots=True)
class Body:
    """The texts that a body may be. `exact`: none of them is wrong."""

    root: Language
    rules: Rules
    exact: bool


@dataclass(frozen=True, slots=True)
class Remainder:
    """What may follow. `exact`: whatever it lets through, the body is right."""

    node: Node
    exact: bool


def body_of(schema: object) -> Body:
    """JSON that a schema describes; any JSON, where it cannot be said what the schema describes."""
    try:
        documents = JsonLanguage(schema)
    except UntranslatableGrammar:
        return ANY_JSON
    return Body(documents.root, documents.rules, documents.exact)


def _any_json() -> Body:
    documents = JsonLanguage({})
    return Body(documents.root, documents.rules, exact=False)


ANY_JSON: Final = _any_json()


def remainder_of(body: Body, said: bytes, byte_ids: Sequence[int]) -> Remainder | None:
    """What may follow this beginning; `byte_ids[b]` is the id that spells the single byte `b`.

    Where the body cannot be followed any more, or its rest not be written down, at least JSON is
    demanded. None where not even that can be said.
    """
    for candidate in (body, ANY_JSON):
        try:
            return Remainder(_behind(candidate, said, byte_ids), candidate.exact)
        except UntranslatableGrammar:
            continue
    return None


def _behind(body: Body, said: bytes, byte_ids: Sequence[int]) -> Node:
    decoder = getincrementaldecoder("utf-8")()
    try:
        whole = decoder.decode(said)
    except UnicodeDecodeError:
        raise UntranslatableGrammar("it is not UTF-8") from None
    begun, _ = decoder.getstate()
    quotient = Quotient(body.root, body.rules)
    if not begun:
        rest = quotient.behind(whole)
        return NOTHING if rest == Chain(()) else Ebnf(grammar_of(rest, body.rules))
    missing = _missing(begun)
    first, last = (begun + bytes(one[end] for one in missing) for end in (0, -1))
    rest = quotient.behind(whole + first.decode())
    if rest != quotient.behind(whole + last.decode()):
        raise UntranslatableGrammar("not all characters that begin so may stand there")
    return InOrder((*_spelled(missing, byte_ids), Ebnf(grammar_of(rest, body.rules))))


def _missing(begun: bytes) -> list[range]:
    """What the bytes may be that make a character of these.

    Of xgrammar (seen of 0.2.8) no two sets of as many ids may be asked for in the same place (see
    `structural_tags`), so there is none for the half of all values that follows 0xED.
    """
    if begun[0] == _HALF_SURROGATES and len(begun) == 1:
        raise UntranslatableGrammar("as many other bytes may follow another one")
    size = next(size for first, size in _SIZES if begun[0] >= first)
    missing = [_FOLLOWING] * (size - len(begun))
    return [_SECOND.get(begun[0], _FOLLOWING), *missing[1:]] if len(begun) == 1 else missing


def _spelled(missing: list[range], byte_ids: Sequence[int]) -> list[Node]:
    return [OneOf(tuple(Token(byte_ids[byte]) for byte in bytes_)) for bytes_ in missing]
