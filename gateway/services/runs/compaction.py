"""Compaction of conversations.

| requested by | when | result |
|---|---|---|
| `context_management` | the prompt is longer than the threshold | the first item of the response |
| a `compaction_trigger` | always | the only item of the response |
| `POST /v1/responses/compact` | always | an answer of its own, which is not stored |

The summary is generated before the response is accepted; until then its client receives nothing. It
fails over like any response, but is neither shown nor kept, and ends when its client leaves.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway import ids
from gateway.context.assembly import COMPACTION
from gateway.context.shortening import compaction_item, droppable, instruction
from gateway.engine import outcome
from gateway.engine.outcome import now
from gateway.engine.output_guard import OutputViolation
from gateway.engine.turn import TurnRunner
from gateway.entries import Compacted
from gateway.errors import ContextLengthExceeded, InvalidRequest, SummaryFailed, UpstreamError
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import CompactionTrigger
from gateway.protocol.parameters import Effort, ReasoningOptions
from gateway.protocol.responses.create_request import OUTPUT_TOKENS_MIN, CreateResponse
from gateway.protocol.responses.response_object import compacted_response, compaction_body
from gateway.sealing import Binding, Unsealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engine.engine import Engine
    from gateway.engine.row_mapping import NewFoldFor
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.generation import Prompt, TokenUsage
    from gateway.sealing import Sealer

REPEATED_SHARE: Final = 4
"""Compact a compacted context again only if that saves this part of the threshold: messages of
users stay, and could keep it above the threshold for good.
"""
WINDOW_SHARE: Final = 0.8
ROOM_SHARE: Final = 4
"""No summary is begun without room for this part of its maximum length."""


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """Bounds of summaries. `summary_tokens_max` includes thoughts, which get at most half;
    `window_share` is the default threshold.
    """

    summary_tokens_max: int = 4096
    effort: Effort = "low"
    window_share: float = WINDOW_SHARE


COMPACTION_LIMITS: Final = CompactionLimits()


@dataclass(frozen=True, slots=True)
class Summary:
    """Generated summary; `text` may be cut off, but is not empty."""

    spec: RunSpec
    text: str
    compacted: Compacted
    finished: Finished
    fold: Fold


class SummaryPlan(NamedTuple):
    spec: RunSpec
    items: Sequence[ContextItem]


class CompactedContext(NamedTuple):
    """Answer to `POST /v1/responses/compact`."""

    plan: SummaryPlan
    summary: Summary

    @property
    def body(self) -> bytes:
        """Return JSON whose `output` can be the next request's input unchanged."""
        head = self.plan.spec.head
        kept: list[dict[str, Any]] = [
            orjson.loads(item.json) for item in self.plan.items if item.outlives_compaction
        ]
        item_id = ids.output_item_id(ids.COMPACTION_PREFIX, head.uuid, 0)
        output = [*kept, compaction_body(item_id, self.summary.compacted.seal)]
        body = compacted_response(head.uuid, head.created_at, output, self.summary.fold.usage)
        return orjson.dumps(body)


