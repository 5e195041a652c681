"""What the simulated server of tests observes: queue, prefix cache, metrics, ledger."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.errors import GatewayError
from tests.fakes.wayward_engine.directives import ids_hash
from tests.fakes.wayward_engine.strict_requests import StrictRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from gateway.simulator.completion_wire import CompletionRequest
    from tests.fakes.wayward_engine.options import WaywardOptions


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

    def __init__(self, options: WaywardOptions) -> None:
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
    """Request in the ledger, and what was sent for it. `outcome` is vLLM's finish reason, or what
    happened instead.

    `waiting`, `running` and `stalled` while it lasts; then `stop`, `length`, `abort` (as reported,
    on a fault or at shutdown), `disconnected` (the client went away), `rejected`, `error`, or the
    fault that cut it: `die`, `stall`, `end`.
    """

    request: CompletionRequest
    request_id: str | None
    """The client's name for the request, or its own id."""
    sent: array[int] = field(default_factory=lambda: array("I"))
    outcome: str = "waiting"
    status: int = 200
    cached_ids: int = 0
    number: int = 0
    prefilled_ids: int = 0
    """Ids of the open turn that the prompt already held, `<|start|>assistant` left out."""
    arrived_at: float = field(default_factory=time.monotonic)
    traceparent: str | None = None
    kept: bool = True
    """True while the ledger holds it."""

    def as_json(self, *, with_ids: bool) -> dict[str, Any]:
        """Return the entry of `GET /simulator/requests`; ids only if `with_ids`."""
        request = self.request
        assert isinstance(request, StrictRequest)
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
            "traceparent": self.traceparent,
            "demand": request.constraint.as_json() if request.constraint else None,
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
        self, request: CompletionRequest, request_id: str | None, prefilled_ids: int
    ) -> Observed:
        """Add a request that has arrived."""
        self._number += 1
        observed = Observed(request, request_id, number=self._number, prefilled_ids=prefilled_ids)
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
