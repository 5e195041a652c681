"""Counts of one process for all limits: two gates of a request, its settlement, and figures.

Gate 1 is before anything is read. Gate 2 is before the request to a backend, when the prompt's
length is known, with an estimate of the output, which the usage replaces. Nothing waits or uses a
database: if a slice has not enough, and its row may have more, the caller reads the row and tries
the gate again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, cast
from uuid import UUID

from gateway.limits.buckets import Bucket, Paces
from gateway.limits.headers import Headroom, headers_of
from gateway.limits.money import Prices, SpendMeter, begins, ends
from gateway.limits.refusal import (
    RETRY_AFTER_MAX_S,
    ReachedLimit,
    over_budget,
    rate_limited,
    too_large,
    too_many,
)
from gateway.limits.rules import MINUTE_S, Meter
from gateway.limits.stored_bytes import Storage, account_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from gateway.errors import RateLimited
    from gateway.limits.headers import Headers
    from gateway.limits.money import Price
    from gateway.limits.rules import Budget, Key, Limit, Rules, Terms, What
    from gateway.limits.stored_bytes import StoredCharge


class Used(NamedTuple):
    """Usage of a response. `is_whole`: it was answered to its end."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    web_searches: int = 0
    is_whole: bool = False


NOTHING_USED = Used()


class TokenCharge(NamedTuple):
    name: str
    what: What
    bucket: Bucket
    reserved: float


class SpendCharge(NamedTuple):
    meter: SpendMeter
    reserved: int


class Charge:
    """Charge of one request. Only the first of `settle`, `hand_over` and `leave` counts."""

    __slots__ = (
        "_books", "headers", "is_open", "model", "places", "price", "project", "spend", "stored",
        "tenant_id", "tier", "tokens",
    )  # fmt: skip

    def __init__(self, books: Gates, tenant_id: UUID, project: UUID, model: str, tier: str) -> None:
        self._books = books
        self.tenant_id = tenant_id
        self.project = project
        self.model = model
        self.tier = tier
        self.places: tuple[str, ...] = ()
        self.tokens: tuple[TokenCharge, ...] = ()
        self.spend: tuple[SpendCharge, ...] = ()
        self.price: Price | None = None
        self.stored: StoredCharge | None = None
        self.headers: Headers = ()
        self.is_open = True

    def settle(self, used: Used) -> None:
        if self.is_open:
            self.is_open = False
            self._books.settle(self, used)
            if self.stored is not None:
                # Not `==`: a warm-up, or what was cancelled at once, uses nothing and is stored.
                if used is NOTHING_USED:
                    self.stored.give_back()
                else:
                    self.stored.generated(used.output_tokens)

    def hand_over(self) -> None:
        # Another process settles the charge; this one only releases its reservations.
        if self.is_open:
            self.is_open = False
            self._books.release(self)

    def leave(self) -> bool:
        """Release its places, but keep its spending reserved. Return False if it has none."""
        if not self.is_open:
            return False
        self.is_open = False
        self._books.give_up_places(self)
        return bool(self.spend)

    def give_back_spending(self) -> None:
        # What was set aside is spent by now, or never will be.
        for one in self.spend:
            one.meter.reserved -= one.reserved

    def packed(self) -> dict[str, Any] | None:
        """Return as JSON what another process needs to settle the charge."""
        if not self.tokens and not self.spend:
            return None
        return {
            "project": str(self.project),
            "tier": self.tier,
            "tokens": [
                [one.name, one.what, one.bucket.rate, one.bucket.capacity, one.reserved]
                for one in self.tokens
            ],
            "meters": [list(one.meter.meter) for one in self.spend],
        }


K = TypeVar("K")

ALPHA: Final = 0.02
"""Weight of the latest answer."""
FACTOR: Final = 1.5
"""Multiple of the expected tokens, so that few answers are longer."""
LEAST: Final = 256
AT_FIRST: Final = 1_024
"""Tokens until `FIRST` answers are known."""
FIRST: Final = 20
KEPT: Final = 4_096


