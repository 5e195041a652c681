from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.ejection import EjectionPolicy, Health
from gateway.upstreams.probe import CheckOutcome

POLICY = EjectionPolicy(failures_max=3, backoff_s=1.0, backoff_max_s=8.0)


def ejected(at: float = 0.0) -> Health:
    health = Health(POLICY)
    for _ in range(3):
        health.failed(at)
    return health


def test_a_new_backend_is_trusted() -> None:
    assert Health(POLICY).available(0.0)


def wait_s(health: Health, now: float) -> float:
    """How long it takes until a request may be sent, in quarters of a second."""
    return next(n / 4 for n in range(100) if health.available(now + n / 4))


def test_failures_in_a_row_eject() -> None:
    health = Health(POLICY)
    health.failed(0.0)
    health.failed(0.0)
    assert health.available(0.0)
    health.failed(0.0)
    assert not health.available(0.0)
    assert not health.healthy
    assert wait_s(health, 0.25) == 0.75


def test_a_turn_that_ends_well_forgives_failures() -> None:
    health = Health(POLICY)
    health.failed(0.0)
    health.failed(0.0)
    health.completed()
    health.failed(0.0)
    assert health.available(0.0)


def test_an_answer_alone_forgives_nothing() -> None:
    health = Health(POLICY)
    for _ in range(3):
        health.answered()
        health.failed(0.0)
    assert not health.available(0.0)


def test_after_the_back_off_one_request_is_the_trial() -> None:
    health = ejected()
    assert not health.available(0.99)
    assert not health.begin_trial(0.99)
    assert health.available(1.0)
    assert health.begin_trial(1.0)
    assert not health.available(1.0)
    assert not health.begin_trial(1.0)


def test_a_trial_that_answers_brings_the_backend_back() -> None:
    health = ejected()
    trial = health.begin_trial(1.0)
    health.answered()
    health.end_trial(trial)
    assert health.healthy


def test_a_trial_that_fails_doubles_the_back_off_up_to_its_bound() -> None:
    health = ejected()
    now, waits = 0.0, []
    for _ in range(5):
        waits.append(wait_s(health, now))
        now += waits[-1]
        trial = health.begin_trial(now)
        assert trial
        health.failed(now)
        health.end_trial(trial)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_a_trial_that_was_cancelled_leaves_the_next_one_to_another_request() -> None:
    health = ejected()
    health.end_trial(health.begin_trial(1.0))
    assert health.begin_trial(1.0)


def test_a_trial_that_goes_on_is_no_longer_one_once_it_has_answered() -> None:
    health = ejected()
    first = health.begin_trial(1.0)
    health.answered()
    health.failed(2.0)
    assert wait_s(health, 2.0) == 2.0
    assert health.begin_trial(4.0)
    health.end_trial(first)
    assert not health.available(4.0), "another is the trial now"


def test_streams_that_die_together_eject_once() -> None:
    health = ejected()
    for _ in range(60):
        health.failed(0.5)
    assert wait_s(health, 0.0) == 1.0


def test_failing_again_right_after_a_trial_ejects_at_once_and_longer() -> None:
    health = ejected()
    trial = health.begin_trial(1.0)
    health.answered()
    health.end_trial(trial)
    health.failed(2.0)
    assert wait_s(health, 2.0) == 2.0


def test_polls_in_a_row_take_a_backend_out_and_one_brings_it_back() -> None:
    health = Health(POLICY)
    for _ in range(3):
        assert health.available(0.0)
        health.polled(CheckOutcome.REFUSES, began_at=0.0)
    assert not health.available(0.0)
    health.polled(CheckOutcome.WELL, began_at=0.0)
    assert health.available(0.0)


def test_one_bad_poll_is_a_doubt_and_a_good_one_ends_it() -> None:
    health = Health(POLICY)
    doubts = [health.in_doubt]
    for outcome in (CheckOutcome.REFUSES, CheckOutcome.WELL):
        health.polled(outcome, began_at=0.0)
        doubts.append(health.in_doubt)
        assert health.available(0.0)
    assert doubts == [False, True, False]


def test_a_good_poll_does_not_end_an_ejection() -> None:
    health = ejected()
    health.polled(CheckOutcome.WELL, began_at=0.99)
    assert not health.healthy
    assert not health.available(0.99)


def test_a_good_poll_after_the_back_off_makes_it_healthy_and_leaves_it_its_trial() -> None:
    health, seen = ejected(), []
    for outcome, began_at in ((CheckOutcome.REFUSES, 1.0), (CheckOutcome.WELL, 1.5)):
        health.polled(outcome, began_at=began_at)
        seen.append(health.healthy)
    trial = health.begin_trial(2.0)
    assert trial
    assert not health.available(2.0)
    health.failed(2.0)
    health.end_trial(trial)
    assert [*seen, health.healthy] == [False, True, False]
    assert wait_s(health, 2.0) == 2.0


def test_it_is_mute_since_the_first_of_so_many_polls_without_an_answer_as_eject_it() -> None:
    health = Health(POLICY)
    seen = []
    for began_at in (1.0, 2.0, 3.0, 4.0):
        health.polled(CheckOutcome.MUTE, began_at=began_at)
        seen.append(health.mute_since)
    assert seen == [None, None, 1.0, 2.0]
    health.polled(CheckOutcome.REFUSES, began_at=5.0)
    assert health.mute_since is None


@pytest.mark.parametrize("other", [CheckOutcome.REFUSES, CheckOutcome.GONE])
@pytest.mark.parametrize("late", [CheckOutcome.MUTE, CheckOutcome.BUSY])
def test_it_is_late_if_no_other_poll_of_those_that_take_it_out_failed(
    late: CheckOutcome, other: CheckOutcome
) -> None:
    health, seen = Health(POLICY), []
    for outcome in (late, late, other, late, late, late, other, CheckOutcome.WELL):
        health.polled(outcome, began_at=0.0)
        seen.append((health.reachable, health.is_late))
    assert seen == [
        *[(True, False)] * 2,
        *[(False, False)] * 3,
        (False, True),
        (False, False),
        (True, False),
    ]


def test_it_is_not_merely_late_if_requests_fail_too() -> None:
    health = ejected()
    for _ in range(3):
        health.polled(CheckOutcome.MUTE, began_at=9.0)
    assert not health.is_late
    health.completed()
    assert health.is_late


@pytest.mark.slow
@given(
    st.lists(
        st.sampled_from(["fail", "answer", "complete", "poll", "stream", "trial"]), max_size=60
    )
)
def test_every_ejection_ends(happenings: list[str]) -> None:
    health, now = Health(POLICY), 0.0
    for happening in happenings:
        now += 0.3
        match happening:
            case "fail":
                health.failed(now)
            case "answer":
                health.answered()
            case "complete":
                health.completed()
            case "poll":
                health.polled(CheckOutcome.WELL, began_at=now)
            case "stream":  # which goes on until the end
                if health.begin_trial(now):
                    health.answered()
            case _:
                health.end_trial(health.begin_trial(now))
    assert health.available(now + POLICY.backoff_max_s)
