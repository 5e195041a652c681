from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.engine import late_writes, outcome, row_mapping
from gateway.engine.late_writes import RETRY_PAUSE_S, Deposits, ToolAudit, UsageMeter
from gateway.engine.outcome import now
from gateway.engine.run_spec import charged_of
from gateway.entries import FOLD_VERSIONS
from gateway.errors import ContentSealed, StoreUnavailable
from gateway.eventlog.fold_slices import READ_BYTES_MAX
from gateway.generation import TokenUsage
from gateway.group_commit import Batcher
from gateway.sealing import Binding, SealBroken
from gateway.store import endings, events, responses, usage_lines
from gateway.store.claims import Claim
from gateway.store.notices import Notice
from gateway.store.tools import tool_calls
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from array import array
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from gateway.engine.row_mapping import Attempt, LogReading, NewFoldFor
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.limits.accounting import Charge
    from gateway.metering import LineKind
    from gateway.protocol.context_item import StoredItem
    from gateway.sealing import Sealer
    from gateway.store.endings import FinishedResponse
    from gateway.store.events import LogRow
    from gateway.store.postgres.database import Database
    from gateway.store.responses import IdempotencyKey, NewResponse, StoredResponse
    from gateway.store.tools.tool_calls import Approvals
    from gateway.store.usage_lines import UsageLine
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId

    AdoptCharge = Callable[[TenantId, str, dict[str, Any]], Charge]

FIRST_EPOCH: Final = 1
BEGIN_INTERVAL_S: Final = 0.005
"""The first token of a response waits for a commit."""
COMMIT_INTERVAL_S: Final = 0.01
"""A transaction costs as much as a dozen rows of it."""
TOGETHER_ITEMS_MAX: Final = 32
TOGETHER_BYTES_MAX: Final = 64 * 1024
"""A larger response is written alone."""
DEFECTS: Final = (ValueError, TypeError, LookupError)
"""Raised when a row or log is read that is damaged, or of another release."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Name under which this process claims responses, and the lease of claims.

    A foreground response waits `commit_wait_s` for the database at its end, because its client
    waits; a durable one `claim_wait_s`, since nobody can take it over meanwhile.
    """

    owner: str
    lease_s: float
    commit_wait_s: float
    claim_wait_s: float


