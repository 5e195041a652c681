"""Logprobs of the tokens of a text, as chat endpoints report them. No I/O.

`choices[0].logprobs.content` has the tokens of an event (vLLM, SGLang, llama.cpp, TGI, hosted
APIs): each with its text, its bytes where the server knows them, and the likeliest in its place.
Tokens that are half a character come with an event whose text is empty, or with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.generation import TextToken
from gateway.upstreams.completions import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BYTES_MAX: Final = 256
"""Of one token; none is so long."""


def tokens_of(told: object, alternatives: int) -> list[TextToken] | None:
    """Return the tokens of an event, each with `alternatives` at most; None if there are none."""
    content = told.get("content") if isinstance(told, dict) else None
    if not isinstance(content, list):
        return None
    return [_token(one, alternatives) for one in content if isinstance(one, dict)]


def _token(told: dict[str, Any], alternatives: int) -> TextToken:
    others = told.get("top_logprobs")
    top = others[:alternatives] if isinstance(others, list) else ()
    return TextToken(
        _piece(told),
        finite(told.get("logprob")),
        tuple((_piece(one), finite(one.get("logprob"))) for one in top if isinstance(one, dict)),
    )


def _piece(told: dict[str, Any]) -> bytes:
    # The bytes of the token's text if `bytes` is missing.
    numbers, token = told.get("bytes"), told.get("token")
    try:
        if isinstance(numbers, list):
            return bytes(numbers)[:BYTES_MAX]
    except (TypeError, ValueError):
        pass  # they are no bytes
    return token.encode("utf-8", "replace")[:BYTES_MAX] if isinstance(token, str) else b""


def spelled(text: str, tokens: Sequence[TextToken]) -> Iterator[tuple[str, list[TextToken]]]:
    """Yield the text in parts that begin where tokens begin, each with the tokens that begin in it.

    The text is one part if the tokens do not spell it, byte for byte.
    """
    content = text.encode("utf-8", "replace")
    if b"".join(token.piece for token in tokens) != content:
        yield text, list(tokens)
        return
    begun: list[TextToken] = []
    start = end = 0
    for token in tokens:
        # Not in the middle of a character, nor behind all of them.
        if start < end < len(content) and content[end] & 0xC0 != 0x80:
            yield content[start:end].decode(), begun
            start, begun = end, []
        begun.append(token)
        end += len(token.piece)
    yield content[start:].decode(), begun
