"""What the rest of a process stands on: its database, its vocabulary, its backends."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import orjson

from gateway import ids
from gateway.eventlog.fold.fold import Fold
from gateway.models.format import FormatOptions, SchemaLimits
from gateway.models.registry import Formats
from gateway.protocol.responses.body import rules_of
from gateway.replication.retention import Housekeeping
from gateway.sealing import Sealer, SealingSecret
from gateway.services.access import Access
from gateway.services.executor import ThreadExecutor
from gateway.store.postgres.database import Database
from gateway.store.retention import RetentionPolicy
from gateway.telemetry import Metrics
from gateway.upstreams.backend import Backend, StreamLimits, Timeouts
from gateway.upstreams.client import build_client
from gateway.upstreams.http.connection import ConnectionLimits
from gateway.upstreams.http.transport import KeepAlivePolicy
from gateway.upstreams.pool import Pool, PoolPolicy, ProbeSchedule
from gateway.upstreams.tokenization import Tokenization
from gateway.wiring.python import containers

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.constraints.rules import OutputRules
    from gateway.generation import TokenParser
    from gateway.protocol.responses.body import ResponseHead
    from gateway.settings import Settings
    from gateway.settings.sections import Model
    from gateway.tools.python.containers import ContainerPool


@dataclass(frozen=True, slots=True)
class Foundation:
    """`owner` is the name under which this process claims responses.

    Claims are renewed over connections of their own (`lifeline`), logs written over another
    (`journal`), announced and looked for over two more (`notices`): requests that wait for a
    connection must not cost this process its claims, nor the clients of others their tokens.
    """

    settings: Settings
    metrics: Metrics
    database: Database
    lifeline: Database
    journal: Database
    notices: Database
    formats: Formats
    sealer: Sealer
    executor: ThreadExecutor
    pool: Pool
    containers: ContainerPool
    owner: str = field(default_factory=ids.new_replica_id)

    @classmethod
    def of(cls, settings: Settings) -> Foundation:
        """Raises `StartupError` when a vocabulary is damaged, or a format unknown; connects to
        nothing.
        """
        metrics, database, owner = Metrics(), connect(settings), ids.new_replica_id()
        return cls(
            settings=settings,
            metrics=metrics,
            database=database,
            lifeline=connect(
                settings, pool_size_max=2, answer_within_s=settings.background.heartbeat_s
            ),
            journal=connect(settings, pool_size_max=1, for_runs=True),
            notices=connect(settings, pool_size_max=2, for_runs=True),
            formats=formats(settings),
            sealer=Sealer([SealingSecret(*key) for key in settings.sealing_secrets]),
            executor=ThreadExecutor(
                threads_max=settings.limits.tokenize_threads_max,
                inline_bytes_max=settings.limits.inline_tokenize_chars_max,
                waiting_bytes_max=settings.limits.tokenize_waiting_bytes_max,
            ),
            pool=_pool(settings, metrics),
            containers=containers(settings, database, owner),
            owner=owner,
        )

    def new_fold_for(
        self, head: ResponseHead, rules: OutputRules | None = None
    ) -> Callable[[], Fold]:
        """Makes the folds of one response; `rules` are its own, if they were made already."""
        held, model_format = (
            rules or rules_of(head.echo, head.grants),
            self.formats.of(head.echo["model"]),
        )
        seal = None if head.binding is None else partial(self.sealer.seal, head.binding)

        def parser(trace: bool) -> TokenParser:  # noqa: FBT001 - the fold's to choose
            return model_format.new_parser(held, trace=trace)

        transcribe = None
        if (asked := head.messages) is not None:
            transcribe = partial(model_format.messages_of_turn, with_ids=asked.with_output_ids)
        return partial(Fold, head, parser, model_format.framing, held, seal, transcribe)

    async def close(self) -> None:
        """Close what is open; nothing of it may be in use any more."""
        self.executor.close()
        await self.pool.close()
        for database in (self.database, self.lifeline, self.journal, self.notices):
            await database.close()


def connect(
    settings: Settings,
    *,
    pool_size_max: int | None = None,
    answer_within_s: float | None = None,
    for_runs: bool = False,
) -> Database:
    """The database of `settings`, which must have its URL.

    `answer_within_s` is for those who would rather know soon that it does not answer; `for_runs`
    is that of `Database`.
    """
    database = settings.database
    patience_s = float("inf") if answer_within_s is None else answer_within_s
    return Database(
        settings.database_url,
        pool_size_max=pool_size_max or database.pool_size_max,
        command_timeout_s=min(database.command_timeout_s, patience_s),
        connect_timeout_s=min(database.connect_timeout_s, patience_s),
        statement_cache_size=database.statement_cache_size,
        for_runs=for_runs,
    )


def access(settings: Settings, database: Database) -> Access:
    """Tenants and keys in the database; `settings` must have the pepper."""
    auth = settings.auth
    return Access(
        database,
        settings.pepper,
        auth.key_cache_ttl_s,
        auth.key_cache_entries_max,
        cache_stale_s=auth.stale_keys_max_s,
        defaults=settings.tenant_policy,
    )


def housekeeping(settings: Settings, database: Database) -> Housekeeping:
    """The rounds that remove what has expired."""
    retention = settings.retention
    return Housekeeping(
        database,
        retention.fill(RetentionPolicy),
        interval_s=retention.interval_s,
        batch_rows_max=retention.batch_rows_max,
    )


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


def formats(settings: Settings) -> Formats:
    """The format of each model. Raises `StartupError` when a vocabulary is damaged, or a format
    unknown.
    """
    limits = settings.limits
    return Formats.load(
        {model.id: model.format for model in settings.models},
        SchemaLimits(depth_max=limits.schema_depth_max, nodes_max=limits.schema_nodes_max),
        {model.id: _format_options(model) for model in settings.models if model.tokenizer},
    )


def _format_options(model: Model) -> FormatOptions:
    template_kwargs = orjson.dumps(model.chat_template_kwargs, option=orjson.OPT_SORT_KEYS)
    return FormatOptions(
        model=model.served_as or model.id,
        tokenizer=model.tokenizer or "",
        reasoning=model.reasoning,
        calls=model.calls,
        template_kwargs=template_kwargs.decode(),
    )


def tokenization(settings: Settings, pool: Pool) -> Tokenization:
    """Who has servers render conversations."""
    upstream = settings.upstream
    return Tokenization(
        pool, timeout_s=upstream.render_timeout_s, attempts_max=upstream.attempts_max
    )


def _pool(settings: Settings, metrics: Metrics) -> Pool:
    upstream = settings.upstream
    client = build_client(
        keep_alive=KeepAlivePolicy(
            connections_max=upstream.connections_max, expiry_s=upstream.keepalive_expiry_s
        ),
        limits=ConnectionLimits(),
    )
    policy = upstream.fill(
        PoolPolicy,
        timeouts=Timeouts(
            connect_s=upstream.connect_timeout_s,
            first_token_s=upstream.first_token_timeout_s,
            stall_s=upstream.stall_timeout_s,
        ),
        schedule=upstream.fill(
            ProbeSchedule,
            describe_interval_s=upstream.probe_interval_s,
            describe_timeout_s=upstream.probe_timeout_s,
        ),
        limits=upstream.fill(StreamLimits),
    )
    return Pool(backends(settings), client, policy=policy, metrics=metrics)
