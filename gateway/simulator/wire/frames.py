"""The events of a streamed completion as bytes, in vLLM's exact form, or in SGLang's.

Logprobs are numbers that mean nothing, but are the same for the same id. Source of their form:
`choices[0].logprobs` of vLLM 0.32 with `return_tokens_as_token_ids`.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.generation import FinishReason
from gateway.models.harmony.vocabulary import FIRST_SPECIAL, NAMED_SPECIALS, RETURN, STOP_IDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.turns import Continuation
    from gateway.simulator.wire.requests import CompletionRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """Ids and end of a stream. `stop_reason` is the stop id, None for the end-of-sequence id
    `<|return|>` and for length.
    """

    ids: list[int]
    finish: str
    stop_reason: int | None


def reply_to(request: CompletionRequest, continuation: Continuation) -> Reply:
    """Return the ids up to the first stop id or to `max_tokens`, whichever comes first."""
    ids = continuation.ids
    stop_ids = {*STOP_IDS, *request.stop_ids}
    if continuation.finish is None:
        end = next((i for i, one in enumerate(ids, 1) if one in stop_ids), len(ids))
        ids = ids[:end]
    is_cut = continuation.finish is None and len(ids) == request.max_tokens
    if len(ids) > request.max_tokens or (is_cut and ids[-1] not in stop_ids):
        return Reply(ids[: request.max_tokens], FinishReason.LENGTH.value, None)
    finish = continuation.finish or FinishReason.STOP
    last = ids[-1] if ids else RETURN
    is_stop = finish is FinishReason.STOP and last in stop_ids and last != RETURN
    return Reply(ids, finish.value, last if is_stop else None)


_STEP: Final = 0.125
_STEPS: Final = 64
_SURPRISE_EVERY: Final = 5
"""Number of ids of which one is not the likeliest at its position."""
_SPECIAL_TEXT: Final = {one: name for name, one in NAMED_SPECIALS.items()}


def logprob_of(token: int) -> float:
    # Between -8 and -0.125, exact in binary.
    return -_STEP * (1 + token % _STEPS)


def alternatives(token: int, count: int) -> dict[int, float]:
    """Return `token` and the others of the `count` likeliest ids at its position, best first."""
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
        """Return the `logprobs` object of one event, aligned with its ids."""
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


DONE: Final = b"data: [DONE]\n\n"
_MIDDLE: Final = (
    b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
    b'"token_ids":['
)
_TAIL: Final = b"]}]}\n\n"


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a stream: vLLM's `finish_reason` and `stop_reason`."""

    finish: str
    stop_reason: int | None = None

    @classmethod
    def of(cls, reply: Reply) -> Ending:
        # For a reply that is sent in full.
        return cls(reply.finish, reply.stop_reason)


def event(document: dict[str, Any]) -> bytes:
    # A server-sent event.
    return b"data: " + orjson.dumps(document) + b"\n\n"


