"""The six boards. Every panel answers the question that is its description."""

from __future__ import annotations

from typing import Final

from scripts.dashboards.panels import (
    JOB,
    Board,
    Query,
    Row,
    bars,
    lines,
    number,
    of,
    p95_by,
    percentiles,
    rate,
    rate_by,
    states,
    total,
)

TOKENS: Final = "gateway_tokens_total"
INPUT: Final = 'type="input"'
CACHED: Final = 'type="cached"'
BILLED: Final = 'type=~"input|output"'
OUTPUT: Final = 'type="output"'
REASONING: Final = 'type="reasoning"'
TOKENS_PER_S: Final = "si:tok/s"
FIRST_TOKENS: Final = "gen_ai_server_time_to_first_token_seconds"
QUEUE: Final = lines(
    "Waiting for a backend",
    "How many requests wait because all slots are taken, by class?",
    [Query(f"sum by (class) ({of('gateway_admission_queue_length')})", "{{class}}")],
    is_stacked=True,
)
REFUSALS_BY_LIMITS: Final = lines(
    "Refused by limits",
    "Which limits refuse requests? A 429 of this kind is what was agreed, not a fault.",
    [rate_by("what", "gateway_limit_refused_total")],
    "reqps",
)
GOES_ON_ELSEWHERE: Final = lines(
    "Generations that went on elsewhere",
    "How often does a backend or a replica break off, so that another one continues?",
    [rate_by("reason", "gateway_hops_total")],
    "cps",
)


def share(part: str, whole: str) -> str:
    # A gap where there was nothing.
    return f"sum({part}) / (sum({whole}) > 0)"


OVERVIEW: Final = Board(
    "Overview",
    "Are users served as promised, and if not, on which board does the cause show?",
    [
        Row(
            "Objectives, of all replicas",
            [
                number(
                    "Failed in the last hour",
                    "Which share of what was asked failed? The objective is below 0.1 %.",
                    "job:gateway_errors:ratio_rate1h",
                    "percentunit",
                    0.001,
                    0.0144,
                ),
                number(
                    "Late first tokens, last hour",
                    "Which share of first tokens took more than 2.5 s? The objective is below 5 %.",
                    "job:gateway_late_first_tokens:ratio_rate1h",
                    "percentunit",
                    0.05,
                    0.3,
                ),
                number(
                    "Slow commits, last hour",
                    "Which share of commits took more than 128 ms? The objective is below 1 %.",
                    "job:gateway_slow_commits:ratio_rate1h",
                    "percentunit",
                    0.01,
                    0.144,
                ),
                number(
                    "Alerts",
                    "Is an alert firing? docs/runbooks.md has what to do for each.",
                    'count(ALERTS{alertstate="firing"}) or vector(0)',
                    "short",
                    1,
                    5,
                ),
                number(
                    "Replicas",
                    "How many replicas answer the scrape?",
                    f"sum(up{{{JOB}}})",
                    "short",
                    2,
                    1,
                ),
                number(
                    "Backends",
                    "How many backends take requests?",
                    f"sum(max by (upstream) ({of('gateway_upstream_up')}))",
                    "short",
                    2,
                    1,
                ),
                lines(
                    "Budget burn",
                    "How fast is the error budget of 28 days spent? At 1 it lasts; 6 files a "
                    "ticket, 14.4 pages.",
                    [
                        Query("job:gateway_errors:ratio_rate30m / 0.001", "failed"),
                        Query(
                            "job:gateway_late_first_tokens:ratio_rate30m / 0.05",
                            "late first tokens",
                        ),
                        Query("job:gateway_slow_commits:ratio_rate30m / 0.01", "slow commits"),
                    ],
                    "short",
                    6,
                    14.4,
                    width=24,
                ),
            ],
        ),
        Row(
            "Answers",
            [
                lines(
                    "Requests by status",
                    "How much is asked, and what is answered?",
                    [rate_by("status", "gateway_requests_total")],
                    "reqps",
                    is_stacked=True,
                ),
                lines(
                    "Responses by how they ended",
                    "Do responses complete?",
                    [rate_by("status", "gateway_responses_total")],
                    "ops",
                    is_stacked=True,
                ),
                REFUSALS_BY_LIMITS,
                lines(
                    "Time to first token",
                    "How long do users look at nothing? The objective is 2.5 s.",
                    percentiles(FIRST_TOKENS),
                    "s",
                    2.5,
                ),
                lines(
                    "Duration of requests",
                    "How long do answers take as a whole?",
                    percentiles("gen_ai_server_request_duration_seconds"),
                    "s",
                ),
                lines(
                    "Tokens",
                    "How much work is done? Cached is part of input, reasoning part of output.",
                    [rate_by("type", TOKENS)],
                    TOKENS_PER_S,
                ),
            ],
        ),
        Row(
            "Load of the gateway",
            [
                lines(
                    "Under way",
                    "What is open right now?",
                    [
                        Query(f"sum({of('gateway_requests_in_flight')})", "requests"),
                        Query(f"sum({of('gateway_followers')})", "streams that follow a log"),
                        Query(f"sum({of('gateway_connections_open')})", "WebSockets"),
                    ],
                ),
                QUEUE,
                lines(
                    "Streams that clients left",
                    "Do clients give up? They do when first tokens are late.",
                    [total("gateway_sse_disconnects_total", "left early")],
                    "cps",
                ),
                lines(
                    "CPU",
                    "Is a replica at its limit? One thread does it all: from 0.8 on add replicas.",
                    [Query(rate("process_cpu_seconds_total", JOB), "{{instance}}")],
                    "percentunit",
                    0.8,
                    0.95,
                ),
                lines(
                    "Memory",
                    "Does a replica grow without end?",
                    [Query(of("process_resident_memory_bytes", JOB), "{{instance}}")],
                    "bytes",
                ),
                lines(
                    "Replicas by release",
                    "Which releases serve? During a rolling upgrade there are two.",
                    [Query(f"count by (version) ({of('gateway_build_info')})", "{{version}}")],
                    is_stacked=True,
                ),
            ],
        ),
    ],
    since="now-1h",
)

