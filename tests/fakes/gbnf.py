"""Whether a GBNF grammar allows a text, decided by llguidance."""

from __future__ import annotations

from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, gbnf_to_lark

_END = 256


class _Bytes:
    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


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