class Estimates(Generic[K]):
    def __init__(self) -> None:
        self._means: OrderedDict[K, tuple[int, float]] = OrderedDict()

    def reserve(self, key: K, most: int) -> int:
        count, mean = self._means.get(key, (0, 0.0))
        expected = AT_FIRST if count < FIRST else max(LEAST, int(FACTOR * mean))
        return min(expected, most)

    def learn(self, key: K, tokens: int) -> None:
        count, mean = self._means.pop(key, (0, 0.0))
        weight = max(ALPHA, 1 / (count + 1))
        self._means[key] = count + 1, mean + weight * (tokens - mean)
        if len(self._means) > KEPT:
            self._means.popitem(last=False)


BUSY_WAIT_S: Final = 1.0
"""Retry-after where too many responses are in progress; the true wait is not known."""
ATTEMPTS_MAX: Final = 3
"""Attempts at one gate: other requests may take the tokens that came for it."""
NEAR_THE_CAP: Final = 0.95
"""Part of a budget after which a request's maximal output is reserved, so that the end is exact."""
FORGOTTEN_S: Final = 120.0
JITTER: Final = 0.2
REFUSED_FACTOR: Final = 10
"""Multiple of a request limit that may be refused in a minute before a client has to pause."""

T = TypeVar("T")


class GateObserver(Protocol):
    def limit_refused(self, what: str) -> None: ...

    def limit_would_refuse(self, what: str) -> None: ...

    def limits_synced(self, outcome: Literal["ok", "failed"], seconds: float) -> None: ...


class Cost(NamedTuple):
    limit: Limit
    bucket: Bucket
    amount: float


class Caller(NamedTuple):
    tenant_id: UUID
    project: UUID
    terms: Terms
    model: str
    tier: str = "default"


