"""Create responses: what becomes of one, and where it is generated.

| response | its log is | a client that hangs up |
|---|---|---|
| `store: false` | in memory | ends it |
| stored | in memory, and what it became in the database | ends it |
| stored, of a tenant whose policy is `continue` | in the database | changes nothing |
| stored, with an `Idempotency-Key` | in the database | changes nothing |
| `background: true` | in the database | changes nothing |

What has its log in the database is durable: any replica goes on with it when this one ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.engine.runner import Run
from gateway.errors import ConversationLocked, KeyTaken, StoreUnavailable
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.protocol.responses.requests import reused_key
from gateway.services.generation import (
    AcceptedGeneration,
    ForegroundGeneration,
    RepeatedGeneration,
    Started,
)
from gateway.services.run_builder import DueSummary
from gateway.store import responses as rows
from gateway.store.idempotency import IdempotencyKey, find_key

if TYPE_CHECKING:
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.protocol.context_item import ConversationPlace
    from gateway.protocol.responses.create import CreateResponse
    from gateway.protocol.responses.requests import RequestKey
    from gateway.replication.durable_runs import DurableRuns, RunDependencies
    from gateway.replication.lease_keeper import LeaseKeeper
    from gateway.services.compaction import CompactedContext
    from gateway.services.generation import Generation
    from gateway.services.retrieval import Retrieval
    from gateway.services.run_builder import CreateCommand, RunBuilder
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal

KEY_TRIES_MAX: Final = 3
"""Times a key may be taken, and be free again, while one request tries to use it."""


class Creation:
    """The use cases of `POST /v1/responses` and `POST /v1/responses/compact`."""

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        dependencies: RunDependencies,
        runs: DurableRuns,
        *,
        builder: RunBuilder,
        database: Database,
        retrieval: Retrieval,
        lease_keeper: LeaseKeeper,
        key_ttl_s: float,
    ) -> None:
        """`key_ttl_s` is how long an idempotency key stands for the same response.

        Where the heartbeat of `lease_keeper` says that the database is away, nobody who wants
        something stored has to wait until that is found out again.
        """
        self._at = dependencies
        self._runs = runs
        self._builder = builder
        self._database = database
        self._retrieval = retrieval
        self._lease_keeper = lease_keeper
        self._key_ttl_s = key_ttl_s

    async def create(self, command: CreateCommand) -> Generation:
        """Start to generate a response, or find the one that was started for the same request.

        From here on the generation has an end, whether or not anybody follows it. Raises
        `RequestError`, `StoreUnavailable`, and `KeyTaken` when others use the key again and again.
        Where a response that is stored only in the end cannot be recorded, the generation raises
        that, before a token is spent.
        """
        if command.request.store and (cut_off_s := self._lease_keeper.cut_off_s) is not None:
            message = "the last heartbeat did not reach the database"
            raise StoreUnavailable(message, retry_after_s=cut_off_s)
        if command.key is None:
            return await self._started(command)
        for _ in range(KEY_TRIES_MAX):
            repeated = await self._repeated(command, command.key)
            if repeated is not None:
                return repeated
            try:
                return await self._started(command)
            except KeyTaken:
                # Another request with the key was accepted meanwhile: its response is ours, too.
                continue
            except ConversationLocked:
                # It may be that request's response that holds the conversation.
                if (repeated := await self._repeated(command, command.key)) is None:
                    raise
                return repeated
        raise KeyTaken

    async def compact(
        self, principal: Principal, request: CreateResponse, *, body_bytes: int
    ) -> CompactedContext:
        """All messages of the user, and a compaction item that stands for everything else.

        Raises what `RunBuilder.compact` does, and `RateLimited`.
        """
        with self._at.supervisor.admitted():
            compacted = await self._builder.compact(principal, request, body_bytes=body_bytes)
        await self._builder.book(compacted.made)
        return compacted

    async def _repeated(self, command: CreateCommand, key: RequestKey) -> Generation | None:
        """The response that the key stands for; None where the key is free, or its response gone.

        Raises `InvalidRequest` where it stands for the response to another request.
        """
        principal = command.principal
        use = await find_key(
            self._database, principal.tenant_id, key.key_hash, ttl_s=self._key_ttl_s
        )
        if use is None:
            return None
        if use.fingerprint != key.fingerprint:
            raise reused_key()
        stored = await rows.load(self._database, principal.tenant_id, use.uuid)
        if stored is None:
            return None
        events = None
        if command.request.stream:
            response_id = ids.response_id(use.uuid)
            events = await self._retrieval.stream(principal, response_id)
        return RepeatedGeneration(principal, stored, self._retrieval, events)

    async def _started(self, command: CreateCommand) -> Generation:
        with self._at.supervisor.admitted():
            built = await self._builder.build(command)
            if not isinstance(built, DueSummary):
                return await self._begun(command, built)
            if command.request.store:
                await self._check(command, built.conversation)
            async with self._builder.summarised(built) as spec:
                return await self._begun(command, spec)

    async def _check(self, command: CreateCommand, conversation: ConversationPlace | None) -> None:
        """Raise what accepting it would, as far as that is known before tokens are spent on it."""
        principal = command.principal
        queued_max = principal.policy.background_queued_max
        await rows.check(
            self._database,
            principal.tenant_id,
            conversation=conversation,
            idempotency=self._kept_key(command),
            queued_max=queued_max if command.request.background else None,
        )

    async def _begun(self, command: CreateCommand, spec: RunSpec) -> Generation:
        """Start the run with its log in memory, or record it for any replica to go on with: the
        table of this module tells which.
        """
        at = self._at
        if spec.durable:
            return await self._accepted(command, spec)
        new_fold = at.new_fold_for(spec.head, spec.rules)
        live = LiveLog(new_fold, reader_events_max=at.reader_events_max, turn=at.replays)

        async def commit(finished: Finished, fold: Fold) -> None:
            assert run.claim is not None, "what is stored was recorded before it was generated"
            await at.archive.finish(spec, finished, fold, run.claim, None)

        journal = MemoryJournal(live, commit if spec.store else None)
        run = Run(spec, journal, at.engine, requested_at=command.requested_at)
        at.supervisor.start(run)
        return ForegroundGeneration(spec, Started(run, live))

    async def _accepted(self, command: CreateCommand, spec: RunSpec) -> AcceptedGeneration:
        is_ours = not command.request.background
        key = self._kept_key(command)
        if not is_ours and key is None and spec.conversation is None:
            await self._runs.queue(spec)
            return AcceptedGeneration(spec, self._retrieval, None)
        claim = await self._at.archive.accept(spec, key, owned=is_ours)
        started = None
        if claim is not None:
            run, live = self._runs.begin(spec, claim, requested_at=command.requested_at)
            started = Started(run, live)
        return AcceptedGeneration(spec, self._retrieval, started)

    def _kept_key(self, command: CreateCommand) -> IdempotencyKey | None:
        if command.key is None:
            return None
        return IdempotencyKey(command.key.key_hash, command.key.fingerprint, self._key_ttl_s)