class Compactor:
    def __init__(
        self,
        engine: Engine,
        new_fold_for: NewFoldFor,
        sealer: Sealer,
        *,
        limits: CompactionLimits = COMPACTION_LIMITS,
    ) -> None:
        self._engine = engine
        self._new_fold_for = new_fold_for
        self._sealer = sealer
        self._limits = limits

    def is_due(
        self,
        request: CreateResponse,
        items: Sequence[ContextItem],
        prompt: Prompt,
        *,
        context_length: int,
    ) -> bool:
        """Return True if the prompt is above the threshold and compaction would help."""
        if not request.context_management:
            return False
        share = int(self._limits.window_share * context_length)
        thresholds = [entry.compact_threshold or share for entry in request.context_management]
        if prompt.tokens <= min(thresholds):
            return False
        hidden = set(droppable(items))
        saved = sum(span.end - span.start for span in prompt.spans if span.source in hidden)
        if prompt.tokens - saved >= context_length and request.truncation != "auto":
            return False
        is_repeated = any(item.kind == "compaction" for item in items)
        return saved > (min(thresholds) // REPEATED_SHARE if is_repeated else 0)

    def request_for(self, request: CreateResponse) -> CreateResponse:
        tokens_max = max(self._limits.summary_tokens_max, OUTPUT_TOKENS_MIN)
        overrides = {
            "input": (
                *(item for item in request.input if not isinstance(item, CompactionTrigger)),
                instruction(),
            ),
            "instructions": request.instructions,
            "truncation": request.truncation,
            "service_tier": request.service_tier,
            "max_output_tokens": tokens_max,
            "reasoning": ReasoningOptions(effort=self._limits.effort, max_tokens=tokens_max // 2),
            "tool_choice": "none",
            "store": False,
        }
        return CreateResponse(model=request.model).model_copy(update=overrides)

    def check(self, plan: SummaryPlan, *, context_length: int) -> None:
        if not plan.items:
            raise InvalidRequest(
                "There is nothing to compact: the conversation has no items yet.",
                code="invalid_value",
                param="input",
            )
        wanted = min(self._limits.summary_tokens_max, context_length // 2)
        if plan.spec.sampling.max_tokens < wanted // ROOM_SHARE:
            raise ContextLengthExceeded(
                "The conversation leaves no room for its summary in the context window of this "
                "model. Compact it earlier, leave old items out, or set 'truncation' to 'auto'."
            )

    async def make(self, spec: RunSpec) -> Summary:
        """Generate a summary, whose usage the caller counts with a response, or books.

        Raises `UpstreamError`, and `SummaryFailed` for no usable text or a timeout; then, and when
        cancelled, the tokens used are booked.
        """
        live = LiveLog(self._new_fold_for(spec.head), reader_events_max=0)
        journal = MemoryJournal(live)
        turns = TurnRunner(spec, journal, self._engine, epoch=0, on_first_token=lambda: None)
        try:
            await self._complete(turns)
            finished = outcome.ended(
                live.fold.last_finish, now(), visible=live.fold.shown.is_visible
            )
            live.fold.apply(finished)
            text = _text(live.fold)
        except (UpstreamError, SummaryFailed) as error:
            self._engine.observer.failed(spec, error)
            self._give_up(spec, live.fold, outcome.broken(error, now()))
            raise
        except asyncio.CancelledError:
            self._give_up(spec, live.fold, outcome.cancelled(now()))
            raise
        return Summary(spec, text, self._entry(spec, text, live.fold.usage), finished, live.fold)

    def book(self, summary: Summary) -> None:
        # For a summary that is part of no response.
        self._book(summary.spec, summary.fold, summary.finished)

    def _entry(self, spec: RunSpec, text: str, usage: TokenUsage) -> Compacted:
        binding = Binding(spec.principal.tenant_id, COMPACTION, self._sealer.key_id)
        seal = self._sealer.seal(binding, Unsealed(text=text).content)
        assert seal is not None, "the sealer has the key that it names"
        rendered = self._engine.format_of(spec.model).render_item(compaction_item("", seal, text))
        return Compacted(
            ids=tuple(rendered),
            seal=seal,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )

    async def _complete(self, turns: TurnRunner) -> None:
        try:
            async with asyncio.timeout(self._engine.run_time_max_s):
                await turns.complete()
        except OutputViolation as error:
            raise SummaryFailed(f"the model did something else: {error.code}") from error
        except TimeoutError as error:
            raise SummaryFailed("it takes too long") from error

    def _give_up(self, spec: RunSpec, fold: Fold, finished: Finished) -> None:
        if not fold.shown.is_finished:
            fold.apply(finished)
        self._book(spec, fold, finished)

    def _book(self, spec: RunSpec, fold: Fold, finished: Finished) -> None:
        if spec.charge is not None:
            usage = outcome.booked(finished.status, fold)
            spec.charge.settle(outcome.used(usage, is_whole=False))
        self._engine.observer.finished(spec, finished, fold)
        self._engine.archive.meter(spec, finished, fold, "compact")


def _text(fold: Fold) -> str:
    parts = (
        part.get("text", "")
        for item in fold.response()["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
    text = "\n\n".join(text for text in parts if text).strip()
    if not text:
        raise SummaryFailed("the model said nothing that could be a summary")
    return text


def is_triggered(request: CreateResponse) -> bool:
    return bool(request.input) and isinstance(request.input[-1], CompactionTrigger)


def summary_in(compacted: Compacted) -> ContextItem:
    return ContextItem("compaction", "", b"", ids=array("I", compacted.ids))