class Gates:
    def __init__(
        self,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        random: Callable[[], float],
        observer: GateObserver,
        refused_factor: int = REFUSED_FACTOR,
    ) -> None:
        # `clock` is monotonic, `now` is the time, `random` returns numbers from 0 to 1.
        # `refused_factor` times a request limit may be refused a minute.
        self._clock = clock
        self._now = now
        self._random = random
        self._observer = observer
        self._refused_factor = refused_factor
        self._refused: Paces[Key] = Paces()
        self._buckets: defaultdict[UUID, dict[str, Bucket]] = defaultdict(dict)
        self._meters: defaultdict[UUID, dict[str, SpendMeter]] = defaultdict(dict)
        self._estimates: Estimates[tuple[UUID, str]] = Estimates()
        self.storage = Storage(clock, self._refuse)
        self.places: dict[Key, int] = defaultdict(int)
        self.elsewhere: dict[Key, int] = {}
        """Counts of other processes at the last round, of keys that this one reported, too:
        requests in progress, reserved spending, bytes added to storage."""
        self.needs_round = False
        self._places_used: dict[Key, float] = {}
        self.prices = Prices()
        self.lacks_price = False
        """Something unpriced was used; it may have a price by now."""

    def reports(self) -> dict[Key, int]:
        now = self._clock()
        gone = [key for key, at in self._places_used.items() if now - at > FORGOTTEN_S]
        for key in gone:
            if not self.places.get(key):
                del self._places_used[key]
        return {key: self.places.get(key, 0) for key in self._places_used}

    def live_buckets(self) -> Iterator[tuple[Key, Bucket]]:
        """Yield buckets used lately, and forget the others."""
        now = self._clock()
        for (tenant_id, name), bucket in _all(self._buckets):
            if not bucket.held and not bucket.is_pending and now - bucket.used_at > FORGOTTEN_S:
                _forget(self._buckets, tenant_id, name)
            else:
                yield (tenant_id, name), bucket

    def meters(self) -> Iterator[tuple[Key, SpendMeter]]:
        """Yield meters used lately or not yet written, and forget the others."""
        now = self._clock()
        for (tenant_id, name), meter in _all(self._meters):
            # Made again, it goes on from the row of this process.
            is_idle = meter.is_written and not meter.reserved
            if is_idle and now - meter.used_at > FORGOTTEN_S:
                _forget(self._meters, tenant_id, name)
            else:
                yield (tenant_id, name), meter

    def held(self, key: Key) -> float:
        """Return the tokens of a bucket held outside its row; below 0 after overuse."""
        tenant_id, name = key
        bucket = self._buckets.get(tenant_id, {}).get(name)
        return 0.0 if bucket is None else bucket.held

    def spending(self, key: Key, now: datetime) -> tuple[int, int]:
        tenant_id, name = key
        meter = self._meters.get(tenant_id, {}).get(name)
        return (0, 0) if meter is None else (meter.own_spent(now), meter.reserved)

    def enter(self, caller: Caller, rules: Rules, attempt: int = 0) -> Charge | None:
        """Admit a request at gate 1; None: read the rows, then make the next attempt.

        Raises `RateLimited`, after `ATTEMPTS_MAX` instead of None.
        """
        if not attempt and self._refused:
            self._check_refused(caller, rules)
        if not self._has_place(caller, rules, attempt):
            return None
        if not self._has_budget(caller, rules, attempt):
            return None
        buckets = self._buckets[caller.tenant_id]
        costs = [Cost(one, self._bucket(buckets, one), 1.0) for one in rules.requests]
        if self._take(costs, caller, attempt) is None:
            return None
        charge = Charge(self, caller.tenant_id, caller.project, caller.model, caller.tier)
        charge.places = tuple([one.name for one in rules.places])
        for name in charge.places:
            self.places[caller.tenant_id, name] += 1
        if not rules.tokens:
            charge.headers = headers_of(self._tightest(rules.requests, buckets), None)
        return charge

    def reserve(
        self, charge: Charge, caller: Caller, rules: Rules, size: tuple[int, int], attempt: int = 0
    ) -> bool:
        """Reserve at gate 2 for `size`: input tokens, and output tokens at most. False: as
        `enter`'s None.

        Raises `RateLimited`; the charge stays open then.
        """
        tokens_in, most = size
        expected = self._estimates.reserve((caller.project, caller.model), most)
        amounts = {
            "tokens": tokens_in + expected, "input_tokens": tokens_in, "output_tokens": expected
        }  # fmt: skip
        price = self._price(caller.tenant_id, caller.model, caller.tier) if rules.meters else None
        spend = self._set_aside(caller, rules, price, (tokens_in, expected, most))
        buckets = self._buckets[caller.tenant_id]
        costs = [Cost(one, self._bucket(buckets, one), amounts[one.what]) for one in rules.tokens]
        taken = self._take(costs, caller, attempt)
        if taken is None:
            return False
        charge.price, charge.spend = price, tuple(spend)
        for one in spend:
            one.meter.reserved += one.reserved
        charge.tokens = tuple(
            [TokenCharge(one.limit.name, one.limit.what, one.bucket, one.amount) for one in taken]
        )
        charge.headers = headers_of(
            self._tightest(rules.requests, buckets), self._tightest(rules.tokens, buckets)
        )
        return True

    def adopt(self, tenant_id: UUID, model: str, packed: dict[str, Any]) -> Charge:
        """Return the charge of a response that another process admitted. Raises `ValueError`,
        `TypeError` or `LookupError` for damaged data.
        """
        charge = Charge(self, tenant_id, UUID(packed["project"]), model, packed["tier"])
        tokens, buckets = [], self._buckets[tenant_id]
        for name, what, rate, capacity, reserved in packed["tokens"]:
            bucket = buckets.get(name)
            if bucket is None:
                bucket = buckets[name] = Bucket(rate, capacity, self._clock())
            tokens.append(TokenCharge(name, cast("What", what), bucket, reserved))
        charge.tokens = tuple(tokens)
        charge.spend = tuple(
            SpendCharge(self._meter(self._meters[tenant_id], Meter(*one)), 0)
            for one in packed["meters"]
        )
        charge.price = self._price(tenant_id, model, charge.tier) if charge.spend else None
        return charge

    def settle(self, charge: Charge, used: Used) -> None:
        """Replace the reservations by the usage. Each charge calls it once."""
        self.release(charge)
        spent = used.input_tokens + used.output_tokens
        amounts = {
            "tokens": spent, "input_tokens": used.input_tokens, "output_tokens": used.output_tokens
        }  # fmt: skip
        now, buckets = self._clock(), self._buckets[charge.tenant_id]
        for one in charge.tokens:
            # The bucket may have been forgotten and made anew: then the new one gets the tokens.
            bucket = buckets.setdefault(one.name, one.bucket)
            bucket.give_back(one.reserved - amounts[one.what], now)
        if used.is_whole and used.output_tokens:  # a warm-up and an embedding say nothing
            self._estimates.learn((charge.project, charge.model), used.output_tokens)
        if used == NOTHING_USED or not charge.spend:
            return
        at = self._now()
        price = charge.price or self._price(charge.tenant_id, charge.model, charge.tier)
        cost = 0 if price is None else _cost(price, used)
        meters = self._meters[charge.tenant_id]
        for meter in [one.meter.meter for one in charge.spend]:
            # Forgotten meanwhile, it is made anew: one without a reservation counts as unused.
            self._meter(meters, meter).spend(cost if meter.unit == "usd" else spent, at)

    def place(self, tenant_id: UUID, limit: Limit, terms: Terms) -> None:
        key = (tenant_id, limit.name)
        used = self.places[key] + self.elsewhere.get(key, 0)
        if used >= limit.value:
            refusal = too_many(ReachedLimit(limit, terms, ""), used=used, wait_s=BUSY_WAIT_S)
            self._refuse(limit, refusal, tenant_id)
        self.places[key] += 1

    def give_up_place(self, tenant_id: UUID, name: str) -> None:
        key = (tenant_id, name)
        left = self.places[key] - 1
        if left:
            self.places[key] = left
        else:
            del self.places[key]

    def give_up_places(self, charge: Charge) -> None:
        for name in charge.places:
            self.give_up_place(charge.tenant_id, name)

    def release(self, charge: Charge) -> None:
        self.give_up_places(charge)
        charge.give_back_spending()

    def _has_place(self, caller: Caller, rules: Rules, attempt: int) -> bool:
        # False: the requests in progress elsewhere are not known yet.
        now = self._clock()
        for limit in rules.places:
            key = (caller.tenant_id, limit.name)
            self._places_used[key] = now
            elsewhere = self.elsewhere.get(key)
            if elsewhere is None and not attempt:
                self.needs_round = True
                return False
            used = self.places.get(key, 0) + (elsewhere or 0)
            if used >= limit.value:
                wait_s = BUSY_WAIT_S * (1 + JITTER * self._random())
                where = ReachedLimit(limit, caller.terms, caller.model)
                refusal = too_many(where, used=used, wait_s=wait_s)
                buckets = self._buckets[caller.tenant_id]
                refusal.headers = headers_of(
                    self._tightest(rules.requests, buckets), self._tightest(rules.tokens, buckets)
                )
                self._refuse(limit, refusal, caller.tenant_id)
        return True

    def _has_budget(self, caller: Caller, rules: Rules, attempt: int) -> bool:
        # False: the spending is not known yet.
        if not rules.meters:
            return True
        now, meters = self._now(), self._meters[caller.tenant_id]
        are_loaded = [self._meter(meters, one).is_loaded for one in rules.meters]
        if not attempt and not all(are_loaded):
            return False
        for budget in rules.budgets:
            if meters[budget.meter].spent(now) >= budget.cap:
                self._over(caller, budget, now, is_spent=True)
        return True

    def _set_aside(
        self, caller: Caller, rules: Rules, price: Price | None, size: tuple[int, int, int]
    ) -> list[SpendCharge]:
        tokens_in, expected, most = size
        now, aside, meters = self._now(), {}, self._meters[caller.tenant_id]
        for one in rules.meters:
            meter = self._meter(meters, one)
            aside[one.name] = SpendCharge(meter, _amount(one, price, tokens_in, expected))
        for budget in rules.budgets:
            meter = aside[budget.meter].meter
            committed = meter.committed(now)
            if committed >= NEAR_THE_CAP * budget.cap:
                whole = _amount(meter.meter, price, tokens_in, most)
                aside[budget.meter] = SpendCharge(meter, whole)
            if committed + aside[budget.meter].reserved > budget.cap:
                self._over(caller, budget, now, is_spent=committed >= budget.cap)
        return list(aside.values())

    def _over(self, caller: Caller, budget: Any, now: datetime, *, is_spent: bool) -> None:
        if budget.mode == "observe":
            self._observer.limit_would_refuse("budget")
            return
        self._observer.limit_refused("budget")
        raise over_budget(
            budget, caller.terms, is_spent=is_spent, resets_at=ends(budget.interval, now)
        )

    def _take(self, costs: Sequence[Cost], caller: Caller, attempt: int) -> Sequence[Cost] | None:
        # All or nothing. None: ask the rows first. Observed limits are taken where there is enough.
        now = self._clock()
        if not attempt:
            for one in costs:
                one.bucket.demand(one.amount, now)
        short = [one for one in costs if one.bucket.held < one.amount]
        if short:
            if self._asks(short, caller, now, is_last=attempt >= ATTEMPTS_MAX):
                for one in costs:
                    if one not in short:
                        one.bucket.need(one.amount)  # or it would go back meanwhile
                return None
            for one in short:
                self._observer.limit_would_refuse(one.limit.what)
            costs = [one for one in costs if one not in short]
        for one in costs:
            one.bucket.take(one.amount)
        return costs

    def _asks(self, short: Sequence[Cost], caller: Caller, now: float, *, is_last: bool) -> bool:
        # True: the rows may have the missing tokens. Raises `RateLimited` if they cannot have them.
        ask = [one for one in short if one.bucket.is_worth_asking(one.amount, now) and not is_last]
        hopeless = [one for one in short if one not in ask and one.limit.mode == "enforce"]
        if hopeless:
            longest = max(hopeless, key=lambda one: one.bucket.until_fits_s(one.amount, now))
            self._refuse(longest.limit, self._refusal(longest, caller, now), caller.tenant_id)
        for one in ask:
            one.bucket.need(one.amount)
        return bool(ask)

    def _refusal(
        self, cost: Cost, caller: Caller, now: float, *, least_s: float = 0.001
    ) -> RateLimited:
        limit, bucket = cost.limit, cost.bucket
        available = bucket.available(now)
        left, reset_s = int(available), bucket.until_full_s(available)
        room = Headroom(limit.value, left, reset_s, is_project=limit.scope == "project")
        rules = caller.terms.rules(caller.model)
        assert rules is not None, "one of its limits refuses"
        buckets = self._buckets[caller.tenant_id]
        if limit.what == "requests":
            headers = headers_of(room, self._tightest(rules.tokens, buckets))
        else:
            headers = headers_of(self._tightest(rules.requests, buckets), room)
        amount, where = int(cost.amount), ReachedLimit(limit, caller.terms, caller.model)
        if cost.amount > bucket.capacity:
            return too_large(where, cost=amount, headers=headers)
        fits_s = bucket.until_fits_s(cost.amount, now)
        # No more than spreads those that wait: of a day it would be hours.
        jitter_s = min(fits_s, RETRY_AFTER_MAX_S) * JITTER * self._random()
        wait_s = max(fits_s + jitter_s, least_s)
        return rate_limited(
            where, used=limit.value - left, cost=amount, wait_s=wait_s, headers=headers
        )

    def _refuse(self, limit: Limit, refusal: RateLimited, tenant_id: UUID) -> None:
        if limit.mode == "observe":
            self._observer.limit_would_refuse(limit.what)
            return
        self._observer.limit_refused(limit.what)
        if limit.what == "requests":
            self._refused.spend((tenant_id, limit.name), self._refusals_of(limit), self._clock())
        raise refusal

    def _refusals_of(self, limit: Limit) -> float:
        return max(1.0, self._refused_factor * limit.rate * MINUTE_S)

    def _check_refused(self, caller: Caller, rules: Rules) -> None:
        # A client that keeps sending refused requests has to pause. Raises `RateLimited`.
        for limit in rules.requests:
            key = (caller.tenant_id, limit.name)
            if limit.mode == "observe" or key not in self._refused:
                continue
            most, now = self._refusals_of(limit), self._clock()
            if wait_s := self._refused.wait_s(key, most, now):
                cost = Cost(limit, self._bucket(self._buckets[caller.tenant_id], limit), 1.0)
                refusal = self._refusal(cost, caller, now, least_s=wait_s)
                self._refuse(limit, refusal, caller.tenant_id)

    def _tightest(self, limits: Sequence[Limit], buckets: Mapping[str, Bucket]) -> Headroom | None:
        # The limit with the smallest share left; None where that is not known.
        least, tightest, now = 2.0, None, self._clock()
        for limit in limits:
            bucket = buckets.get(limit.name)
            if bucket is None or bucket.is_detached:
                return None
            available = bucket.available(now)
            share = available / limit.value if limit.value else 0.0
            if share < least:
                least, tightest = share, (limit, available, bucket)
        if tightest is None:
            return None
        limit, available, bucket = tightest
        left = min(int(available), limit.value)
        is_project = limit.scope == "project"
        return Headroom(limit.value, left, bucket.until_full_s(available), is_project)

    def _bucket(self, buckets: dict[str, Bucket], limit: Limit) -> Bucket:
        bucket = buckets.get(limit.name)
        if bucket is None:
            bucket = buckets[limit.name] = Bucket(limit.rate, limit.value, self._clock())
        elif bucket.capacity != limit.value:
            bucket.resize(limit.rate, limit.value)
        return bucket

    def _meter(self, meters: dict[str, SpendMeter], meter: Meter) -> SpendMeter:
        spend = meters.get(meter.name)
        if spend is None:
            spend = meters[meter.name] = SpendMeter(meter, self._now())
        spend.used_at = self._clock()
        return spend

    def _price(self, tenant_id: UUID, model: str, tier: str) -> Price | None:
        price = self.prices.of(tenant_id, model, tier, self._now())
        self.lacks_price = self.lacks_price or price is None
        return price


