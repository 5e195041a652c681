"""The schema as statements have to know it: tables with their columns, roles, states, revisions.

Indexes, foreign keys and checks are in `migration.tables`, for migrations alone.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from gateway.tenancy import POLICY_VALUES

APP_ROLE: Final = "harmony_gateway_app"
"""The role of every tenant transaction: no login, no ownership, so row-level security binds it."""
RUNS_ROLE: Final = "harmony_gateway_runs"
"""The role of what one process does for the runs of all tenants at once: claim, append, expire. It
sees no item, no body and no key."""

EVERYONE: Final = UUID(int=0)
"""Whose rows all tenants see, where a table has such rows."""

RUNNING: Final = ("queued", "in_progress")
TERMINAL: Final = ("completed", "incomplete", "failed", "cancelled")

REVISION: Final = "7a1d4c60b2e9"
"""The newest revision of the schema (`migrations`)."""

COST_COLUMNS: Final = (
    *("cost_nano", "input_cost_nano", "cached_cost_nano", "output_cost_nano"),
    "tools_cost_nano",
)
"""Of aggregates: billionths of a dollar, the sum of all and its parts."""

_ITEM: Final = (
    "kind text!, role text, phase text, item_id bytea!, call_id bytea, name bytea,"
    " complete boolean!, item bytea!, ids bytea,"
    " includable bytea"
)
_COUNTED: Final = (
    *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "recomputed_tokens"),
    *("tool_output_tokens", "tool_calls", "web_searches", "voided_tokens"),
)
_CHANNELS: Final = ("analysis_tokens", "commentary_tokens", "final_tokens", "arguments_tokens")
_COUNTS: Final = ", ".join(f"{name} integer!" for name in (*_COUNTED, *_CHANNELS))
_SUMS_KEY: Final = (
    "tenant_id uuid!, at timestamptz!, project_id uuid!, key_id uuid!, model text!,"
    " service_tier text!, background boolean!, kind text!"
)
_SUMS: Final = ", ".join(
    f"{name} bigint!" for name in ("requests", *_COUNTED, "code_sessions", *COST_COLUMNS)
)
COLUMNS: Final = {
    # The tenant's policy is null where it has none: the setting of that name holds then, and the
    # service tier `default`.
    "tenants": "id uuid!, name text!, created_at timestamptz!, disabled_at timestamptz, "
    + ", ".join(f"{value.name} {value.column_type}" for value in POLICY_VALUES.values())
    # `retention_type`: null where nothing special is kept or left out. `deleted_at`: its data goes
    # some days later, which was done at `purged_at`. `held_at`: nothing of it is removed meanwhile,
    # whatever its age.
    + ", retention_type text, deleted_at timestamptz, held_at timestamptz, purged_at timestamptz",
    # `dialect` is how its responses are spelled; null: `openai`. `project_id` null: the default
    # project, here as in all tables that have it. `pepper_id`: under which pepper `hash` was made.
    "api_keys": "tenant_id uuid!, id uuid!, name text!, hash bytea!, hint text!,"
    " created_at timestamptz!, disabled_at timestamptz, dialect text, kind text!,"
    " project_id uuid, owner_type text, owner_id uuid, scopes text[], expires_at timestamptz,"
    " last_used_at timestamptz, allowed_cidrs cidr[], allowed_models text[], replaced_by uuid,"
    " created_by uuid, pepper_id smallint",
    # The default project of a tenant has the tenant's id. It may have no row: what is null here
    # holds then. `models`: those that it may ask for, or not, by `models_mode`; null: no list.
    # `service_tiers`: those that it may have besides the usual one; null: all of its tenant's.
    "projects": "tenant_id uuid!, id uuid!, name text!, created_at timestamptz!,"
    " archived_at timestamptz, retention_type text, service_tier_max text, tools_off text[],"
    " models_mode text, models text[], service_tiers text[], service_tier_default text",
    "service_accounts": "tenant_id uuid!, project_id uuid!, id uuid!, name text!, role text!,"
    " created_at timestamptz!, deleted_at timestamptz",
    # Issuers of tokens that a tenant trusts; `transformations` are JSON. `named_bearer`: a token
    # is a credential where the request, too, names the tenant. `bearer`: it need not, so no other
    # tenant has it of the same issuer and audience; one that was deleted stays, and keeps them.
    "identity_providers": "tenant_id uuid!, id uuid!, name text!, description text, issuer text!,"
    " audience text!, discovery_url text, jwks_url text, jwks bytea, transformations bytea!,"
    " bearer boolean!, algorithms text[]!, clock_skew_s integer!, lifetime_max_s integer!,"
    " enabled boolean!, created_at timestamptz!, updated_at timestamptz!, deleted_at timestamptz,"
    " named_bearer boolean!",
    # Which of their tokens act for a service account; `matchers` are JSON.
    "federation_rules": "tenant_id uuid!, id uuid!, provider_id uuid!, project_id uuid!,"
    " service_account_id uuid!, name text, description text, matchers bytea!, scopes text[],"
    " enabled boolean!, created_at timestamptz!, updated_at timestamptz!, deleted_at timestamptz",
    # Issuers that operators trust, under the nil tenant: their tokens say which of the `tenants`
    # (by name; *: any) they are for, and as what of the `roles` (JSON: scopes by role).
    "operator_issuers": "tenant_id uuid!, id uuid!, name text!, description text, issuer text!,"
    " audience text!, discovery_url text, jwks_url text, jwks bytea, transformations bytea!,"
    " algorithms text[]!, clock_skew_s integer!, lifetime_max_s integer!, tenants text[]!,"
    " roles bytea!, enabled boolean!, created_at timestamptz!, updated_at timestamptz!,"
    " deleted_at timestamptz",
    # Of those who run the gateway, under the nil tenant.
    "operator_keys": "tenant_id uuid!, id uuid!, name text!, hash bytea!, hint text!,"
    " created_at timestamptz!, disabled_at timestamptz, expires_at timestamptz,"
    " last_used_at timestamptz, pepper_id smallint, role text",
    # `parent_id` is no foreign key: a parent may be deleted, and then its descendants say so.
    # `conversation_*`: the conversation it continues, its items below that position.
    # `durable`: its log is in `events`. `streamed`: it was asked for as a stream.
    # `plan`, `prompt`: what any replica needs to go on with it, null once it has ended.
    # `owner`, `epoch`, `lease_until`: the claim of the process that generates it.
    # `tool_state`: what the hosted tools of its successors have to know (`protocol.hosted.state`).
    # `placement`: where its last turn was generated (`upstreams.routing.placement`).
    "responses": "tenant_id uuid!, id uuid!, key_id uuid!, status text!, model text!,"
    " background boolean!, stored boolean!, created_at timestamptz!, root_created_at timestamptz!,"
    " completed_at timestamptz, parent_id uuid, conversation_id uuid, conversation_end bigint,"
    " request bytea!, body bytea, recoveries bytea, durable boolean!, streamed boolean!,"
    " plan bytea, prompt bytea, owner text, epoch integer!, lease_until timestamptz,"
    " next_entry integer!, attempts smallint!, fold_version smallint!, tool_state bytea,"
    " placement bytea, project_id uuid",
    # An item is a context item, with what a query must know of it. `ids` null: not rendered yet.
    # `includable`: the fields that it is shown with where `include` asks for them, as JSON.
    "messages": "tenant_id uuid!, response_id uuid!, position integer!, is_output boolean!,"
    f" {_ITEM}",
    # A digest of the key, because an index entry is limited in size and a client's key must not be.
    "idempotency_keys": "tenant_id uuid!, key_hash bytea!, fingerprint bytea!, response_id uuid!,"
    " created_at timestamptz!",
    # `day` (UTC) is when the response was created, so that retention drops whole partitions.
    "events": "tenant_id uuid!, response_id uuid!, first_entry integer!, day date!, epoch integer!,"
    " entry_count integer!, entries bytea!",
    # How far a process has come with the log of a tenant, and whether it may go on: see `flushes`.
    "writers": "tenant_id uuid!, owner text!, fence bigint!, number bigint!, used_at timestamptz!",
    # `members`: of which responses the entries are, packed as the module `flushes` says.
    "flushes": "tenant_id uuid!, owner text!, number bigint!, members bytea!, entries bytea!",
    # `writer`: the response that will add to it, for as long as that one is running.
    "conversations": "tenant_id uuid!, id uuid!, created_at timestamptz!, metadata bytea!,"
    " next_position bigint!, writer uuid, project_id uuid",
    "conversation_items": f"tenant_id uuid!, conversation_id uuid!, position bigint!, {_ITEM}",
    # `key` is a digest of kind, trace and record: ids are the client's, and may be of any length.
    "traces": "tenant_id uuid!, key bytea!, kind text!, trace_id bytea!, record_id bytea!,"
    " response_id uuid, received_at timestamptz!, record bytea!",
    # What the browser of a tenant was shown. `key` is a digest of the page, `asked` of the URL that
    # led to it; `links` are separated by line ends.
    "tool_pages": "tenant_id uuid!, key bytea!, asked bytea!, url bytea!, title bytea!,"
    " text bytea!, links bytea!, fetched_at timestamptz!",
    # Pages that the operator lets be searched. `tenant_id` is nil where they are for all tenants,
    # `key` a digest of the URL. `text` here is plain text: it was cleaned when it was read.
    "web_documents": "tenant_id uuid!, key bytea!, url text!, host text!, title text!, text text!,"
    " links text!, words tsvector!, added_at timestamptz!",
    # MCP servers that operators registered: of one tenant, or of all (a tenant id of zeros).
    # `secret`: the headers that it is sent, sealed. `allowed_tools`: a JSON list; null: all.
    "mcp_servers": "tenant_id uuid!, id uuid!, label text!, url text!, secret text!,"
    " trusted boolean!, always_asks boolean!, allowed_tools bytea, purposes text!,"
    " call_timeout_s integer, created_at timestamptz!",
    # Approvals that were asked for; `used_by`: the response that used it. Digests and times only.
    "tool_approvals": "tenant_id uuid!, request_id bytea!, digest bytea!, asked_at timestamptz!,"
    " expires_at timestamptz!, used_by uuid, used_at timestamptz",
    # `expires_at` moves with `last_active_at`. `owner`, `epoch`, `engine`, `handle`: in which
    # process its interpreter is, if it has one; `epoch` counts interpreters.
    "containers": "tenant_id uuid!, id uuid!, name bytea!, created_at timestamptz!,"
    " last_active_at timestamptz!, expires_at timestamptz!, idle_s integer!,"
    " memory_bytes bigint!, owner text, epoch integer!, engine text, handle bytea,"
    " project_id uuid",
    # `name`: the path of a file of a container, else the name that it was uploaded by. One of a
    # container is of the container's project, whatever `project_id` says.
    "files": "tenant_id uuid!, id uuid!, container_id uuid, name bytea!, purpose text,"
    " source text, size_bytes bigint!, digest bytea!, created_at timestamptz!,"
    " expires_at timestamptz, project_id uuid",
    "file_chunks": "tenant_id uuid!, file_id uuid!, number integer!, content bytea!",
    # What replicas tell each other of where they sent prompts (`upstreams.routing.exchange`): rows
    # of all tenants, under the nil one, without content. UNLOGGED: a crash may empty it.
    "placements": "tenant_id uuid!, replica text!, number bigint!, at timestamptz!,"
    " load bytea!, entries bytea!",
    # Backends that operators have taken out of use, for all tenants, under the nil one.
    "backend_drains": "tenant_id uuid!, name text!, drained_at timestamptz!, drained_by text!",
    # What is under way at them, by each replica's own account. UNLOGGED.
    "drain_reports": "tenant_id uuid!, name text!, replica text!, at timestamptz!,"
    " in_flight integer!",
    # How far what a tenant has was brought under its key `number`: behind the row with the key
    # `place` (JSON) of `of_table`; null: at the beginning of the next pass. Rows that were written
    # in this pass, and in all; until when no other process goes on with it.
    "reseals": "tenant_id uuid!, number integer!, of_table text, place bytea, written bigint!,"
    " total bigint!, begun_at timestamptz!, held_until timestamptz!, finished_at timestamptz",
    # Who changed what, chained (`governance.audit`); the nil tenant's are the operator's. `actor`
    # and `details` are JSON. No foreign key: it outlives the tenant.
    "audit_log": "tenant_id uuid!, number bigint!, id uuid!, at timestamptz!, type text!,"
    " actor bytea!, target text!, project_id uuid, address text, request_id text,"
    " details bytea!, previous bytea!, hash bytea!",
    # No foreign key: what was metered outlives the response. `seq`: 0 is the response, what is
    # above are corrections (kind `adjustment`, with a `reason` and an `author`), signed.
    # `tx`: the transaction that wrote it (`store.ledger.cursors`), null for lines of releases that
    # did not note it. What may be null is not known of lines of older releases. `tools`: calls by
    # tool, as JSON. `end_user` and `tags`: see `gateway.metering`.
    "usage": "tenant_id uuid!, response_id uuid!, key_id uuid!, model text!, at timestamptz!,"
    f" {_COUNTS}, seq integer!, kind text!, status text, service_tier text, background boolean,"
    " attempts smallint, end_user bytea, tags jsonb, tools jsonb, reason text, author text,"
    " tx xid8, project_id uuid,"
    " price_id uuid, cost_nano bigint, input_cost_nano bigint, cached_cost_nano bigint,"
    " output_cost_nano bigint, tools_cost_nano bigint",
    # Sums of lines, by the hour and, of the last days, by the minute (`at`: its beginning). Where a
    # line has null, these have what it means: the default project, no background.
    "usage_hours": f"{_SUMS_KEY}, {_SUMS}",
    "usage_minutes": f"{_SUMS_KEY}, {_SUMS}",
    # What those by the hour become after a while: none is in both.
    "usage_days": f"{_SUMS_KEY}, {_SUMS}",
    # By the day and end user, of tenants that want it.
    "usage_end_user_days": "tenant_id uuid!, day date!, project_id uuid!, end_user bytea!,"
    f" model text!, {_SUMS}",
    # How far a reader of lines of all tenants has come (rows under the nil tenant): behind the
    # line of this place. `batch`: how many batches; `moved_at`: when. `end_*`: where the batch ends
    # that is under way, by `holder`, whose turn it is until `held_until`.
    # `stopped`: why it goes on only when an operator says so.
    "usage_cursors": "tenant_id uuid!, name text!, tx xid8!, of_tenant uuid!, response_id uuid!,"
    " seq integer!, batch bigint!, lines bigint!, moved_at timestamptz!, end_tx xid8,"
    " end_tenant uuid, end_response uuid, end_seq integer, holder text,"
    " held_until timestamptz, stopped text",
    # What a request gave to be sent to MCP servers, sealed; gone when its response ends.
    "run_secrets": "tenant_id uuid!, response_id uuid!, sealed bytea!",
    # No foreign key, like `usage`. `server`, `tool`, `approval_request_id` and `hosts` (with spaces
    # between them) are names that others chose.
    "tool_calls": "tenant_id uuid!, response_id uuid!, ordinal integer!, attempt smallint!,"
    " kind text!, server bytea!, tool bytea!, arguments_hash bytea!, arguments_bytes integer!,"
    " result_bytes integer!, result_ids integer!, outcome text!, duration_ms integer!,"
    " replica text!, at timestamptz!, approval text, approval_request_id bytea, hosts bytea",
    # What the tenant, a project or a key (`scope`, `scope_id`) may use: see `gateway.limits.terms`.
    "limits": "tenant_id uuid!, scope text!, scope_id uuid!, model text!, what text!,"
    " window_s integer!, value bigint!, mode text!, updated_at timestamptz!",
    # `cap`, like `threshold` and `amount` below, is in nano-dollars or in tokens, by `unit`; `span`
    # is the interval. `channel`: where an alert goes, as JSON.
    "budgets": "tenant_id uuid!, id uuid!, scope text!, scope_id uuid!, unit text!, span text!,"
    " cap bigint!, mode text!, created_at timestamptz!",
    "spend_alerts": "tenant_id uuid!, id uuid!, scope text!, scope_id uuid!, unit text!,"
    " span text!, threshold bigint!, channel bytea!, created_at timestamptz!",
    # Of one tenant, or of all, under the nil one. Only added to; an end is set once.
    "prices": "tenant_id uuid!, id uuid!, component text!, model text!, service_tier text!,"
    " nano_per_unit bigint!, valid_from timestamptz!, valid_until timestamptz",
    # What each replica has spent of a meter in one interval, ever more; the replica '' is what
    # reconciliation found besides.
    "spend": "tenant_id uuid!, meter text!, starts_at timestamptz!, replica text!,"
    " amount bigint!, at timestamptz!",
    # `told`: the ways by which it was told (words with spaces between them); `sent_at`: since when
    # by all.
    "alert_firings": "tenant_id uuid!, alert_id uuid!, starts_at timestamptz!,"
    " fired_at timestamptz!, sent_at timestamptz, attempts smallint!, due_at timestamptz!,"
    " told text",
    # What is left in a bucket that all replicas share, and what it gave last. UNLOGGED.
    "buckets": "tenant_id uuid!, name text!, level double precision!, at timestamptz!,"
    " granted double precision!",
    # What is under way, or set aside, in each replica. UNLOGGED.
    "limit_reports": "tenant_id uuid!, name text!, replica text!, at timestamptz!, amount bigint!",
    # What was stored when that was measured last (`store.limits.storage`); under the nil project
    # all that the tenant has. `bytes` and `at` are null until it was measured.
    "stored_bytes": "tenant_id uuid!, project_id uuid!, bytes bigint, at timestamptz,"
    " due_at timestamptz!",
    # What tenants were served in background, and one response is expected to cost
    # (`store.replicas.shares`); under the nil one where the last claim began. UNLOGGED.
    "background_shares": "tenant_id uuid!, served double precision!, expected double precision!,"
    " at timestamptz!",
}
"""The columns of every table with their types; `!`: not null.