class EventTails:
    """The second half of an event with one id of whole characters; the same for every stream."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tails: dict[int, bytes | None] = {}

    def __getitem__(self, token: int) -> bytes | None:
        # None for a marker, and for an id that is not whole characters.
        try:
            return self._tails[token]
        except KeyError:
            tail = self._tails[token] = self._make(token)
            return tail

    def _make(self, token: int) -> bytes | None:
        if token >= FIRST_SPECIAL:
            return None
        try:
            text = self._vocabulary.piece(token).decode()
        except UnicodeDecodeError:
            return None
        return orjson.dumps(text) + _MIDDLE + b"%d" % token + _TAIL


class EventWriter:
    """Writer of the events of one stream. Text comes as soon as its characters are complete."""

    def __init__(
        self,
        head: dict[str, Any],
        request: CompletionRequest,
        vocabulary: Vocabulary,
        tails: EventTails,
        fingerprint: str,
        engine: str = "vllm",
    ) -> None:
        self._head = head
        self._request = request
        self._vocabulary = vocabulary
        self._tails = tails
        self._fingerprint = fingerprint
        self._is_sglang = engine == "sglang"
        has_logprobs = request.logprobs is not None and not self._is_sglang
        self._likelihoods = Likelihoods(request, vocabulary) if has_logprobs else None
        self._is_plain = request.return_token_ids and not has_logprobs and not self._is_sglang
        self._begin = b"data: " + orjson.dumps(head)[:-1] + b',"choices":[{"index":0,"text":'
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = True
        self.cached = 0
        """Number of cached ids of the prompt; 0 until it is known."""

    def events(self, ids: Sequence[int], ids_per_event: int, ending: Ending | None) -> bytes:
        """Return events of `ids_per_event` ids each; the last one carries the ending, if any."""
        cut = max(len(ids) - 1, 0) // ids_per_event * ids_per_event if ending else len(ids)
        frames = [
            self._frame(ids[start : min(start + ids_per_event, cut)])
            for start in range(0, cut, ids_per_event)
        ]
        if ending:
            frames.append(self._event(ids[cut:], ending))
        return b"".join(frames)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Return the last event before `[DONE]`; empty if it was not requested."""
        if not self._request.include_usage:
            return b""
        tail = {"choices": [], "usage": usage}
        if not self._is_sglang:
            tail["system_fingerprint"] = self._fingerprint
        return event({**self._head, **tail})

    def _frame(self, ids: Sequence[int]) -> bytes:
        if len(ids) == 1 and not self._is_first and self._is_plain:
            tail = self._tails[ids[0]]
            if tail is not None and not self._decoder.getstate()[0]:
                return self._begin + tail
        return self._event(ids, None)

    def _event(self, ids: Sequence[int], ending: Ending | None) -> bytes:
        document = {**self._head, "choices": [self.choice(ids, ending)]}
        if self._is_sglang:
            document["usage"] = None
        elif ending and not self._request.include_usage:
            document["system_fingerprint"] = self._fingerprint
        return event(document)

    def choice(self, ids: Sequence[int], ending: Ending | None) -> dict[str, Any]:
        """Return the choice of one event or of a whole response.

        The first one echoes the prompt.
        """
        request = self._request
        echo = request.prompt if self._is_first and request.return_token_ids else None
        self._is_first = False
        reason = "matched_stop" if self._is_sglang else "stop_reason"
        return {
            "index": 0,
            "text": self._text(ids, ending),
            "logprobs": self._likelihoods.of(ids) if self._likelihoods else None,
            "finish_reason": ending.finish if ending else None,
            reason: self._stop_reason(ids, ending) if ending else None,
            "prompt_token_ids": echo,
            "token_ids": list(ids) if request.return_token_ids else None,
        }

    def body(self, ids: Sequence[int], ending: Ending, usage: dict[str, Any]) -> dict[str, Any]:
        """Return a whole response."""
        choice = self.choice(ids, ending)
        echo = choice.pop("prompt_token_ids")
        choice |= {"prompt_logprobs": None, "prompt_token_ids": echo, "routed_experts": None}
        return {
            **self._head,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {"prompt_tokens_details": None, **usage, "completion_tokens_details": None},
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _stop_reason(self, ids: Sequence[int], ending: Ending) -> int | None:
        # SGLang names the end-of-sequence id too.
        if self._is_sglang and ending.finish == "stop" and ids:
            return ids[-1]
        return ending.stop_reason

    def _text(self, ids: Sequence[int], ending: Ending | None) -> str:
        shown = list(ids)
        if ending and ending.finish == "stop" and not self._request.include_stop_text:
            shown = shown[:-1]
        parts = [self._text_of(one) for one in shown]
        return "".join(parts) + (self._decoder.decode(b"", final=True) if ending else "")

    def _text_of(self, token: int) -> str:
        if token < FIRST_SPECIAL:
            return self._decoder.decode(self._vocabulary.piece(token))
        broken = self._decoder.decode(b"", final=True)
        if self._request.skip_special_tokens:
            return broken
        return broken + _SPECIAL_TEXT.get(token, "")
