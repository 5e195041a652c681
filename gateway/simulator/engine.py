"""Parts that the requests of one instance share: script, queue, prefix cache, metrics, ledger."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.errors import ConfigError, GatewayError
from gateway.models.harmony.vocabulary import OPENING, Vocabulary
from gateway.simulator.continuation import ScriptedModel
from gateway.simulator.directives import Attempts, FaultPlan, ids_hash
from gateway.simulator.errors import SimulatedError
from gateway.simulator.wire import chat
from gateway.simulator.wire.chat import ChatWriter, Conversations
from gateway.simulator.wire.frames import EventTails, EventWriter
from gateway.simulator.wire.requests import read_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from gateway.simulator.directives import Directives
    from gateway.simulator.options import SimulatorOptions
    from gateway.simulator.turns import Continuation
    from gateway.simulator.wire.requests import CompletionRequest


class QueueFull(GatewayError):
    """Refusal of a request: the queue has no free place."""


class Admission:
    """Queue of requests: first come, first served. Its counts are exact at any time."""

    def __init__(self, running_max: int, queued_max: int) -> None:
        self._places = asyncio.Semaphore(running_max)
        self._queued_max = queued_max
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it for the block.

        Raises `QueueFull` at once when too many requests wait.
        """
        if self._places.locked() and self.waiting >= self._queued_max:
            raise QueueFull("the queue is full")
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()


BLOCK_IDS: Final = 16


class PrefixCache:
    """Cache of blocks of ids that drops the least recently used. The key of a block is a 64-bit
    hash of the salt and all ids up to its end: a collision would report a hit that was none.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached_ids(self, prompt: Sequence[int], salt: str) -> int:
        """Count the ids at the front of the prompt that are cached; never all of them."""
        count = 0
        for block in _blocks(prompt, salt, len(prompt) - 1):
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            count += BLOCK_IDS
        return count

    def add(self, ids: Sequence[int], salt: str) -> None:
        """Add the computed ids: all but the last, which was only sampled."""
        for block in _blocks(ids, salt, len(ids) - 1):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()

    @property
    def usage(self) -> float:
        # From 0 to 1.
        return len(self._blocks) / self._blocks_max


def _blocks(ids: Sequence[int], salt: str, end: int) -> Iterator[int]:
    previous = hash(salt)
    for start in range(0, end - BLOCK_IDS + 1, BLOCK_IDS):
        previous = hash((previous, *ids[start : start + BLOCK_IDS]))
        yield previous


_LABELS: Final = ("engine", "model_name")
FINISH_REASONS: Final = ("stop", "length", "abort", "error")


class Metrics:
    """Metrics of one instance. All served models share one engine, hence one set of gauges."""

    def __init__(self, options: SimulatorOptions) -> None:
        self._registry = CollectorRegistry()
        self._engine = ("0", options.models[0])
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prefill tokens.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Generated tokens.")
        self.prefix_queries = self._counter("vllm:prefix_cache_queries", "Queried tokens.")
        self.prefix_hits = self._counter("vllm:prefix_cache_hits", "Cached tokens.")
        self.first_token_s = Histogram(
            "vllm:time_to_first_token_seconds", "Seconds.", _LABELS, registry=self._registry
        ).labels(*self._engine)
        self._finished = Counter(
            "vllm:request_success",
            "Finished requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._rejected = Counter(
            "vllm:admission_rejections",
            "Rejected requests.",
            ("model_name", "reason"),
            registry=self._registry,
        )
        for reason in FINISH_REASONS:
            self._finished.labels(*self._engine, reason)
        self._rejected.labels(options.models[0], "max_num_queued_reqs")

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read at each scrape."""
        gauge = Gauge(name, text, _LABELS, registry=self._registry)
        gauge.labels(*self._engine).set_function(read)

    def finished(self, reason: str) -> None:
        # `reason` is one of `FINISH_REASONS`.
        self._finished.labels(*self._engine, reason).inc()

    def rejected(self) -> None:
        # The queue was full.
        self._rejected.labels(self._engine[1], "max_num_queued_reqs").inc()

    def text(self) -> bytes:
        # The text format of Prometheus.
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self._registry).labels(*self._engine)