class Archive:
    """Writer of responses; beside the log the only part of a run that knows the database."""

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        database: Database,
        new_fold_for: NewFoldFor,
        ownership: Ownership,
        *,
        announce: Callable[[Notice], None],
        metrics: Metrics,
        sealer: Sealer,
        approval_key: bytes,
        adopt_charge: AdoptCharge | None = None,
    ) -> None:
        # `approval_key` is that of the digests of approvals. `adopt_charge` takes over what the key
        # of a response was charged (`Gates.adopt`).
        self._database = database
        self._adopt_charge = adopt_charge
        self._sealer = sealer
        self._approval_key = approval_key
        self._begins = Batcher(partial(responses.insert_all, database), interval_s=BEGIN_INTERVAL_S)
        self._queues = Batcher(partial(responses.queue_all, database), interval_s=COMMIT_INTERVAL_S)
        self._ends = Batcher(partial(endings.finish_all, database), interval_s=COMMIT_INTERVAL_S)
        self._meter = UsageMeter(partial(usage_lines.record_all, database), metrics=metrics)
        usable = database.keyring.usable
        self._deposits = Deposits(
            partial(late_writes.deposit, database), metrics=metrics, usable=usable
        )
        self._audit = ToolAudit(
            partial(tool_calls.record_all, database), metrics=metrics, usable=usable
        )
        self._new_fold_for = new_fold_for
        self.ownership = ownership
        self._announce = announce
        self._metrics = metrics

    async def run(self) -> None:
        # Commits concurrent writes together until cancelled. Without this task each is committed
        # alone.
        async with asyncio.TaskGroup() as group:
            late = (self._meter, self._deposits, self._audit)
            for helper in (self._begins, self._queues, self._ends, *late):
                group.create_task(helper.run())

    async def flush(self) -> None:
        """Write the rows that `run` has left. Book nothing after that."""
        async with asyncio.TaskGroup() as group:
            for late in (self._meter, self._deposits, self._audit):
                group.create_task(late.flush(wait_s=self.ownership.commit_wait_s))

    async def begin(self, spec: RunSpec) -> Claim:
        """Record, before a token is generated, that a foreground response runs here.

        Raises `StoreUnavailable`, `ConversationLocked`, and `InvalidRequest` for a useless
        approval.
        """
        ours, tenant_id = self.ownership, spec.principal.tenant_id
        new = row_mapping.foreground_row(
            spec,
            owner=ours.owner,
            lease_s=ours.lease_s,
            approvals=self._approvals(spec) if spec.approvals else (),
        )
        await self._insert(tenant_id, new)
        return Claim(tenant_id, new.uuid, FIRST_EPOCH)

    async def accept(
        self, spec: RunSpec, key: IdempotencyKey | None, *, owned: bool
    ) -> Claim | None:
        """Record a durable response; unless it is `owned` it is queued, and None is returned.

        Raises `StoreUnavailable`, `KeyTaken`, `RateLimited` when too many of its tenant are queued,
        and what `begin` raises.
        """
        ours, tenant_id = self.ownership, spec.principal.tenant_id
        lease = (ours.owner, ours.lease_s) if owned else None
        new = row_mapping.durable_row(
            spec,
            lease,
            waits=not owned,
            idempotency=key,
            secrets=self._seal_secrets(spec),
            approvals=self._approvals(spec),
        )
        await self._insert(tenant_id, new)
        if owned:
            return Claim(tenant_id, new.uuid, FIRST_EPOCH)
        self._announce(Notice("work"))
        return None

    async def queue(self, spec: RunSpec) -> Claim | None:
        """Record a background response that this process has capacity for.

        If others of its tenant come first it is queued, and None is returned. Raises as `accept`
        does.
        """
        ours, tenant_id = self.ownership, spec.principal.tenant_id
        new = row_mapping.durable_row(spec, (ours.owner, ours.lease_s), waits=True)
        begins, is_alone = None, bool(spec.secrets or spec.approvals)
        if not is_alone and _fits_batch(new.items, new.request, new.plan, new.prompt_ids):
            begins = await self._queues.commit((tenant_id, new))
        if begins is None:
            return await self.accept(spec, None, owned=False)
        if begins:
            return Claim(tenant_id, new.uuid, FIRST_EPOCH)
        self._announce(Notice("work"))
        return None

    async def finish(
        self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim, rest: LogRow | None
    ) -> None:
        """Commit the end of a response; `rest` is the unwritten part of a durable log.

        Retries for a limited time, then raises `StoreUnavailable`; a commit whose outcome was lost
        is safe to repeat. Raises `ClaimLost` when another process continues or has ended it.
        """
        row = row_mapping.finished_row(spec, finished, fold, epoch=claim.epoch, rest=rest)
        is_durable = rest is not None
        await self._with_retries(
            partial(self._end_one, claim.tenant_id, row),
            wait_s=self.ownership.claim_wait_s if is_durable else self.ownership.commit_wait_s,
        )
        if is_durable:
            self._announce(Notice("log", (claim.uuid,)))

    async def deposit(self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim) -> None:
        """Store the end of a foreground response that another process has ended, now or later."""
        end = row_mapping.finished_row(spec, finished, fold, epoch=claim.epoch, rest=None)
        try:
            await self._with_retries(
                lambda: late_writes.deposit(self._database, claim.tenant_id, end),
                wait_s=self.ownership.commit_wait_s,
            )
        except StoreUnavailable:
            self._deposits.put(claim.tenant_id, end)

    def deposit_later(
        self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim | None
    ) -> None:
        """Queue the end of a foreground response that could not be committed.

        Without a `claim` nobody knows whether it was recorded.
        """
        epoch = FIRST_EPOCH if claim is None else claim.epoch
        end = row_mapping.finished_row(spec, finished, fold, epoch=epoch, rest=None)
        self._deposits.put(spec.principal.tenant_id, end)

    def meter(
        self, spec: RunSpec, finished: Finished, fold: Fold, kind: LineKind = "response"
    ) -> None:
        # Never waits: the client has its answer. Booking twice counts once.
        if outcome.booked(finished.status, fold) is not None:
            self.book(spec.principal.tenant_id, row_mapping.usage_line(spec, finished, fold, kind))

    def book(self, tenant_id: TenantId, line: UsageLine) -> None:
        # For usage that belongs to no run of the engine.
        self._meter.put(tenant_id, line)

    def audit(self, spec: RunSpec, attempt: Attempt) -> None:
        called = row_mapping.tool_call_row(spec, attempt, replica=self.ownership.owner)
        self._audit.put(spec.principal.tenant_id, called)

    async def use_approvals(self, spec: RunSpec) -> None:
        tenant_id = spec.principal.tenant_id
        async with self._database.transaction(tenant_id) as connection:
            await tool_calls.use_approvals(
                connection, tenant_id, self._approvals(spec), spec.head.uuid
            )

    def _approvals(self, spec: RunSpec) -> Approvals:
        key = self._approval_key
        return [(request_id, tool_calls.keyed(one, key)) for request_id, one in spec.approvals]

    def _seal_secrets(self, spec: RunSpec) -> bytes | None:
        if not spec.secrets:
            return None
        binding = secrets_binding(spec.principal.tenant_id, spec.head.uuid, self._sealer.key_id)
        seal = self._sealer.seal(binding, orjson.dumps(spec.secrets))
        assert seal is not None, "it is sealed with the first key"
        return seal.encode()

    async def secrets(self, claim: Claim) -> dict[str, dict[str, str]]:
        """Return the secrets of a claimed response. Raises `StoreUnavailable`.

        Empty if their key is gone; MCP servers then refuse the calls.
        """
        sealed = await responses.load_secrets(self._database, claim.tenant_id, claim.uuid)
        if sealed is None:
            return {}
        binding = secrets_binding(claim.tenant_id, claim.uuid, "")
        try:
            opened = self._sealer.open(sealed.decode(), binding.tenant, binding.model)
        except SealBroken as error:
            response_id = ids.response_id(claim.uuid)
            _log.error("secrets cannot be opened", response_id=response_id, error=error)
            return {}
        secrets: dict[str, dict[str, str]] = orjson.loads(opened)
        return secrets

    async def cancel(self, tenant_id: TenantId, uuid: UUID) -> StoredResponse | None:
        # Ends a durable response with its output so far, wherever it is generated. Returns it as it
        # is then: cancelled, or unchanged if it had ended or is not durable; None if it does not
        # exist. Raises `StoreUnavailable`.
        return await self._conclude(
            tenant_id, uuid, lambda stored: outcome.cancelled(now()) if stored.durable else None
        )

    async def end_abandoned(self, tenant_id: TenantId, uuid: UUID) -> StoredResponse | None:
        # Fails a response that no process will continue; one that is still held is left alone. The
        # output of a durable response is stored and booked; of a foreground one nothing is left,
        # nor of one that no key opens any more, for which None is returned.
        try:
            return await self._conclude(
                tenant_id, uuid, lambda stored: None if stored.is_held else _ending_of(stored)
            )
        except ContentSealed:
            if not await endings.end_sealed(self._database, tenant_id, uuid):
                raise
        self._announce(Notice("ended", (uuid,)))
        _log.warning(
            "a response whose key was destroyed has failed", response_id=ids.response_id(uuid)
        )
        return None

    async def end_defective(self, claim: Claim, error: Exception) -> StoredResponse | None:
        # This process claimed the response and cannot continue it because of `error`.
        return await self._conclude(
            claim.tenant_id,
            claim.uuid,
            lambda stored: outcome.broken(error, now()) if stored.epoch == claim.epoch else None,
        )

    async def _conclude(
        self,
        tenant_id: TenantId,
        uuid: UUID,
        ending_of: Callable[[StoredResponse], Finished | None],
    ) -> StoredResponse | None:
        # A running response is left alone if `ending_of` returns None.
        response = await responses.load(self._database, tenant_id, uuid)
        if response is None or response.is_terminal or ending_of(response) is None:
            return response
        reading = await self._read_ahead(tenant_id, response) if response.durable else None
        row: FinishedResponse | None = None
        plan: bytes | None = None

        async def end(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse | None:
            nonlocal row, plan
            finished, plan = ending_of(stored), stored.plan
            row = (
                None
                if finished is None
                else await self._conclude_row(stored, reading, log, finished)
            )
            return row

        from_entry = 0 if reading is None else reading.entries
        stored = await endings.conclude(self._database, tenant_id, uuid, end, from_entry=from_entry)
        if stored is not None and row is not None:
            self._settle(tenant_id, stored, plan, row.tokens)
            self._report_end(tenant_id, stored, row)
        return stored

    def _settle(
        self,
        tenant_id: TenantId,
        stored: StoredResponse,
        plan: bytes | None,
        usage: TokenUsage | None,
    ) -> None:
        # The process that began to generate a response leaves the charge to the one that ends it.
        if plan is None or self._adopt_charge is None:
            return
        try:
            charged = charged_of(plan)
            if charged is not None:
                charge = self._adopt_charge(tenant_id, stored.model, charged)
                charge.settle(outcome.used(usage, is_whole=False))
        except DEFECTS as error:
            _report_unread(stored, error)

    def _report_end(
        self, tenant_id: TenantId, stored: StoredResponse, row: FinishedResponse
    ) -> None:
        # An owner reports only the ends that it commits itself.
        self._announce(Notice("ended", (stored.uuid,)))
        tokens = row.tokens or TokenUsage()
        self._metrics.response_finished(
            status=row.status,
            model=stored.model,
            input_tokens=tokens.input_tokens,
            cached=tokens.cached_tokens,
            output=tokens.output_tokens,
            reasoning=tokens.reasoning_tokens,
        )
        self._metrics.tenant_used(
            tenant_id.hex, input_tokens=tokens.input_tokens, output=tokens.output_tokens
        )
        _log.info(
            "response ended",
            response_id=ids.response_id(stored.uuid),
            model=stored.model,
            status=row.status,
            output_tokens=tokens.output_tokens,
        )

    async def _read_ahead(self, tenant_id: TenantId, stored: StoredResponse) -> LogReading | None:
        # Before anything is locked: reading a long log takes seconds. None: it cannot be read.
        try:
            reading = row_mapping.begin_reading(stored, self._new_fold_for)
            before = -1
            while before < reading.entries < stored.next_entry:
                before = reading.entries
                rows = await events.read(
                    self._database,
                    tenant_id,
                    stored.uuid,
                    stored.day,
                    from_entry=before,
                    bytes_max=READ_BYTES_MAX,
                )
                await reading.add(rows)
        except DEFECTS as error:
            _report_unread(stored, error)
            return None
        return reading

    async def _conclude_row(
        self,
        stored: StoredResponse,
        reading: LogReading | None,
        rest: list[LogRow],
        finished: Finished,
    ) -> FinishedResponse:
        if reading is not None:
            try:
                return await row_mapping.concluded_row(stored, reading, rest, finished)
            except DEFECTS as error:
                # It must end all the same: whoever waits for it would wait for ever.
                _report_unread(stored, error)
        return row_mapping.row_without_log(stored, finished)

    async def _insert(self, tenant_id: TenantId, new: NewResponse) -> None:
        others = (new.idempotency, new.queued_max, new.conversation, new.secrets)
        if (
            others == (None,) * len(others)
            and not new.approvals
            and _fits_batch(new.items, new.request, new.plan, new.prompt_ids)
            and await self._begins.commit((tenant_id, new))
        ):
            return
        await responses.insert(self._database, tenant_id, new)

    async def _end_one(self, tenant_id: TenantId, row: FinishedResponse) -> None:
        log = row.entries.entries if row.entries else None
        if (
            not row.free_key
            and not row.has_secrets
            and _fits_batch(row.items, row.body, log)
            and await self._ends.commit((tenant_id, row))
        ):
            return
        await endings.finish(self._database, tenant_id, row)

    @staticmethod
    async def _with_retries(attempt: Callable[[], Awaitable[object]], *, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            try:
                await attempt()
            except StoreUnavailable:
                if loop.time() + RETRY_PAUSE_S > deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return


def secrets_binding(tenant_id: TenantId, response: UUID, key_id: str) -> Binding:
    # Nothing but the secrets of this response is sealed with this binding.
    return Binding(tenant_id, f"secrets of {ids.response_id(response)}", key_id)


def _fits_batch(items: Sequence[StoredItem], *values: bytes | array[int] | None) -> bool:
    # A large response would keep the others of a shared commit waiting.
    if len(items) > TOGETHER_ITEMS_MAX:
        return False
    size_bytes = 0
    for value in values:
        if value is not None:
            size_bytes += memoryview(value).nbytes
    for item in items:
        size_bytes += len(item.context.json)
    return size_bytes <= TOGETHER_BYTES_MAX


def _report_unread(stored: StoredResponse, error: Exception) -> None:
    _log.error(
        "a response ends without its log",
        response_id=ids.response_id(stored.uuid),
        model=stored.model,
        error=error,
    )


def _ending_of(stored: StoredResponse) -> Finished:
    if not stored.durable:
        return outcome.interrupted(now())
    if stored.fold_version not in FOLD_VERSIONS:
        return outcome.of_another_release(now())
    return outcome.out_of_attempts(now())
