"""What a request gets of a continuation: where it stops, and why, by vLLM's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.generation import FinishReason
from gateway.models.harmony.vocabulary import RETURN, STOP_IDS

if TYPE_CHECKING:
    from gateway.simulator.turn.script import Continuation
    from gateway.simulator.wire.requests import CompletionRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """`stop_reason` is the stop id, None for the end-of-sequence id `<|return|>` and for length."""

    ids: list[int]
    finish: str
    stop_reason: int | None


def reply_to(request: CompletionRequest, continuation: Continuation) -> Reply:
    """The ids up to the first stop id or to `max_tokens`, whichever is first."""
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
