"""Logprobs of scripted ids: numbers that mean nothing, but are the same for the same id.

Source of the form: `choices[0].logprobs` of vLLM 0.32 with `return_tokens_as_token_ids`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.models.harmony.vocabulary import FIRST_SPECIAL, NAMED_SPECIALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.wire.requests import CompletionRequest

_STEP: Final = 0.125
_STEPS: Final = 64
_SURPRISE_EVERY: Final = 5
"""Of so many ids one is not the likeliest in its place."""
_SPECIAL_TEXT: Final = {one: name for name, one in NAMED_SPECIALS.items()}


def logprob_of(token: int) -> float:
    """Between -8 and -0.125, exact in binary."""
    return -_STEP * (1 + token % _STEPS)


def alternatives(token: int, count: int) -> dict[int, float]:
    """`token` itself, and then the others of the `count` likeliest ids in its place, best first."""
    own = logprob_of(token)
    others = [(token + 1 + number) % FIRST_SPECIAL for number in range(count)]
    top = {one: own - _STEP * number for number, one in enumerate(others, 1)}
    if token % _SURPRISE_EVERY == 0 and others:
        top[others[0]] = own / 2
        return {token: own} | {one: top[one] for one in others[: max(count - 1, 1)]}
    return {token: own} | {one: top[one] for one in others[: max(count - 1, 0)]}


class Likelihoods:
    """The `logprobs` of the events of one stream; offsets count the characters of its tokens."""

    def __init__(self, request: CompletionRequest, vocabulary: Vocabulary) -> None:
        self._count = request.logprobs or 0
        self._by_id = request.tokens_as_ids
        self._vocabulary = vocabulary
        self._offset = 0

    def of(self, ids: Sequence[int]) -> dict[str, Any]:
        """Aligned with the ids of one event."""
        names = [self._name(one) for one in ids]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        tops = [alternatives(one, self._count) for one in ids]
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob_of(one) for one in ids],
            "tokens": names,
            "top_logprobs": [
                {self._name(one): logprob for one, logprob in top.items()} for top in tops
            ],
        }

    def _name(self, token: int) -> str:
        if self._by_id:
            return f"token_id:{token}"
        if token >= FIRST_SPECIAL:
            return _SPECIAL_TEXT.get(token, "")
        return self._vocabulary.decode([token])
