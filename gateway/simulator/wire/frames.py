"""The events of a streamed completion as bytes, in vLLM's exact form, or in SGLang's."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.models.harmony.vocabulary import FIRST_SPECIAL, NAMED_SPECIALS
from gateway.simulator.wire.likelihoods import Likelihoods

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.wire.reply import Reply
    from gateway.simulator.wire.requests import CompletionRequest

DONE: Final = b"data: [DONE]\n\n"
_SPECIAL_TEXT: Final = {one: name for name, one in NAMED_SPECIALS.items()}
_MIDDLE: Final = (
    b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
    b'"token_ids":['
)
_TAIL: Final = b"]}]}\n\n"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a stream ends: vLLM's `finish_reason` and `stop_reason`."""

    finish: str
    stop_reason: int | None = None

    @classmethod
    def of(cls, reply: Reply) -> Ending:
        """The ending of a reply that is said in full."""
        return cls(reply.finish, reply.stop_reason)


def event(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


class EventTails:
    """The second half of an event with one id of whole characters; the same for every stream."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tails: dict[int, bytes | None] = {}

    def __getitem__(self, token: int) -> bytes | None:
        """None for a marker, and for an id that is no whole characters."""
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
    """The events of one stream. Text comes as soon as its characters are complete."""

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

    def events(self, ids: Sequence[int], ids_per_event: int, ending: Ending | None) -> bytes:
        """Events of so many ids each; the last one carries the ending, if there is one."""
        cut = max(len(ids) - 1, 0) // ids_per_event * ids_per_event if ending else len(ids)
        frames = [
            self._frame(ids[start : min(start + ids_per_event, cut)])
            for start in range(0, cut, ids_per_event)
        ]
        if ending:
            frames.append(self._event(ids[cut:], ending))
        return b"".join(frames)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last event before `[DONE]`; empty when it was not asked for."""
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
        """The choice of one event, or of a whole response; the first one echoes the prompt."""
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

    def _stop_reason(self, ids: Sequence[int], ending: Ending) -> int | None:
        """SGLang names the end-of-sequence id too."""
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
