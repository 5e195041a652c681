"""The fold of small logs, in the language of `toy_parser`."""

from __future__ import annotations

import pytest

from gateway.generation import FinishReason
from gateway.log import Alive, Entry, Finished, Hop, Queued, Tokens, TurnEnded, TurnStarted
from tests.fakes.event_grammar import check_stream
from tests.fakes.toy_logs import FRAMING, apply_all, new_fold
from tests.fakes.toy_parser import BROKEN, CALL, END, FINAL, REASONING, RETURN, TEXT

COMPLETED = Finished("completed", 9)
STOP = TurnEnded(FinishReason.STOP)
A, B = TEXT, TEXT + 1


def types(log: list[Entry]) -> list[str]:
    return [event.type for event in apply_all(new_fold(), log)]


@pytest.mark.parametrize(
    "first", [TurnStarted(3), Alive(), COMPLETED], ids=lambda e: type(e).__name__
)
def test_the_first_entry_opens_the_stream(first: Entry) -> None:
    assert types([first])[:2] == ["response.created", "response.in_progress"]


@pytest.mark.parametrize(
    "first", [TurnStarted(3), Hop("replica", 0), COMPLETED], ids=lambda e: type(e).__name__
)
def test_what_follows_the_queue_says_that_it_is_in_progress(first: Entry) -> None:
    opening = ["response.created", "response.queued", "response.in_progress"]
    assert types([Queued(), first])[:3] == opening


def test_the_queue_stays_alive_as_a_queue() -> None:
    assert types([Queued(), Alive()])[2:] == ["response.queued"]


@pytest.mark.parametrize(
    "end",
    [
        Finished("cancelled", 9),
        Finished("failed", 9, code="server_error", message="Broken off."),
    ],
    ids=lambda end: end.status,
)
def test_what_never_began_is_never_in_progress(end: Finished) -> None:
    fold = new_fold(background=True)
    stream = check_stream(apply_all(fold, [Queued(), end]))
    assert "response.in_progress" not in stream.types()
    assert fold.usage.input_tokens == 0


def test_a_snapshot_shows_what_there_is() -> None:
    fold = new_fold(background=True)
    fold.apply(Queued())
    assert fold.response()["status"] == "queued"
    apply_all(fold, [TurnStarted(3), Tokens((REASONING, A, END, FINAL, B))])
    body = fold.response()
    assert (body["status"], body["usage"]) == ("in_progress", None)
    assert [item["status"] for item in body["output"]] == ["completed", "in_progress"]


def test_hops_are_counted_for_the_turn_and_for_the_response() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Hop("replica", 3), Tokens((FINAL,)), Hop("backend", 4)])
    assert (fold.hops, fold.takeovers) == (1, 1)
    assert fold.open_turn is not None
    assert fold.open_turn.hops == 2
    apply_all(fold, [STOP, Hop("replica", 0)])
    assert (fold.turns[0].hops, fold.takeovers) == (2, 2)
    assert fold.usage.recomputed_tokens == 7
    assert fold.open_turn is None


def test_a_keep_alive_before_anything_else_does_not_repeat_itself() -> None:
    assert types([Alive()]) == ["response.created", "response.in_progress"]
    assert types([Alive(), Alive()])[2:] == ["response.in_progress"]


def test_the_first_message_of_a_turn_is_repeated_with_the_opening_of_the_prompt() -> None:
    fold = new_fold()
    said = Tokens((REASONING, A, END, FINAL, B, RETURN))
    apply_all(fold, [TurnStarted(3), said, STOP, COMPLETED])
    assert [item.ids for item in fold.items()] == [
        (*FRAMING.opening, REASONING, A, END),
        (FINAL, B, FRAMING.message_end),
    ]


def test_a_prefill_is_part_of_its_message_but_not_of_the_output() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3, (FINAL,)), Tokens((A, RETURN)), STOP, COMPLETED])
    (item,) = fold.items()
    assert item.ids == (*FRAMING.opening, FINAL, A, FRAMING.message_end)
    assert fold.usage.output_tokens == 2