FLEET: Final = Board(
    "Fleet",
    "Which backend is down, slow or full, and are there enough of them?",
    [
        Row(
            "Now",
            [
                number(
                    "Use of slots",
                    "Requests under way and waiting, for each slot: from 0.8 on some wait.",
                    f"max({of('gateway_admission_saturation')})",
                    "percentunit",
                    0.8,
                    1.0,
                    width=6,
                ),
                number(
                    "Slots",
                    "How many requests are backends sent at once?",
                    f"sum({of('gateway_admission_slots')})",
                    width=6,
                ),
                number(
                    "Drained",
                    "How many backends get nothing new because an operator drains them?",
                    f"max({of('gateway_backends_drained')})",
                    "short",
                    1,
                    width=6,
                ),
                number(
                    "Backends that are known",
                    "How many backends do settings and discovery name?",
                    f"count(max by (upstream) ({of('gateway_upstream_up')}))",
                    "short",
                    2,
                    1,
                    width=6,
                ),
            ],
        ),
        Row(
            "Backends",
            [
                states(
                    "Up",
                    "When did which backend take requests?",
                    Query(f"max by (upstream) ({of('gateway_upstream_up')})", "{{upstream}}"),
                ),
                states(
                    "Discovery",
                    "Does each source say which backends there are? Empty without discovery.",
                    Query(f"min by (source) ({of('gateway_discovery_up')})", "{{source}}"),
                ),
                lines(
                    "Attempts that failed",
                    "Which backend does not answer, breaks off or rejects?",
                    [
                        rate_by(
                            "upstream, outcome",
                            "gateway_upstream_requests_total",
                            'outcome!~"ok|cancelled"',
                        )
                    ],
                    "cps",
                ),
                lines(
                    "First token of backends, p95",
                    "Which backend is slow to begin? Prompts are read meanwhile.",
                    [p95_by("upstream", "gateway_upstream_first_token_seconds")],
                    "s",
                ),
                lines(
                    "Generations",
                    "Is the load even?",
                    [
                        Query(
                            f"sum by (upstream) ({of('gateway_upstream_requests_in_flight')})",
                            "{{upstream}}",
                        )
                    ],
                    is_stacked=True,
                ),
                lines(
                    "Generations for each slot",
                    "Which backend is full?",
                    [
                        Query(
                            f"sum by (upstream) ({of('gateway_upstream_requests_in_flight')})"
                            f" / sum by (upstream) ({of('gateway_admission_slots')})",
                            "{{upstream}}",
                        )
                    ],
                    "percentunit",
                    0.8,
                    1.0,
                ),
                lines(
                    "Attempts",
                    "What becomes of what is sent to backends?",
                    [rate_by("outcome", "gateway_upstream_requests_total")],
                    "ops",
                    is_stacked=True,
                ),
                lines(
                    "Output of one generation",
                    "How fast does a user see tokens come, on the average?",
                    [
                        Query(
                            f"sum({rate(TOKENS, OUTPUT)})"
                            f" / clamp_min(sum({of('gateway_upstream_requests_in_flight')}), 1)",
                            "tokens a second",
                        )
                    ],
                    TOKENS_PER_S,
                ),
                GOES_ON_ELSEWHERE,
            ],
        ),
        Row(
            "Admission",
            [
                QUEUE,
                lines(
                    "Wait, p95",
                    "How long do those wait that have to?",
                    [p95_by("class", "gateway_admission_wait_seconds")],
                    "s",
                    5,
                ),
                lines(
                    "Refused for lack of slots",
                    "Who is turned away because the fleet is too small?",
                    [rate_by("class, reason", "gateway_admission_refusals_total")],
                    "reqps",
                ),
            ],
        ),
        Row(
            "Prefix caches",
            [
                lines(
                    "Why a backend was chosen",
                    "Do prompts go where their beginning is cached?",
                    [rate_by("reason", "gateway_routing_decisions_total")],
                    "ops",
                    is_stacked=True,
                ),
                lines(
                    "Cached tokens of prompts",
                    "Is as much cached as routing expects? Not every engine reports it.",
                    [
                        total("gateway_routing_prompt_tokens_total", legend, f'type="{kind}"')
                        for kind, legend in (
                            ("prompt", "all of the prompts"),
                            ("expected", "expected"),
                            ("answered", "expected, where it was reported"),
                            ("reported", "reported"),
                        )
                    ],
                    TOKENS_PER_S,
                ),
                lines(
                    "Wrong expectations",
                    "Does a backend lose its cache, or keep less than is thought?",
                    [
                        total("gateway_routing_mispredictions_total", "much less was cached"),
                        total("gateway_routing_caches_lost_total", "all was lost"),
                    ],
                    "cps",
                ),
            ],
        ),
        Row(
            "Output that was mended",
            [
                lines(
                    "Repairs",
                    "Which rule takes output back? A rise means that a model or an engine changed.",
                    [
                        rate_by("rule", "gateway_repairs_total")._replace(
                            legend="taken back: {{rule}}"
                        ),
                        rate_by("rule", "gateway_harmony_recovery_total")._replace(
                            legend="read as it was meant: {{rule}}"
                        ),
                        total("gateway_harmony_empty_output_total", "empty output"),
                    ],
                    "cps",
                    width=12,
                ),
                lines(
                    "Tokens generated in vain",
                    "What do repairs and broken streams cost?",
                    [
                        total("gateway_voided_tokens_total", "taken back"),
                        total("gateway_recomputed_tokens_total", "read again"),
                    ],
                    TOKENS_PER_S,
                    width=12,
                ),
            ],
        ),
    ],
)

