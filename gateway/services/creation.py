"""Create responses.

| response | its log is | a client that hangs up |
|---|---|---|
| `store: false` | in memory | ends it |
| stored | in memory, and its result in the database | ends it |
| stored, of a tenant whose policy is `continue` | in the database | changes nothing |
| stored, with an `Idempotency-Key` | in the database | changes nothing |
| `background: true` | in the database | changes nothing |

Responses with their log in the database are durable: any replica continues them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import orjson
from typing_extensions import override

from gateway import ids
from gateway.concurrency import start_task
from gateway.engine.row_mapping import QUEUED, output_context
from gateway.engine.run_spec import head_of
from gateway.engine.runner import Run
from gateway.errors import ConversationLocked, GatewayError, KeyTaken, RateLimited, StoreUnavailable
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.limits.accounting import NOTHING_USED
from gateway.limits.rules import NO_TERMS
from gateway.limits.stored_bytes import RESPONSE_BYTES
from gateway.models.format import SEES
from gateway.protocol.call_items import unread
from gateway.protocol.request_errors import ApprovalUsed
from gateway.protocol.responses.create_request import reused_key
from gateway.protocol.responses.response_object import Outcome, response_body
from gateway.services.runs.history_source import History
from gateway.services.runs.run_builder import DueSummary
from gateway.services.runs.spec_builder import PRIORITIES, service_tier
from gateway.services.zero_retention import permitted
from gateway.store import responses as rows
from gateway.store.events import LogRow
from gateway.store.limits import counters
from gateway.store.responses import IdempotencyKey, find_key
from gateway.tenancy import default_project
from gateway.text_ids import prompt_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from gateway.engine.run_spec import RunSpec
    from gateway.limits.accounting import Charge
    from gateway.limits.headers import Headers
    from gateway.protocol.context_item import ConversationPlace
    from gateway.protocol.responses.create_request import RequestKey
    from gateway.protocol.stream_events import EventSink, EventSource
    from gateway.replication.durable_runs import DurableRuns, RunDependencies
    from gateway.replication.lease_keeper import LeaseKeeper
    from gateway.replication.limiter import Limiter
    from gateway.services.models import Model, Models
    from gateway.services.retrieval import Retrieval
    from gateway.services.runs.compaction import CompactedContext
    from gateway.services.runs.run_builder import RunBuilder
    from gateway.services.runs.spec_builder import CreateCommand
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import Principal

T = TypeVar("T")

KEY_TRIES_MAX: Final = 3
"""Times that a key may be taken and free again during one request."""


class Generation:
    """Response as its client uses it; the defaults are those of a durable one."""

    is_durable = True
    """A stream that was cut off can be resumed."""
    is_repeat = False
    is_stored = True
    response_id: str
    model: str
    limit_headers: Headers = ()
    unread: Mapping[str, int] = MappingProxyType({})
    """Counts of images and files in the input that the model is not shown, by type."""

    @property
    def first_token_s(self) -> float | None:
        """Return the seconds from the request; None, too, if it was not generated here."""
        return None

    def cancel(self) -> None:
        """Stop for a client that has disconnected, unless the response is durable."""

    async def produced(self, within_s: float) -> None:
        """Wait for the first output or the end, which decide the HTTP status of a stream.

        Does not wait for other processes. Raises the error that made the response fail before any
        output.
        """

    def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> Awaitable[None]:
        """Send all events to a sink; return after the terminal one, or on drain.

        With a `grace_s` it begins where `produced` would return, in the call that brought the first
        output, and raises what `produced` raises.
        """
        raise NotImplementedError

    def continued(self) -> History | None:
        """Return what a continuation starts from, after the end; None if it must be read from the
        database.
        """
        return None

    async def response(self) -> bytes:
        """Return the Response object, finished or (in background) as it is now.

        Raises the error that made it fail, and `Draining`.
        """
        raise NotImplementedError


class ForegroundGeneration(Generation):
    is_durable = False

    def __init__(self, run: Run) -> None:
        self.response_id, self.model = ids.response_id(run.spec.head.uuid), run.spec.model
        self.is_stored = run.spec.store
        self._run = run

    @property
    @override
    def first_token_s(self) -> float | None:
        return self._run.first_token_s

    @override
    def cancel(self) -> None:
        if not self._run.live.closed.is_set():
            self._run.cancel()

    @override
    async def produced(self, within_s: float) -> None:
        """Wait until the response is recorded, if it is stored, then for its first output."""
        await self._run.begun.wait()
        await self._run.produced(within_s)

    @override
    def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> Awaitable[None]:
        """Raise before the first event what kept the response from being recorded."""
        if grace_s:
            return self._run.live.stream(sink, grace_s=grace_s)
        return self._stream_recorded(sink)

    async def _stream_recorded(self, sink: EventSink) -> None:
        await self.produced(0.0)
        await self._run.live.stream(sink)

    @override
    def continued(self) -> History | None:
        spec = self._run.spec
        if spec.inherited is None:
            return None
        generated = (output_context(item) for item in self._run.live.fold.items())
        own = tuple(replace(item, parsed=None) for item in (*spec.added, *generated))
        items = (*spec.inherited, *own)
        # Without a stored response before it, a stored continuation has to store all of its items,
        # or they would be lost.
        unstored = own if spec.parent is not None else items
        state = self._run.live.fold.hosted.state_json() or spec.tool_state
        return History(
            spec.parent,
            items,
            spec.root_created_at,
            unstored=unstored,
            tool_state=state,
            placement=spec.route.placement,
        )

    @override
    async def response(self) -> bytes:
        await self._run.live.closed.wait()
        if self._run.live.failure is not None:
            raise self._run.live.failure
        return self._run.live.fold.shown.encoded_response()


class AcceptedGeneration(Generation):
    """Durable response accepted just now.

    A background response (`run` is None) waits for any process that has room.
    """

    def __init__(self, spec: RunSpec, retrieval: Retrieval, run: Run | None) -> None:
        self.response_id, self.model = ids.response_id(spec.head.uuid), spec.model
        self._head = spec.head
        self._tenant_id = spec.principal.tenant_id
        self._retrieval = retrieval
        self._run = run

    @property
    @override
    def first_token_s(self) -> float | None:
        return self._run.first_token_s if self._run else None

    @override
    async def produced(self, within_s: float) -> None:
        # A background response has no local run: nothing to wait for.
        if self._run is not None:
            await self._run.produced(within_s)

    @override
    async def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> None:
        if grace_s:
            await self.produced(grace_s)
        beginning = (LogRow(0, 1, QUEUED),) if self._run is None else ()
        await self._retrieval.follow(self._tenant_id, self._head, sink, beginning=beginning)

    @override
    async def response(self) -> bytes:
        if self._run is None:
            return orjson.dumps(response_body(self._head, Outcome("queued"), []))
        finished = await self._retrieval.finished(self._tenant_id, self._head)
        if self._run.failure is not None:
            raise self._run.failure
        return finished


class RepeatedGeneration(Generation):
    """Response that an earlier request with the same key started."""

    is_repeat = True

    def __init__(
        self,
        principal: Principal,
        stored: StoredResponse,
        retrieval: Retrieval,
        events: EventSource | None,
    ) -> None:
        self.response_id, self.model = ids.response_id(stored.uuid), stored.model
        self._principal = principal
        self._stored = stored
        self._retrieval = retrieval
        self._events = events

    @override
    async def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> None:
        assert self._events is not None, "the request was not for a stream"
        await self._events(sink)

    @override
    async def response(self) -> bytes:
        """Return a background response as it is now, any other after its end."""
        if self._stored.background or self._stored.is_terminal:
            return await self._retrieval.get(self._principal, self.response_id)
        return await self._retrieval.finished(self._principal.tenant_id, head_of(self._stored))


class Creation:
    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        dependencies: RunDependencies,
        runs: DurableRuns,
        *,
        builder: RunBuilder,
        database: Database,
        retrieval: Retrieval,
        lease_keeper: LeaseKeeper,
        models: Models,
        require_room: Callable[[str, int, str], None],
        limiter: Limiter,
        key_ttl_s: float,
    ) -> None:
        """Refuse what would be stored at once while the heartbeat finds the database down.

        `require_room` raises `Overloaded` if no request for the model, of this priority and tenant,
        can be sent or wait.
        """
        self._dependencies = dependencies
        self._runs = runs
        self._builder = builder
        self._database = database
        self._retrieval = retrieval
        self._lease_keeper = lease_keeper
        self._models = models
        self._require_room = require_room
        self._limiter = limiter
        self._key_ttl_s = key_ttl_s

    async def create(self, command: CreateCommand) -> Generation:
        """Start a response, or return the one that the same request started before.

        Raises `RequestError`, `StoreUnavailable`, and `KeyTaken` if others keep using the
        idempotency key. If a response that is stored only at its end cannot be recorded, the
        generation raises before any token.
        """
        if command.principal.keeps_nothing:
            command = permitted(command)
        if command.request.store and (cut_off_s := self._lease_keeper.cut_off_s) is not None:
            message = "the last heartbeat did not reach the database"
            raise StoreUnavailable(message, retry_after_s=cut_off_s)
        if command.key is None:
            generation = await self._start(command)
        else:
            generation = await self._create_once(command, command.key)
        if generation.is_durable and (task := asyncio.current_task()) and task.cancelling():
            raise asyncio.CancelledError  # its client left while it was accepted
        if counts := unread(command.request.input, sees=False):
            generation.unread = self._unread(command, counts)
        return generation

    def _unread(self, command: CreateCommand, counts: Mapping[str, int]) -> Mapping[str, int]:
        # `counts` is for a model that sees no images.
        request, policy = command.request, command.principal.policy
        try:
            abilities = self._models.get(request.model, policy).format.abilities
        except GatewayError:
            return counts  # its backends have gone since
        return unread(request.input, sees=True) if SEES in abilities else counts

    async def _create_once(self, command: CreateCommand, key: RequestKey) -> Generation:
        for _ in range(KEY_TRIES_MAX):
            repeated = await self._find_repeated(command, key)
            if repeated is not None:
                return repeated
            try:
                return await self._start(command)
            except KeyTaken:
                # Another request with the key was accepted meanwhile: its response is ours, too.
                continue
            except (ConversationLocked, ApprovalUsed):
                # That request's response may hold the conversation, or begin with what the user
                # approved.
                if (repeated := await self._find_repeated(command, key)) is None:
                    raise
                return repeated
        raise KeyTaken

    async def compact(self, command: CreateCommand) -> tuple[CompactedContext, Headers]:
        """Replace everything but messages of user and operator by a compaction item."""
        if command.principal.keeps_nothing:
            permitted(command)
        async with self._charged(command) as (model, charge):
            compacted = await self._builder.compact(
                command, model, admit=partial(self._reserve, charge)
            )
        return compacted, () if charge is None else charge.headers

    async def count(self, command: CreateCommand) -> tuple[int, Headers]:
        """Count the prompt's tokens. It is charged as a request, since it is parsed and tokenised
        like one.
        """
        async with self._charged(command) as (model, charge):
            tokens = await self._builder.count(command, model)
        return tokens, () if charge is None else charge.headers

    @asynccontextmanager
    async def _charged(self, command: CreateCommand) -> AsyncIterator[tuple[Model, Charge | None]]:
        # For a request without a response: its model, and what it was charged.
        principal = command.principal
        model = self._models.get(command.request.model, principal.policy, task="generate")
        charge = await self._limiter.enter(principal, model.id, "default")
        try:
            # MCP servers are asked, and backends of some formats: both may be slow.
            with self._dependencies.supervisor.admitted(principal.tenant_id):
                yield model, charge
        finally:
            # A summary that was begun has settled.
            if charge is not None:
                charge.settle(NOTHING_USED)

    async def _find_repeated(self, command: CreateCommand, key: RequestKey) -> Generation | None:
        # None if the key is unused or its response was deleted.
        principal = command.principal
        key_hash = _key_hash(principal, key)
        use = await find_key(self._database, principal.tenant_id, key_hash, ttl_s=self._key_ttl_s)
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

    async def _start(self, command: CreateCommand) -> Generation:
        # Gate 1: charge the request to its key before its prompt is made.
        principal, request = command.principal, command.request
        model = self._models.get(request.model, principal.policy, task="generate")
        tier = service_tier(request, principal.policy)
        if command.generate and not request.background:
            # Refuse before anything is read, made or stored.
            self._require_room(model.id, PRIORITIES[tier], principal.tenant_id.hex)
        charge = None
        if principal.terms is not NO_TERMS:
            stores = RESPONSE_BYTES + command.body_bytes if request.store else None
            charge = await self._limiter.enter(
                principal, model.id, tier, stores=stores, is_background=request.background
            )
        try:
            with self._dependencies.supervisor.admitted(principal.tenant_id):
                built = await self._builder.build(command, model)
                if isinstance(built, DueSummary):
                    generation = await self._summarise_and_begin(command, built, charge)
                else:
                    spec = built if charge is None else await self._reserve(charge, built)
                    generation = await self._begin(command, spec)
        except BaseException:
            # Once its run was started, that settles.
            if charge is not None:
                charge.settle(NOTHING_USED)
            raise
        if charge is not None:
            generation.limit_headers = charge.headers
        return generation

    async def _summarise_and_begin(
        self, command: CreateCommand, due: DueSummary, charge: Charge | None
    ) -> Generation:
        # Refuse before tokens are spent on a summary.
        await self._check_acceptable(command, due.run_input.history.conversation)
        plan = due.plan._replace(spec=await self._reserve(charge, due.plan.spec))
        async with self._builder.summarised(due._replace(plan=plan)) as spec:
            return await self._begin(command, replace(spec, charge=charge))

    async def _reserve(self, charge: Charge | None, spec: RunSpec) -> RunSpec:
        # Gate 2: reserve the tokens that the run may use.
        if charge is None:
            return spec
        most = spec.sampling.max_tokens
        if most:
            tokens = prompt_tokens(spec.prompt_ids) if spec.is_text else len(spec.prompt_ids)
            await self._limiter.reserve(charge, spec.principal, tokens=tokens, most=most)
        return replace(spec, charge=charge)

    async def _check_acceptable(
        self, command: CreateCommand, place: ConversationPlace | None
    ) -> None:
        # Raise now what `_accept` would raise later.
        if not command.request.store:
            return
        principal, is_background = command.principal, command.request.background
        await rows.check(
            self._database,
            principal.tenant_id,
            conversation=place,
            idempotency=self._idempotency_key(command),
            queued_max=principal.policy.background_queued_max if is_background else None,
            queue_terms=principal.terms,
        )

    async def _begin(self, command: CreateCommand, spec: RunSpec) -> Generation:
        # The table in this module's docstring says where a run starts.
        if spec.approvals and not spec.store:
            await self._dependencies.archive.use_approvals(spec)
        if spec.durable:
            accepting = start_task(self._accept(command, spec))
            try:
                return await _outcome_of(accepting)
            except asyncio.CancelledError:
                # The process ends, and the response may have been recorded: then whoever continues
                # it settles. If it was settled here, too, its reservation would be given back
                # twice.
                if spec.charge is not None:
                    spec.charge.hand_over()
                raise
        dependencies = self._dependencies
        new_fold = dependencies.new_fold_for(spec.head, spec.rules)
        live = LiveLog(
            new_fold, reader_events_max=dependencies.reader_events_max, turn=dependencies.replays
        )
        run = Run(spec, MemoryJournal(live), dependencies.engine, requested_at=command.requested_at)
        dependencies.supervisor.start(run)
        return ForegroundGeneration(run)

    async def _accept(self, command: CreateCommand, spec: RunSpec) -> AcceptedGeneration:
        is_ours = not command.request.background
        key = self._idempotency_key(command)
        if not is_ours and spec.principal.terms.background:
            # Always queue: the process that claims it knows whether it may run.
            return await self._queue(spec, key)
        if not is_ours and key is None and spec.conversation is None:
            await self._runs.queue(spec)
            return AcceptedGeneration(spec, self._retrieval, None)
        run, claim = None, await self._dependencies.archive.accept(spec, key, owned=is_ours)
        if claim is None:
            self._runs.charges.leave(spec)
        else:
            run = self._runs.begin(spec, claim, requested_at=command.requested_at)
        return AcceptedGeneration(spec, self._retrieval, run)

    async def _queue(self, spec: RunSpec, key: IdempotencyKey | None) -> AcceptedGeneration:
        # Only for keys that limit how many background responses may be queued.
        principal = spec.principal
        for limit in await counters.observed_queues(
            self._database, principal.tenant_id, principal.terms
        ):
            self._limiter.observer.limit_would_refuse(limit.what)
        try:
            await self._dependencies.archive.accept(spec, key, owned=False)
        except RateLimited:
            self._limiter.observer.limit_refused("background_queued")
            raise
        self._runs.charges.leave(spec)
        return AcceptedGeneration(spec, self._retrieval, None)

    def _idempotency_key(self, command: CreateCommand) -> IdempotencyKey | None:
        if command.key is None:
            return None
        key_hash = _key_hash(command.principal, command.key)
        return IdempotencyKey(key_hash, command.key.fingerprint, self._key_ttl_s)


async def _outcome_of(accepting: asyncio.Task[T]) -> T:
    # Whether a response is recorded decides who begins it, and who counts its cost so far: a
    # disconnect must not interrupt that. Cancelled twice, it is not awaited.
    try:
        return await asyncio.shield(accepting)
    except asyncio.CancelledError:
        await asyncio.wait([accepting])
        return accepting.result()


def _key_hash(principal: Principal, key: RequestKey) -> bytes:
    # Two projects of a tenant, or two end users with their own tokens, may use the same key for
    # different requests.
    if principal.end_user is not None:
        end_user = principal.end_user.encode("utf-8", "surrogatepass")
        return sha256(principal.project.bytes + key.key_hash + end_user).digest()
    if principal.project == default_project(principal.tenant_id):
        return key.key_hash
    return sha256(principal.project.bytes + key.key_hash).digest()
