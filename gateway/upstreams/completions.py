"""The dialect of `POST /v1/completions` with token ids, both directions. No I/O here.

vLLM since 0.10.2 and SGLang since 0.5.17 speak it. `text` is never read: it lacks special tokens,
and half a character is not text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

import orjson

from gateway.errors import UpstreamError, UpstreamFailed, UpstreamLost, UpstreamUnavailable
from gateway.generation import FinishReason, TokenChunk
from gateway.upstreams.problems import BackendTooOld, code_of, message_of, refusal
from gateway.upstreams.sse import FrameTooLarge, SseSplitter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gateway.generation import TokenRequest

_ID_END: Final = 1 << 31

_FINISH: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    # The engine noticed that the model repeats itself and cut the turn short. What there is is
    # sound and another backend would only repeat it again, so this is an ending, not a failure.
    "repetition": FinishReason.LENGTH,
}
"""Every other reason ("abort", "error", ...) is a failure."""


def request_body(request: TokenRequest, served_model: str, stop_ids: Sequence[int]) -> bytes:
    """JSON of the request. Whatever a backend has a default for is sent explicitly."""
    sampling = request.sampling
    body: dict[str, object] = {
        "model": served_model,
        "prompt": request.prompt_ids,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "stop_token_ids": list(stop_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "request_id": request.request_id,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    return orjson.dumps(body)


class CompletionReader:
    """Bytes of one streamed answer → chunks.

    Feed what the network brings to `feed`, and say with `end` that no more will come. Each returns
    the chunk to hand on, if any. Then `fault` is the error to raise, or `finished` is True and the
    chunk returned last carried the finish. Ids of the read in which a stream broke come first.
    """

    __slots__ = (
        "_cached", "_finish", "_ids", "_ids_left", "_last_id", "_said_all", "_splitter",
        "_stop_ids", "_upstream", "fault", "finished", "started",
    )  # fmt: skip

    def __init__(
        self, upstream: str, *, stop_ids: Collection[int], max_tokens: int, frame_bytes_max: int
    ) -> None:
        self.started = False
        self.finished = False
        self.fault: UpstreamError | None = None
        self._upstream = upstream
        self._stop_ids = stop_ids
        self._ids_left = max_tokens
        self._last_id: int | None = None
        self._splitter = SseSplitter(frame_bytes_max)
        self._ids: list[int] = []
        self._finish: FinishReason | None = None
        self._cached: int | None = None
        self._said_all = False

    @property
    def ending(self) -> bool:
        """The finish reason is known; only token counts may follow."""
        return self._finish is not None

    def feed(self, data: bytes) -> TokenChunk | None:
        """Take in one read. All its ids come in one chunk."""
        try:
            payloads = self._splitter.feed(data)
        except FrameTooLarge as error:
            self._break(str(error))
            return self._chunk()
        for payload in payloads:
            if self._said_all or self.fault is not None:
                break
            self._event(payload)
        return self._chunk()

    def end(self, why: str) -> TokenChunk | None:
        """Nothing more will come: the body ended, the connection broke, or patience did."""
        if not self._said_all and self.fault is None:
            self._break(why, UpstreamLost(why, upstream=self._upstream))
        return self._chunk()

    def _chunk(self) -> TokenChunk | None:
        ids, self._ids = self._ids, []
        if self._said_all and self._finish is not None:
            self.finished = True
            return TokenChunk(ids, self._finish, self._cached)
        return TokenChunk(ids) if ids else None

    def _event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._break("stream ended without a finish reason")
            return
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            self._break(f"event is not JSON: {error}")
            return
        if not isinstance(event, dict):
            self._break("event is not an object")
        elif "error" in event or event.get("object") == "error":
            why = message_of(event)
            self._break(why, refusal(self._upstream, code_of(event), why))
        else:
            usage = event.get("usage")
            if usage is not None:
                self._usage(usage)
            self._choices(event.get("choices"))

    def _usage(self, usage: object) -> None:
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int and cached >= 0:
            self._cached = cached

    def _choices(self, choices: object) -> None:
        if not isinstance(choices, list):
            self._break("event has no choices")
        elif not choices:
            self._said_all = self._finish is not None  # the token counts, which come last
        elif self._finish is None:
            self._choice(choices[0])

    def _choice(self, choice: object) -> None:
        ids = choice.get("token_ids") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or (ids is None and self.started):
            self._break("event has no token_ids")
            return
        if ids is None:
            self.fault = BackendTooOld(upstream=self._upstream)
            return
        if not _are_ids(ids):
            self._break("token_ids are not a list of ids")
            return
        if ids:
            self.started = True
            self._ids += ids
            self._ids_left -= len(ids)
            self._last_id = ids[-1]
        reason = choice.get("finish_reason")
        if reason is not None:
            self._finish = _FINISH.get(reason) if isinstance(reason, str) else None
            if self._finish is None:
                self._break(f"finish reason {message_of(reason)}")

    def _break(self, why: str, before_start: UpstreamError | None = None) -> None:
        """The stream is over in a way it should not be: it may still be a complete turn.

        After a stop id, or when all tokens asked for are there, nothing is missing but words.
        `before_start` is the fault if not one id has come.
        """
        if self._finish is None:
            self._finish = self._unsaid_finish()
        if self._finish is not None:
            self._said_all = True
        elif self.started:
            self.fault = UpstreamFailed(why, upstream=self._upstream)
        else:
            self.fault = before_start or UpstreamUnavailable(why, upstream=self._upstream)

    def _unsaid_finish(self) -> FinishReason | None:
        if self._last_id in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._ids_left <= 0 else None


def _are_ids(ids: object) -> TypeGuard[list[int]]:
    return isinstance(ids, list) and all(type(i) is int and 0 <= i < _ID_END for i in ids)