Text that clients or models wrote is kept in `bytea`: PostgreSQL's `text` and `jsonb` refuse NUL,
and no encoding of the server takes lone surrogates. `text` is for words of our own, and
for documents, which are searched by their words.
"""


def columns_of(table: str) -> dict[str, str]:
    """The columns of a table with their types; `!` behind a type: not null."""
    described = (column.split(maxsplit=1) for column in COLUMNS[table].split(","))
    return {name: kind.strip() for name, kind in described}


def _types(table: str, names: str = "", *, without: str = "") -> dict[str, str]:
    columns = columns_of(table)
    chosen = names.split() or (name for name in columns if name not in without.split())
    return {name: columns[name].removesuffix("!") for name in chosen}


ACCEPTED: Final = _types(
    "responses", without="tenant_id lease_until completed_at body recoveries tool_state placement"
)
"""The types of the columns of `responses` that one is accepted with, but for tenant and lease."""
ENDED: Final = _types(
    "responses", "id epoch status completed_at body recoveries tool_state placement"
)
"""Those that it ends with."""
LOGGED: Final = _types("events", "first_entry entry_count entries")
"""Those of a row of `events`, but for its key."""
ITEM: Final = _types("messages", without="tenant_id response_id position is_output")
"""Those of an item, in `messages` as in `conversation_items`."""
COUNTS: Final = _types("usage", " ".join((*_COUNTED, *_CHANNELS)))
"""Those of `usage` that count."""
METERED: Final = _types("usage", "kind service_tier attempts end_user tags tools")
"""Those of `usage` that tell what was asked for, and how."""
SUMS: Final = tuple(columns_of("usage_hours"))[8:]
"""The columns of aggregates that are sums."""
SUMMED_BY: Final = tuple(columns_of("usage_hours"))[:8]
"""Those that they are sums of."""
