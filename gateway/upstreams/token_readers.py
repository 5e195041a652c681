"""Readers of answers with token ids: bytes become chunks. No I/O here.

`text` is never read: it lacks special tokens, and half a character is not text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

import msgspec
import orjson
from typing_extensions import Unpack, override

from gateway.errors import UpstreamError, UpstreamFailed, UpstreamLost, UpstreamUnavailable
from gateway.generation import LOGPROB_MIN, FinishReason, TokenChunk, TokenLogprob
from gateway.upstreams.problems import NoTokenIds, breakage, code_of, message_of, refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gateway.generation import Likelihood, Sampling


ID_END: Final = 1 << 31
"""No number from here on is an id, whatever the vocabulary."""
SLICE_BYTES: Final = 64 * 1024
"""Parsed in one turn of the event loop: a millisecond or two with all that is done with the ids.
Each slice is an event for the client and a write to its socket."""

_FINISH: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    # The engine noticed that the model repeats itself and cut the turn short. What there is is
    # sound and another backend would only repeat it again, so this is an ending, not a failure.
    "repetition": FinishReason.LENGTH,
}
"""Every other reason ("abort", "error", ...) is a failure."""
NO_NUMBER: Final = "NaN happened"
"""SGLang's stop of a model whose numbers broke; its id stands for none
(`Req._check_vocab_boundary_finish` of 0.5.23)."""
_ID_PREFIX: Final = "token_id:"
_CR: Final = ord("\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DATA: Final = b"data: "
_NEXT_DATA: Final = b"\n\ndata: "
_OTHER_DATA: Final = frozenset({b"data:", b"data"})
_DIGITS_MAX: Final = 9
"""An id has 32 bits in the log."""

CONTAINERS_FREE: Final = 256 * 1024
"""Brackets and braces that any event may have; all its objects are made in one go."""
CONTAINER_BYTES: Final = 12
"""Bytes of an event for each further one; logprobs have twice as many."""


_NO_EVENT: Final = (ValueError, RecursionError)
_Id = Annotated[int, msgspec.Meta(ge=0, lt=ID_END)]


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[_Id]
    finish_reason: Any = None
    logprobs: Any = None
    matched_stop: Any = None


class _TokenEvent(msgspec.Struct, gc=False):
    """Fields that are read; skipping the others takes half the time."""

    choices: list[_Choice]
    usage: Any = None
    error: None = None
    """An event with any error is none of these."""


_decode_token_event: Final = msgspec.json.Decoder(_TokenEvent).decode


class CompletionReader:
    """Bytes of one streamed answer → chunks, of `POST /v1/completions` with token ids.

    Afterwards `fault` is the error to raise, or `finished` is True and the chunk had the finish.
    Ids of the read in which a stream broke come first. While `has_more`, call `go_on` before
    anything else. `overran`: the backend continued beyond its limit or finish.
    """

    __slots__ = (
        "_alternatives", "_cached", "_constrained", "_frame_bytes_max", "_id_end", "_ids",
        "_ids_left_before", "_ids_max", "_is_over", "_last_id", "_logprobs", "_plain_bytes_max",
        "_read_bytes", "_splitter", "_stop_ids", "_unread", "_unread_from", "_upstream", "fault",
        "finish",
        "finished", "has_more", "ids_left", "overran",
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
        # `frame_bytes_max` bounds one event; twice as much may come without an id.
        self.finished = False
        self.overran = False
        self.has_more = False
        self.fault: UpstreamError | None = None
        self.finish: FinishReason | None = None
        """Once set only token counts may follow."""
        self.ids_left = self._ids_max = sampling.max_tokens
        self._upstream = upstream
        self._stop_ids = stop_ids
        self._alternatives = sampling.logprobs
        self._constrained = constrained
        self._frame_bytes_max = frame_bytes_max
        self._plain_bytes_max = min(frame_bytes_max, CONTAINERS_FREE)
        self._id_end = min(id_end, ID_END)
        self._splitter = SseSplitter()
        self._unread = b""
        """A long read, parsed up to `_unread_from`."""
        self._unread_from = 0
        # Since it was last found that ids came, and how many were to come then, those aside that
        # are kept back.
        self._read_bytes = 0
        self._ids_left_before = self._ids_max
        self._ids: list[int] = []
        self._logprobs: list[Likelihood] = []
        self._last_id: int | None = None
        self._cached: int | None = None
        self._is_over = False
        """By a fault, or after all that belongs to the turn."""

    def feed(self, data: bytes) -> TokenChunk | None:
        """Parse one read, of a long one the first `SLICE_BYTES`."""
        if len(data) > SLICE_BYTES:
            self._unread, self._unread_from = data, 0
            return self.go_on()
        for payload in self._splitter.feed(data):
            if self._is_over:
                break
            if len(payload) <= self._plain_bytes_max or self._is_bounded(payload):
                self._event(payload)
        self._read_bytes += len(data)
        if self._read_bytes > self._frame_bytes_max:
            self._check_bounds()
        return self._chunk()

    def keep(self, data: bytes) -> None:
        # Parsed later, by `go_on`.
        self._unread, self._unread_from, self.has_more = data, 0, True

    def go_on(self) -> TokenChunk | None:
        begin, end = self._unread_from, self._unread_from + SLICE_BYTES
        chunk = self.feed(self._unread[begin:end])
        self._unread_from = end
        self.has_more = end < len(self._unread) and not self._is_over
        if not self.has_more:
            self._unread = b""
        return chunk

    @property
    def slice_bytes(self) -> int:
        # Input of the next `go_on`.
        return min(SLICE_BYTES, len(self._unread) - self._unread_from)

    def end(self, why: str) -> TokenChunk | None:
        if not self._is_over:
            kind = UpstreamFailed if self._has_begun else UpstreamLost
            self._break(why, kind(why, upstream=self._upstream))
        return self._chunk()

    @property
    def tokens_taken(self) -> int:
        return self._ids_max - self.ids_left

    @property
    def kept_back(self) -> int:
        # In ids. A subclass may keep some until the text after it has arrived.
        return 0

    @property
    def _has_begun(self) -> bool:
        return self.ids_left < self._ids_max

    def _check_bounds(self) -> None:
        # An event has at most `frame_bytes_max`, and at most twice that may arrive without a new
        # id.
        if self._is_over:
            return
        held_bytes = self._splitter.held_bytes
        if held_bytes > self._frame_bytes_max:
            self._break_long()
        elif self.ids_left - self.kept_back != self._ids_left_before:
            self._read_bytes = held_bytes
            self._ids_left_before = self.ids_left - self.kept_back
        elif self._read_bytes - held_bytes > 2 * self._frame_bytes_max:
            self._break(f"{self._read_bytes} bytes without an id")

    def _chunk(self) -> TokenChunk | None:
        ids, logprobs, finish, cached = self._ids, None, None, None
        if self._is_over and self.fault is None:
            self.finished = True
            finish, cached = self.finish, self._cached
        elif not ids:
            return None
        if ids:
            self._ids, self._last_id = [], ids[-1]
        if self._alternatives is not None:
            logprobs, self._logprobs = self._logprobs, []
        return TokenChunk(ids, finish, cached, logprobs, self._constrained, self._upstream)

    def _event(self, payload: bytes) -> None:
        # An error or the end is noted in `fault`, `finish` and `overran`.
        try:
            event = _decode_token_event(payload)
        except _NO_EVENT:
            self._other_event(payload)
            return
        if event.usage is not None:
            self._usage(event.usage)
        if not event.choices:
            self._is_over = self.finish is not None  # the token counts, which come last
            return
        choice = event.choices[0]
        ids = choice.token_ids
        if self.finish is not None:
            if ids:
                self._overrun()
            return
        if (
            len(ids) == 1  # nearly always
            and ids[0] < self._id_end
            and self.ids_left > 0
            and self._alternatives is None
        ):
            self._ids += ids
            self.ids_left -= 1
        elif not self._take(ids, choice.logprobs):
            return
        if (reason := choice.finish_reason) is not None:
            self._finish_for(reason, reason, matched=choice.matched_stop)

    def _is_bounded(self, payload: bytes) -> bool:
        containers_max = CONTAINERS_FREE + len(payload) // CONTAINER_BYTES
        if len(payload) > self._frame_bytes_max:
            self._break_long()
        elif payload.count(b"[") + payload.count(b"{") > containers_max:
            self._break("an event has too many parts")
        return not self._is_over

    def _break_long(self) -> None:
        self._break(f"an event is longer than {self._frame_bytes_max} bytes")

    def _finish_for(self, kind: object, reason: object, *, matched: object) -> None:
        if matched == NO_NUMBER:
            del self._ids[-1:], self._logprobs[-1:]
            self.ids_left += 1
            self._break(NO_NUMBER)
            return
        self.finish = _FINISH.get(kind) if isinstance(kind, str) else None
        if self.finish is None:
            self._break(f"finish reason {message_of(reason)}")

    def _take(self, ids: list[int], logprobs: object) -> bool:
        # False if nothing may follow these ids.
        aligned: Sequence[TokenLogprob] = ()
        if ids and self._alternatives is not None:
            try:
                aligned = aligned_logprobs(logprobs, ids, self._alternatives)
            except Misaligned as error:
                self._break(str(error))
                return False
        return self._keep(ids, aligned)

    def _keep(self, ids: list[int], logprobs: Sequence[Likelihood]) -> bool:
        # False if nothing may follow these ids.
        valid = list(takewhile(self._id_end.__gt__, ids[: max(0, self.ids_left)]))
        self._ids += valid
        self._logprobs += logprobs[: len(valid)]
        self.ids_left -= len(valid)
        if len(valid) == len(ids):
            return True
        if self.ids_left > 0:
            self._break(f"id {ids[len(valid)]} is not in the vocabulary")
        else:
            self._overrun()
        return False

    def _other_event(self, payload: bytes) -> None:
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            done = "stream ended without a finish reason"
            self._break(done if payload == b"[DONE]" else f"event is not JSON: {error}")
            return
        if not isinstance(event, dict):
            self._break("event is not an object")
        elif event.get("error") is not None or event.get("object") == "error":
            self._on_refusal(code_of(event), message_of(event))
        else:
            self._without_ids(event)

    def _on_refusal(self, code: int, why: str) -> None:
        if self._has_begun:
            self._break(why, breakage(self._upstream, why, constrained=self._constrained))
        else:
            self._break(why, refusal(self._upstream, code, why))

    def _without_ids(self, event: dict[str, object]) -> None:
        self._usage(event.get("usage"))
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices:
            self._break("event has no choices")
            return
        ids = choices[0].get("token_ids") if isinstance(choices[0], dict) else None
        if self.finish is not None:
            if ids:
                self._overrun()
        elif ids is not None:
            self._break("token_ids are not a list of ids")
        else:
            too_old = not self._has_begun and isinstance(choices[0], dict)
            fault = NoTokenIds(upstream=self._upstream) if too_old else None
            self._break("event has no token_ids", fault)

    def _usage(self, usage: object) -> None:
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int and cached >= 0:
            self._cached = cached

    def _overrun(self) -> None:
        # The backend sent more tokens than requested, or data after the end: ignore it.
        self.overran = self._is_over = True
        self.finish = self.finish or self._unsaid_finish()

    def _break(self, why: str, fault: UpstreamError | None = None) -> None:
        # After a stop id, or with all requested tokens, the turn is complete even though the stream
        # broke.
        self._is_over = True
        self.finish = self.finish or self._unsaid_finish()
        if self.finish is None:
            kind = UpstreamFailed if self._has_begun else UpstreamUnavailable
            self.fault = fault or kind(why, upstream=self._upstream)

    def _unsaid_finish(self) -> FinishReason | None:
        last_id = self._ids[-1] if self._ids else self._last_id
        if last_id in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.ids_left <= 0 else None


@dataclass(slots=True, eq=False)
class SseSplitter:
    """Server-sent events as bytes → the `data` of each.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
    """

    _lines: list[bytes] = field(default_factory=list)
    """Data of an event without its blank line yet."""
    _rest: bytearray = field(default_factory=bytearray)
    _ends_in_cr: bool = False
    """A line feed that comes next is part of the last line end."""
    _is_front: bool = True

    @property
    def held_bytes(self) -> int:
        return len(self._rest) + sum(map(len, self._lines)) + len(self._lines)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of completed events, without empty ones and comments."""
        if _CR in data or self._ends_in_cr:
            data = self._with_plain_newlines(data)
        if not (self._rest or self._lines) and data[:6] == _DATA and data[-2:] == b"\n\n":
            # Nearly always: whole events of one line each.
            payloads = data[6:-2].split(_NEXT_DATA)
            if data.count(b"\n") == 2 * len(payloads) and b"" not in payloads:
                self._is_front = False
                return payloads
        return self._take_lines(data)

    def _take_lines(self, data: bytes) -> list[bytes]:
        lines, rest, held = data.split(b"\n"), self._rest, self._lines
        if rest:
            rest += lines[0]
            if len(lines) == 1:
                return []
            lines[0] = bytes(rest)
            rest.clear()
        if self._is_front and len(lines) > 1:
            self._is_front = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        rest += lines.pop()
        payloads: list[bytes] = []
        for line in lines:
            if not line:
                if payload := b"\n".join(held):
                    payloads.append(payload)
                held.clear()
            elif line[:6] == _DATA:
                held.append(line[6:])
            elif line[:5] in _OTHER_DATA:
                held.append(line[5:])
        return payloads

    def _with_plain_newlines(self, data: bytes) -> bytes:
        # Also if a read ends between CR and LF.
        if self._ends_in_cr and data.startswith(b"\n"):
            data = data[1:]
            self._ends_in_cr = False
        if data:
            self._ends_in_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class Misaligned(ValueError):
    """Logprobs of an event do not fit its ids."""