def test_prefilled_reasoning_is_not_counted_as_output() -> None:
    fold = new_fold()
    events = apply_all(fold, [TurnStarted(3, (REASONING, A)), Tokens((B, END)), STOP, COMPLETED])
    check_stream(events)
    assert (fold.usage.reasoning_tokens, fold.usage.output_tokens) == (1, 2)


def test_a_repaired_message_is_rendered_anew() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Tokens((FINAL, A, BROKEN)), STOP, COMPLETED])
    assert [item.ids for item in fold.items()] == [None]
    assert fold.recoveries == {"broken": 1}


def test_ids_are_counted_from_the_start_of_their_turn() -> None:
    fold = new_fold()
    turn: list[Entry] = [TurnStarted(0), Tokens((CALL, A, END)), STOP]
    apply_all(fold, [*turn, *turn, COMPLETED])
    assert [item.ids for item in fold.items()] == [(*FRAMING.opening, CALL, A, END)] * 2


def test_usage_is_the_sum_of_the_turns() -> None:
    fold = new_fold()
    first: list[Entry] = [
        TurnStarted(20),
        Tokens((REASONING, A, B, RETURN)),
        TurnEnded(FinishReason.STOP, 16),
    ]
    second: list[Entry] = [
        TurnStarted(0, (FINAL,)),
        Tokens((B, RETURN)),
        TurnEnded(FinishReason.STOP, 24),
    ]
    apply_all(fold, [*first, *second, COMPLETED])
    usage = fold.response()["usage"]
    assert usage == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 26,
    }


def test_usage_and_recoveries_are_known_while_a_turn_runs() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Tokens((REASONING, A, BROKEN)), STOP])
    apply_all(fold, [TurnStarted(0), Tokens((REASONING, A, BROKEN))])
    assert (fold.usage.output_tokens, fold.usage.reasoning_tokens) == (6, 2)
    assert fold.recoveries == {"broken": 2}


def test_a_turn_that_was_broken_off_ends_with_the_response() -> None:
    fold = new_fold()
    failed = Finished("failed", 9, code="server_error", message="Broken off.")
    stream = check_stream(apply_all(fold, [TurnStarted(3), Tokens((FINAL, A)), failed]))
    assert stream.items[0]["status"] == "incomplete"
    assert fold.items()[0].ids is None
    assert fold.last_finish is None


def test_a_turn_cut_by_its_length_leaves_an_incomplete_item() -> None:
    fold = new_fold()
    cut = TurnEnded(FinishReason.LENGTH)
    incomplete = Finished("incomplete", 9, reason="max_output_tokens")
    stream = check_stream(apply_all(fold, [TurnStarted(3), Tokens((CALL, A)), cut, incomplete]))
    assert stream.items[0]["status"] == "incomplete"
    assert stream.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert fold.last_finish is FinishReason.LENGTH


def test_reasoning_alone_is_not_visible() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Tokens((REASONING, A))])
    assert not fold.visible
    fold.apply(Tokens((FINAL, A)))
    assert fold.visible


def test_entries_out_of_place_are_refused_and_change_nothing() -> None:
    fold = new_fold()
    for entry in (Tokens((A,)), STOP, Hop("backend", 3)):
        with pytest.raises(ValueError, match="outside of any"):
            fold.apply(entry)
    apply_all(fold, [TurnStarted(3)])
    with pytest.raises(ValueError, match="inside of another"):
        fold.apply(TurnStarted(3))
    with pytest.raises(ValueError, match="started before"):
        fold.apply(Queued())
    apply_all(fold, [STOP, COMPLETED])
    with pytest.raises(ValueError, match="after its end"):
        fold.apply(Alive())
    assert fold.is_finished
    assert (fold.usage.input_tokens, fold.hops) == (3, 0)
