"""Text against a grammar."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from gateway.constraints.rules import UnusableGrammar

if TYPE_CHECKING:
    from gateway.constraints.rules import TextGrammar

_END: Final = 256
_PIECE_BYTES: Final = 16
"""Between two pieces other threads can run; a hostile grammar takes a millisecond for a byte."""
_LIMITS: Final = LLParserLimits(
    max_items_in_row=200,
    initial_lexer_fuel=1_000_000,
    max_lexer_states=10_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class _Bytes:
    """A vocabulary of all single bytes and an end."""

    eos_token_id = _END
    bos_token_id = None
    tokens: Final = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    special_token_ids: Final = [_END]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER: Final = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


class GrammarValidator:
    """What a text has to be. Raises `UnusableGrammar`.

    A check that takes longer than `seconds_max` is broken off, and the text counts as wrong.
    """

    def __init__(self, grammar: TextGrammar, *, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        definition = (
            LLMatcher.grammar_from_lark(grammar.definition)
            if grammar.syntax == "lark"
            else LLMatcher.grammar_from_regex(grammar.definition)
        )
        self._matcher = LLMatcher(_TOKENIZER, definition, log_level=0, limits=_LIMITS)
        if self._matcher.is_error():
            raise UnusableGrammar(self._matcher.get_error().partition("\n")[0])

    def fault(self, text: str) -> str | None:
        """What is wrong with it, as a short clause; None if nothing is."""
        try:
            content = text.encode()
        except UnicodeEncodeError:
            return "it is not valid Unicode"
        matcher = self._matcher.deep_copy()
        give_up = time.monotonic() + self._seconds_max
        for start in range(0, len(content), _PIECE_BYTES):
            if time.monotonic() > give_up:
                return "it takes too long to be checked against its grammar"
            piece = content[start : start + _PIECE_BYTES]
            accepted = matcher.try_consume_tokens(list(piece))
            if matcher.is_error():
                return "it is too ambiguous to be checked against its grammar"
            if accepted < len(piece):
                return f"its grammar does not allow byte {start + accepted}"
        return None if matcher.is_accepting() else "it ends too early for its grammar"
