"""Escapes in JSON strings, for a grammar that knows each word in its usual spelling only."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
    """JSON with every character as it is usually written; an escape that is begun stays so."""
    return _WHOLE.sub(lambda found: _usual(json.loads(f'"{found[0]}"')), text)


def finished(
    text: str, characters: Iterable[str], may_begin: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Half an escape at the end made whole: the text in its usual spelling, and what it took.

    The first of the characters with which the text may begin, else the first of all that the escape
    can become. None where neither fits, and where no escape is begun.
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
    """The first that half an escape can become; empty where that is half a character."""
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
