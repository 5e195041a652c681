"""Executions as operators read them: what took the time, who generated, what came between."""

from __future__ import annotations

import pytest

from gateway.entries import (
    Finished,
    Hop,
    Mark,
    Queued,
    Repair,
    Tokens,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.eventlog.fold.execution import (
    COMMITS_MAX,
    MOMENTS_MAX,
    NOTED,
    Execution,
    Moment,
    Point,
    Span,
    Timeline,
    backend_of,
    execution_of,
    spoken,
    unpacked_timeline,
)
from gateway.generation import FinishReason

BEGIN = 1_795_000_000_000


def mark(step: str, after_ms: int, place: str = "") -> Mark:
    return Mark(step, BEGIN + after_ms, place)  # type: ignore[arg-type]


def read(*entries: object, now: int | None = None) -> Execution:
    timeline, tokens = Timeline(), 0
    for entry in entries:
        if isinstance(entry, Tokens):
            tokens += len(entry.ids)
        else:
            assert type(entry) in NOTED
            timeline.note(entry, tokens)  # type: ignore[arg-type]
    now_ms = None if now is None else BEGIN + now
    return execution_of(timeline.moments, begin_ms=BEGIN, now_ms=now_ms)


SLOW = [
    Queued(),
    mark("replica", 200, "a"),
    mark("backend", 3300, "gpu-1"),
    TurnStarted(900),
    mark("token", 3400),
    mark("message", 3410, "reasoning"),
    Tokens((1, 2, 3)),
    mark("message", 3600, "final"),
    Tokens((4, 5)),
    mark("clock", 4000),
    TurnEnded(FinishReason.STOP),
    mark("clock", 4010),
    Finished("completed", BEGIN // 1000 + 4),
]


def test_most_of_the_time_went_in_waiting_for_a_slot() -> None:
    found = read(*SLOW)
    assert found.sentence == "3.1 s of 4.0 s were spent waiting for a slot."
    assert found.totals == {
        "slot": 3100, "answering": 400, "queued": 200, "thinking": 190, "prefill": 100,
        "generating": 10, "storing": 10,
    }  # fmt: skip
    assert found.attempts == [Span("gpu-1", 3300, 4000, 5, "stop")]
    assert found.messages == [Span("reasoning", 3410, 3600, 3), Span("final", 3600, 4000, 2)]
    assert found.replicas == [Span("a", 200, 4010, 5, "completed")]
    assert (found.first_token_ms, found.is_over) == (3400, True)


def test_hops_takeovers_and_repairs_are_seen() -> None:
    found = read(
        mark("replica", 10, "a"),
        mark("backend", 20, "gpu-1"),
        mark("backend", 30, "gpu-2"),
        TurnStarted(9),
        mark("token", 40),
        Tokens((1, 2)),
        mark("left", 60),
        mark("backend", 80, "gpu-1"),
        Hop("backend", 11),
        mark("token", 90),
        Tokens((3,)),
        Repair(1, "not_json"),
        mark("replica", 900, "b"),
        Hop("replica", 12),
        mark("backend", 910, "gpu-1"),
        now=1000,
    )
    assert found.attempts == [
        Span("gpu-1", 20, 30, 0, "no answer"),
        Span("gpu-2", 30, 60, 2, "left"),
        Span("gpu-1", 80, 900, 1, "taken over"),
        Span("gpu-1", 910, 1000, 0, ""),
    ]
    assert found.replicas == [Span("a", 10, 900, 3, "taken over"), Span("b", 900, 1000, 0, "")]
    assert found.points == [
        Point("hop", "backend", 80, 11),
        Point("repair", "not_json", 90, 1),
        Point("hop", "replica", 900, 12),
    ]
    assert found.sentence == (
        "810 ms of 1.0 s so far were spent waiting until another replica went on."
    )


def test_what_rounds_to_the_whole_is_nearly_all_of_it() -> None:
    found = read(mark("replica", 1, "a"), mark("backend", 3000, "b"), now=3001)
    assert found.sentence == "Nearly all of the 3.0 s so far were spent waiting for a slot."


def test_tools_have_a_lane() -> None:
    found = read(
        mark("replica", 0, "a"),
        mark("clock", 100),
        ToolStarted(0),
        mark("clock", 600),
        ToolEnded(0, (1,)),
        mark("clock", 700),
        ToolStarted(1),
        mark("replica", 900, "b"),
        ToolStarted(1),
        now=950,
    )
    assert found.tools == [
        Span("0", 100, 600, 0, "ok"),
        Span("1", 700, 900, 0, "interrupted"),
        Span("1", 900, 950, 0, ""),
    ]


def test_a_turn_waits_for_a_slot_until_its_request_is_sent() -> None:
    execution = read(mark("replica", 10, "a"), TurnStarted(9), mark("backend", 40, "gpu-1"), now=50)
    assert execution.totals == {"slot": 30, "preparing": 10, "prefill": 10}


def test_a_timeline_is_kept_as_it_was_noted() -> None:
    timeline = Timeline()
    for entry in (*SLOW[:3], TurnStarted(900), Hop("backend", 4)):
        timeline.note(entry, 2)  # type: ignore[arg-type]
    assert unpacked_timeline(timeline.packed()) == timeline.moments


def test_what_has_not_begun_is_said_to_be() -> None:
    assert read().sentence == "No time has passed yet."
    assert read(mark("clock", 0), now=5000).sentence == (
        "All of the 5.0 s so far were spent preparing the request."
    )
    assert read(mark("clock", 10), Queued(), now=5000).phases[-1].name == "queued"


def test_of_a_model_without_end_the_first_moments_and_the_end_are_kept() -> None:
    timeline = Timeline()
    for at in range(MOMENTS_MAX + 9):
        timeline.note(mark("message", at, "final"), at)
    timeline.note(Finished("cancelled", BEGIN // 1000 + 60), 7)
    assert len(timeline.moments) == MOMENTS_MAX + 1
    assert timeline.moments[-1] == Moment("finished", BEGIN + 60_000, 7, "cancelled")


def test_long_commits_are_a_lane_and_do_not_overlap() -> None:
    log = [*SLOW[:-3], mark("commit", 4000, "500"), mark("commit", 4200, "900")]
    assert read(*log, now=5000).commits == [
        Span("long commit", 3500, 4000),
        Span("long commit", 4000, 4200),
    ]


def test_long_commits_of_a_slow_database_leave_room_for_other_steps() -> None:
    timeline = Timeline()
    for at in range(MOMENTS_MAX + 9):
        timeline.note(mark("commit", at, "300"), at)
    timeline.note(ToolStarted(0), 0)
    assert [moment.kind for moment in timeline.moments] == [*["commit"] * COMMITS_MAX, "tool"]


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (59_949, "59.9 s"), (59_950, "1 min 0 s"),
     (125_400, "2 min 5 s")],
)  # fmt: skip
def test_durations_are_spoken(ms: int, words: str) -> None:
    assert spoken(ms) == words


@pytest.mark.parametrize(
    ("kinds", "asked", "current"),
    [
        ((), "", ""),
        (("queued", "replica", "turn"), "", ""),
        (("replica", "backend a", "turn", "token", "message"), "a", "a"),
        (("backend a", "token", "left"), "a", ""),
        (("backend a", "left", "hop", "backend b"), "b", "b"),
        (("backend a", "turn_ended", "tool"), "a", ""),
        (("backend a", "replica", "hop"), "a", ""),
    ],
)
def test_a_backend_is_the_one_that_was_asked_last(
    kinds: tuple[str, ...], asked: str, current: str
) -> None:
    moments = [
        Moment(kind, 0, name=name)  # type: ignore[arg-type] # it is one
        for kind, _, name in (one.partition(" ") for one in kinds)
    ]
    assert backend_of(moments) == asked
    assert backend_of(moments, is_current=True) == current
