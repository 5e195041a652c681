"""What comes back from `POST /v1/completions` with token ids. No I/O here.

vLLM since 0.10.2 and SGLang since 0.5.17 speak it. `text` is never read: it lacks special tokens,
and half a character is not text.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeGuard

import orjson

from gateway.errors import UpstreamError, UpstreamFailed, UpstreamLost, UpstreamUnavailable
from gateway.generation import FinishReason, TokenChunk
from gateway.upstreams.logprobs import Misaligned, aligned_logprobs
from gateway.upstreams.problems import NoTokenIds, breakage, code_of, message_of, refusal
from gateway.upstreams.sse import FrameTooLarge, SseSplitter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gateway.generation import Sampling, TokenLogprob

ID_END: Final = 1 << 31
"""No number from here on is an id, whatever the vocabulary."""
SLICE_BYTES: Final = 32 * 1024
"""So much of a read is looked at in one turn of the event loop, and one event more at most."""

_FINISH: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    # The engine noticed that the model repeats itself and cut the turn short. What there is is
    # sound and another backend would only repeat it again, so this is an ending, not a failure.
    "repetition": FinishReason.LENGTH,
}
"""Every other reason ("abort", "error", ...) is a failure."""


class CompletionReader:
    """Bytes of one streamed answer → chunks.

    Feed what the network brings to `feed`, and say with `end` that no more will come. Each returns
    the chunk to hand on, if any. Then `fault` is the error to raise, or `finished` is True and the
    chunk returned last carried the finish. Ids of the read in which a stream broke come first.

    Where `has_more`, not all of a read was looked at: `go_on` returns the next chunk, and has to be
    called before anything else is.

    No more ids are taken than were asked for, and none that is `id_end` or above. A backend that
    goes on behind its limit, or its finish, `overran`: what else it says is of no interest.
    """

    __slots__ = (
        "_alternatives", "_block", "_block_at", "_cached", "_constrained", "_id_end", "_ids",
        "_ids_left_before", "_last_id", "_logprobs", "_read_bytes", "_read_bytes_max", "_said_all",
        "_splitter", "_stop_ids", "_upstream", "fault", "finish", "finished", "has_more",
        "ids_left", "overran", "started",
    )  # fmt: skip

    def __init__(
        self,
        upstream: str,
        sampling: Sampling,
        *,
        stop_ids: Collection[int],
        frame_bytes_max: int,
        id_end: int = ID_END,
        constrained: bool = False,
    ) -> None:
        self.started = False
        self.finished = False
        self.overran = False
        self.has_more = False
        """Not all that was fed was looked at."""
        self.fault: UpstreamError | None = None
        self.finish: FinishReason | None = None
        """Once it is known; only token counts may follow."""
        self._upstream = upstream
        self._stop_ids = stop_ids
        self.ids_left = sampling.max_tokens
        """How many of those that were asked for have not come."""
        self._alternatives = sampling.logprobs
        self._constrained = constrained
        self._last_id: int | None = None
        self._splitter = SseSplitter(frame_bytes_max)
        self._id_end = id_end
        """No number from here on is an id of the model."""
        self._block = b""
        self._block_at = 0
        # Since it was last found that ids came, and how many were to come then.
        self._read_bytes = 0
        self._read_bytes_max = 2 * frame_bytes_max
        self._ids_left_before = sampling.max_tokens
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._cached: int | None = None
        self._said_all = False

    def feed(self, data: bytes) -> TokenChunk | None:
        """Take in one read."""
        block = self._splitter.feed(data)
        size = len(block)
        self._read_bytes += size
        if size > SLICE_BYTES:
            self._block, self._block_at = block, 0
            self._take_slice()
            return self._chunk()
        if block:
            self._parse(block)
        splitter = self._splitter
        if self._read_bytes > self._read_bytes_max or len(splitter.rest) > splitter.frame_bytes_max:
            self._check_bounds()
        return self._chunk()

    def go_on(self) -> TokenChunk | None:
        """Look at more of it; as `feed`."""
        self._take_slice()
        return self._chunk()

    def _take_slice(self) -> None:
        """Whole events, as many as are looked at in one turn of the event loop."""
        block, begin = self._block, self._block_at
        end = len(block)
        if end - begin > SLICE_BYTES:
            end = block.find(b"\n\n", begin + SLICE_BYTES - 2) + 2
        self._parse(block[begin:end])
        self._block_at = end
        if end == len(block):
            self._block = b""
            self._check_bounds()
        self.has_more = bool(self._block) and self.fault is None and not self._said_all

    def _check_bounds(self) -> None:
        """It may send no event without an end, nor more than its longest event without any id."""
        if self.fault is not None or self._said_all:
            return
        splitter = self._splitter
        if len(splitter.rest) > splitter.frame_bytes_max:
            self._break(str(FrameTooLarge(splitter.frame_bytes_max)))
        elif self._read_bytes > self._read_bytes_max:
            if self.ids_left == self._ids_left_before:
                self._break(f"{self._read_bytes} bytes without an id")
            self._read_bytes, self._ids_left_before = 0, self.ids_left

    def end(self, why: str) -> TokenChunk | None:
        """Nothing more will come: the body ended, the connection broke, or patience did."""
        if not self._said_all and self.fault is None:
            kind = UpstreamFailed if self.started else UpstreamLost
            self._break(why, kind(why, upstream=self._upstream))
        return self._chunk()

    def _chunk(self) -> TokenChunk | None:
        """What was found since the last one, if anything is to be handed on."""
        ids, logprobs, finish, cached = self._ids, None, None, None
        if self._said_all and self.finish is not None:
            self.finished = True
            finish, cached = self.finish, self._cached
        elif not ids:
            return None
        self._ids = []
        if self._alternatives is not None:
            logprobs, self._logprobs = self._logprobs, []
        return TokenChunk(ids, finish, cached, logprobs, self._constrained, self._upstream)

    def _parse(self, block: bytes) -> None:
        """Whole events."""
        too_large: FrameTooLarge | None = None
        try:
            payloads: Sequence[bytes] = self._splitter.payloads(block)
        except FrameTooLarge as error:
            payloads, too_large = error.before, error
        for payload in payloads:
            if self._said_all or self.fault is not None:
                return
            self._event(payload)
        if too_large is not None:
            self._break(str(too_large))

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
            self._refused(event)
        else:
            usage = event.get("usage")
            if usage is not None:
                self._usage(usage)
            choices = event.get("choices")
            if choices and isinstance(choices, list) and self.finish is None:
                self._choice(choices[0])
            else:
                self._no_choice(choices)

    def _refused(self, event: dict[str, object]) -> None:
        why = message_of(event)
        fault: UpstreamError
        if self.started:
            fault = breakage(self._upstream, why, constrained=self._constrained)
        else:
            fault = refusal(self._upstream, code_of(event), why)
        self._break(why, fault)

    def _usage(self, usage: object) -> None:
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int and cached >= 0:
            self._cached = cached

    def _no_choice(self, choices: object) -> None:
        """An event that has none, or comes behind the finish."""
        if not isinstance(choices, list):
            self._break("event has no choices")
        elif not choices:
            self._said_all = self.finish is not None  # the token counts, which come last
        elif isinstance(choices[0], dict) and choices[0].get("token_ids"):
            self._overrun()

    def _choice(self, choice: object) -> None:
        ids = choice.get("token_ids") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or (ids is None and self.started):
            self._break("event has no token_ids")
            return
        if ids is None:
            self.fault = NoTokenIds(upstream=self._upstream)
            return
        if not _are_ids(ids):
            self._break("token_ids are not a list of ids")
            return
        if ids and not self._take(ids, choice):
            return
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish = _FINISH.get(reason) if isinstance(reason, str) else None
            if self.finish is None:
                self._break(f"finish reason {message_of(reason)}")

    def _take(self, ids: list[int], choice: dict[str, object]) -> bool:
        """Keep the ids of an event, and what is told of them; False: nothing may follow them."""
        told: Sequence[TokenLogprob] = ()
        if self._alternatives is not None:
            try:
                told = aligned_logprobs(choice.get("logprobs"), ids, self._alternatives)
            except Misaligned as error:
                self._break(str(error))
                return False
        known = ids
        if len(ids) > self.ids_left or max(ids) >= self._id_end:
            known = list(takewhile(self._id_end.__gt__, ids[: max(0, self.ids_left)]))
        if known:
            self.started = True
            self._ids += known
            if told:
                self._logprobs += told[: len(known)]
            self.ids_left -= len(known)
            self._last_id = known[-1]
        if known is ids:
            return True
        if self.ids_left > 0:
            self._break(f"id {ids[len(known)]} is not in the vocabulary")
        else:
            self._overrun()
        return False

    def _overrun(self) -> None:
        """There is more than was asked for, or behind the end: nothing of that is wanted."""
        self.overran = True
        self.finish = self.finish or self._unsaid_finish()
        self._said_all = True

    def _break(self, why: str, fault: UpstreamError | None = None) -> None:
        """The stream is over in a way it should not be: it may still be a complete turn.

        After a stop id, or when all tokens asked for are there, nothing is missing but words.
        """
        if self.finish is None:
            self.finish = self._unsaid_finish()
        if self.finish is not None:
            self._said_all = True
        elif fault is not None:
            self.fault = fault
        else:
            kind = UpstreamFailed if self.started else UpstreamUnavailable
            self.fault = kind(why, upstream=self._upstream)

    def _unsaid_finish(self) -> FinishReason | None:
        if self._last_id in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.ids_left <= 0 else None


def _are_ids(ids: object) -> TypeGuard[list[int]]:
    if not isinstance(ids, list):
        return False
    if len(ids) == 1:  # nearly always
        return type(ids[0]) is int and 0 <= ids[0] < ID_END
    return not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < ID_END)