TENANTS: Final = Board(
    "Tenants",
    "Who uses the gateway, who is refused or has to wait, and is the sharing fair? The setting "
    "telemetry.tenant_label_max says how many tenants are named.",
    [
        Row(
            "Who",
            [
                lines(
                    "Tokens by tenant",
                    "Who uses how much?",
                    [
                        Query(
                            f"topk(10, sum by (tenant) ({rate('gateway_tenant_tokens_total')}))",
                            "{{tenant}}",
                        )
                    ],
                    TOKENS_PER_S,
                    width=12,
                    is_stacked=True,
                ),
                bars(
                    "Tokens, all of the time shown",
                    "Who used most?",
                    Query(
                        "topk(20, sum by (tenant) "
                        f"(increase({of('gateway_tenant_tokens_total')}[$__range])))",
                        "{{tenant}}",
                    ),
                    width=12,
                ),
                lines(
                    "Requests by tenant",
                    "Who asks how often?",
                    [
                        Query(
                            f"topk(10, sum by (tenant) ({rate('gateway_tenant_requests_total')}))",
                            "{{tenant}}",
                        )
                    ],
                    "reqps",
                ),
                lines(
                    "Refused (429) by tenant",
                    "Who has reached a limit?",
                    [rate_by("tenant", "gateway_tenant_requests_total", 'status="429"')],
                    "reqps",
                ),
                lines(
                    "Failed (5xx) by tenant",
                    "Does one tenant have all the failures?",
                    [rate_by("tenant", "gateway_tenant_requests_total", 'status=~"5.."')],
                    "reqps",
                ),
            ],
        ),
        Row(
            "Limits and shares",
            [
                lines(
                    "Waiting requests by tenant",
                    "Who waits for a backend? The average number of requests that wait.",
                    [rate_by("tenant", "gateway_tenant_admission_wait_seconds_total")],
                ),
                REFUSALS_BY_LIMITS,
                lines(
                    "Would be refused",
                    "What would happen if the limits that are only observed were enforced?",
                    [rate_by("what", "gateway_limit_would_refuse_total")],
                    "reqps",
                ),
                lines(
                    "Called back for another tenant",
                    "Does a tenant hold more than its share of the slots?",
                    [total("gateway_admission_recalled_total", "requests")],
                    "cps",
                ),
                lines(
                    "Storage",
                    "How full is the fullest limit of stored bytes?",
                    [Query(f"max({of('gateway_stored_bytes_fullest')})", "fullest")],
                    "percentunit",
                    0.9,
                    1.0,
                ),
                lines(
                    "Exchange of limits",
                    "Do replicas know what the others let through? If not, each counts for itself.",
                    [rate_by("outcome", "gateway_limit_sync_seconds_count")],
                    "ops",
                ),
            ],
        ),
    ],
)

