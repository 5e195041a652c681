"""Whether a GBNF grammar allows a text, decided by llguidance, and texts that one allows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, gbnf_to_lark

from tests.fakes.wayward_engine.lark_grammars import json_rule, lark_of_ebnf

if TYPE_CHECKING:
    from random import Random

_END = 256
_CLOSING = b'"}]'


class _Bytes:
    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class Walker:
    """Texts of one grammar, byte by byte."""

    def __init__(self, definition: str) -> None:
        tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
        self._matcher = LLMatcher(tokenizer, definition, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    @classmethod
    def of_ebnf(cls, grammar: str) -> Walker:
        """For a grammar in the engines' notation."""
        return cls(LLMatcher.grammar_from_lark(lark_of_ebnf(grammar)))

    @classmethod
    def of_schema(cls, schema: dict[str, Any], *, spaces_max: int | None = None) -> Walker:
        """For JSON as another engine writes it, with at most so much white space between marks."""
        if spaces_max is None:
            return cls(LLMatcher.grammar_from_json_schema(schema))
        rule = json_rule(schema, spaces_max)
        return cls(LLMatcher.grammar_from_lark(f"start: json\njson: {rule}\n"))

    def allows(self, text: str) -> bool:
        """Whether this is a whole text."""
        matcher = self._matcher.deep_copy()
        content = list(text.encode())
        return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()

    def some(self, rng: Random, bytes_max: int = 2000) -> bytes | None:
        """A text; None for one that finds no end in time. Fails where nothing leads on."""
        matcher, said = self._matcher.deep_copy(), bytearray()
        while len(said) < bytes_max:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [byte for byte in range(_END) if mask >> byte & 1]
            if matcher.is_accepting() and (not allowed or rng.random() < 0.3):
                return bytes(said)
            assert allowed, bytes(said)
            closing = [byte for byte in allowed if byte in _CLOSING]
            byte = rng.choice(closing if closing and rng.random() < 0.3 else allowed)
            matcher.consume_tokens([byte])
            said.append(byte)
        return None


@lru_cache
def _matcher(grammar: str) -> LLMatcher:
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
    lark = gbnf_to_lark.gbnf_to_lark(grammar)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def allows_text(grammar: str, text: str) -> bool:
    """Whether this is a whole text of the grammar."""
    matcher = _matcher(grammar).deep_copy()
    content = list(text.encode())
    return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()
