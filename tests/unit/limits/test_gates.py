"""The gates of one process: all or nothing, settled once, and what a refusal says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.errors import InvalidRequest, RateLimited
from gateway.limits.accounting import (
    AT_FIRST,
    ATTEMPTS_MAX,
    FIRST,
    FORGOTTEN_S,
    KEPT,
    LEAST,
    NOTHING_USED,
    Caller,
    Charge,
    Estimates,
    Gates,
    Used,
)
from gateway.limits.buckets import Bucket
from gateway.limits.headers import duration
from gateway.limits.money import Price, Prices
from gateway.limits.rules import DAY_S, NO_TERMS, RULES_MAX, Limit, Meter, Terms
from tests.fakes.cases import each
from tests.fakes.limited import MODEL, TENANT, at_once, budget, caller, limit, used

if TYPE_CHECKING:
    from gateway.limits.rules import Rules
    from gateway.tenancy import Principal

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


class Counted:
    def __init__(self) -> None:
        self.refused: list[str] = []
        self.observed: list[str] = []

    def limit_refused(self, what: str) -> None:
        self.refused.append(what)

    def limit_would_refuse(self, what: str) -> None:
        self.observed.append(what)

    def limits_synced(self, outcome: str, seconds: float) -> None:
        raise NotImplementedError


class Desk:
    """Gates with a clock that stands still, and rows that give what is asked for."""

    def __init__(self, principal: Principal) -> None:
        self.clock = 0.0
        self.counted = Counted()
        self.gates = Gates(
            clock=lambda: self.clock, now=lambda: NOW, random=lambda: 0.0, observer=self.counted
        )
        self.caller = Caller(TENANT, principal.project, principal.terms, MODEL)
        rules = principal.terms.rules(MODEL)
        assert rules is not None
        self.rules: Rules = rules

    def grant(self, share: float = 1.0) -> None:
        """What the rows answer to what is asked."""
        for _, bucket in self.gates.live_buckets():
            if (ask := bucket.ask(self.clock)) is not None:
                granted = min(ask.want, bucket.capacity) * share
                bucket.answered(granted, bucket.capacity * share - granted, self.clock)
        self.gates.elsewhere = dict.fromkeys(self.gates.reports(), 0)
        for _, meter in self.gates.meters():
            meter.mark_written(meter.rows(NOW), others=0, others_reserved=0)

    def enter(self) -> Charge:
        attempt = 0
        while (charge := self.gates.enter(self.caller, self.rules, attempt)) is None:
            self.grant()
            attempt += 1
        return charge

    def reserve(self, charge: Charge, tokens: int = 100, most: int = 4096) -> None:
        attempt = 0
        size = (tokens, most)
        while not self.gates.reserve(charge, self.caller, self.rules, size, attempt):
            self.grant()
            attempt += 1

    def held(self, what: str) -> float:
        return sum(
            one.available(self.clock) for (_, n), one in self.gates.live_buckets() if what in n
        )


@pytest.mark.slow
@given(st.integers(0, 9_000), st.integers(0, 9_000), st.integers(1, 9_000))
def test_what_is_settled_is_what_was_used(tokens: int, output: int, most: int) -> None:
    desk = Desk(caller(limit("tokens", 100_000), limit("output_tokens", 50_000)))
    charge = desk.enter()
    desk.reserve(charge, tokens, most)
    charge.settle(used(tokens, output))
    charge.settle(used(10**6, 10**6))
    charge.hand_over()
    assert desk.held("/tokens/") == pytest.approx(100_000 - tokens - output)
    assert desk.held("output_tokens") == pytest.approx(50_000 - output)


def test_what_failed_before_its_first_token_is_given_back_but_for_the_request() -> None:
    desk = Desk(caller(limit("requests", 10), limit("tokens", 10_000), at_once("responses", 1)))
    charge = desk.enter()
    desk.reserve(charge)
    assert desk.gates.places
    requests = desk.held("requests")
    charge.settle(NOTHING_USED)
    assert desk.held("/tokens/") == 10_000
    assert desk.held("requests") == requests
    assert not desk.gates.places
    desk.enter().settle(NOTHING_USED)


def test_a_refusal_takes_nothing() -> None:
    desk = Desk(caller(limit("requests", 100), limit("requests", 1, window_s=86_400)))
    desk.enter()
    before = desk.held("/60")
    with pytest.raises(RateLimited, match=r"requests per day \(RPD\): Limit 1, Used 1"):
        desk.enter()
    assert desk.held("/60") == before
    assert desk.counted.refused == ["requests"]


def test_what_a_waiting_request_has_of_one_bucket_stays_while_another_is_asked() -> None:
    desk = Desk(caller(limit("requests", 60), limit("requests", 600, window_s=86_400)))
    desk.enter()
    minute, day = [bucket for _, bucket in desk.gates.live_buckets()]
    minute.take(minute.held)
    day.give_back(1 - day.held, desk.clock)
    desk.clock += 1
    assert desk.gates.enter(desk.caller, desk.rules) is None
    desk.grant()
    assert desk.gates.enter(desk.caller, desk.rules, 1) is not None


def test_rows_that_never_have_enough_end_in_a_refusal() -> None:
    desk = Desk(caller(limit("requests", 5)))
    attempt = 0

    def insist() -> None:
        nonlocal attempt
        while desk.gates.enter(desk.caller, desk.rules, attempt) is None:
            desk.clock += 1  # by then it might be there, and somebody else took it
            desk.grant(0.1)
            attempt += 1

    with pytest.raises(RateLimited) as refused:
        insist()
    assert attempt <= ATTEMPTS_MAX
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s <= 60


class ScarceDesk(Desk):
    """The rows have what a bucket holds, and what comes back in time."""

    def __init__(self, principal: Principal) -> None:
        super().__init__(principal)
        self.levels: dict[str, tuple[float, float]] = {}

    @override
    def grant(self, share: float = 1.0) -> None:
        for (_, name), bucket in self.gates.live_buckets():
            if (ask := bucket.ask(self.clock)) is None:
                continue
            level, at = self.levels.get(name, (ask.capacity, self.clock))
            level = min(ask.capacity, level + ask.rate * (self.clock - at) + ask.change)
            granted = min(ask.want, max(level, 0.0))
            self.levels[name] = level - granted, self.clock
            bucket.answered(granted, level - granted, self.clock)


def refusals(desk: Desk, count: int) -> None:
    for _ in range(count):
        with pytest.raises(RateLimited):
            desk.enter()


def test_who_hammers_a_refusal_has_to_pause_and_who_pauses_is_let_through() -> None:
    desk = ScarceDesk(caller(limit("requests", 60)))
    for _ in range(60):
        desk.enter()
    refusals(desk, 10 * 60)
    for _ in range(100):  # far more often than it may be refused, and while there is room again
        desk.clock += 0.05
        refusals(desk, 1)
    with pytest.raises(RateLimited) as refused:
        desk.enter()
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s < 1
    desk.clock += 2 * refused.value.retry_after_s
    desk.enter()


def test_who_waits_as_told_is_never_held_up_by_refusals() -> None:
    desk = ScarceDesk(caller(limit("requests", 60)))
    for _ in range(60):
        desk.enter()
    for _ in range(60):
        with pytest.raises(RateLimited) as refused:
            desk.enter()
        assert refused.value.retry_after_s is not None
        desk.clock += refused.value.retry_after_s + 0.001
        desk.enter()


def test_what_is_only_observed_refuses_nobody_who_hammers() -> None:
    desk = Desk(caller(limit("requests", 1, mode="observe")))
    for _ in range(100):
        desk.enter()
    assert not desk.counted.refused


def test_a_limit_of_nothing_is_final() -> None:
    for one in (limit("requests", 0), at_once("responses", 0)):
        desk = Desk(caller(one))
        with pytest.raises(RateLimited) as refused:
            desk.enter()
        assert refused.value.is_final
        assert "try again" not in str(refused.value)


def test_who_has_to_wait_for_a_day_is_not_told_to_wait_for_longer() -> None:
    desk = ScarceDesk(caller(limit("requests", 1, window_s=DAY_S)))
    desk.gates._random = lambda: 1.0
    desk.enter()
    with pytest.raises(RateLimited, match=r"Please try again in 24h0m12s\.") as refused:
        desk.enter()
    assert refused.value.retry_after_s == 60


def test_what_is_observed_counts_and_lets_all_through() -> None:
    desk = Desk(
        caller(
            limit("requests", 1, mode="observe"),
            at_once("responses", 0, mode="observe"),
            budgets=[budget(0, unit="tokens", mode="observe")],
        )
    )
    for _ in range(3):
        desk.reserve(desk.enter())
    assert set(desk.counted.observed) == {"requests", "responses", "budget"}
    assert not desk.counted.refused


def test_the_last_of_a_budget_is_reserved_in_full() -> None:
    desk = Desk(caller(budgets=[budget(10_000, unit="tokens")]))
    first = desk.enter()
    desk.reserve(first, 9_600, 100)
    first.settle(used(9_600, 100))
    near = desk.enter()
    words = "monthly token budget .*would be exceeded by this request. Lower 'max_output_tokens'"
    with pytest.raises(RateLimited, match=words) as near_the_end:
        desk.reserve(near, 100, 1_000)
    assert near_the_end.value.code == "insufficient_quota"
    near.settle(NOTHING_USED)
    last = desk.enter()
    desk.reserve(last, 100, 200)
    last.settle(used(100, 200))
    with pytest.raises(
        RateLimited, match="token budget of organization acme is used up"
    ) as refused:
        desk.enter()
    assert refused.value.is_final
    assert refused.value.code == "insufficient_quota"


def test_money_is_spent_at_the_price_of_the_model() -> None:
    desk = Desk(caller(budgets=[budget(10**9)]))
    nano: dict[Any, int] = {"input": 50, "output": 200, "tool_call": 1_000}
    price = Price(UUID(int=5), TENANT, MODEL, "*", nano, datetime.fromtimestamp(0, UTC))
    desk.gates.prices = Prices([price])
    charge = desk.enter()
    desk.reserve(charge)
    ((_, meter),) = desk.gates.meters()
    assert meter.reserved == 100 * 50 + AT_FIRST * 200
    charge.settle(Used(100, 0, 10, tool_calls=2))
    assert meter.spent(NOW) == 100 * 50 + 10 * 200 + 2 * 1_000
    assert not meter.reserved
    assert not meter.is_written


def test_another_process_settles_what_this_one_charged() -> None:
    principal = caller(limit("tokens", 10_000), budgets=[budget(10**6, unit="tokens")])
    here, there = Desk(principal), Desk(principal)
    charge = here.enter()
    here.reserve(charge, 100, 500)
    packed = charge.packed()
    assert packed is not None
    charge.hand_over()
    assert here.held("/tokens/") == 10_000 - 600
    adopted = there.gates.adopt(TENANT, MODEL, packed)
    adopted.settle(used(100, 50))
    ((_, bucket),) = there.gates.live_buckets()
    assert bucket.held == 450
    assert [meter.own for _, meter in there.gates.meters()] == [150]
    assert Desk(caller(at_once("responses", 1))).enter().packed() is None


def test_a_response_that_outlives_its_meter_is_spent_all_the_same() -> None:
    principal = caller(budgets=[budget(10**6, unit="tokens"), budget(10**9)])
    here, there = Desk(principal), Desk(principal)
    charge = here.enter()
    here.reserve(charge, 100, 500)
    packed = charge.packed()
    assert packed is not None
    adopted = there.gates.adopt(TENANT, MODEL, packed)
    there.clock += FORGOTTEN_S + 1
    there.grant()
    assert not list(there.gates.meters())
    adopted.settle(used(100, 50))
    assert {key[1]: meter.own for key, meter in there.gates.meters()} == {
        one.meter: 150 if one.unit == "tokens" else 0 for one in principal.terms.budgets
    }


def test_what_is_under_way_elsewhere_counts() -> None:
    principal = caller(at_once("responses", 3))
    desk = Desk(principal)
    desk.enter()
    desk.gates.elsewhere = dict.fromkeys(desk.gates.reports(), 2)
    with pytest.raises(RateLimited, match="Limit 3, Used 3"):
        desk.enter()


def test_websockets_are_places_of_their_own() -> None:
    terms = Terms((at_once("websockets", 1),))
    (one,) = terms.at_once("websockets")
    desk = Desk(caller(limit("requests", 1)))
    desk.gates.place(TENANT, one, terms)
    with pytest.raises(RateLimited, match="WebSocket connections: Limit 1, Used 1"):
        desk.gates.place(TENANT, one, terms)
    desk.gates.give_up_place(TENANT, one.name)
    desk.gates.place(TENANT, one, terms)


def test_what_nobody_uses_is_forgotten() -> None:
    desk = Desk(
        caller(limit("requests", 5), at_once("responses", 5), budgets=[budget(9, unit="tokens")])
    )
    desk.enter().settle(NOTHING_USED)
    desk.clock += 10_000
    desk.grant()
    assert not list(desk.gates.live_buckets())
    assert not desk.gates.reports()
    assert not list(desk.gates.meters())


def test_what_was_spent_in_this_interval_is_not_forgotten() -> None:
    """Its own row is what a process does not read again, so it has to know it."""
    desk = Desk(caller(budgets=[budget(100)]))
    meter = desk.gates._meter(desk.gates._meters[TENANT], Meter("m", "usd", "month"))
    meter.spend(70, NOW)
    meter.mark_written(meter.rows(NOW), others=5, others_reserved=0)
    desk.clock += 10_000
    ((_, again),) = desk.gates.meters()
    assert again.spent(NOW) == 75
    later = NOW + timedelta(days=31)
    meter.mark_written(meter.rows(later), others=0, others_reserved=0)
    assert not list(desk.gates.meters())


def test_a_changed_limit_changes_its_bucket() -> None:
    desk = Desk(caller(limit("requests", 5)))
    desk.enter()
    desk.caller = desk.caller._replace(terms=caller(limit("requests", 50)).terms)
    rules = desk.caller.terms.rules(MODEL)
    assert rules is not None
    desk.rules = rules
    headers = dict(desk.enter().headers)
    assert headers[b"x-ratelimit-limit-requests"] == b"50"


def test_a_lowered_limit_holds_at_once() -> None:
    bucket = Bucket(10**9, 10**9, 0.0)
    bucket.answered(10**9, 0.0, 0.0)
    bucket.resize(1 / 60, 1)
    assert bucket.held == 0
    assert bucket.available(0.0) <= 1
    bucket.take(5)
    bucket.resize(0.1, 0)
    assert bucket.held == -5, "what is due stays due"


@each(
    ("seconds", "told"),
    [
        (0, "0s"), (0.0004, "1ms"), (0.012, "12ms"), (1, "1s"), (1.2, "1.2s"), (360, "6m0s"),
        (52_151.04, "14h29m11.04s"), (-1, "0s"), (61.5, "1m1.5s"),
    ],
)  # fmt: skip
def test_durations_are_spelled_as_go_does(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_an_answer_is_expected_to_be_half_as_long_again_as_others_were() -> None:
    live_buckets: Estimates[str] = Estimates()
    assert live_buckets.reserve("a", 10_000) == AT_FIRST
    assert live_buckets.reserve("a", 10) == 10
    for _ in range(FIRST):
        live_buckets.learn("a", 1_000)
    assert live_buckets.reserve("a", 10_000) == 1_500
    for _ in range(1_000):
        live_buckets.learn("a", 1)
    assert live_buckets.reserve("a", 10_000) == LEAST
    for number in range(KEPT):
        live_buckets.learn(str(number), 1)
    assert live_buckets.reserve("a", 10_000) == AT_FIRST


def test_what_generates_nothing_says_nothing_of_answers() -> None:
    desk = Desk(caller(budgets=[budget(10**9, unit="tokens")]))
    for tokens in [2_000] * FIRST + [0] * 500:
        desk.enter().settle(used(100, tokens))
    desk.reserve(desk.enter())
    ((_, meter),) = desk.gates.meters()
    assert meter.reserved == 100 + 3_000


def test_rules_are_kept_of_a_bounded_number_of_models() -> None:
    terms = caller(limit("requests", 1, model="one")).terms
    assert NO_TERMS.rules("one") is None
    assert terms.rules("another") is None
    assert terms.rules("one") is terms.rules("one")
    for number in range(2 * RULES_MAX):
        terms.rules(str(number))
    assert len(terms._rules) == RULES_MAX
    watched = Terms(meters=(Meter("m", "usd", "month"),)).rules("any")
    assert watched is not None
    assert not watched.budgets


@pytest.mark.parametrize(
    "wrong",
    [
        limit("requests", -1), limit("requests", 1, window_s=61), limit("responses", 1),
        at_once("websockets", 1, model="one"),
    ],
)  # fmt: skip
def test_what_is_no_limit_is_refused(wrong: Limit) -> None:
    with pytest.raises(InvalidRequest):
        wrong.check()


def test_each_scope_is_named_in_its_words() -> None:
    for scope, words in (("project", "in project p"), ("key", "in this API key")):
        one = Limit(scope, UUID(int=3), "requests", 0)  # type: ignore[arg-type]
        principal = caller(one)
        desk = Desk(principal)
        desk.caller = desk.caller._replace(terms=Terms((one,), project="p"))
        with pytest.raises(RateLimited, match=words):
            desk.enter()
