from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from gateway.generation import Constraint, Token
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend import Backend
from gateway.upstreams.ejection import EjectionPolicy, Health
from gateway.upstreams.engines import Capabilities, Vllm
from gateway.upstreams.member import Member
from gateway.upstreams.pool import candidates
from gateway.upstreams.probe import CheckOutcome, Description

if TYPE_CHECKING:
    from gateway.upstreams.inference_server import InferenceServer

METRICS = Metrics()
TURN, ANSWER, NONE = (Capabilities(grammars) for grammars in ("turn", "answer", "none"))
BOUND = Constraint(Token(1))
BOUND_ANSWER = Constraint(Token(1), answer={"type": "object"})


def state(
    name: str,
    can: Capabilities | None = None,
    *,
    available: bool = True,
    in_doubt: bool = False,
    late: bool = False,
) -> Member:
    """A backend whose last health check went wrong (`in_doubt`), or all of them did; `late`: none
    of these was answered.
    """
    policy = EjectionPolicy()
    health = Health(policy)
    for _ in range(int(in_doubt) if available else policy.failures_max):
        health.polled(CheckOutcome.MUTE if late else CheckOutcome.GONE, began_at=0.0)
    server = cast("InferenceServer", SimpleNamespace(can=can))
    member = Member(Backend(name, "http://x"), server, health, METRICS, time.monotonic)
    member.described(Description({}))
    if can is not None:
        member.engine = Vllm()
    return member


def left(
    states: list[Member], tried: str = "", avoided: str = "", constraint: Constraint | None = None
) -> str:
    chosen = candidates(states, tried=set(tried), avoided=set(avoided), constraint=constraint)
    return "".join(choice.name for choice in chosen)


def test_only_available_backends_are_chosen_from() -> None:
    assert left([state("a"), state("b", available=False), state("c")]) == "ac"


def test_when_none_is_available_all_are() -> None:
    assert left([state("a", available=False), state("b", available=False)]) == "ab"


def test_what_was_tried_is_not_tried_again_even_when_nothing_else_is_left() -> None:
    assert left([state("a"), state("b", available=False)], tried="a") == "b"
    assert left([state("a")], tried="a") == ""


def test_an_avoided_backend_comes_last_but_before_an_unavailable_one() -> None:
    states = [state("a"), state("b"), state("c", available=False)]
    assert left(states, avoided="a") == "b"
    assert left(states, avoided="a", tried="b") == "a"
    assert left(states, avoided="a", tried="ab") == "c"


def test_a_backend_in_doubt_comes_before_an_avoided_one() -> None:
    states = [state("a", in_doubt=True), state("b")]
    assert left(states) == "b"
    assert left(states, avoided="b") == "a"


def test_among_unavailable_ones_the_avoided_comes_last() -> None:
    states = [state("a", available=False), state("b", available=False)]
    assert left(states, avoided="a") == "b"
    assert left(states, avoided="ab") == "ab"


def test_among_unavailable_ones_those_that_are_only_late_come_first() -> None:
    states = [
        state("a", available=False),
        state("b", available=False, late=True),
        state("c", available=False, late=True),
    ]
    assert left(states) == "bc"
    assert left(states, avoided="b") == "c"
    assert left(states, tried="bc") == "a"
    assert left([*states, state("d", in_doubt=True)]) == "d"


def test_a_constraint_goes_to_those_that_hold_it_best() -> None:
    fleet = [state("a", NONE), state("b", ANSWER), state("c", TURN), state("d", TURN), state("e")]
    assert left(fleet) == "abcde"
    assert left(fleet, constraint=BOUND) == "cd"
    assert left(fleet, tried="cd", constraint=BOUND) == "abe"
    assert left(fleet, tried="cd", constraint=BOUND_ANSWER) == "b"
    assert left(fleet, tried="bcd", constraint=BOUND_ANSWER) == "ae"
    assert left([], constraint=BOUND) == ""


def test_to_be_there_comes_before_to_hold_a_constraint() -> None:
    fleet = [state("a", NONE), state("b", TURN, available=False), state("c", TURN, in_doubt=True)]
    assert left(fleet, constraint=BOUND) == "a"
    assert left([state("a", NONE), state("b", TURN)], avoided="b", constraint=BOUND) == "a"
    assert left(fleet, tried="a", constraint=BOUND) == "c"