DURABILITY: Final = Board(
    "Durability",
    "Does everything that clients were shown survive, and does PostgreSQL keep up?",
    [
        Row(
            "The log",
            [
                lines(
                    "Time of a commit",
                    "Do commits hold tokens up? The objective is 128 ms.",
                    percentiles("gateway_log_flush_seconds"),
                    "s",
                    0.128,
                ),
                lines(
                    "Not committed yet",
                    "How much would be generated again if a replica died now?",
                    [Query(of("gateway_log_pending_bytes"), "{{instance}}")],
                    "bytes",
                    is_stacked=True,
                ),
                lines(
                    "Committed",
                    "How much is written?",
                    [total("gateway_log_bytes_total", "bytes")],
                    "Bps",
                ),
                lines(
                    "Rows in a commit",
                    "Does group commit work? More streams should make larger commits, not more.",
                    [
                        Query(
                            share(
                                rate("gateway_log_rows_total"),
                                rate("gateway_log_flush_seconds_count"),
                            ),
                            "rows",
                        )
                    ],
                ),
                lines(
                    "Streams that follow a log",
                    "How many clients read what another replica or a background run writes?",
                    [Query(of("gateway_followers"), "{{instance}}")],
                    is_stacked=True,
                ),
                lines(
                    "Notices of other replicas",
                    "Do replicas hear of each other at once? Without it each looks later.",
                    [rate_by("kind", "gateway_notices_total")],
                    "ops",
                ),
            ],
        ),
        Row(
            "Runs",
            [
                lines(
                    "Claims that are held",
                    "Which replica generates how many responses?",
                    [Query(of("gateway_claims_held"), "{{instance}}")],
                    is_stacked=True,
                ),
                lines(
                    "Claims",
                    "Are runs taken over? Only from replicas that died or froze.",
                    [
                        rate_by("kind", "gateway_claims_total"),
                        total("gateway_claims_lost_total", "lost to another replica"),
                    ],
                    "ops",
                ),
                GOES_ON_ELSEWHERE,
            ],
        ),
        Row(
            "PostgreSQL",
            [
                lines(
                    "Errors",
                    "Does the database fail?",
                    [rate_by("kind", "gateway_store_errors_total")],
                    "cps",
                    0.1,
                    width=12,
                ),
                lines(
                    "Connections in use",
                    "Do requests wait for a connection? At 1 database.pool_size_max are used.",
                    [
                        Query(
                            f"{of('gateway_database_connections')}"
                            f" / {of('gateway_database_connections_max')}",
                            "{{instance}}",
                        )
                    ],
                    "percentunit",
                    0.8,
                    1.0,
                    width=12,
                ),
            ],
        ),
    ],
)

