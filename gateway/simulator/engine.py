"""What the requests of one instance share: the script, its queue, its cache, its books."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.errors import ConfigError
from gateway.models.harmony.framing import OPENING
from gateway.models.harmony.vocabulary import Vocabulary
from gateway.simulator.admission import Admission
from gateway.simulator.constrained.decoding import constrained
from gateway.simulator.continuation import ScriptedModel
from gateway.simulator.directives import parse_plan
from gateway.simulator.errors import SimulatedError
from gateway.simulator.faults import Attempts, FaultPlan
from gateway.simulator.ledger import Ledger
from gateway.simulator.malformed import corpus
from gateway.simulator.metrics import Metrics
from gateway.simulator.prefix_cache import PrefixCache
from gateway.simulator.wire.frames import EventTails, EventWriter

if TYPE_CHECKING:
    from typing import Any

    from gateway.simulator.constrained.constraint_fields import OutputConstraint
    from gateway.simulator.directives import Directives
    from gateway.simulator.ledger import Observed
    from gateway.simulator.options import SimulatorOptions
    from gateway.simulator.turn.script import Continuation
    from gateway.simulator.wire.requests import CompletionRequest


class SimulatedEngine:
    """Built once an instance. Raises `ConfigError` for a fault plan or corpus that is none."""

    def __init__(self, options: SimulatorOptions, attempts: Attempts | None = None) -> None:
        self.options = options
        vocabulary = Vocabulary.load()
        self.model = ScriptedModel(vocabulary, corpus.load(options.corpus_path))
        self.tails = EventTails(vocabulary)
        self.cache = PrefixCache(options.cache_blocks_max)
        self.admission = Admission(options.running_max, options.queued_max)
        self.ledger = Ledger(options.observed_requests_max, options.observed_ids_max)
        attempts = attempts or Attempts(options.fault_prompts_max)
        self.faults = FaultPlan(options.name, _standing_plan(options.faults), attempts)
        self.fingerprint = f"vllm-{options.engine_version}-simulated"
        self.metrics = self._metrics()

    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        """Writes the events of one stream."""
        return EventWriter(
            head,
            request,
            self.model.vocabulary,
            self.tails,
            self.fingerprint,
            engine=self.options.engine,
        )

    async def continuation(self, request: CompletionRequest) -> Continuation:
        """What the model would say. Raises `SimulatedError` for a directive that means nothing."""
        reading = self.model.reading(request.prompt, self.faults.in_force)
        if not reading.is_shaped:
            return reading.continuation()
        return await asyncio.to_thread(reading.continuation)

    async def held(
        self, continuation: Continuation, request: CompletionRequest, constraint: OutputConstraint
    ) -> Continuation:
        """The continuation that the constraint allows. Raises `SimulatedError` for a bad one."""
        return await asyncio.to_thread(
            constrained,
            continuation,
            request.prompt,
            constraint,
            ids_max=request.max_tokens,
            vocabulary=self.model.vocabulary,
        )

    def observe(
        self, request: CompletionRequest, continuation: Continuation, headers: dict[str, str]
    ) -> Observed:
        """Enter a request into the books."""
        prefilled = len(request.prompt) - continuation.turn_start - len(OPENING)
        observed = self.ledger.open(request, max(prefilled, 0), headers)
        observed.cached_ids = self.cache.cached_ids(request.prompt, request.cache_salt)
        return observed

    def prefill(self, observed: Observed) -> None:
        """Count the prompt as computed."""
        tokens = len(observed.request.prompt)
        self.metrics.prompt_tokens.inc(tokens)
        self.metrics.prefix_queries.inc(tokens)
        self.metrics.prefix_hits.inc(observed.cached_ids)

    def say(self, observed: Observed, ids: list[int]) -> None:
        """Count ids as generated and sent."""
        self.ledger.say(observed, ids)
        self.metrics.generation_tokens.inc(len(ids))

    def close(self, observed: Observed) -> None:
        """Remember what was computed, and how it ended."""
        self.cache.add([*observed.request.prompt, *observed.sent], observed.request.cache_salt)
        ended_well = observed.outcome in {"stop", "length", "error"}
        self.metrics.finished(observed.outcome if ended_well else "abort")

    def usage(self, observed: Observed) -> dict[str, Any]:
        """The usage object."""
        prompt, completion = len(observed.request.prompt), len(observed.sent)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self.options.report_cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": observed.cached_ids}
        if self.options.engine == "sglang":
            usage["reasoning_tokens"] = 0
        return usage

    def reset(self) -> None:
        """As if just started, but for the metrics: counters never go back."""
        self.cache.clear()
        self.ledger.clear()
        self.faults.clear()
        self.faults.standing = _standing_plan(self.options.faults)

    def _metrics(self) -> Metrics:
        metrics = Metrics(self.options)
        admission, cache = self.admission, self.cache
        metrics.watch("vllm:num_requests_running", "In execution.", lambda: admission.running)
        metrics.watch("vllm:num_requests_waiting", "In the queue.", lambda: admission.waiting)
        metrics.watch("vllm:kv_cache_usage_perc", "1 is full.", lambda: cache.usage)
        return metrics


def _standing_plan(plan: str) -> Directives:
    try:
        return parse_plan(plan)
    except SimulatedError as error:
        raise ConfigError(
            str(error),
            where="faults",
            remedy='Write a plan such as "status=503 times=2"; see gateway.simulator.directives.',
        ) from error
