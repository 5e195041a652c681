"""docs/metrics.md lists every metric, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
LABELS = {
    "gen_ai_server_request_duration_seconds": "model",
    "gen_ai_server_time_to_first_token_seconds": "model",
    "gateway_requests": "status, model",
    "gateway_passed_requests": "kind, model, outcome",
    "gateway_responses": "status, model",
    "gateway_tokens": "model, type",
    "gateway_harmony_recovery": "rule",
    "gateway_repairs": "rule, upstream",
    "gateway_voided_tokens": "upstream",
    "gateway_bound_turns": "upstream, kind",
    "gateway_upstream_requests": "upstream, outcome",
    "gateway_upstream_requests_in_flight": "upstream",
    "gateway_upstream_up": "upstream",
    "gateway_upstream_first_token_seconds": "upstream",
    "gateway_store_errors": "kind",
    "gateway_discovery_members": "source",
    "gateway_discovery_up": "source",
    "gateway_hops": "reason",
    "gateway_claims": "kind",
    "gateway_notices": "kind",
    "gateway_tool_calls": "kind, outcome",
    "gateway_tool_seconds": "kind",
    "gateway_tool_result_ids": "kind",
    "gateway_tool_truncated": "kind",
    "gateway_containers_open": "engine",
    "gateway_tool_budget_hits": "bound",
    "gateway_mcp_sessions": "server",
    "gateway_mcp_list_seconds": "server, outcome",
    "gateway_searches": "provider, outcome",
    "gateway_page_fetches": "outcome",
    "gateway_egress_refused": "purpose, reason",
    "gateway_ledger_sink_behind_seconds": "sink",
    "gateway_ledger_sink_batches": "sink, outcome",
    "gateway_ledger_sink_lines": "sink",
    "gateway_ledger_discrepancies": "check",
    "gateway_routing_decisions": "upstream, reason",
    "gateway_routing_prompt_tokens": "upstream, type",
    "gateway_routing_mispredictions": "upstream",
    "gateway_routing_caches_lost": "upstream",
    "gateway_routing_horizon_seconds": "upstream",
    "gateway_admission_queue_length": "class",
    "gateway_admission_wait_seconds": "class",
    "gateway_admission_refusals": "class, reason",
    "gateway_limit_refused": "what",
    "gateway_limit_would_refuse": "what",
    "gateway_limit_sync_seconds": "outcome",
    "gateway_admission_slots": "upstream",
}


def described() -> list[str]:
    """A line of the table for each metric of a process, in the order of the registry."""
    return [_line(one) for one in Metrics().registry.collect() if "process_" not in one.name]


def _line(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    labels = LABELS.get(metric.name, "")
    return f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |"


def test_the_page_lists_what_a_process_measures() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `g")] == described()


def test_the_alerts_use_metrics_that_exist() -> None:
    used = set(re.findall(r"\b(g(?:en_ai|ateway)_[a-z_]+)", PAGE.read_text(encoding="utf-8")))
    known = {re.sub(r"(_bucket|_count|_sum)$", "", name) for name in used}
    assert known - {"gen_ai_"} <= {re.findall(r"`(\w+)`", line)[0] for line in described()}
