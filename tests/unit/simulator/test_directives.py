from __future__ import annotations

import pytest

from gateway.simulator.completion_wire import SimulatedError
from tests.fakes.cases import each
from tests.fakes.wayward_engine.directives import Attempts, FaultPlan, Faults, Pace, Wishes
from tests.fakes.wayward_engine.misbehaviour import (
    NOT_HELD,
    SYNTAX,
    Malformed,
    WaywardPlan,
    malformed_of,
)
from tests.fakes.wayward_engine.misbehaviour import WaywardDirectives as Directives

PROMPT = [1, 2, 3]


def test_a_text_without_directives_asks_for_nothing() -> None:
    assert SYNTAX.parse("Hello [[ sim ]] [sim tokens=3]") == Directives()


def test_directives_combine_and_later_ones_win() -> None:
    text = "a [[sim die_after=12 times=1 tokens=5]] b [[sim tokens=7 tokens_per_s=50]]"
    assert SYNTAX.parse(text) == Directives(
        wishes=Wishes(tokens=7), pace=Pace(tokens_per_s=50.0), faults=Faults(die_after=12, times=1)
    )


def test_say_takes_the_rest_of_its_directive() -> None:
    directives = SYNTAX.parse("[[sim think=none say=one two=three\nfour]]")
    assert directives.wishes == Wishes(say="one two=three\nfour", think=0)


@each(
    "directive",
    ["tokens", "tokens=", "tokens=x", "tokens=-1", "tokens=99999999", "status=200", "status=x",
     "ids_per_event=0", "slow_accept_s=-1", "slow_accept_s=nan", "dye_after=3", "drift=words",
     "attack=call", "attack=loop:9", "attack=loop", "grammar_ids=x"],
)  # fmt: skip
def test_what_means_nothing_is_refused(directive: str) -> None:
    with pytest.raises(SimulatedError, match="does not know") as caught:
        SYNTAX.parse(f"[[sim {directive}]]")
    assert caught.value.status == 400


def test_the_earliest_breakage_counts() -> None:
    assert SYNTAX.parse_plan("die_after=9 stall_after=4").faults.breakage == (4, "stall")
    assert SYNTAX.parse_plan("status=503").faults.breakage is None


def _plan(standing: str, name: str = "one", attempts: Attempts | None = None) -> FaultPlan:
    return WaywardPlan(name, SYNTAX.parse_plan(standing), attempts or Attempts(prompts_max=2))


def test_a_fault_counts_the_attempts_of_its_prompt() -> None:
    plan = _plan("status=503 times=2")
    statuses = [plan.in_force(Directives(), PROMPT).faults.status for _ in range(3)]
    assert statuses == [503, 503, None]
    assert plan.in_force(Directives(), [9]).faults.status == 503


def test_instances_that_share_attempts_count_together() -> None:
    attempts = Attempts(prompts_max=10)
    asked = Faults(die_after=3, times=1)
    one, two = _plan("", "one", attempts), _plan("", "two", attempts)
    assert one.in_force(Directives(faults=asked), PROMPT).faults.die_after == 3
    assert not two.in_force(Directives(faults=asked), PROMPT).faults


def test_the_oldest_prompts_are_forgotten() -> None:
    plan = _plan("status=500 times=1")
    for prompt in ([1], [2], [3], [1]):
        assert plan.in_force(Directives(), prompt).faults.status == 500


def test_a_fault_for_one_instance_spares_the_others() -> None:
    asked = Faults(status=500, only="two")
    assert not _plan("", "one").in_force(Directives(faults=asked), PROMPT).faults
    assert _plan("", "two").in_force(Directives(faults=asked), PROMPT).faults == asked


def test_the_requests_own_faults_go_before_the_instances() -> None:
    asked = Faults(abort_after=1)
    assert _plan("status=503").in_force(Directives(faults=asked), PROMPT).faults == asked


@pytest.mark.parametrize(
    ("directive", "malformed"),
    [
        ("drift=prose", Malformed(drift="prose")),
        ("attack=call:ns.delete_all", Malformed(attack="call:ns.delete_all")),
        ("attack=think_loop:8 grammar_ids=none", Malformed("", "think_loop:8", NOT_HELD)),
        ("grammar_ids=3", Malformed(grammar_ids=3)),
    ],
)
def test_antics_are_read(directive: str, malformed: Malformed) -> None:
    found = malformed_of(SYNTAX.parse(f"[[sim {directive}]]"))
    assert (found.drift or "", found.attack, found.grammar_ids) == (
        malformed.drift or "",
        malformed.attack,
        malformed.grammar_ids,
    )
    assert found


def test_antics_end_with_their_times() -> None:
    plan = _plan("")
    asked = SYNTAX.parse("[[sim drift=prose times=2]]")
    assert [bool(malformed_of(plan.in_force(asked, PROMPT))) for _ in range(3)] == [
        True,
        True,
        False,
    ]


def test_antics_and_faults_of_a_request_count_together() -> None:
    plan = _plan("")
    asked = SYNTAX.parse("[[sim drift=prose die_after=3 times=1]]")
    found = [plan.in_force(asked, PROMPT) for _ in range(2)]
    assert [(bool(malformed_of(one)), bool(one.faults)) for one in found] == [
        (True, True),
        (False, False),
    ]


def test_the_instances_faults_leave_antics_alone() -> None:
    plan = _plan("status=503 times=1 only=one")
    asked = SYNTAX.parse("[[sim drift=prose only=two]]")
    found = [plan.in_force(asked, PROMPT) for _ in range(2)]
    assert [one.faults.status for one in found] == [503, None]
    assert not malformed_of(found[0])


def test_a_request_for_another_instance_is_no_attempt() -> None:
    attempts = Attempts(prompts_max=10)
    asked = Directives(faults=Faults(die_after=3, times=1, only="one"))
    assert not _plan("", "two", attempts).in_force(asked, PROMPT).faults
    assert _plan("", "one", attempts).in_force(asked, PROMPT).faults


def test_an_instance_may_be_one_that_drifts() -> None:
    plan = _plan("drift=prose times=1")
    asked = Directives(faults=Faults(status=500))
    found = [plan.in_force(asked, PROMPT) for _ in range(2)]
    assert [malformed_of(one).drift for one in found] == ["prose", None]
    assert [one.faults.status for one in found] == [500, 500]


@pytest.mark.parametrize("plan", ["tokens=5", "status=503 tokens_per_s=3", "say=hello"])
def test_a_plan_is_of_faults_alone(plan: str) -> None:
    with pytest.raises(SimulatedError, match="faults alone"):
        SYNTAX.parse_plan(plan)
