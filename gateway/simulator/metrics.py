"""`GET /metrics`: the series of vLLM that a gateway reads, with true numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.simulator.options import SimulatorOptions

_LABELS: Final = ("engine", "model_name")
FINISH_REASONS: Final = ("stop", "length", "abort", "error")


class Metrics:
    """One registry an instance. All served models share one engine, hence one set of gauges."""

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
        """A gauge that is read when it is asked for."""
        gauge = Gauge(name, text, _LABELS, registry=self._registry)
        gauge.labels(*self._engine).set_function(read)

    def finished(self, reason: str) -> None:
        """A request is over; `reason` is one of `FINISH_REASONS`."""
        self._finished.labels(*self._engine, reason).inc()

    def rejected(self) -> None:
        """A request found the queue full."""
        self._rejected.labels(self._engine[1], "max_num_queued_reqs").inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self._registry).labels(*self._engine)
