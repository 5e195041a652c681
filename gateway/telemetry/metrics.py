"""Metrics, under OpenTelemetry's GenAI names where there are some.

Labels never name a key or a user. Where the values of a label are known, their series begin at 0:
`rate` and `increase` do not see the event that a series begins with.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from gateway import __version__
from gateway.errors import StoreError
from gateway.limits.money import NANO
from gateway.limits.rules import What

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Counting = Callable[..., None]
    Encoder = Callable[[CollectorRegistry], bytes]

T = TypeVar("T", Counter, Gauge, Histogram)
UPSTREAM: Final = "upstream"
TENANT: Final = "tenant"
SERVER_ERROR_MIN: Final = 500
UPSTREAMS_GONE_MAX: Final = 64
"""Removed backends whose metrics are kept."""
MCP_SERVERS_MAX: Final = 64
MORE_SERVERS: Final = "(more)"
UNREGISTERED_SERVER: Final = "(not registered)"
ToolBound = Literal["time", "result_ids", "result_bytes", "repeats", "running"]
LIMITS: Final = (*get_args(What), "budget")
SECONDS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
"""OpenTelemetry's bounds for GenAI durations."""
FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""OpenTelemetry's bounds for the time to the first token."""
FLUSH_SECONDS: Final = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048,
)  # fmt: skip
"""A commit usually takes a millisecond or two."""


class Totals(NamedTuple):
    """Counts since the process began; of `first_token` and `admission_wait` up to each bound of
    `FIRST_TOKEN_SECONDS`, then all.
    """

    requests: float
    errors: float
    output_tokens: float
    first_token: tuple[float, ...]
    admission_wait: tuple[float, ...]


class Children(dict[tuple[str, ...], T]):
    """Children of a metric by the values of their labels. A look-up in the library costs more than
    the event that is counted.
    """

    def __init__(self, metric: T) -> None:
        super().__init__()
        self.metric: T = metric
        self._make: Callable[..., T] = metric.labels

    def __missing__(self, labels: tuple[str, ...]) -> T:
        child = self[labels] = self._make(*labels)
        return child

    def forget(self, first: str) -> None:
        # Metrics of backends and of tenants have these as their first label.
        for labels in [one for one in self if one[0] == first]:
            del self[labels]