@dataclass(slots=True)
class Observed:
    """Request in the ledger. `outcome` is vLLM's finish reason, or what happened instead.

    `waiting`, `running` and `stalled` while it lasts; then `stop`, `length`, `abort` (as reported,
    on a fault or at shutdown), `disconnected` (the client went away), `rejected`, `error`, or the
    fault that cut it: `die`, `stall`, `end`.
    """

    number: int
    request: CompletionRequest
    prefilled_ids: int
    """Ids of the open turn that the prompt already held, `<|start|>assistant` left out."""
    headers: dict[str, str]
    cached_ids: int = 0
    sent: array[int] = field(default_factory=lambda: array("I"))
    outcome: str = "waiting"
    status: int = 200
    kept: bool = True
    """True while the ledger holds it."""

    @property
    def request_id(self) -> str | None:
        # The client's name for the request, or its own id.
        return self.headers.get("x-request-id") or self.request.id

    def as_json(self, *, with_ids: bool) -> dict[str, Any]:
        """Return the entry of `GET /simulator/requests`; ids only if `with_ids`."""
        request = self.request
        ids = {"prompt_ids": request.prompt, "sent_ids": self.sent.tolist()} if with_ids else {}
        return {
            "number": self.number,
            "request_id": self.request_id,
            "model": request.model,
            "adapter": request.adapter,
            "prompt_tokens": len(request.prompt),
            "prompt_hash": ids_hash(request.prompt),
            "prefilled_ids": self.prefilled_ids,
            "cached_tokens": self.cached_ids,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(request.stop_ids),
            "sampling": dict(request.sampling),
            "priority": request.priority,
            "logprobs": request.logprobs,
            "cache_salt": request.cache_salt,
            "stream": request.stream,
            "sent_tokens": len(self.sent),
            "outcome": self.outcome,
            "aborted": self.outcome == "disconnected",
            "status": self.status,
            **ids,
        }


class Ledger:
    """The last requests, bounded by their number and, with them, by the ids they hold."""

    def __init__(self, requests_max: int, ids_max: int) -> None:
        self._requests_max = requests_max
        self._ids_max = ids_max
        self._requests: deque[Observed] = deque()
        self._ids = 0
        self._number = 0

    def open(
        self, request: CompletionRequest, prefilled_ids: int, headers: dict[str, str]
    ) -> Observed:
        """Add a request that has arrived."""
        self._number += 1
        observed = Observed(self._number, request, prefilled_ids, headers)
        self._requests.append(observed)
        self._ids += len(request.prompt)
        self._trim()
        return observed

    def say(self, observed: Observed, ids: list[int]) -> None:
        """Add ids that were sent for a request."""
        observed.sent.extend(ids)
        if observed.kept:
            self._ids += len(ids)
            self._trim()

    def _trim(self) -> None:
        while len(self._requests) > self._requests_max or self._ids > self._ids_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        observed = self._requests.popleft()
        observed.kept = False
        self._ids -= len(observed.request.prompt) + len(observed.sent)

    def clear(self) -> None:
        # Numbers of requests continue.
        while self._requests:
            self._forget_oldest()

    def __iter__(self) -> Iterator[Observed]:
        # Oldest first.
        return iter(tuple(self._requests))