def aligned_logprobs(fields: object, ids: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """Return the logprobs of `ids`, in their order. Raises `Misaligned`.

    `fields` has the shape `{"tokens": ["token_id:5", …], "token_logprobs": [number, …],
    "top_logprobs": [{"token_id:5": number, …}, …]}`; the top ones include the id itself.
    """
    if not isinstance(fields, dict):
        raise Misaligned("event has no logprobs")
    tokens, own, tops = (fields.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    if tokens != [f"{_ID_PREFIX}{id_}" for id_ in ids]:
        raise Misaligned("logprobs are not those of the token_ids")
    if not isinstance(own, list) or len(own) != len(ids):
        raise Misaligned("token_logprobs are not as many as the token_ids")
    if not alternatives:
        return [TokenLogprob(finite(value)) for value in own]
    if not isinstance(tops, list) or len(tops) != len(ids):
        raise Misaligned("top_logprobs are not as many as the token_ids")
    return [
        TokenLogprob(finite(value), _likeliest(top, alternatives))
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
        digits = name.removeprefix(_ID_PREFIX)
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        if len(digits) == len(name) or not is_number:
            raise Misaligned("top_logprobs are not named by id")
        yield int(digits), finite(value)


def finite(value: object) -> float:
    """Return a logprob of at most 0; `LOGPROB_MIN` for no number, as vLLM's null."""
    if isinstance(value, float | int) and value > LOGPROB_MIN:  # NaN is not
        return float(min(value, 0.0))
    return LOGPROB_MIN


_NOTHING: Final = msgspec.Raw(b"null")


class _Likely(msgspec.Struct, array_like=True, gc=False):
    """`[logprob, id, text or null]`; LMDeploy sends no text."""

    logprob: float | None
    id: _Id


class _Meta(msgspec.Struct, gc=False):
    finish_reason: Any = None
    completion_tokens: Any = None
    cached_tokens: Any = None
    output_token_logprobs: msgspec.Raw = _NOTHING
    output_top_logprobs: msgspec.Raw = _NOTHING


class _Event(msgspec.Struct, gc=False):
    """Fields that are read. Lists stay undecoded: most of each is old."""

    output_ids: msgspec.Raw
    meta_info: _Meta
    error: None = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_ids: Final = msgspec.json.Decoder(list[_Id]).decode
_decode_own: Final = msgspec.json.Decoder(list[_Likely]).decode
_decode_tops: Final = msgspec.json.Decoder(list[list[_Likely] | None]).decode


class RepeatedList:
    """JSON list that each event repeats with more at its end; only that is decoded."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = 1  # behind the bracket that opens it

    def rest(self, raw: bytes) -> bytes:
        """Return a list of the new items; ValueError if it is another list."""
        begin, end = self._end, len(raw) - 1
        if end < begin or raw[:1] != b"[" or (1 < begin < end and raw[begin : begin + 1] != b","):
            raise ValueError("a list is not the one before with more at its end")
        self._end = end
        return b"[" + raw[begin + (begin > 1) : end] + b"]"


class ReaderOptions(TypedDict):
    stop_ids: Collection[int]
    frame_bytes_max: int
    id_end: NotRequired[int]
    constrained: NotRequired[bool]


class GenerateReader(CompletionReader):
    """A `CompletionReader` for events of `/generate` (SGLang, LMDeploy).

    SGLang 0.5.23 sends `{"output_ids": [1, 1], "meta_info": {"finish_reason": null,
    "completion_tokens": 2, "cached_tokens": 8}}`. An event has all ids so far, or with
    `--incremental-streaming-output` the new ones; `completion_tokens` counts all.
    """

    __slots__ = ("_ids_so_far", "_own_so_far", "_repeats", "_tops_so_far")

    def __init__(self, upstream: str, sampling: Sampling, **options: Unpack[ReaderOptions]) -> None:
        super().__init__(upstream, sampling, **options)
        self._repeats: bool | None = None
        """Events have all ids so far; None before the second event with ids."""
        self._ids_so_far = RepeatedList()
        self._own_so_far = RepeatedList()
        self._tops_so_far = RepeatedList()

    @override
    def _event(self, payload: bytes) -> None:
        try:
            event = _decode_event(payload)
        except _NO_EVENT:
            self._other_event(payload)
            return
        meta = event.meta_info
        if type(meta.cached_tokens) is int and meta.cached_tokens >= 0:
            self._cached = meta.cached_tokens
        reason = {} if meta.finish_reason is None else meta.finish_reason
        if not isinstance(reason, dict):
            self._break(f"finish reason {message_of(reason)}")
        elif reason.get("type") == "abort" and type(code := reason.get("status_code")) is int:
            # The ids in it were not generated: there is one even of a prompt that was never read.
            self._on_refusal(code, message_of(reason))
        elif self._take_event(event) and reason:
            self._finish_for(reason.get("type"), reason, matched=reason.get("matched"))
            self._is_over = True

    def _take_event(self, event: _Event) -> bool:
        # False if nothing may follow this event.
        try:
            ids = self._new_ids(bytes(event.output_ids), event.meta_info.completion_tokens)
            logprobs: list[TokenLogprob] = []
            if ids and self._alternatives is not None:
                logprobs = self._new_logprobs(ids, event.meta_info, self._alternatives)
        except _NO_EVENT as error:
            self._break(f"event cannot be read: {error}")
            return False
        return self._keep(ids, logprobs)

    def _new_ids(self, raw: bytes, total: object) -> list[int]:
        # `total` is the engine's count of ids. Raises ValueError.
        taken = self._ids_max - self.ids_left
        if self._repeats is None and taken:
            self._repeats = _is_repeated(raw, taken, total)
        if self._repeats is not False:
            return _decode_ids(self._ids_so_far.rest(raw))
        ids = _decode_ids(raw)
        # The last event of a stream that was aborted may have the id before it once more.
        return ids if type(total) is not int else ids[: max(0, total - taken)]

    def _new_logprobs(self, ids: list[int], meta: _Meta, alternatives: int) -> list[TokenLogprob]:
        # Raises ValueError if the logprobs are of other ids.
        own_raw, tops_raw = bytes(meta.output_token_logprobs), bytes(meta.output_top_logprobs)
        if self._repeats is not False:
            own_raw = self._own_so_far.rest(own_raw)
            tops_raw = self._tops_so_far.rest(tops_raw) if alternatives else b"[]"
        # Releases before 0.5.10 repeat these where they do not repeat the ids.
        own = _decode_own(own_raw)[-len(ids) :]
        tops = _decode_tops(tops_raw)[-len(ids) :] if alternatives else [None] * len(ids)
        if [one.id for one in own] != ids or len(tops) != len(ids):
            raise Misaligned("logprobs are not those of the output_ids")
        return [
            TokenLogprob(finite(one.logprob), _likeliest_of_rows(top, alternatives))
            for one, top in zip(own, tops, strict=True)
        ]

    @override
    def _without_ids(self, event: dict[str, object]) -> None:
        self._break("event has no output_ids")


def _is_repeated(raw: bytes, taken: int, total: object) -> bool:
    # True if `raw` has all ids of the stream, False if only the new ones. Raises ValueError for
    # neither.
    count = raw.count(b",") + (len(raw) > len(b"[]"))
    if type(total) is not int or count == total - taken:
        return False
    if count != total:
        raise ValueError(f"{count} output_ids behind {taken}, and completion_tokens are {total}")
    return True


def _likeliest_of_rows(
    top: list[_Likely] | None, alternatives: int
) -> tuple[tuple[int, float], ...]:
    pairs = [(one.id, finite(one.logprob)) for one in top or ()]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:alternatives])