class Metrics:
    def __init__(
        self, *, tenant_label_max: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._of_upstreams: list[Counter | Gauge | Histogram] = []
        self._gauge("build_info", "1; the label has the release.", "version").labels(
            __version__
        ).set(1)
        self._add_requests()
        self.requests_in_flight = 0
        """Each request counts itself; `request_finished` takes it off again."""
        in_flight = self._gauge("requests_in_flight", "Requests being answered.")
        in_flight.set_function(lambda: self.requests_in_flight)
        responses = "Responses that ended."
        self._responses = Children(self._counter("responses", responses, "status", "model"))
        tokens = "Tokens, by what they are."
        self._tokens = Children(self._counter("tokens", tokens, "model", "type"))
        self.client_disconnected = self._counter(
            "sse_disconnects", "Streams that clients left early."
        ).inc
        self._recoveries = self._counter("harmony_recovery", "Repaired model output.", "rule")
        self._repairs = self._counter(
            "repairs", "Turns the gateway broke off or took back from.", "rule", "upstream"
        )
        self._voided_tokens = self._counter(
            "voided_tokens", "Tokens that were generated and taken back.", "upstream"
        )
        rules = "Turns with rules for what they say, by who upholds them."
        self.bound_turn = self._counting("bound_turns", rules, "upstream", "kind")
        """Kind: `constrained` by the backend, or `held` back until checked."""
        self.empty_output = self._counter(
            "harmony_empty_output", "Turns without visible output."
        ).inc
        self._upstream_requests = Children(
            self._counter(
                "upstream_requests", "Attempts at a backend, by outcome.", "upstream", "outcome"
            )
        )
        self._upstream_in_flight = self._gauge(
            "upstream_requests_in_flight", "Generations at a backend.", "upstream"
        )
        self._generations_now: dict[str, int] = {}
        self._upstream_up = self._gauge(
            "upstream_up", "1 if a backend is healthy; 0: it is used if none is.", "upstream"
        )
        self._upstream_wait = Children(
            self._histogram(
                "gateway_upstream_first_token_seconds",
                "Time from sending a prompt to a backend to its first token.",
                FIRST_TOKEN_SECONDS,
                "upstream",
            )
        )
        store_errors = self._counter("store_errors", "Failed database work.", "kind")
        _begin(store_errors, *(kind.__name__ for kind in StoreError.__subclasses__()))
        self.store_failed = _counting(store_errors)
        """Kind: the class of the error."""
        self._add_tenants(tenant_label_max, clock)
        self._add_logs()
        self._add_tools()
        self._add_routing()
        self._add_admission()
        self._add_process()
        self._connections = self._counter("connections", "WebSocket connections opened.")
        self._connections_open = self._gauge("connections_open", "Open WebSocket connections.")

    def _add_logs(self) -> None:
        hops = self._counter("hops", "Generations that went on elsewhere.", "reason")
        _begin(hops, "backend", "replica")
        self.hopped = _counting(hops)
        """Reason: the lost `backend` or `replica`."""
        self.recomputed = self._counter("recomputed_tokens", "Ids read again because of a hop.").inc
        self._claims = self._counter("claims", "Runs this process claimed.", "kind")
        _begin(self._claims, "begun", "taken_over")
        self.claim_lost = self._counter("claims_lost", "Claims that another replica took.").inc
        self.claims_held = self._summed_gauge("claims_held", "Runs this process holds a claim on.")
        self._log_rows = self._counter("log_rows", "Rows of the durable log that were committed.")
        self._log_bytes = self._counter("log_bytes", "Bytes of the durable log committed.")
        self.log_pending_bytes = self._summed_gauge("log_pending_bytes", "Bytes not committed yet.")
        self._log_flush_seconds = self._histogram(
            "gateway_log_flush_seconds", "Time of one commit of the durable log.", FLUSH_SECONDS
        )
        self._connections_taken = self._gauge(
            "database_connections", "Connections to PostgreSQL that requests hold."
        )
        self._connections_max = self._gauge(
            "database_connections_max", "Connections to PostgreSQL that requests may hold."
        )
        self.followers = self._gauge("followers", "Streams that follow a durable log.").inc
        self.notice_heard = self._counting("notices", "Notices heard from other replicas.", "kind")

    def _add_process(self) -> None:
        recorded = "Recorded spans that a collector got, or not."
        spans = self._counter("trace_spans", recorded, "outcome")
        _begin(spans, "sent", "lost")
        self.spans_left: Callable[[Literal["sent", "lost"], int], None] = _adding(spans)
        reloads = self._counter("reloads", "Times the configuration was read again.", "outcome")
        _begin(reloads, "ok", "failed")
        self.reloaded: Callable[[Literal["ok", "failed"]], None] = _counting(reloads)

    def _add_tools(self) -> None:
        self._tool_calls = self._counter(
            "tool_calls", "Calls that the gateway answered itself.", "kind", "outcome"
        )
        self._tool_seconds = self._histogram(
            "gateway_tool_seconds", "Time of one call of a hosted tool.", SECONDS, "kind"
        )
        self._tool_result_ids = self._counter(
            "tool_result_ids", "Token ids of results that models were shown.", "kind"
        )
        self._tool_truncated = self._counter(
            "tool_truncated", "Results that were too long for the model.", "kind"
        )
        self.tool_truncated = _counting(self._tool_truncated)
        self._containers_open = self._gauge(
            "containers_open", "Containers whose interpreter this process has.", "engine"
        )
        self._containers_watched: dict[str, list[Callable[[], int]]] = {}
        hits = self._counter("tool_budget_hits", "Calls that came to a bound.", "bound")
        _begin(hits, *get_args(ToolBound))
        self.tool_budget_hit: Callable[[ToolBound], None] = _counting(hits)
        self._mcp_sessions = self._gauge(
            "mcp_sessions", "Open connections to MCP servers.", "server"
        )
        self._mcp_list_seconds = self._histogram(
            "gateway_mcp_list_seconds",
            "Time of asking an MCP server for its tools.",
            SECONDS,
            "server",
            "outcome",
        )
        self._mcp_servers: set[str] = set()
        self._searches = self._counter(
            "searches", "Searches of the web, by who was asked.", "provider", "outcome"
        )
        self.searched = _counting(self._searches)
        """Outcome: `ok` or the reason of the failure."""
        fetches = self._counter("page_fetches", "Pages fetched for models.", "outcome")
        _begin(fetches, "ok", "failed", "refused")
        self.page_fetched = _counting(fetches)
        self.egress_refused = self._counting(
            "egress_refused", "Connections of tools that are not allowed.", "purpose", "reason"
        )
        self.image_bytes_held = self._summed_gauge(
            "image_bytes_held", "Bytes of fetched images that requests hold."
        )
        self._add_ledger()

    def _add_ledger(self) -> None:
        self.ledger_behind = self._gauge(
            "ledger_behind_seconds", "Age of the oldest usage line that is in no sum."
        ).set
        self.ledger_sink_behind = self._setting(
            "ledger_sink_behind_seconds", "Age of the oldest line that a sink has not got.", "sink"
        )
        self._ledger_cost = self._counter(
            "ledger_cost_usd",
            "What usage costs by its prices, counted when it is added up; no corrections.",
            "model",
        )
        self._ledger_sent = self._counter(
            "ledger_sink_batches", "Batches of usage lines sent.", "sink", "outcome"
        )
        self._ledger_lines = self._counter("ledger_sink_lines", "Lines that sinks took.", "sink")
        self.ledger_discrepancies = self._setting(
            "ledger_discrepancies", "What did not agree when it was last compared.", "check"
        )

    def _add_tenants(self, labels_max: int, clock: Callable[[], float]) -> None:
        self._tenants = TenantLabels(labels_max, self._tenant_dropped, clock)
        self._tenant_requests = Children(
            self._counter("tenant_requests", "Answered requests.", TENANT, "status")
        )
        self._tenant_tokens = Children(
            self._counter("tenant_tokens", "Tokens, by what they are.", TENANT, "type")
        )
        self._tenant_wait = Children(
            self._counter(
                "tenant_admission_wait_seconds", "Time that requests waited for a backend.", TENANT
            )
        )

    def _tenant_dropped(self, label: str) -> None:
        for children in (self._tenant_requests, self._tenant_tokens, self._tenant_wait):
            children.forget(label)
            children.metric.remove_by_labels({TENANT: label})

    def _add_requests(self) -> None:
        self._request_seconds = Children(
            self._histogram(
                "gen_ai_server_request_duration_seconds",
                "Time from a request's first byte to the end of its response.",
                SECONDS,
                "model",
            )
        )
        self._first_token_seconds = Children(
            self._histogram(
                "gen_ai_server_time_to_first_token_seconds",
                "Time from a request's first byte to its first generated token.",
                FIRST_TOKEN_SECONDS,
                "model",
            )
        )
        passed = "Embeddings and reranking, as the backends took them."
        self._requests = Children(
            self._counter("requests", "Answered requests.", "status", "model")
        )
        self._passed = self._counter("passed_requests", passed, "kind", "model", "outcome")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._register(
            Counter(f"gateway_{name}", text, labels, registry=self.registry), labels
        )

    def _counting(self, name: str, text: str, *labels: str) -> Counting:
        return _counting(self._counter(name, text, *labels))

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._register(
            Gauge(f"gateway_{name}", text, labels, registry=self.registry), labels
        )

    def _setting(self, name: str, text: str, label: str) -> Callable[[str, float], None]:
        gauge = self._gauge(name, text, label)
        return lambda value, amount: gauge.labels(value).set(amount)

    def _register(self, metric: T, labels: Sequence[str]) -> T:
        if UPSTREAM in labels:
            self._of_upstreams.append(metric)
        return metric

    def _summed_gauge(self, name: str, text: str) -> list[Callable[[], int]]:
        # The gauge is the sum of the callbacks, read at each scrape.
        return _summed(self._gauge(name, text))

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        # `name` is the whole name: some names are OpenTelemetry's.
        made = Histogram(name, text, labels, registry=self.registry, buckets=buckets)
        return self._register(made, labels)

    def exposition(self, encode: Encoder = generate_latest) -> bytes:
        self._tenants.rank()
        return encode(self.registry)

    def totals(self) -> Totals:
        answered = list(_samples(self._requests.metric, "_total"))
        return Totals(
            requests=sum(value for _, value in answered),
            errors=sum(
                value for labels, value in answered if int(labels["status"]) >= SERVER_ERROR_MIN
            ),
            output_tokens=sum(
                value
                for labels, value in _samples(self._tokens.metric, "_total")
                if labels["type"] == "output"
            ),
            first_token=_observed(self._first_token_seconds.metric),
            admission_wait=_observed(self._queue_wait),
        )

    def request_finished(
        self, *, status: int, model: str = "", seconds: float, trace_id: str = ""
    ) -> None:
        """Count an answered request. `model` is one that is served, or empty: never free text."""
        self.requests_in_flight -= 1
        self._requests[str(status), model].inc()
        if model:
            self._request_seconds[model,].observe(seconds, _exemplar(trace_id))

    def tenant_requested(self, tenant: str, name: str, status: int) -> None:
        self._tenant_requests[self._tenants.used(tenant, name, 1), str(status)].inc()

    def tenant_used(self, tenant: str, name: str = "", *, input_tokens: int, output: int) -> None:
        """Count tokens. `name` may be empty where only the id is known."""
        label = self._tenants.used(tenant, name, input_tokens + output)
        self._tenant_tokens[label, "input"].inc(input_tokens)
        self._tenant_tokens[label, "output"].inc(output)

    def connection_opened(self) -> None:
        self._connections.inc()
        self._connections_open.inc()

    def connection_closed(self) -> None:
        self._connections_open.dec()

    def first_token(self, *, model: str, seconds: float, trace_id: str = "") -> None:
        self._first_token_seconds[model,].observe(seconds, _exemplar(trace_id))

    def response_finished(  # noqa: PLR0913 - every count of one response
        self,
        *,
        status: str,
        model: str,
        input_tokens: int,
        cached: int,
        output: int,
        reasoning: int,
        recoveries: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Count a response and its tokens: `cached` are part of input, `reasoning` of output."""
        self._responses[status, model].inc()
        counts = {"input": input_tokens, "cached": cached, "output": output, "reasoning": reasoning}
        for kind, count in counts.items():
            counted = self._tokens[model, kind]  # which is there from now on, if at 0
            if count:
                counted.inc(count)
        for rule, count in recoveries.items():
            self._recoveries.labels(rule).inc(count)

    def ledger_added(self, costs_nano: Mapping[str, int]) -> None:
        """Count the cost, by model, of lines added to the sums."""
        for model, cost_nano in costs_nano.items():
            self._ledger_cost.labels(model).inc(cost_nano / NANO)

    def ledger_sent(self, sink: str, outcome: str, lines: int) -> None:
        self._ledger_sent.labels(sink, outcome).inc()
        self._ledger_lines.labels(sink).inc(lines)

    def passed(self, *, kind: str, model: str, outcome: str, tokens: int) -> None:
        self._passed.labels(kind, model, outcome).inc()
        self._tokens[model, "input"].inc(tokens)

    def repaired(self, *, rule: str, upstream: str, voided: int) -> None:
        """Count an intervention in a generation, and the tokens it took back."""
        self._repairs.labels(rule, upstream).inc()
        self._voided_tokens.labels(upstream).inc(voided)

    def upstream_started(self, upstream: str) -> None:
        if upstream not in self._generations_now:
            now = partial(self._generations_now.__getitem__, upstream)
            self._upstream_in_flight.labels(upstream).set_function(now)
        self._generations_now[upstream] = self._generations_now.get(upstream, 0) + 1

    def upstream_first_token(self, upstream: str, seconds: float) -> None:
        self._upstream_wait[upstream,].observe(seconds)

    def upstream_finished(self, upstream: str, outcome: str) -> None:
        # The outcome is ok, unavailable, rejected, failed or cancelled.
        self._generations_now[upstream] -= 1
        self._upstream_requests[upstream, outcome].inc()

    def upstream_is_up(self, upstream: str, up: int) -> None:
        self._upstream_up.labels(upstream).set(up)
        self._mispredicted.labels(upstream)
        self._caches_lost.labels(upstream)

    def upstream_joined(self, upstream: str) -> None:
        if upstream in self._upstreams_gone:
            self._upstreams_gone.remove(upstream)

    def upstream_left(self, upstream: str) -> None:
        """Remove a backend; its counts stay until `UPSTREAMS_GONE_MAX` others are gone."""
        self._upstream_up.remove_by_labels({UPSTREAM: upstream})
        self._slots.remove_by_labels({UPSTREAM: upstream})
        self._upstreams_gone.append(upstream)
        while len(self._upstreams_gone) > UPSTREAMS_GONE_MAX:
            gone = self._upstreams_gone.popleft()
            self._generations_now.pop(gone, None)
            self._upstream_requests.forget(gone)
            self._upstream_wait.forget(gone)
            for metric in self._of_upstreams:
                metric.remove_by_labels({UPSTREAM: gone})

    def source_read(self, source: str, *, members: int, is_up: bool) -> None:
        self._source_members.labels(source).set(members)
        self._source_up.labels(source).set(int(is_up))

    def _add_membership(self) -> None:
        self._upstreams_gone: deque[str] = deque()
        self._source_members = self._gauge(
            "discovery_members", "Backends that a source says there are.", "source"
        )
        self._source_up = self._gauge(
            "discovery_up", "1: the source said so when it was asked last, 0: it failed.", "source"
        )
        self.backends_drained = self._gauge(
            "backends_drained", "Backends that get nothing new."
        ).set

    def _add_routing(self) -> None:
        self._routed = self._counter(
            "routing_decisions", "Prompts by backend, and why it was chosen.", "upstream", "reason"
        )
        self._routed_tokens = self._counter(
            "routing_prompt_tokens",
            "Tokens of prompts sent where there was a choice: all, those expected to be cached, "
            "and of those that were answered with a report, expected and reported.",
            "upstream",
            "type",
        )
        self._mispredicted = self._counter(
            "routing_mispredictions",
            "Prompts of which much less was cached than expected.",
            "upstream",
        )
        self._caches_lost = self._counter(
            "routing_caches_lost", "Times that a backend lost all it had cached.", "upstream"
        )
        self.cache_lost = _counting(self._caches_lost)
        self._horizon = self._gauge(
            "routing_horizon_seconds",
            "How long a backend is taken to keep what nobody uses.",
            "upstream",
        )
        self._exchange_age = self._gauge(
            "routing_exchange_age_seconds", "Since other replicas told what they placed."
        )
        self._index_entries = self._gauge("routing_index_entries", "Prefixes remembered.")
        self._add_membership()

    def routing_reads(self, *, age_s: Callable[[], float], entries: Callable[[], float]) -> None:
        self._exchange_age.set_function(age_s)
        self._index_entries.set_function(entries)

    def routed(self, upstream: str, reason: str, *, prompt: int, expected: int) -> None:
        """Count tokens of a prompt, and those `expected` to be cached."""
        self._routed.labels(upstream, reason).inc()
        self._routed_tokens.labels(upstream, "prompt").inc(prompt)
        self._routed_tokens.labels(upstream, "expected").inc(expected)

    def cache_reported(
        self, upstream: str, *, expected: int, cached: int, mispredicted: bool, horizon_s: float
    ) -> None:
        self._routed_tokens.labels(upstream, "answered").inc(expected)
        self._routed_tokens.labels(upstream, "reported").inc(cached)
        self._horizon.labels(upstream).set(horizon_s)
        if mispredicted:
            self._mispredicted.labels(upstream).inc()

    def _add_admission(self) -> None:
        self._queue_length = self._gauge(
            "admission_queue_length", "Requests that wait for a backend.", "class"
        )
        self._queue_wait = self._histogram(
            "gateway_admission_wait_seconds",
            "Time that requests waited for a backend, of those that had to.",
            FIRST_TOKEN_SECONDS,
            "class",
        )
        self._admission_refusals = self._counter(
            "admission_refusals", "Requests refused for lack of slots.", "class", "reason"
        )
        self.admission_refused = _counting(self._admission_refusals)
        self.admission_recalled = self._counter(
            "admission_recalled", "Requests called back from backends, for another tenant."
        ).inc
        refused = self._counter(
            "limit_refused", "Requests that a limit or a budget refused.", "what"
        )
        would_refuse = self._counter(
            "limit_would_refuse", "Those that one would have refused that is only observed.", "what"
        )
        _begin(refused, *LIMITS)
        _begin(would_refuse, *LIMITS)
        self.limit_refused, self.limit_would_refuse = _counting(refused), _counting(would_refuse)
        self.spend_corrected = self._counter(
            "spend_corrected", "Budgets and alerts whose spending was not what usage has."
        ).inc
        self._stored_bytes = self._gauge(
            "stored_bytes", "Bytes that tenants with a limit of them have stored."
        )
        self._stored_fullest = self._gauge(
            "stored_bytes_fullest", "What is stored of the fullest limit, as a share of it."
        )
        self._storage_seconds = self._histogram(
            "gateway_storage_measure_seconds",
            "Measurements of what one tenant has stored.",
            FLUSH_SECONDS,
        )
        self._limit_syncs = self._histogram(
            "gateway_limit_sync_seconds",
            "Exchanges of limits with the database.",
            FLUSH_SECONDS,
            "outcome",
        )
        _begin(self._limit_syncs, "ok", "failed")
        self._slots = self._gauge(
            "admission_slots", "Requests that a backend is sent at once.", "upstream"
        )
        self._saturation = self._gauge(
            "admission_saturation", "Requests under way and waiting, as a share of all slots."
        )

    def storage_measured(self, *, size_bytes: int, fullest: float, seconds: float) -> None:
        """Observe the measurement of one tenant's storage; `size_bytes` is that of all tenants."""
        self._stored_bytes.set(size_bytes)
        self._stored_fullest.set(fullest)
        self._storage_seconds.observe(seconds)

    def limits_synced(self, outcome: Literal["ok", "failed"], seconds: float) -> None:
        self._limit_syncs.labels(outcome).observe(seconds)

    def admission_reads(
        self,
        *,
        queued: Mapping[str, Callable[[], float]],
        saturation: Callable[[], float],
        reasons: Sequence[str],
    ) -> None:
        """Set callbacks; `reasons` are all that a request may be refused for."""
        for name, read in queued.items():
            self._queue_length.labels(name).set_function(read)
            self._queue_wait.labels(name)
            for reason in reasons:
                self._admission_refusals.labels(name, reason)
        self._saturation.set_function(saturation)

    def admission_slots(self, upstream: str, read: Callable[[], float]) -> None:
        self._slots.labels(upstream).set_function(read)

    def admission_waited(self, work: str, seconds: float, tenant: str = "") -> None:
        self._queue_wait.labels(work).observe(seconds)
        self._tenant_wait[self._tenants.of(tenant),].inc(seconds)

    def database_reads(self, *, taken: Callable[[], float], count_max: int) -> None:
        self._connections_taken.set_function(taken)
        self._connections_max.set(count_max)

    def claimed(self, count: int, taken_over: int = 0) -> None:
        """Count claims, `taken_over` of them from another replica."""
        self._claims.labels("begun").inc(count - taken_over)
        self._claims.labels("taken_over").inc(taken_over)

    def log_flushed(self, rows: int, size_bytes: int, seconds: float) -> None:
        self._log_rows.inc(rows)
        self._log_bytes.inc(size_bytes)
        self._log_flush_seconds.observe(seconds)

    def tool_ended(self, *, kind: str, outcome: str, seconds: float, result_ids: int) -> None:
        self._tool_calls.labels(kind, outcome).inc()
        self._tool_seconds.labels(kind).observe(seconds)
        self._tool_result_ids.labels(kind).inc(result_ids)

    def tools_begin(self, kinds: Sequence[str], outcomes: Sequence[str]) -> None:
        for kind in kinds:
            self._tool_seconds.labels(kind)
            self._tool_result_ids.labels(kind)
            self._tool_truncated.labels(kind)
            for outcome in outcomes:
                self._tool_calls.labels(kind, outcome)

    def searches_begin(self, provider: str, outcomes: Sequence[str]) -> None:
        for outcome in outcomes:
            self._searches.labels(provider, outcome)

    def watch_containers(self, engine: str, count: Callable[[], int]) -> None:
        if engine not in self._containers_watched:
            self._containers_watched[engine] = _summed(self._containers_open.labels(engine))
        self._containers_watched[engine].append(count)

    def mcp_sessions(self, server: str, change: int) -> None:
        # `change` is below 0 for closed connections. `server` is the label of a registered server,
        # empty for servers that requests name.
        self._mcp_sessions.labels(self._mcp_server(server)).inc(change)

    def mcp_listed(self, server: str, outcome: str, seconds: float) -> None:
        # `outcome` is `ok`, `timeout`, `busy` (not sent for lack of room), `cancelled` or `error`.
        self._mcp_list_seconds.labels(self._mcp_server(server), outcome).observe(seconds)

    def _mcp_server(self, label: str) -> str:
        # Bounds the number of label values.
        if label and (label in self._mcp_servers or len(self._mcp_servers) < MCP_SERVERS_MAX):
            self._mcp_servers.add(label)
            return label
        return MORE_SERVERS if label else UNREGISTERED_SERVER


def _counting(counter: Counter) -> Counting:
    def count(*values: str, **named: str) -> None:
        counter.labels(*values, **named).inc()

    return count


def _adding(counter: Counter) -> Callable[[str, int], None]:
    return lambda value, amount: counter.labels(value).inc(amount)


def _begin(metric: Counter | Histogram, *values: str) -> None:
    # Creates a series for each value of the only label.
    for value in values:
        metric.labels(value)


def _exemplar(trace_id: str) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None


def _samples(metric: Counter | Histogram, suffix: str) -> Iterator[tuple[Mapping[str, str], float]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels, sample.value


def _observed(histogram: Histogram) -> tuple[float, ...]:
    # Of all labels together, in the order of the bounds, which samples have.
    counts: dict[str, float] = {}
    for labels, value in _samples(histogram, "_bucket"):
        counts[labels["le"]] = counts.get(labels["le"], 0.0) + value
    return tuple(counts.values())


def _summed(gauge: Gauge) -> list[Callable[[], int]]:
    # Append callbacks to the list; the gauge is their sum.
    parts: list[Callable[[], int]] = []
    gauge.set_function(lambda: sum(part() for part in parts))
    return parts


OTHER: Final = "(other)"
RANKING_INTERVAL_S: Final = 60.0
KEPT_SHARE: Final = 0.5
"""Part of a tenant's use that still counts after each ranking."""
FORGOTTEN_USE: Final = 1.0
ADVANTAGE: Final = 2.0
"""Factor by which a tenant must exceed a named one to take its label: otherwise two would take it
from each other again and again."""


class TenantLabels:
    """Labels of the tenants that use most, so that the number of series is bounded."""

    def __init__(
        self, count_max: int, on_dropped: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        # `clock` gives seconds and never goes back.
        self._count_max = count_max
        self._on_dropped = on_dropped
        self._clock = clock
        self._labels: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._rank_at = clock() + RANKING_INTERVAL_S

    def used(self, tenant: str, name: str, amount: float) -> str:
        """Return the label. `name` may be empty where not known."""
        if not self._count_max or not tenant:
            return OTHER
        self._used[tenant] = self._used.get(tenant, 0.0) + amount
        if name:
            self._names[tenant] = name
            if tenant not in self._labels and len(self._labels) < self._count_max:
                self._labels[tenant] = name
        return self.of(tenant)

    def of(self, tenant: str) -> str:
        return self._labels.get(tenant, OTHER)

    def rank(self) -> None:
        """Give the labels to those that use most, at most once in `RANKING_INTERVAL_S`."""
        now = self._clock()
        if now < self._rank_at:
            return
        self._rank_at = now + RANKING_INTERVAL_S
        used = self._used
        rivals = sorted(self._names.keys() - self._labels.keys(), key=lambda one: used.get(one, 0))
        named = sorted(self._labels, key=lambda one: used.get(one, 0), reverse=True)
        while rivals and named and used.get(rivals[-1], 0) > ADVANTAGE * used.get(named[-1], 0):
            winner = rivals.pop()
            self._on_dropped(self._labels.pop(named.pop()))
            self._labels[winner] = self._names[winner]
        self._used = {
            tenant: amount * KEPT_SHARE
            for tenant, amount in used.items()
            if amount * KEPT_SHARE >= FORGOTTEN_USE
        }
        kept = self._used.keys() | self._labels.keys()
        self._names = {tenant: name for tenant, name in self._names.items() if tenant in kept}
