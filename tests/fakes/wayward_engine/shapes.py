"""JSON as a good model writes it of its own accord: it keeps to what its prompt shows.

A draft becomes valid where it is not; a body that somebody else began is completed, wherever it was
cut. Completing looks only at the ids that are there, so that it goes on the same after any cut.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.lark import ebnf_of
from gateway.constraints.output_rules import TextGrammar
from gateway.models.harmony.tokenizer import FIRST_SPECIAL, STOP_IDS
from gateway.simulator.completion_wire import SimulatedError
from tests.fakes.wayward_engine.decoding import FREE, MARKS, Walk
from tests.fakes.wayward_engine.lark_grammars import BadGrammar, BadTag, json_rule, lark_of_ebnf
from tests.fakes.wayward_engine.matcher import Guide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal

    from gateway.models.harmony.tokenizer import Vocabulary
    from gateway.simulator.argument_values import Schema, Tool

_HEX: Final = "[0-9a-fA-F]"
_HIGH: Final = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOWEST: Final = r"\u0000"
_LOWEST_SECOND: Final = r"\udc00"
_SURROGATES: Final = ("\ud800", "\udfff")
_WHOLE: Final = re.compile(
    rf"{_HIGH}\\u[dD][c-fC-F]{_HEX}{{2}}|\\u(?![dD][89a-fA-F]){_HEX}{{4}}|\\[\"\\/bfnrt]"
)
_BEGUN: Final = re.compile(rf"(?<!\\)(?:\\\\)*((?:{_HIGH})?(?:\\(?:u{_HEX}{{0,3}})?)?)\Z")


def plain(text: str) -> str:
    # JSON with every character in its usual spelling; an unfinished escape stays.
    return _WHOLE.sub(lambda found: _usual(json.loads(f'"{found[0]}"')), text)


def finished(
    text: str, characters: Iterable[str], may_begin: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Complete an unfinished escape at the end: return the text in its usual spelling and the rest.

    The escape becomes the first of `characters` with which the text may begin, else the first of
    all that it can become. None if neither fits, or if no escape is unfinished.
    """
    begun = _BEGUN.search(text)
    if begun is None or not begun[1]:
        return None
    for character in (*characters, *_next_character(begun[1])):
        usual = text[: begun.start(1)] + _usual(character)
        for spelled in _spellings(character):
            if spelled.startswith(begun[1].lower()) and may_begin(usual):
                return usual, spelled[len(begun[1]) :]
    return None


def _next_character(begun: str) -> str:
    # The first character that an unfinished escape can become; empty if that is half a character.
    first = (begun + _LOWEST[len(begun) :])[: len(_LOWEST)]
    pair = first + _LOWEST_SECOND
    is_pair = re.fullmatch(_HIGH, first) is not None
    character = json.loads(f'"{begun}{(pair if is_pair else first)[len(begun) :]}"')
    return "" if _SURROGATES[0] <= character <= _SURROGATES[1] else character


