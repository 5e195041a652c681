"""Run of a response, top to bottom: prompt → backend → log → (commit) → the last event.

The log ends with exactly one `Finished`, and what `store: true` promised is committed before a
reader sees it; if the run is abandoned, another replica does so.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

from gateway.concurrency import OnceEvent
from gateway.engine import outcome
from gateway.engine.outcome import marked, now
from gateway.engine.output_guard import OutputViolation
from gateway.engine.turn import TurnRunner
from gateway.entries import Alive, Finished
from gateway.errors import ClaimLost, GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.engine.engine import Engine
    from gateway.engine.output_guard import OutputGuard
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.journal import Journal
    from gateway.store.claims import Claim
    from gateway.store.events import LogRow

_WHOLE: Final = frozenset({"completed", "incomplete"})
"""Statuses that count for the estimate of how long answers are."""


class Run:
    """Attempt to generate one response, from where its log ends. Call it once.

    Without a `claim` the run records the response itself, if it is to be stored.
    """

    __slots__ = (
        "_cancelled", "_engine", "_has_first_token", "_has_lost_claim", "_journal",
        "_requested_at", "_scope", "_status", "_turns", "begun", "claim", "first_token_s", "live",
        "spec",
    )  # fmt: skip

    def __init__(
        self,
        spec: RunSpec,
        journal: Journal,
        engine: Engine,
        *,
        claim: Claim | None = None,
        requested_at: float | None = None,
    ) -> None:
        # `requested_at` is the time of the request in seconds of `time.perf_counter`, before any
        # statement that claimed the response here; None: now.
        self.spec = spec
        self.claim = claim
        self.begun = OnceEvent()
        """The response is recorded as `store: true` promises, or the log says why not."""
        self.first_token_s: float | None = None
        """Seconds since the request; None if another replica received it."""
        self._journal = journal
        self.live = journal.live
        self._engine = engine
        self._requested_at = time.perf_counter() if requested_at is None else requested_at
        self._has_first_token = False
        self._scope: asyncio.Timeout | None = None
        self._turns: TurnRunner | None = None
        self._status = ""
        self._cancelled: Callable[[int], Finished] | None = None
        self._has_lost_claim = False

    @property
    def failure(self) -> Exception | None:
        # None if another process took the run over and decides how it ends.
        return None if self.live.handed_over else self.live.failure

    @property
    def age_s(self) -> float:
        # Seconds since the request, or since this replica took the response over.
        return time.perf_counter() - self._requested_at

    async def produced(self, within_s: float) -> None:
        """Wait for the first output or the end. Raises the error of a run without output."""
        is_produced = await self.live.produced.within(within_s)
        if is_produced and self.failure is not None and not self.live.fold.output_tokens:
            raise self.failure

    @property
    def running_call(self) -> OnceEvent | None:
        # Set when the running call of a hosted tool that must not be repeated has ended. None: no
        # such call runs.
        tools = None if self._turns is None else self._turns.tools
        return None if tools is None else tools.running

    def cancel(self, because: Callable[[int], Finished] = outcome.cancelled) -> None:
        """End the generation; the output so far is committed and shown."""
        self._cancelled = self._cancelled or because
        self._stop()

    def abandon(self) -> None:
        """Stop without recording an end, because the response belongs to another replica."""
        self._journal.abandon()
        self._stop()

    def settle(self) -> None:
        """Charge the key for the run, unless another replica continues and settles."""
        charge, fold = self.spec.charge, self.live.fold
        if charge is None:
            return
        if self.spec.durable and (self._has_lost_claim or not fold.shown.is_finished):
            charge.hand_over()
            return
        usage = outcome.booked(self._status, fold)
        charge.settle(outcome.used(usage, is_whole=self._status in _WHOLE))

    async def __call__(self) -> None:
        # Records, generates, commits and shows the end: readers can see it when this returns.
        try:
            try:
                if await self._begin():
                    await self._finish(await self._generate())
            except ClaimLost as error:
                await self._on_claim_lost(error)
        except Exception as error:  # noqa: BLE001 - the outermost frame: readers wait for an end
            self._engine.observer.failed(self.spec, error)
            self.live.give_up(error)
        finally:
            if self.claim is not None:
                self._engine.lease_keeper.drop(self.claim)
            self.begun.set()
            self._journal.release()

    async def _on_claim_lost(self, error: ClaimLost) -> None:
        # A durable response continues, or has ended, at another replica.
        self._has_lost_claim = True
        self._engine.observer.claim_lost(self.spec, self.claim.epoch if self.claim else 0)
        if self.spec.durable:
            self.live.hand_over()
        else:
            # Whoever took this process for dead has ended it, and knows nothing of what it said.
            self.live.failure = error
            finished = outcome.interrupted(now())
            self._status = finished.status
            events = self.live.fold.apply(finished)
            if self.claim is not None:
                await self._engine.archive.deposit(self.spec, finished, self.live.fold, self.claim)
            self.live.close(finished, events)

    def _stop(self) -> None:
        # A scope that has expired is being left already, and refuses to expire again.
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def _begin(self) -> bool:
        # Records the response and begins its log. That is done here and not before the run, because
        # a client that disconnects meanwhile must not leave a response that never ends. Returns
        # False if it was not recorded.
        if self.spec.store and self.claim is None:
            try:
                self.claim = await self._engine.archive.begin(self.spec)
            except GatewayError as error:
                self._fail(error)
                self._decline(outcome.not_stored(now()))
                return False
        if self.claim is not None:
            self._engine.lease_keeper.hold(self.claim, self)
        self.begun.set()
        self._journal.append(marked("replica", self._engine.replica))
        compacted = self.spec.compacted
        if compacted is not None and self.live.fold.compacted is None:
            self._journal.append(compacted)
        return True

    def _decline(self, finished: Finished) -> None:
        # Books the summary that was made for the response: nobody else will.
        compacted = self.spec.compacted
        if compacted is not None:
            self._journal.append(compacted)
        self._close(finished)
        self.begun.set()
        if compacted is not None:
            self._engine.observer.finished(self.spec, finished, self.live.fold)
            self._engine.archive.meter(self.spec, finished, self.live.fold)

    async def _generate(self) -> Finished:
        if self._cancelled is not None:
            return self._cancelled(now())
        if not self.spec.sampling.max_tokens:
            return Finished("completed", now())
        engine, scope = self._engine, asyncio.timeout(self._engine.run_time_max_s)
        turns = self._turns = TurnRunner(
            self.spec,
            self._journal,
            engine,
            epoch=self.claim.epoch if self.claim else 0,
            on_first_token=self._on_first_token,
        )
        with KeepAliveTimer(self._journal, engine.alive_interval_s):
            try:
                async with scope as self._scope:
                    await turns.complete()
            except ClaimLost:
                raise
            except OutputViolation as error:
                engine.observer.output_violated(self.spec, error)
                finished = outcome.violated(error.code, now())
            except Exception as error:  # noqa: BLE001 - whatever broke, readers get an end
                if scope.expired():
                    finished = self._conclude_early()
                else:
                    self._fail(error)
                    finished = outcome.broken(error, now())
            else:
                finished = self._conclude(turns.guard)
            finally:
                # They refer to this run: a cycle would stay in memory until a garbage collection.
                self._scope = self._turns = None
            if self.spec.reasoning_budget is not None:
                turns.void_excess_reasoning()
        return finished

    def _conclude(self, guard: OutputGuard) -> Finished:
        fold = self.live.fold
        if self.spec.head.grants is not None and fold.approval_request is not None:
            return Finished("completed", now())
        if (code := guard.shortcoming(fold)) is not None:
            return outcome.violated(code, now())
        # An answer that is stopped at its first word is all that the request wants of it.
        visible = fold.shown.is_visible or fold.stopped
        return outcome.ended(fold.last_finish, now(), visible=visible)

    def _conclude_early(self) -> Finished:
        return (self._cancelled or outcome.took_too_long)(now())

    def _on_first_token(self) -> None:
        had_one, self._has_first_token = self._has_first_token, True
        if not had_one and not self.live.fold.output_tokens:
            self.first_token_s = time.perf_counter() - self._requested_at
            self._engine.observer.first_token(self.spec, self.first_token_s)

    async def _finish(self, finished: Finished) -> None:
        # Raises `ClaimLost`.
        if self._journal.is_abandoned:
            raise ClaimLost
        self._status = finished.status
        self._journal.append(marked("clock"))
        try:
            await self._journal.finish(finished, self._commit if self.spec.store else None)
        except ClaimLost:
            raise
        except Exception as error:
            if self.spec.durable:
                # All before the end is in the log: whoever claims the response next ends it.
                self._engine.observer.failed(self.spec, error)
                raise ClaimLost from error
            self._fail(error)
            finished = outcome.not_stored(now())
            self._status = finished.status
            self._close(finished)
        self._engine.observer.finished(self.spec, finished, self.live.fold)
        if not self.spec.store:
            self._engine.archive.meter(self.spec, finished, self.live.fold)

    async def _commit(self, finished: Finished, fold: Fold, rest: LogRow | None) -> None:
        assert self.claim is not None, "what is stored was recorded before it was generated"
        await self._engine.archive.finish(self.spec, finished, fold, self.claim, rest)

    def _close(self, finished: Finished) -> None:
        # The end could not be recorded. It is written later, if the response has a row.
        self.live.close(finished, self.live.fold.apply(finished))
        if self.spec.store:
            self._engine.archive.deposit_later(self.spec, finished, self.live.fold, self.claim)

    def _fail(self, error: Exception) -> None:
        self._engine.observer.failed(self.spec, error)
        self.live.failure = error


class KeepAliveTimer:
    """Timer that appends `Alive` when readers saw nothing for `interval_s`.

    Proxies and Codex cut silent streams; Codex's timer is reset by events, not by comments. The
    entry is in the log, so a replay shows the same events.
    """

    __slots__ = ("_interval_s", "_journal", "_loop", "_timer")

    def __init__(self, journal: Journal, interval_s: float) -> None:
        self._journal = journal
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._interval_s, self._on_interval)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _on_interval(self) -> None:
        if self._journal.is_abandoned:
            return
        silent_s = self._loop.time() - self._journal.live.shown_at
        if silent_s >= self._interval_s:
            # Entries that wait for their commit will break the silence. While the database is away
            # readers would see no `Alive` either, however many were appended.
            if not self._journal.live.is_holding:
                self._journal.append(Alive())
            silent_s = 0.0
        self._timer = self._loop.call_later(self._interval_s - silent_s, self._on_interval)
