"""The matcher of ids and grammars, as in an engine's backend: llguidance over our vocabulary."""

from __future__ import annotations

from functools import cache, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLTokenizer

from gateway.models.harmony.tokenizer import (
    FIRST_SPECIAL,
    NAMED_SPECIALS,
    PATTERN,
    STOP_IDS,
    VOCABULARY_SIZE,
    Vocabulary,
)
from gateway.simulator.completion_wire import bad_request

if TYPE_CHECKING:
    from collections.abc import Sequence

_BUILDING: Final = Lock()
_GRAMMARS_KEPT_MAX: Final = 128


class Guide:
    """Position in a grammar: it tells which ids may follow; stop ids wherever the grammar may end.

    Raises `SimulatedError` (400) for a grammar that the matcher does not take.
    """

    def __init__(self, grammar: str, vocabulary: Vocabulary) -> None:
        self._matcher = _compiled(grammar, vocabulary).deep_copy()
        if self._matcher.is_error():
            raise bad_request(f"Grammar error: {self._matcher.get_error().rstrip()}")

    def accepts(self, ids: Sequence[int]) -> int:
        # Counts the leading ids that the grammar allows in sequence.
        return self._matcher.validate_tokens(list(ids))

    def say(self, ids: Sequence[int]) -> None:
        # Raises `ValueError` for ids that the grammar does not allow.
        if not self._matcher.consume_tokens(list(ids)):
            raise ValueError(self._matcher.get_error())

    @property
    def may_end(self) -> bool:
        # The grammar is satisfied.
        return self._matcher.is_accepting()

    def forced(self) -> list[int]:
        # The only ids that may follow, in the usual tokenization; empty when there is a choice.
        return self._matcher.compute_ff_tokens()

    def choices(self) -> Choices:
        return Choices(self._matcher.compute_bitmask())


class Choices:
    """A set of ids as the bits of a mask, the lowest bit of the first byte first."""

    def __init__(self, mask: bytes) -> None:
        self._mask = int.from_bytes(mask, "little")

    def __contains__(self, token: int) -> bool:
        return bool(self._mask >> token & 1)

    def lowest(self) -> int | None:
        # None when no id may follow.
        return (self._mask & -self._mask).bit_length() - 1 if self._mask else None


@lru_cache(_GRAMMARS_KEPT_MAX)
def _compiled(grammar: str, vocabulary: Vocabulary) -> LLMatcher:
    # The matcher stands at the start of the grammar, and callers must not move it. It is in an
    # error state for a grammar that it does not accept.
    return LLMatcher(_tokenizer(vocabulary), grammar, log_level=0)


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    # Built by the first grammar of a process, unless it was loaded before; never twice at once.
    with _BUILDING:
        return _built(vocabulary)


@cache
def _built(vocabulary: Vocabulary) -> LLTokenizer:
    return LLTokenizer.from_tiktoken(  # type: ignore[attr-defined, no-any-return]
        encoder={vocabulary.piece(one): one for one in range(FIRST_SPECIAL)},
        special_tokens=NAMED_SPECIALS,
        pattern=PATTERN,
        eos_token=list(STOP_IDS),
        n_vocab=VOCABULARY_SIZE,
    )
