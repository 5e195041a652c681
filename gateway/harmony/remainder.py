"""What is left of a body behind the beginning that was said already, as a part of a grammar."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.constraint import NOTHING, Ebnf, InOrder, OneOf, Token
from gateway.harmony.documents import Documents
from gateway.harmony.gbnf import Chain, UntranslatableGrammar, grammar_of
from gateway.harmony.quotient import Quotient

if TYPE_CHECKING:
    from gateway.constraint import Node
    from gateway.harmony.gbnf import Language, Rules
    from gateway.harmony.vocabulary import Vocabulary

_SIZES: Final = ((0xF0, 4), (0xE0, 3), (0xC0, 2))
"""From which first byte on a character of UTF-8 has so many."""
_FOLLOWING: Final = range(0x80, 0xC0)
_SECOND: Final = {0xE0: range(0xA0, 0xC0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
"""What the second byte may be, where it may not be every one."""
_HALF_SURROGATES: Final = 0xED
_SINGLE_BYTES: Final = range(256)
"""The ids of them."""


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
        documents = Documents(schema)
    except UntranslatableGrammar:
        return ANY_JSON
    return Body(documents.root, documents.rules, documents.exact)


def _any_json() -> Body:
    documents = Documents({})
    return Body(documents.root, documents.rules, exact=False)


ANY_JSON: Final = _any_json()


def remainder_of(body: Body, said: bytes, vocabulary: Vocabulary) -> Remainder | None:
    """What may follow this beginning. Where the body cannot be followed any more, or its rest not
    be written down, at least JSON is demanded. None where not even that can be said.
    """
    for candidate in (body, ANY_JSON):
        try:
            return Remainder(_behind(candidate, said, vocabulary), candidate.exact)
        except UntranslatableGrammar:
            continue
    return None


def _behind(body: Body, said: bytes, vocabulary: Vocabulary) -> Node:
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
    return InOrder((*_spelled(missing, vocabulary), Ebnf(grammar_of(rest, body.rules))))


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


def _spelled(missing: list[range], vocabulary: Vocabulary) -> list[Node]:
    ids = {vocabulary.piece(one): one for one in _SINGLE_BYTES}
    return [OneOf(tuple(Token(ids[bytes((byte,))]) for byte in bytes_)) for bytes_ in missing]
