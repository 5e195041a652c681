from __future__ import annotations

import pytest

from gateway.simulator.directives import Directives, Faults, Pace, Wishes, parse, parse_plan
from gateway.simulator.errors import SimulatedError
from gateway.simulator.faults import Attempts, FaultPlan

PROMPT = [1, 2, 3]


def test_a_text_without_directives_asks_for_nothing() -> None:
    assert parse("Hello [[ sim ]] [sim tokens=3]") == Directives()


def test_directives_combine_and_later_ones_win() -> None:
    text = "a [[sim die_after=12 times=1 tokens=5]] b [[sim tokens=7 tokens_per_s=50]]"
    assert parse(text) == Directives(
        wishes=Wishes(tokens=7),
        pace=Pace(tokens_per_s=50.0),
        faults=Faults(die_after=12, times=1),
    )


def test_say_takes_the_rest_of_its_directive() -> None:
    directives = parse("[[sim think=none say=one two=three\nfour]]")
    assert directives.wishes == Wishes(say="one two=three\nfour", think=0)


@pytest.mark.parametrize(
    "directive",
    ["tokens", "tokens=", "tokens=x", "tokens=-1", "tokens=99999999", "status=200", "status=x",
     "ids_per_event=0", "slow_accept_s=-1", "slow_accept_s=nan", "dye_after=3"],
)  # fmt: skip
def test_what_means_nothing_is_refused(directive: str) -> None:
    with pytest.raises(SimulatedError, match="does not know") as caught:
        parse(f"[[sim {directive}]]")
    assert caught.value.status == 400


def test_the_earliest_breakage_counts() -> None:
    assert parse_plan("die_after=9 stall_after=4").breakage == (4, "stall")
    assert parse_plan("status=503").breakage is None


def _plan(standing: str, name: str = "one", attempts: Attempts | None = None) -> FaultPlan:
    return FaultPlan(name, parse_plan(standing), attempts or Attempts(prompts_max=2))


def test_a_fault_counts_the_attempts_of_its_prompt() -> None:
    plan = _plan("status=503 times=2")
    statuses = [plan.faults_of(Faults(), PROMPT).status for _ in range(3)]
    assert statuses == [503, 503, None]
    assert plan.faults_of(Faults(), [9]).status == 503


def test_instances_that_share_attempts_count_together() -> None:
    attempts = Attempts(prompts_max=10)
    asked = Faults(die_after=3, times=1)
    one, two = _plan("", "one", attempts), _plan("", "two", attempts)
    assert one.faults_of(asked, PROMPT).die_after == 3
    assert not two.faults_of(asked, PROMPT)


def test_the_oldest_prompts_are_forgotten() -> None:
    plan = _plan("status=500 times=1")
    for prompt in ([1], [2], [3], [1]):
        assert plan.faults_of(Faults(), prompt).status == 500


def test_a_fault_for_one_instance_spares_the_others() -> None:
    asked = Faults(status=500, only="two")
    assert not _plan("", "one").faults_of(asked, PROMPT)
    assert _plan("", "two").faults_of(asked, PROMPT) == asked


def test_the_requests_own_faults_go_before_the_instances() -> None:
    asked = Faults(abort_after=1)
    assert _plan("status=503").faults_of(asked, PROMPT) == asked