TOOLS: Final = Board(
    "Tools",
    "Do hosted tools answer, and which one is slow, failing or bounded? Empty where no tool is "
    "enabled.",
    [
        Row(
            "Calls",
            [
                lines(
                    "Calls",
                    "Which tools are used?",
                    [rate_by("kind", "gateway_tool_calls_total")],
                    "ops",
                    is_stacked=True,
                ),
                lines(
                    "Calls that did not work",
                    "What goes wrong with them?",
                    [rate_by("kind, outcome", "gateway_tool_calls_total", 'outcome!="ok"')],
                    "cps",
                ),
                lines(
                    "Time of a call, p95",
                    "Which tool holds answers up?",
                    [p95_by("kind", "gateway_tool_seconds")],
                    "s",
                    10,
                ),
                lines(
                    "Results that models read",
                    "How much of the prompts is results of tools?",
                    [rate_by("kind", "gateway_tool_result_ids_total")],
                    TOKENS_PER_S,
                ),
                lines(
                    "Results that were cut",
                    "Are results longer than a model is shown?",
                    [rate_by("kind", "gateway_tool_truncated_total")],
                    "cps",
                ),
                lines(
                    "Calls that came to a bound",
                    "Which bound of tools.* stops calls?",
                    [rate_by("bound", "gateway_tool_budget_hits_total")],
                    "cps",
                ),
            ],
        ),
        Row(
            "The web",
            [
                lines(
                    "Searches",
                    "Do search providers answer?",
                    [rate_by("provider, outcome", "gateway_searches_total")],
                    "ops",
                ),
                lines(
                    "Pages",
                    "Can pages be fetched?",
                    [rate_by("outcome", "gateway_page_fetches_total")],
                    "ops",
                ),
                lines(
                    "Connections that are not allowed",
                    "What do tools try to reach that they must not?",
                    [rate_by("purpose, reason", "gateway_egress_refused_total")],
                    "cps",
                ),
            ],
        ),
        Row(
            "MCP and Python",
            [
                lines(
                    "Connections to MCP servers",
                    "Which servers are in use?",
                    [Query(f"sum by (server) ({of('gateway_mcp_sessions')})", "{{server}}")],
                ),
                lines(
                    "Lists of tools",
                    "Do MCP servers say what tools they have?",
                    [rate_by("server, outcome", "gateway_mcp_list_seconds_count")],
                    "ops",
                ),
                lines(
                    "Containers",
                    "How many interpreters are open?",
                    [Query(f"sum by (engine) ({of('gateway_containers_open')})", "{{engine}}")],
                ),
            ],
        ),
    ],
)

