"""Reader of answers of `POST /generate` of SGLang, and of LMDeploy. No I/O here.

SGLang 0.5.23 sends, from its Python and its Rust frontend: `{"output_ids": [1, 1], "meta_info":
{"finish_reason": null, "completion_tokens": 2, "cached_tokens": 8}}`. An event has all ids so far,
or with `--incremental-streaming-output` those since the one before; `completion_tokens` counts all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

import msgspec
from typing_extensions import Unpack, override

from gateway.generation import TokenLogprob
from gateway.upstreams.completions import ID_END, CompletionReader, Misaligned, finite
from gateway.upstreams.problems import message_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.generation import Sampling

_NOTHING: Final = msgspec.Raw(b"null")


_Id = Annotated[int, msgspec.Meta(ge=0, lt=ID_END)]


class _Likely(msgspec.Struct, array_like=True, gc=False):
    """`[logprob, id, text or null]`; the text is not read, LMDeploy sends none."""

    logprob: float | None
    id: _Id


class _Meta(msgspec.Struct, gc=False):
    finish_reason: Any = None
    completion_tokens: Any = None
    cached_tokens: Any = None
    output_token_logprobs: msgspec.Raw = _NOTHING
    output_top_logprobs: msgspec.Raw = _NOTHING


class _Event(msgspec.Struct, gc=False):
    """Fields that are read of an event with ids. Lists stay undecoded: most of each is old."""

    output_ids: msgspec.Raw
    meta_info: _Meta
    error: msgspec.UnsetType = msgspec.UNSET


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_ids: Final = msgspec.json.Decoder(list[_Id]).decode
_decode_own: Final = msgspec.json.Decoder(list[_Likely]).decode
_decode_tops: Final = msgspec.json.Decoder(list[list[_Likely] | None]).decode
_NO_EVENT: Final = (ValueError, RecursionError)


class RepeatedList:
    """A JSON list that each event has once more, with more at its end.

    Only where it had ended is kept of it, and only what stands behind that is decoded.
    """

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = 1  # behind the bracket that opens it

    def rest(self, raw: bytes) -> bytes:
        """Return a list of the new items.

        Raises ValueError if `raw` does not extend the earlier list.
        """
        begin, end = self._end, len(raw) - 1
        if end < begin or raw[:1] != b"[" or (1 < begin < end and raw[begin : begin + 1] != b","):
            raise ValueError("a list is not the one before with more at its end")
        self._end = end
        return b"[" + raw[begin + (begin > 1) : end] + b"]"


class ReaderOptions(TypedDict):
    """The options of a reader."""

    stop_ids: Collection[int]
    frame_bytes_max: int
    id_end: NotRequired[int]
    constrained: NotRequired[bool]


class GenerateReader(CompletionReader):
    """A `CompletionReader` for events of `/generate`."""

    __slots__ = ("_ids_so_far", "_own_so_far", "_repeats", "_tops_so_far")

    def __init__(self, upstream: str, sampling: Sampling, **asked: Unpack[ReaderOptions]) -> None:
        super().__init__(upstream, sampling, **asked)
        self._repeats: bool | None = None
        """Each event has all ids; found out by the second one that has any."""
        self._ids_so_far = RepeatedList()
        self._own_so_far = RepeatedList()
        self._tops_so_far = RepeatedList()

    @override
    def _event(self, payload: bytes) -> None:
        if len(payload) > self._frame_bytes_max:
            self._break(f"an event is longer than {self._frame_bytes_max} bytes")
            return
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
            told: list[TokenLogprob] = []
            if ids and self._alternatives is not None:
                told = self._new_logprobs(ids, event.meta_info, self._alternatives)
        except _NO_EVENT as error:
            self._break(f"event cannot be read: {error}")
            return False
        return self._keep(ids, told)

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
            TokenLogprob(finite(one.logprob), _likeliest(top, alternatives))
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


def _likeliest(top: list[_Likely] | None, alternatives: int) -> tuple[tuple[int, float], ...]:
    pairs = [(one.id, finite(one.logprob)) for one in top or ()]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:alternatives])
