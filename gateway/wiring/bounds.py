"""Settings → the bounds that the parts of a process are given. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import GuardLimits
from gateway.eventlog.feed import FeedLimits
from gateway.eventlog.log_writer import WriterBounds
from gateway.models.format import SchemaLimits
from gateway.replication.lease_keeper import LeaseTiming
from gateway.replication.scheduler import ClaimLimits
from gateway.services.compactor import CompactionLimits
from gateway.services.run_spec import SystemMessage
from gateway.store.claims import ClaimTerms
from gateway.store.retention import RetentionPolicy
from gateway.upstreams.backend import Backend, StreamLimits, Timeouts
from gateway.upstreams.pool import PoolPolicy, ProbeSchedule

if TYPE_CHECKING:
    from gateway.settings import Settings

RETRY_PAUSE_S = 0.2
"""Between two attempts to write to a database that is away."""
LISTEN_PAUSE_S = 1.0
"""Between two attempts to listen to one."""
QUIET_INTERVALS = 5
"""Where others tell of what there is to do, looking for it while there is nothing may be rarer."""


def backends(settings: Settings) -> list[Backend]:
    """The inference servers, each with the models that it is asked for."""
    served = {model.id: model.served_as or model.id for model in settings.models}
    lengths = {m.id: m.context_length for m in settings.models if m.context_length is not None}
    return [
        Backend(
            name=backend.name,
            base_url=backend.url,
            models={
                public: name
                for public, name in served.items()
                if not backend.models or name in backend.models
            }
            or {name: name for name in backend.models},
            api_key=backend.api_key.get_secret_value() if backend.api_key else None,
            context_lengths=lengths,
            grammars=backend.grammars == "auto",
            priorities=backend.priorities,
        )
        for backend in settings.backends
    ]


def pool_policy(settings: Settings) -> PoolPolicy:
    """When a backend is left, and how often each is looked at."""
    upstream = settings.upstream
    return PoolPolicy(
        timeouts=Timeouts(
            connect_s=upstream.connect_timeout_s,
            first_token_s=upstream.first_token_timeout_s,
            stall_s=upstream.stall_timeout_s,
        ),
        schedule=ProbeSchedule(
            health_interval_s=upstream.health_interval_s,
            health_timeout_s=upstream.health_timeout_s,
            working_health_timeout_s=upstream.working_health_timeout_s,
            describe_interval_s=upstream.probe_interval_s,
            describe_timeout_s=upstream.probe_timeout_s,
        ),
        limits=StreamLimits(event_bytes_max=upstream.event_bytes_max),
        attempts_max=upstream.attempts_max,
        losses_max=upstream.losses_max,
    )


def hop_policy(settings: Settings) -> HopPolicy:
    """How much is done for a response whose backend is gone."""
    return HopPolicy(
        hops_max=settings.upstream.hops_max,
        losses_max=settings.upstream.losses_max,
        hop_wait_s=settings.upstream.hop_wait_s,
        upstream_wait_s=settings.background.upstream_wait_s,
    )


def steering(settings: Settings) -> GuardLimits:
    """What is done about a model that does not do as it was told."""
    generation = settings.generation
    return GuardLimits(
        repairs_max=generation.repairs_max,
        header_tokens_max=generation.header_tokens_max,
        repeated_tokens_max=generation.repeated_tokens_max,
        messages_max=generation.messages_max,
        preamble_tokens_max=generation.preamble_tokens_max,
        refusals=generation.refusals,
    )


def timing(settings: Settings) -> LeaseTiming:
    """How often claims are renewed."""
    background = settings.background
    return LeaseTiming(lease_s=background.lease_s, heartbeat_s=background.heartbeat_s)


def appetite(settings: Settings) -> ClaimLimits:
    """How many responses this process claims, and on what terms."""
    background = settings.background
    told = QUIET_INTERVALS if settings.database.listen else 1
    return ClaimLimits(
        ClaimTerms(
            lease_s=background.lease_s,
            attempts_max=background.attempts_max,
            tenant_running_max=background.tenant_running_max,
        ),
        interval_s=background.claim_interval_s,
        quiet_s=told * background.claim_interval_s,
        read_bytes_max=settings.journal.read_bytes_max,
    )


def writer_bounds(settings: Settings) -> WriterBounds:
    """How far logs may be ahead of the database."""
    journal = settings.journal
    return WriterBounds(
        flush_bytes_max=journal.flush_bytes_max,
        run_pending_bytes_max=journal.run_pending_bytes_max,
        pending_bytes_max=journal.pending_bytes_max,
        retry_pause_s=RETRY_PAUSE_S,
        flush_interval_s=journal.flush_interval_s,
    )


def feed_limits(settings: Settings) -> FeedLimits:
    """How much of a log is read at once."""
    return FeedLimits(read_bytes_max=settings.journal.read_bytes_max)


def keep(settings: Settings) -> RetentionPolicy:
    """How long things are kept of tenants that have no policy of their own."""
    retention = settings.retention
    return RetentionPolicy(
        log_s=retention.log_s,
        response_s=retention.response_s,
        idempotency_key_s=retention.idempotency_key_s,
        traces_s=retention.traces_s,
    )


def compaction_limits(settings: Settings) -> CompactionLimits:
    """How long summaries are, and when they are due."""
    compaction = settings.compaction
    return CompactionLimits(
        summary_tokens_max=compaction.summary_tokens_max,
        effort=compaction.reasoning_effort,
        window_share=compaction.window_share,
    )


def system_message(settings: Settings) -> SystemMessage:
    """What every prompt begins with."""
    harmony = settings.harmony
    return SystemMessage(
        identity=harmony.identity,
        knowledge_cutoff=harmony.knowledge_cutoff,
        with_date=harmony.date == "utc",
        commentary_without_tools=harmony.commentary_without_tools,
    )


def schema_limits(settings: Settings) -> SchemaLimits:
    """How large a tool's schema may be once its references are followed."""
    limits = settings.limits
    return SchemaLimits(depth_max=limits.schema_depth_max, nodes_max=limits.schema_nodes_max)
