"""Metrics name the tenants that use most, and never more than they may."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.metrics import OTHER, RANKING_INTERVAL_S, Metrics, TenantLabels


@dataclass
class Ranked:
    """Labels with a clock that the test moves."""

    count_max: int = 2
    now: float = 0.0
    dropped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.labels = TenantLabels(self.count_max, self.dropped.append, lambda: self.now)

    def use(self, tenant: str, amount: int) -> str:
        return self.labels.used(tenant, tenant.upper(), amount)

    def rank(self) -> None:
        self.now += RANKING_INTERVAL_S
        self.labels.rank()


def test_tenants_are_named_as_they_come_and_the_rest_are_the_others() -> None:
    ranked = Ranked()
    assert [ranked.use(tenant, 10) for tenant in "abc"] == ["A", "B", OTHER]
    assert ranked.labels.of("a") == "A"
    assert ranked.labels.of("nobody") == OTHER


def test_nobody_is_named_unless_a_setting_says_so() -> None:
    ranked = Ranked(count_max=0)
    assert ranked.use("a", 10) == OTHER


def test_who_uses_more_takes_the_place_of_who_uses_least() -> None:
    ranked = Ranked()
    for tenant, amount in (("a", 100), ("b", 10), ("c", 1000)):
        ranked.use(tenant, amount)
    ranked.rank()
    assert ranked.dropped == ["B"]
    assert [ranked.labels.of(tenant) for tenant in "abc"] == ["A", OTHER, "C"]


def test_two_of_about_the_same_use_do_not_take_it_from_each_other() -> None:
    ranked = Ranked(count_max=1)
    for _ in range(5):
        ranked.use("a", 100)
        ranked.use("b", 150)
        ranked.rank()
    assert ranked.dropped == []


def test_a_tenant_is_counted_where_only_its_id_is_known_and_named_later() -> None:
    ranked = Ranked(count_max=1)
    assert ranked.labels.used("a", "", 10) == OTHER
    assert ranked.use("a", 10) == "A"
    assert ranked.labels.used("a", "", 10) == "A"


def test_use_of_long_ago_counts_less() -> None:
    ranked = Ranked(count_max=1)
    ranked.use("a", 1000)
    for _ in range(20):
        ranked.use("b", 10)
        ranked.rank()
    assert ranked.labels.of("b") == "B"


def test_labels_are_not_given_anew_at_every_scrape() -> None:
    ranked = Ranked(count_max=1)
    ranked.use("a", 1)
    ranked.use("b", 1000)
    ranked.now = RANKING_INTERVAL_S / 2
    ranked.labels.rank()
    assert ranked.labels.of("a") == "A"


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 10**6)), max_size=60))
def test_no_more_are_named_than_may_be(uses: list[tuple[str, int]]) -> None:
    ranked = Ranked(count_max=3)
    for place, (tenant, amount) in enumerate(uses):
        ranked.use(tenant, amount)
        if place % 7 == 0:
            ranked.rank()
        named = {ranked.labels.of(one) for one in "abcdefgh"} - {OTHER}
        assert len(named) <= 3


def test_a_tenant_that_is_no_longer_named_leaves_no_series() -> None:
    now = [0.0]
    metrics = Metrics(tenant_label_max=1, clock=lambda: now[0])
    for tenant, tokens in (("a", 1), ("b", 1000)):
        metrics.tenant_requested(tenant, tenant.upper(), 200)
        metrics.tenant_used(tenant, input_tokens=tokens, output=0)
        metrics.admission_waited("default", 1.5, tenant)
    assert metrics.exposition().count(b'tenant="A"') > 0
    now[0] = RANKING_INTERVAL_S
    assert b'tenant="A"' not in metrics.exposition()
    metrics.tenant_used("b", input_tokens=5, output=7)
    metrics.tenant_used("a", input_tokens=5, output=7)
    value = metrics.registry.get_sample_value
    assert value("gateway_tenant_tokens_total", {"tenant": "B", "type": "output"}) == 7
    assert value("gateway_tenant_tokens_total", {"tenant": OTHER, "type": "output"}) == 7
