"""The logprobs of one event of a completion → one `TokenLogprob` for each of its ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.generation import LOGPROB_MIN, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PREFIX: Final = "token_id:"
_DIGITS_MAX: Final = 9
"""An id has 32 bits in the log, and the largest vocabulary far less."""


class Misaligned(ValueError):
    """What is told does not belong to the ids it came with."""


def aligned_logprobs(told: object, ids: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """What is told of `ids`, in their order. Raises Misaligned.

    `told` has the shape `{"tokens": ["token_id:5", …], "token_logprobs": [number, …],
    "top_logprobs": [{"token_id:5": number, …}, …]}`. The top ones include the id itself, which is
    left out where it is not among the `alternatives` likeliest. What is no number (vLLM writes
    null) or impossible counts as `LOGPROB_MIN`, and no probability is above one.
    """
    if not isinstance(told, dict):
        raise Misaligned("event has no logprobs")
    tokens, own, tops = (told.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    if tokens != [f"{_PREFIX}{id_}" for id_ in ids]:
        raise Misaligned("logprobs are not those of the token_ids")
    if not isinstance(own, list) or len(own) != len(ids):
        raise Misaligned("token_logprobs are not as many as the token_ids")
    if not alternatives:
        return [TokenLogprob(_finite(value)) for value in own]
    if not isinstance(tops, list) or len(tops) != len(ids):
        raise Misaligned("top_logprobs are not as many as the token_ids")
    return [
        TokenLogprob(_finite(value), _likeliest(top, alternatives))
        for value, top in zip(own, tops, strict=True)
    ]


def _likeliest(top: object, alternatives: int) -> tuple[tuple[int, float], ...]:
    if top is None:
        return ()
    if not isinstance(top, dict):
        raise Misaligned("top_logprobs are not objects")
    return tuple(sorted(_pairs(top), key=lambda pair: -pair[1])[:alternatives])


def _pairs(top: dict[str, object]) -> Iterator[tuple[int, float]]:
    for name, value in top.items():
        digits = name.removeprefix(_PREFIX)
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        if len(digits) == len(name) or not is_number:
            raise Misaligned("top_logprobs are not named by id")
        yield int(digits), _finite(value)


def _finite(value: object) -> float:
    if isinstance(value, float | int) and value > LOGPROB_MIN:  # NaN is not
        return float(min(value, 0.0))
    return LOGPROB_MIN