def _all(kept: Mapping[UUID, Mapping[str, T]]) -> list[tuple[Key, T]]:
    return [
        ((tenant_id, name), one)
        for tenant_id, of_tenant in kept.items()
        for name, one in of_tenant.items()
    ]


def _forget(kept: dict[UUID, dict[str, T]], tenant_id: UUID, name: str) -> None:
    del kept[tenant_id][name]
    if not kept[tenant_id]:
        del kept[tenant_id]


def _amount(meter: Meter, price: Price | None, tokens_in: int, tokens_out: int) -> int:
    if meter.unit == "tokens":
        return tokens_in + tokens_out
    if price is None:
        return 0
    return price.tokens(input_tokens=tokens_in, cached_tokens=0, output_tokens=tokens_out)


def _cost(price: Price, used: Used) -> int:
    return price.tokens(
        input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
    ) + price.calls(tool_calls=used.tool_calls, web_searches=used.web_searches)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Counts of the database. `levels` of buckets are as they are filled by now; `under_way` and
    `spent` are of other processes; `written` is this process's spending, because it forgets idle
    meters.
    """

    levels: Mapping[Key, float] = field(default_factory=dict)
    under_way: Mapping[Key, int] = field(default_factory=dict)
    spent: Mapping[Key, int] = field(default_factory=dict)
    written: Mapping[Key, int] = field(default_factory=dict)
    stored: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitFigure:
    limit: Limit
    remaining: int
    reset_s: float | None


@dataclass(frozen=True, slots=True)
class BudgetFigure:
    budget: Budget
    spent: int
    reserved: int
    resets_at: datetime | None

    @property
    def remaining(self) -> int:
        return max(0, self.budget.cap - self.spent)

    def runs_out_at(self, now: datetime) -> datetime | None:
        """Return when nothing remains if spending goes on as so far; None: not in this interval."""
        if self.resets_at is None or self.spent <= 0:
            return None
        if not self.remaining:
            return now
        so_far = now - begins(self.budget.interval, now)
        left = self.resets_at - now
        # Compared as numbers: of a budget that is hardly used the time is longer than any date.
        if so_far.total_seconds() * self.remaining >= left.total_seconds() * self.spent:
            return None
        return now + so_far * (self.remaining / self.spent)


@dataclass(frozen=True, slots=True)
class Figures:
    limits: tuple[LimitFigure, ...] = ()
    budgets: tuple[BudgetFigure, ...] = ()

    @property
    def tightest(self) -> BudgetFigure | None:
        binding = [
            one for one in self.budgets if one.budget.unit == "usd" and one.budget.mode == "enforce"
        ]
        return min(binding, key=lambda one: one.remaining, default=None)


def figures_of(
    gates: Gates, tenant_id: UUID, terms: Terms, elsewhere: Elsewhere, now: datetime
) -> Figures:
    """Return a tenant's figures, without what other processes hold for the next second."""
    return Figures(
        tuple([_of_limit(gates, tenant_id, one, elsewhere) for one in terms.limits]),
        tuple([_of_budget(gates, tenant_id, one, elsewhere, now) for one in terms.budgets]),
    )


