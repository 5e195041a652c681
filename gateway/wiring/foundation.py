"""Foundation of a process: its database, its vocabulary, its backends; the rest uses them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gateway.encryption.keyring import OFF
from gateway.eventlog.fold.fold import Fold
from gateway.protocol.responses.response_rules import rules_of
from gateway.retention.sweep import Housekeeping
from gateway.services.access import Access
from gateway.store.postgres.database import Database
from gateway.wiring.python import containers

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.constraints.output_rules import OutputRules
    from gateway.encryption.keyring import Keyring
    from gateway.generation import TokenParser
    from gateway.models.format import Formats
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.sealing import Sealer
    from gateway.services.executor import ThreadExecutor
    from gateway.services.federation import Federation
    from gateway.settings import Settings
    from gateway.telemetry.metrics import Metrics
    from gateway.tools.python.container_pool import ContainerPool
    from gateway.upstreams.pool import Pool
    from gateway.wiring.shared import Shared


@dataclass(frozen=True, slots=True)
class Foundation:
    """Foundation of a process. Claims are renewed over connections of their own (`lifeline`), logs
    written over another (`journal`), announced and looked for over two more (`notices`), limits
    kept in step over one (`counters`): requests that wait for a connection must not cost this
    process its claims, nor the clients of others their tokens.
    """

    settings: Settings
    shared: Shared
    metrics: Metrics
    database: Database
    lifeline: Database
    journal: Database
    notices: Database
    counters: Database
    formats: Formats
    sealer: Sealer
    executor: ThreadExecutor
    pool: Pool
    containers: ContainerPool
    owner: str

    @classmethod
    def of(cls, settings: Settings, shared: Shared) -> Foundation:
        """Build the foundation without connecting to anything."""
        keyring = shared.keyring
        database = connect(settings, keyring=keyring)
        return cls(
            settings=settings,
            shared=shared,
            metrics=shared.metrics,
            database=database,
            lifeline=connect(
                settings,
                pool_size_max=2,
                answer_within_s=settings.background.heartbeat_s,
                keyring=keyring,
            ),
            journal=connect(settings, pool_size_max=1, for_runs=True, keyring=keyring),
            notices=connect(settings, pool_size_max=2, for_runs=True, keyring=keyring),
            counters=connect(settings, pool_size_max=1, for_runs=True, keyring=keyring),
            formats=shared.formats,
            sealer=shared.sealer,
            executor=shared.executor,
            pool=shared.pool,
            containers=containers(
                settings, database, shared.engines, owner=shared.owner, metrics=shared.metrics
            ),
            owner=shared.owner,
        )

    def new_fold_for(
        self, head: ResponseHead, rules: OutputRules | None = None
    ) -> Callable[[], Fold]:
        """Return a factory of folds of one response; `rules` are its own, if already made."""
        held, model_format = (
            rules or rules_of(head.echo, head.grants),
            self.formats.for_model(head.echo["model"]),
        )
        seal = None if head.binding is None else partial(self.sealer.seal, head.binding)

        def parser(trace: bool) -> TokenParser:  # noqa: FBT001 - the fold's to choose
            return model_format.new_parser(held, trace=trace)

        transcribe = None
        if (asked := head.messages) is not None:
            transcribe = partial(model_format.messages_of_turn, with_ids=asked.with_output_ids)
        return partial(Fold, head, parser, model_format.framing, held, seal, transcribe)

    async def close(self) -> None:
        # The databases must no longer be in use.
        for database in (self.database, self.lifeline, self.journal, self.notices, self.counters):
            await database.close()


def connect(
    settings: Settings,
    *,
    pool_size_max: int | None = None,
    answer_within_s: float | None = None,
    for_runs: bool = False,
    keyring: Keyring = OFF,
) -> Database:
    """Return the database of `settings`, which must have its URL.

    `answer_within_s` is for callers that should learn soon that it does not answer; `for_runs` is
    that of `Database`.
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
        keyring=keyring,
    )


def access(settings: Settings, database: Database, federation: Federation | None = None) -> Access:
    """Build tenants and keys; `settings` must have the pepper.

    Commands, which serve no requests, have no `federation`.
    """
    auth = settings.auth
    return Access(
        database,
        settings.pepper,
        auth.key_cache_ttl_s,
        cache_stale_s=auth.stale_keys_max_s,
        previous_pepper=settings.previous_pepper,
        federation=federation,
        defaults=settings.tenant_policy,
    )


def housekeeping(settings: Settings, database: Database) -> Housekeeping:
    return Housekeeping(database, settings.retention)