class SimulatedEngine:
    """The engine of one instance. Raises `ConfigError` for an invalid fault plan."""

    plan_type: ClassVar[type[FaultPlan]] = FaultPlan

    def __init__(self, options: SimulatorOptions, attempts: Attempts | None = None) -> None:
        self.options = options
        vocabulary = Vocabulary.load()
        self.model = self.new_model(vocabulary)
        self.conversations = Conversations(vocabulary, context_length=options.context_length)
        self.tails = EventTails(vocabulary)
        self.cache = PrefixCache(options.cache_blocks_max)
        self.admission = Admission(options.running_max, options.queued_max)
        self.ledger = Ledger(options.observed_requests_max, options.observed_ids_max)
        attempts = attempts or Attempts(options.fault_prompts_max)
        self.faults = self.plan_type(options.name, self._standing_plan(), attempts)
        self.fingerprint = f"vllm-{options.engine_version}-simulated"
        self.metrics = self._metrics()

    def new_model(self, vocabulary: Vocabulary) -> ScriptedModel:
        return ScriptedModel(vocabulary)

    @property
    def paths(self) -> frozenset[str]:
        # The endpoints at which the model writes.
        return frozenset({"/v1/completions", chat.PATH})

    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        """Return the writer of the events of one stream."""
        known = (head, request, self.model.vocabulary, self.tails, self.fingerprint)
        engine = self.options.engine
        if request.chat_rules is not None:
            parser = self.conversations.parser(request.chat_rules)
            return ChatWriter(*known, engine=engine).reads_by(parser)
        return EventWriter(*known, engine=engine)

    async def read(self, body: bytes, path: str = "/v1/completions") -> CompletionRequest:
        """Return the request of a body that came to the endpoint `path`.

        Raises `SimulatedError`.
        """
        if path == chat.PATH:
            return await asyncio.to_thread(self.conversations.read, body, self.options)
        return read_request(body, self.options)

    async def continuation(self, request: CompletionRequest) -> Continuation:
        """Return what the model would write. Raises `SimulatedError` for an invalid directive."""
        reading = self.model.reading(request.prompt, self.faults.in_force)
        if not reading.is_shaped:
            return reading.continuation()
        return await asyncio.to_thread(reading.continuation)

    async def held(self, continuation: Continuation, request: CompletionRequest) -> Continuation:  # noqa: ARG002
        """Return what the request allows of the continuation: here all, grammars have no effect."""
        return continuation

    def observe(
        self, request: CompletionRequest, continuation: Continuation, headers: dict[str, str]
    ) -> Observed:
        """Add a request to the ledger, and count its cached ids."""
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
        """Cache the computed ids and count how the request ended."""
        self.cache.add([*observed.request.prompt, *observed.sent], observed.request.cache_salt)
        ended_well = observed.outcome in {"stop", "length", "error"}
        self.metrics.finished(observed.outcome if ended_well else "abort")

    def usage(self, observed: Observed) -> dict[str, Any]:
        """Return the `usage` object of a completion, as vLLM and SGLang write it."""
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

    def seen(self, begin: str, *, with_ids: bool) -> dict[str, Any]:
        """Return the requests whose ids start with `begin`, for `GET /simulator/requests`."""
        rows = [
            self.row(observed, with_ids=with_ids)
            for observed in self.ledger
            if (observed.request_id or "").startswith(begin)
        ]
        return {"instance": self.options.name, "requests": rows}

    def row(self, observed: Observed, *, with_ids: bool) -> dict[str, Any]:
        return observed.as_json(with_ids=with_ids)

    def reset(self) -> None:
        """Restore the state after a start, except for the metrics: counters never decrease."""
        self.cache.clear()
        self.ledger.clear()
        self.faults.clear()
        self.faults.standing = self._standing_plan()

    def _metrics(self) -> Metrics:
        metrics = Metrics(self.options)
        admission, cache = self.admission, self.cache
        metrics.watch("vllm:num_requests_running", "In execution.", lambda: admission.running)
        metrics.watch("vllm:num_requests_waiting", "In the queue.", lambda: admission.waiting)
        metrics.watch("vllm:kv_cache_usage_perc", "1 is full.", lambda: cache.usage)
        return metrics

    def _standing_plan(self) -> Directives:
        try:
            return self.model.syntax.parse_plan(self.options.faults)
        except SimulatedError as error:
            raise ConfigError(
                str(error),
                where="faults",
                remedy='Write a plan such as "status=503 times=2"; GET / explains them.',
            ) from error
