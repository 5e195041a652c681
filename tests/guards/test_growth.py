"""What every token costs does not grow unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guards.counting import HEAVIER
from tests.guards.recorded import VERSION, counted, growths, recorded

if TYPE_CHECKING:
    from tests.guards.recorded import Costs


@pytest.fixture(scope="module")
def known() -> Costs:
    """What was recorded."""
    costs = recorded()
    if costs is None:
        pytest.skip(f"nothing is recorded for Python {VERSION}: python -m tests.guards.record")
    return costs


@pytest.mark.slow
def test_no_token_costs_more_than_it_did(known: Costs) -> None:
    assert list(growths(known, counted())) == []


@pytest.mark.slow
def test_a_few_more_attributes_for_each_token_are_noticed(known: Costs) -> None:
    complaints = growths(known, counted(HEAVIER))
    grown = {line.partition(":")[0] for line in complaints if "instructions" in line}
    assert grown == known.keys()


def test_a_workload_that_nobody_recorded_is_noticed() -> None:
    now = {"a new one": {"instructions": 1.0, "calls": 1.0, "blocks": 0.0}}
    assert len(list(growths({}, now))) == 3


@pytest.mark.parametrize(("now", "complaints"), [(119.0, 0), (120.0, 0), (121.0, 1)])
def test_a_fifth_more_is_the_limit(now: float, complaints: int) -> None:
    old = {"one": {"instructions": 100.0, "calls": 0.0, "blocks": 0.0}}
    new = {"one": {"instructions": now, "calls": 0.0, "blocks": 0.0}}
    assert len(list(growths(old, new))) == complaints