COST: Final = Board(
    "Cost",
    "What is spent on which model, what of it is wasted, and are the records of usage complete?",
    [
        Row(
            "Money",
            [
                number(
                    "Spent in the time shown",
                    "What did usage cost, by the prices that are set? Without prices it is 0.",
                    f"sum(increase({of('gateway_ledger_cost_usd_total')}[$__range]))",
                    "currencyUSD",
                    width=6,
                ),
                number(
                    "Usage that is in no sum",
                    "How old is the oldest usage that budgets do not see yet?",
                    f"max({of('gateway_ledger_behind_seconds')})",
                    "s",
                    60,
                    300,
                    width=6,
                ),
                number(
                    "Disagreements",
                    "Did the comparison of responses, lines and sums find any that do not agree?",
                    f"sum(max by (check) ({of('gateway_ledger_discrepancies')}))",
                    "short",
                    1,
                    width=6,
                ),
                number(
                    "Budgets corrected in the time shown",
                    "Was the spending of budgets not what usage has?",
                    f"sum(increase({of('gateway_spend_corrected_total')}[$__range]))",
                    "short",
                    1,
                    width=6,
                ),
                lines(
                    "Spending by model",
                    "What does an hour like this one cost?",
                    [
                        Query(
                            f"3600 * sum by (model) ({rate('gateway_ledger_cost_usd_total')})",
                            "{{model}}",
                        )
                    ],
                    "currencyUSD",
                    is_stacked=True,
                ),
                lines(
                    "Refused by budgets",
                    "Does a budget stop somebody?",
                    [
                        total("gateway_limit_refused_total", "refused", 'what="budget"'),
                        total(
                            "gateway_limit_would_refuse_total", "would be refused", 'what="budget"'
                        ),
                    ],
                    "reqps",
                ),
                lines(
                    "Usage behind",
                    "Are sums and sinks up to date?",
                    [
                        Query(f"max({of('gateway_ledger_behind_seconds')})", "sums"),
                        Query(
                            f"max by (sink) ({of('gateway_ledger_sink_behind_seconds')})",
                            "sink {{sink}}",
                        ),
                    ],
                    "s",
                    300,
                    3600,
                ),
            ],
        ),
        Row(
            "Tokens",
            [
                bars(
                    "Tokens by model, all of the time shown",
                    "Which model is used for what?",
                    Query(
                        f"sum by (model, type) (increase({of(TOKENS, BILLED)}[$__range]))",
                        "{{model}} {{type}}",
                    ),
                ),
                lines(
                    "Cached part of input",
                    "How much of the input was not computed again? It costs less.",
                    [
                        Query(
                            f"sum by (model) ({rate(TOKENS, CACHED)})"
                            f" / sum by (model) ({rate(TOKENS, INPUT)})",
                            "{{model}}",
                        )
                    ],
                    "percentunit",
                ),
                lines(
                    "Reasoning part of output",
                    "How much of the output do users not see?",
                    [
                        Query(
                            f"sum by (model) ({rate(TOKENS, REASONING)})"
                            f" / sum by (model) ({rate(TOKENS, OUTPUT)})",
                            "{{model}}",
                        )
                    ],
                    "percentunit",
                ),
                lines(
                    "Tokens generated in vain",
                    "Which share of the work is for nobody?",
                    [
                        Query(
                            share(rate(f"gateway_{name}_tokens_total"), rate(TOKENS, OUTPUT)),
                            legend,
                        )
                        for name, legend in (("voided", "taken back"), ("recomputed", "read again"))
                    ],
                    "percentunit",
                    width=24,
                ),
            ],
        ),
    ],
    since="now-24h",
)

BOARDS: Final = (OVERVIEW, FLEET, TENANTS, DURABILITY, TOOLS, COST)