def _usual(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _spellings(character: str) -> Iterator[str]:
    yield _usual(character)
    units = character.encode("utf-16-be").hex()
    yield "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_BODY_IDS_MAX: Final = 2048
"""How many ids are looked for before it is given up; the shapes of a request are finite."""
_BODIES_KEPT_MAX: Final = 256
_BYTES: Final = 256
_ASCII: Final = frozenset(map(chr, range(128)))
_WORD: Final = "example"
_CLOSING: Final = ("}", "]", ",", '"', "{")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*("|\\?\Z)', re.DOTALL)
_TOLD: Final = re.compile(
    r"must match this (Lark grammar|regular expression|JSON Schema):\n(.*)\Z", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Required form of a body: its grammars, the strictest first, and its schema."""

    grammars: tuple[str, ...]
    schema: Schema

    @classmethod
    def of_answer(cls, schema: Schema) -> Shape:
        return cls((_grammar_of(schema),), schema)

    @classmethod
    def of_arguments(cls, tool: Tool) -> Shape:
        """Return the shape of a call.

        Types that name properties allow no others, where that can be kept.
        """
        closed = _with_objects(tool.parameters, _closed)
        shown = (_grammar_of(closed), _grammar_of(tool.parameters))
        told = _told_grammar(tool.description)
        return cls(shown if told is None else (told, *shown), closed)

    def written(self, draft: str, vocabulary: Vocabulary) -> str:
        """Return the draft, or the most similar valid text; the draft if no grammar is usable."""
        found = (_written(grammar, draft, vocabulary) for grammar in self.grammars)
        return next((text for text in found if text is not None), draft)

    def rest(self, body: Sequence[int], vocabulary: Vocabulary) -> list[int] | None:
        """Return the ids that complete a body; None if it cannot become valid any more."""
        if any(one >= FIRST_SPECIAL for one in body):
            return None
        said = b"".join(map(vocabulary.piece, body))
        for grammar in self._grammars_for(said):
            for usual, taken in self._readings(said, grammar, vocabulary):
                guide = _guide_behind(usual, grammar, vocabulary)
                if guide is not None:
                    rest = _Ending(guide, usual, vocabulary).ids()
                    return None if rest is None else [*vocabulary.encode(taken), *rest]
        return None

    def _grammars_for(self, said: bytes) -> Iterator[str]:
        # Objects may also have their properties in the order of the body.
        yield from self.grammars
        text = said.decode("utf-8", "replace")
        yield _grammar_of(_with_objects(self.schema, lambda one: _in_order_of(text, one)))

    def _readings(
        self, said: bytes, grammar: str, vocabulary: Vocabulary
    ) -> Iterator[tuple[bytes, str]]:
        # Each reading of the body, with the text that must be written first for it.
        yield said, ""
        if b"\\" not in said:
            return
        text = plain(said.decode("utf-8", "surrogateescape"))
        yield _bytes(text), ""
        ended = finished(
            text,
            self._characters(),
            lambda usual: _guide_behind(_bytes(usual), grammar, vocabulary) is not None,
        )
        if ended:
            yield _bytes(ended[0]), ended[1]

    def _characters(self) -> list[str]:
        # Characters that may stand in a word of the schema.
        shown = {*_ASCII, *json.dumps(self.schema, ensure_ascii=False)}
        return sorted(one for one in shown if not "\ud800" <= one <= "\udfff")


class _Ending:
    """End of a body, as soon as its grammar allows; each step depends on its text alone."""

    def __init__(self, guide: Guide, text: bytes, vocabulary: Vocabulary) -> None:
        self._guide = guide
        self._text = text
        self._vocabulary = vocabulary

    def ids(self) -> list[int] | None:
        """Return the ids that end the body; None if it finds no end."""
        said: list[int] = []
        while not self._guide.may_end:
            one = self._next()
            if one is None or len(said) >= _BODY_IDS_MAX:
                return None
            self._guide.say([one])
            said.append(one)
            self._text += self._piece(one)
        return said

    def _next(self) -> int | None:
        forced = self._guide.forced()
        if forced:
            return forced[0]
        first, others = (self._in_string(), FREE) if self._is_in_string else (_CLOSING, MARKS)
        wanted = next(self._possible(first), None)
        if wanted is not None:
            return wanted
        fair = min(self._possible(others), key=self._uses, default=None)
        return self._guide.choices().lowest() if fair is None else fair

    def _in_string(self) -> tuple[str, ...]:
        return (_WORD, '"') if self._text.endswith(b'"') else ('"',)

    @property
    def _is_in_string(self) -> bool:
        return any(found[1] != b'"' for found in _STRING.finditer(self._text))

    def _possible(self, texts: Sequence[str]) -> Iterator[int]:
        ids = (self._vocabulary.encode(text)[0] for text in texts)
        return (one for one in ids if self._guide.accepts([one]))

    def _uses(self, one: int) -> int:
        # Counted so that whatever leads on has its turn.
        return self._text.count(self._piece(one))

    def _piece(self, one: int) -> bytes:
        return self._vocabulary.piece(one)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _grammar_of(schema: Any) -> str:
    return f"start: {json_rule(schema, None)}"


def _told_grammar(description: str) -> str | None:
    # The types of a tool do not hold lengths, bounds and patterns; the end of its description can.
    told = _TOLD.search(description)
    if told is None:
        return None
    what, definition = told.groups()
    try:
        if what == "JSON Schema":
            return _grammar_of(json.loads(definition))
        syntax: Literal["lark", "regex"] = "lark" if what == "Lark grammar" else "regex"
        return lark_of_ebnf(ebnf_of(TextGrammar(syntax, definition)))
    except (ValueError, BadTag, BadGrammar):
        return None


def _guide(grammar: str, vocabulary: Vocabulary) -> Guide | None:
    # None: the matcher does not accept the grammar.
    try:
        return Guide(grammar, vocabulary)
    except SimulatedError:
        return None


def _guide_behind(text: bytes, grammar: str, vocabulary: Vocabulary) -> Guide | None:
    # None: the grammar does not allow the text, or is invalid.
    guide = _guide(grammar, vocabulary)
    ids = [_byte_ids(vocabulary)[byte] for byte in text]
    if guide is None or guide.accepts(ids) < len(ids):
        return None
    guide.say(ids)
    return guide


@cache
def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    # The ids of single bytes, in the order of the bytes.
    return sorted(range(_BYTES), key=vocabulary.piece)


@lru_cache(_BODIES_KEPT_MAX)
def _written(grammar: str, draft: str, vocabulary: Vocabulary) -> str | None:
    guide = _guide(grammar, vocabulary)
    if guide is None:
        return None
    walk = Walk(guide, [], literals=[], vocabulary=vocabulary)
    walk.follow([vocabulary.encode(draft)], _BODY_IDS_MAX)
    *body, last = walk.said
    return vocabulary.decode(body) if guide.may_end and last in STOP_IDS else None


def _with_objects(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    match schema:
        case list():
            return [_with_objects(one, change) for one in schema]
        case {"properties": dict() as properties}:
            inner = {name: _with_objects(one, change) for name, one in properties.items()}
            others = {key: _with_objects(one, change) for key, one in schema.items()}
            return change(others | {"properties": inner})
        case dict():
            return {key: _with_objects(one, change) for key, one in schema.items()}
        case _:
            return schema


def _closed(schema: Schema) -> Schema:
    return {"additionalProperties": False} | schema


def _in_order_of(text: str, schema: Schema) -> Schema:
    def place(name: str) -> int:
        return text.find(json.dumps(name, ensure_ascii=False)) % (len(text) + 1)

    properties = schema["properties"]
    return schema | {
        "properties": {name: properties[name] for name in sorted(properties, key=place)}
    }
