"""Limits of this process, in step with other replicas.

Requests that their gate cannot serve wait for one exchange with the database together. A round per
second exchanges all changes. Without the database each process uses its share of every limit, for a
bounded time.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from gateway.concurrency import OnceEvent
from gateway.errors import StoreError, StoreUnavailable
from gateway.limits.accounting import (
    NOTHING_USED,
    REFUSED_FACTOR,
    Caller,
    Figures,
    Gates,
    figures_of,
)
from gateway.limits.money import Prices
from gateway.store.limits.counters import (
    BUCKETS_MAX,
    NOTHING_SPENT,
    SpendRow,
    SyncReply,
    SyncRequest,
)
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from uuid import UUID

    from gateway.limits.accounting import Charge, Elsewhere, GateObserver
    from gateway.limits.buckets import Ask, Bucket
    from gateway.limits.money import Price, SpendMeter, Spent
    from gateway.limits.rules import Rules, Terms
    from gateway.limits.stored_bytes import StoredCharge
    from gateway.store.limits.counters import Key
    from gateway.tenancy import Principal, TenantId

    _Spending = tuple[Key, SpendMeter, list[Spent]]

WAIT_MAX_S: Final = 2.0
JITTER: Final = 0.2
PRICES_S: Final = 10.0
PRICES_LACKING_S: Final = 1.0
"""While something without a price is used."""
CLEANED_EVERY: Final = 30
"""Rounds between removals of reports of dead processes."""

_log = EventLog(__name__)


class SyncCounters(Protocol):
    """`store.limits.counters.exchange` of a replica."""

    def __call__(self, request: SyncRequest, *, is_round: bool) -> Awaitable[SyncReply]: ...


@dataclass(frozen=True, slots=True)
class LimitStore:
    """Database functions; each raises `StoreError`."""

    exchange: SyncCounters
    prices: Callable[[], Awaitable[Sequence[Price]]]
    forget: Callable[[], Awaitable[None]]
    read: Callable[[UUID, Terms], Awaitable[Elsewhere]]


@dataclass(frozen=True, slots=True)
class LimitTiming:
    """Times; without the database limits hold for `stale_max_s`."""

    sync_interval_s: float = 1.0
    stale_max_s: float = 900.0
    refusals_per_request_max: int = REFUSED_FACTOR


class _Round:
    """Next exchange. Its grants are reserved until all waiting requests have woken and taken
    theirs: an earlier exchange would give them back as unused.
    """

    __slots__ = ("_over", "_waiting", "taken")

    def __init__(self) -> None:
        self._over = OnceEvent()
        self.taken = OnceEvent()
        self._waiting = 0

    async def wait(self) -> None:
        # The caller then takes its grant without awaiting anything.
        self._waiting += 1
        try:
            await self._over.wait()
        finally:
            self._waiting -= 1
            if not self._waiting and self._over.is_set():
                self.taken.set()

    def end(self) -> None:
        self._over.set()
        if not self._waiting:
            self.taken.set()


class Limiter:
    def __init__(
        self,
        store: LimitStore,
        observer: GateObserver,
        timing: LimitTiming,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self.observer = observer
        self.timing = timing
        self._clock = clock
        self.gates = Gates(
            clock=clock,
            now=now,
            random=random.random,  # noqa: S311 - spreads load, no secret
            observer=observer,
            refused_factor=timing.refusals_per_request_max,
        )
        self._now = now
        self._next = _Round()
        self._wanted = asyncio.Event()
        self._is_well = True
        self._away_since: float | None = None
        self._others = 0
        self._prices_at = float("-inf")
        self._count = 0

    async def enter(
        self,
        principal: Principal,
        model: str,
        tier: str,
        *,
        stores: int | None = None,
        is_background: bool = False,
    ) -> Charge | None:
        """Pass gate 1; return None if the key has no limit.

        `stores` is in bytes. Background responses do not count as concurrent. Raises `RateLimited`,
        and `StoreUnavailable` after a long outage.
        """
        rules = principal.terms.rules(model)
        if rules is None:
            return None
        if is_background and rules.places:
            rules = replace(rules, places=())
        self._check_age()
        if stores is not None and rules.stored:
            return await self._enter_storing(principal, rules, (model, tier), stores)
        return await self._enter(_caller(principal, model, tier), rules)

    async def _enter(self, caller: Caller, rules: Rules) -> Charge:
        attempt = 0
        while (charge := self.gates.enter(caller, rules, attempt)) is None:
            await self._ask()
            attempt += 1
        return charge

    async def _enter_storing(
        self, principal: Principal, rules: Rules, what: tuple[str, str], size: int
    ) -> Charge:
        held = await self._hold(principal, size)
        try:
            charge = await self._enter(_caller(principal, *what), rules)
        except BaseException:
            held.give_back()
            raise
        charge.stored = held
        return charge

    @asynccontextmanager
    async def storing(self, principal: Principal, size: int) -> AsyncIterator[None]:
        """Count a request without a model, and its stored bytes unless the block raises."""
        terms = principal.terms
        if terms.stored or terms.writes:
            self._check_age()
        if terms.writes:
            charge = await self._enter(_caller(principal, "", "default"), terms.writes)
            charge.settle(NOTHING_USED)
        if not terms.stored:
            yield
            return
        held = await self._hold(principal, size)
        try:
            yield
        except BaseException:
            held.give_back()
            raise

    async def _hold(self, principal: Principal, size: int) -> StoredCharge:
        storage, terms = self.gates.storage, principal.terms
        if not storage.is_loaded(principal.tenant_id, terms.stored):
            self.gates.needs_round = True
            await self._ask()
        return storage.hold(principal.tenant_id, terms, size, self.gates.elsewhere)

    async def reserve(
        self, charge: Charge | None, principal: Principal, *, tokens: int, most: int
    ) -> None:
        """Pass gate 2 for `tokens` of input and at most `most` of output; if refused, settle the
        charge.
        """
        if charge is None:
            return
        rules = principal.terms.rules(charge.model)
        if rules is None or not (rules.tokens or rules.meters):
            return
        try:
            await self._reserve(charge, principal, rules, (tokens, most))
        except BaseException:
            charge.settle(NOTHING_USED)
            raise

    async def _reserve(
        self, charge: Charge, principal: Principal, rules: Rules, size: tuple[int, int]
    ) -> None:
        caller = _caller(principal, charge.model, charge.tier)
        attempt = 0
        while not self.gates.reserve(charge, caller, rules, size, attempt):
            await self._ask()
            attempt += 1

    async def figures(self, tenant_id: TenantId, terms: Terms) -> Figures:
        if not terms.limits and not terms.budgets:
            return Figures()
        elsewhere = await self._store.read(tenant_id, terms)
        return figures_of(self.gates, tenant_id, terms, elsewhere, self._now())

    @contextmanager
    def connected(self, principal: Principal) -> Iterator[None]:
        gates, tenant_id = self.gates, principal.tenant_id
        with ExitStack() as places:
            for limit in principal.terms.at_once("websockets"):
                gates.place(tenant_id, limit, principal.terms)
                places.callback(gates.give_up_place, tenant_id, limit.name)
            yield

    async def run(self) -> None:
        interval_s = self.timing.sync_interval_s
        due_at = self._clock() + interval_s * random.random()  # noqa: S311 - out of step
        while True:
            await self._wait_until(due_at)
            is_round = self._clock() >= due_at or self.gates.needs_round
            if is_round:
                due_at = self._clock() + interval_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
            await self.once(is_round=is_round)

    async def once(self, *, is_round: bool = True) -> None:
        current, self._next = self._next, _Round()
        self._wanted.clear()
        self.gates.needs_round = False
        asks = self._asks()
        begun = time.perf_counter()
        try:
            if await self._exchange_all(asks, is_round=is_round):
                self.observer.limits_synced("ok", time.perf_counter() - begun)
        except (StoreError, TimeoutError) as error:
            self._on_failed_round(asks, error)
            self.observer.limits_synced("failed", time.perf_counter() - begun)
        finally:
            current.end()
        await current.taken.wait()

    async def flush(self) -> None:
        await self.once()
        if not all(meter.is_written for _, meter in self.gates.meters()):
            # A meter whose row was read just now is written in the second round.
            await self.once()

    async def _wait_until(self, due_at: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, due_at - self._clock())):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _ask(self) -> None:
        # Returns without an answer of the database, too: detached buckets go on without it.
        self._wanted.set()
        await self._next.wait()

    def _asks(self) -> dict[Key, tuple[Bucket, Ask]]:
        # Buckets that requests wait for come first, in any number.
        asks: dict[Key, tuple[Bucket, Ask]] = {}
        now = self._clock()
        for key, bucket in sorted(self.gates.live_buckets(), key=lambda one: not one[1].is_needed):
            if len(asks) >= BUCKETS_MAX and not bucket.is_needed:
                break
            if (ask := bucket.ask(now)) is not None:
                asks[key] = bucket, ask
        return asks

    def _request(
        self,
        asks: Mapping[Key, tuple[Bucket, Ask]],
        spending: Iterable[_Spending],
        *,
        is_round: bool,
    ) -> SyncRequest:
        spend, watched = [], []
        for (tenant_id, name), meter, rows in spending:
            mine = [SpendRow(tenant_id, name, row.starts_at, row.total) for row in rows]
            spend += [row for row in mine if row.amount and not meter.is_written]
            watched.append(mine[-1])
        return SyncRequest(
            {key: ask for key, (_, ask) in asks.items()},
            self._reports() if is_round else {},
            spend,
            watched,
            [key for key, _ in self.gates.storage.watched()] if is_round else (),
        )

    def _reports(self) -> dict[Key, int]:
        aside = {key: meter.reserved for key, meter in self.gates.meters() if meter.is_loaded}
        return {**self.gates.reports(), **aside, **dict(self.gates.storage.watched())}

    async def _exchange_all(self, asks: dict[Key, tuple[Bucket, Ask]], *, is_round: bool) -> bool:
        # In parts of `BUCKETS_MAX`. True: there was anything to send. Empties `asks`, to end the
        # loop.
        was_written = False
        while True:
            part = dict(islice(asks.items(), BUCKETS_MAX))
            was_written = await self._exchange(part, is_round=is_round) or was_written
            for key in part:
                del asks[key]
            if not asks:
                return was_written
            is_round = False

    async def _exchange(self, asks: Mapping[Key, tuple[Bucket, Ask]], *, is_round: bool) -> bool:
        # True: there was anything to send, or the last exchange failed.
        now = self._now()
        spending = [(key, meter, meter.rows(now)) for key, meter in self.gates.meters()]
        request = self._request(asks, spending, is_round=is_round)
        is_idle = not (request.asks or request.reports or request.spend or request.watched)
        # Try even if idle: without an exchange, requests would be refused after `stale_max_s`.
        is_retry = is_round and self._away_since is not None
        if is_idle and not is_retry and not self._is_due_for_prices():
            return False
        async with asyncio.timeout(WAIT_MAX_S):
            reply = await self._store.exchange(request, is_round=is_round)
            if self._is_due_for_prices():
                self.gates.prices = Prices(await self._store.prices())
                self._prices_at, self.gates.lacks_price = self._clock(), False
            if is_round:
                self._count += 1
                if not self._count % CLEANED_EVERY:
                    await self._store.forget()
        self._apply(asks, request, reply, spending)
        return True

    def _is_due_for_prices(self) -> bool:
        age_max_s = PRICES_LACKING_S if self.gates.lacks_price else PRICES_S
        is_old = self._clock() - self._prices_at > age_max_s
        return is_old and any(True for _ in self.gates.meters())

    def _apply(
        self,
        asks: Mapping[Key, tuple[Bucket, Ask]],
        request: SyncRequest,
        reply: SyncReply,
        spending: Iterable[_Spending],
    ) -> None:
        now = self._clock()
        self._away_since = None
        if not self._is_well:
            _log.info("limits are in step again")
            self._is_well = True
        for key, (bucket, _) in asks.items():
            granted, level = reply.buckets[key]
            bucket.answered(granted, level, now)
        if reply.is_round:
            self._others = reply.others
            self.gates.elsewhere = {key: reply.elsewhere.get(key, 0) for key in request.reports}
            self.gates.storage.update(request.stored, reply.stored)
        for key, meter, rows in spending:
            spent = reply.spent.get(key, NOTHING_SPENT)
            meter.mark_written(
                rows,
                others=spent.others,
                others_reserved=self.gates.elsewhere.get(key, 0),
                mine=spent.mine,
            )

    def _on_failed_round(self, asks: Mapping[Key, tuple[Bucket, Ask]], error: Exception) -> None:
        now = self._clock()
        if self._is_well:
            _log.warning("limits go on without the database", error=error)
            self._is_well = False
        if self._away_since is None:
            self._away_since = now
        until = self._away_since + self.timing.stale_max_s
        for bucket, ask in asks.values():
            bucket.failed(ask, now, replicas=self._others + 1, until=until)

    def _check_age(self) -> None:
        since = self._away_since
        if since is not None and self._clock() - since > self.timing.stale_max_s:
            raise StoreUnavailable("nobody knows what is left of the limits")


def _caller(principal: Principal, model: str, tier: str) -> Caller:
    return Caller(principal.tenant_id, principal.project, principal.terms, model, tier)