def _of_limit(gates: Gates, tenant_id: UUID, limit: Limit, elsewhere: Elsewhere) -> LimitFigure:
    key = (tenant_id, limit.name)
    if limit.what == "stored_bytes":
        key = (tenant_id, account_of(limit))
        used = elsewhere.stored.get(key, 0) + gates.storage.used(key)
        used += elsewhere.under_way.get(key, 0)
        return LimitFigure(limit, max(0, limit.value - used), None)
    if not limit.window_s:
        used = gates.places.get(key, 0) + elsewhere.under_way.get(key, 0)
        return LimitFigure(limit, max(0, limit.value - used), None)
    left = min(elsewhere.levels.get(key, limit.value), limit.value) + gates.held(key)
    left = min(max(left, 0.0), limit.value)
    return LimitFigure(limit, int(left), (limit.value - left) / limit.rate)


def _of_budget(
    gates: Gates, tenant_id: UUID, budget: Budget, elsewhere: Elsewhere, now: datetime
) -> BudgetFigure:
    key = (tenant_id, budget.meter)
    spent, reserved = gates.spending(key, now)
    return BudgetFigure(
        budget,
        max(spent, elsewhere.written.get(key, 0)) + elsewhere.spent.get(key, 0),
        reserved + elsewhere.under_way.get(key, 0),
        ends(budget.interval, now),
    )


def interval_starts(terms: Terms, now: datetime) -> dict[str, datetime]:
    return {one.meter: begins(one.interval, now) for one in terms.budgets}
