"""The slots of a backend: exact at any time, and learned from what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.admission.slots import (
    FAST_ROUND,
    ROUND,
    AdmissionPolicy,
    MemberSlots,
    WorkClass,
    class_of,
)

if TYPE_CHECKING:
    from gateway.upstreams.admission.slots import Slot

SOON, LATE = 0.1, 60.0
DEFAULT, BACKGROUND = WorkClass.DEFAULT, WorkClass.BACKGROUND


def slots(**policy: float) -> MemberSlots:
    bounds: dict[str, float] = {"slots_start": 10, "slots_min": 2, "slots_max": 40}
    return MemberSlots("m", AdmissionPolicy(**{**bounds, **policy}))  # type: ignore[arg-type]


def filled(of: MemberSlots) -> list[Slot]:
    taken = []
    while of.has_room(DEFAULT):
        taken.append(of.take(DEFAULT, 1))
    return taken


def answer(taken: list[Slot], seconds: float) -> None:
    """The last ones first: those were sent while the bound was nearly used."""
    for slot in reversed(taken):
        slot.first(seconds)


def drain(taken: list[Slot]) -> None:
    for slot in taken:
        slot.release()


@pytest.mark.parametrize(
    ("priority", "is_background", "work"),
    [
        (1, False, WorkClass.PRIORITY),
        (0, False, DEFAULT),
        (-1, False, BACKGROUND),
        (1, True, DEFAULT),
        (0, True, BACKGROUND),
        (-1, True, BACKGROUND),
        (7, False, WorkClass.PRIORITY),
    ],
)
def test_classes_come_from_the_tier_and_background_is_one_lower(
    priority: int, is_background: bool, work: WorkClass
) -> None:
    assert class_of(priority, is_background=is_background) is work


def test_there_is_room_up_to_the_bound() -> None:
    of = slots()
    assert len(filled(of)) == of.in_flight == of.bound == 10
    assert not any(of.has_room(work) for work in WorkClass)


def test_what_passes_counts_beyond_the_bound() -> None:
    of = slots()
    taken = filled(of)
    more = of.take(DEFAULT, 1)
    taken[0].release()
    assert of.in_flight == 10
    assert not of.has_room(DEFAULT)
    more.release()
    assert of.has_room(DEFAULT)


def test_a_fifth_of_the_slots_is_kept_from_background() -> None:
    of = slots()
    for _ in range(8):
        assert of.has_room(BACKGROUND)
        of.take(BACKGROUND, 1)
    assert not of.has_room(BACKGROUND)
    assert [of.has_room(DEFAULT), of.has_room(WorkClass.PRIORITY)] == [True, True]


def test_background_may_have_the_only_slot() -> None:
    assert slots(slots_start=1, slots_min=1).has_room(BACKGROUND)


def test_answers_in_time_let_the_bound_grow_fast_until_the_first_late_ones() -> None:
    of = slots()
    taken = filled(of)
    answer(taken[-2:] + [of.take(DEFAULT, 1) for _ in range(FAST_ROUND)], SOON)
    assert of.bound == 20
    answer([of.take(DEFAULT, 1) for _ in range(2)], LATE)
    assert of.bound == 18
    answer([of.take(DEFAULT, 1) for _ in range(ROUND)], SOON)
    assert of.bound == 19


def test_a_bound_doubles_before_autoscalers_take_it_for_saturation() -> None:
    """Three quarters of it are used, and nobody was late yet: it is no bound of the backend."""
    of = slots(slots_start=20)
    taken = [of.take(DEFAULT, 1) for _ in range(14)]
    answer(taken, SOON)
    assert of.bound == 20
    answer([of.take(DEFAULT, 1) for _ in range(FAST_ROUND)], SOON)
    assert of.bound == 40


def test_who_says_how_many_it_runs_is_sent_no_more_than_these_and_few_to_wait() -> None:
    of = slots(slots_start=10)
    of.reported(0, 0, 8)
    assert of.bound == 9
    for _ in range(5):
        answer([of.take(DEFAULT, 1) for _ in range(20)], SOON)
    assert of.bound == 9
    of.reported(0, 0, 20)  # started anew, with more
    answer([of.take(DEFAULT, 1) for _ in range(20)], SOON)
    assert of.bound == 18
    of.reported(None, None)
    assert of.bound == 18


def test_one_that_says_it_runs_nothing_is_sent_the_least() -> None:
    of = slots()
    of.reported(0, 0, 0)
    assert of.bound == 2


def test_a_bound_that_is_nearly_one_more_grows_all_the_same() -> None:
    of = slots(slots_start=9, shrink_share=0.888)
    taken = filled(of)
    answer(taken[:6], SOON)
    answer(taken[6:8], LATE)
    assert of.bound == 7  # 7.99
    drain(taken)
    for _ in range(2 * ROUND):
        taken = filled(of)
        answer(taken[-1:], SOON)
        drain(taken)
    assert of.bound == 9


def test_answers_while_little_is_used_tell_nothing() -> None:
    of = slots()
    for _ in range(100):
        slot = of.take(DEFAULT, 1)
        slot.first(SOON)
        slot.release()
        slot = of.take(DEFAULT, 1)
        slot.first(LATE)
        slot.release()
    assert of.bound == 10


def test_one_late_answer_is_no_sign() -> None:
    of = slots()
    taken = filled(of)
    answer(taken[:5], SOON)
    answer(taken[-1:], LATE)
    assert of.bound == 10
    answer(taken[-2:-1], LATE)
    assert of.bound == 9


def test_those_that_were_sent_before_a_change_do_not_count_again() -> None:
    of = slots(slots_start=40)
    taken = filled(of)
    answer(taken[:19], SOON)
    answer(taken[19:], LATE)
    assert of.bound == 36


def test_where_most_have_not_begun_when_others_are_late_half_goes() -> None:
    of = slots(slots_start=40)
    taken = filled(of)
    answer(taken[:17], SOON)
    answer(taken[17:], LATE)  # the second one is the 19th of 40
    assert of.bound == 20
    drain(taken[:20])
    assert (of.begun, of.in_flight) == (20, 20)
    taken[-1].release()
    taken[-1].release()
    assert (of.begun, of.in_flight) == (19, 19)


def test_long_prompts_may_take_longer() -> None:
    of = slots(read_tokens_per_s=1_000, first_token_target_s=1)
    filled(of)
    for _ in range(6):
        of.take(DEFAULT, 20_000).first(20.9)
    assert of.bound == 20
    filled(of)
    for _ in range(6):
        of.take(DEFAULT, 20_000).first(21.1)
    assert of.bound < 20


def test_a_report_of_a_queue_is_believed_the_second_time() -> None:
    of = slots(slots_start=40)
    filled(of)
    of.reported(30, 10)
    assert of.bound == 40
    of.reported(30, 10)
    assert of.bound == 20
    of.reported(30, 10)
    assert of.bound == 11


def test_another_replica_keeps_its_share_of_a_queue() -> None:
    of = slots(slots_start=40)
    filled(of)
    for _ in range(2):
        of.reported(60, 60)  # 80 of these are others'
    assert of.bound == 21


@pytest.mark.parametrize(("waiting", "running"), [(None, None), (None, 5), (1, 0), (1, 8), (0, 8)])
def test_a_report_of_nearly_no_queue_changes_nothing(
    waiting: int | None, running: int | None
) -> None:
    of = slots()
    filled(of)
    for _ in range(5):
        of.reported(waiting, running)
    assert of.bound == 10


def test_a_queue_of_which_nobody_knows_who_runs_takes_a_share() -> None:
    of = slots()
    for _ in range(2):
        of.reported(5, None)
    assert of.bound == 9


def test_a_bound_does_not_grow_while_a_queue_is_reported() -> None:
    of = slots()
    filled(of)
    of.reported(5, 5)
    answer([of.take(DEFAULT, 1) for _ in range(2 * FAST_ROUND)], SOON)
    assert of.bound == 10


def test_who_is_too_busy_is_sent_less() -> None:
    of = slots()
    taken = filled(of)
    taken[-1].refused()
    taken[-2].refused()
    assert of.bound == 9


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "soon", "late", "refused", "end", "end again", "report"]),
        st.integers(0, 60),
        st.sampled_from(list(WorkClass)),
    ),
    max_size=200,
)


@pytest.mark.slow
@given(steps)
def test_slots_are_exact_and_the_bound_keeps_its_bounds(
    events: list[tuple[str, int, WorkClass]],
) -> None:
    of, taken, ended = slots(), [], []
    for what, number, work in events:
        if what == "take":
            taken.append((of.take(work, number), work))
        elif what == "report":
            of.reported(number, 60 - number)
        elif taken and what == "end":
            slot, _ = taken.pop(number % len(taken))
            slot.release()
            ended.append(slot)
        elif ended and what == "end again":
            ended[number % len(ended)].release()
        elif taken and what == "refused":
            taken[number % len(taken)][0].refused()
        elif taken:
            taken[number % len(taken)][0].first(SOON if what == "soon" else LATE)
        assert of.in_flight == len(taken)
        assert of.background == sum(one is BACKGROUND for _, one in taken)
        assert 2 <= of.bound <= 40
        assert 1 <= of.background_bound <= of.bound
    drain([slot for slot, _ in taken])
    assert (of.in_flight, of.background) == (0, 0)


def test_background_work_alone_lets_the_bound_grow() -> None:
    """It never uses more than its share of all slots."""
    one = slots(slots_start=64, slots_max=1000)
    for _ in range(4):
        before = one.bound
        taken: list[Slot] = []
        while one.has_room(BACKGROUND):
            taken.append(one.take(BACKGROUND, 1))
        answer(taken, SOON)
        assert one.bound > before
        drain(taken)
