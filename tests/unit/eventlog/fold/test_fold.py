"""The fold of small logs, in the language of `toy_parser`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import orjson
import pytest

from gateway.constraints.output_rules import OutputRules
from gateway.entries import (
    Alive,
    Entry,
    Finished,
    Hold,
    Hop,
    Queued,
    Repair,
    Text,
    Tokens,
    TurnEnded,
    TurnStarted,
    pack,
    unpack,
)
from gateway.eventlog.fold.fold import Fold
from gateway.eventlog.fold.screen import Body, RuleViolation
from gateway.generation import FinishReason, ParserPosition, Where
from gateway.models.chat.passthrough import FRAMING as PASSED_THROUGH
from gateway.models.chat.passthrough import TextParser
from gateway.protocol.responses.response_object import HarmonyMessages
from gateway.sealing import Unsealed
from gateway.text_ids import ANSWER, ARGUMENTS, ids_of
from gateway.text_ids import CALL as TEXT_CALL
from gateway.text_ids import END as TEXT_END
from tests.fakes.event_grammar import check_stream
from tests.fakes.fold_formats import parsed_by
from tests.fakes.response_heads import NO_RULES, response_head
from tests.fakes.toy_logs import (
    ALLOWED,
    COMPACTED,
    FRAMING,
    TOOL_RULES,
    apply_all,
    logprob_of,
    new_fold,
)
from tests.fakes.toy_logs import ANSWER as IN_JSON
from tests.fakes.toy_parser import (
    BROKEN,
    CALL,
    END,
    FINAL,
    PIECES,
    REASONING,
    RETURN,
    TEXT,
    ToyParser,
    call,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMPLETED = Finished("completed", 9)
STOP = TurnEnded(FinishReason.STOP)
A, B = TEXT, TEXT + 1
RULES = OutputRules(TOOL_RULES, ALLOWED)


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
    [Finished("cancelled", 9), Finished("failed", 9, code="server_error", message="Broken off.")],
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
    assert fold.hops == 1
    assert fold.open_turn is not None
    assert fold.open_turn.hops == 2
    apply_all(fold, [STOP, Hop("replica", 0)])
    assert (fold.turns[0].hops, fold.hops) == (2, 1)
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


@pytest.mark.requirement("usage.sum-of-turns")
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
    assert not fold.shown.is_visible
    fold.apply(Tokens((FINAL, A)))
    assert fold.shown.is_visible


def test_ids_that_nobody_saw_are_taken_back() -> None:
    fold = new_fold(rules=RULES)
    said = Tokens((REASONING, A, END, call("barred"), A, B), tuple(map(logprob_of, range(6))))
    apply_all(fold, [TurnStarted(3), said])
    found = fold.violation
    assert (found, fold.seen) == (RuleViolation("call_not_allowed", 3), 3)
    apply_all(fold, [Repair(3, "call_not_allowed")])
    assert fold.violation is None
    assert fold.turns[0].output_ids.tolist() == [REASONING, A, END]
    assert len(fold.turns[0].logprobs) == 3
    assert (fold.usage.output_tokens, fold.usage.voided_tokens) == (3, 3)
    assert fold.recoveries == {"call_not_allowed": 1}
    assert fold.place == ParserPosition(Where.BETWEEN, 3)


def test_a_message_that_breaks_a_rule_is_found_while_it_is_open_and_when_it_is_not() -> None:
    for ids in ((call("barred"),), (call("barred"), END, FINAL)):
        fold = new_fold(rules=RULES)
        apply_all(fold, [TurnStarted(3, (REASONING, A, END)), Tokens(ids)])
        assert fold.violation == RuleViolation("call_not_allowed", 3)


def test_prose_that_ends_its_turn_is_no_answer_in_a_format() -> None:
    rules = OutputRules(TOOL_RULES, ALLOWED, answer=IN_JSON)
    ended, called = (
        Fold(response_head(), parsed_by(lambda _: TextParser(rules), PASSED_THROUGH), rules)
        for _ in range(2)
    )
    for fold in (ended, called):
        apply_all(fold, [TurnStarted(3), Text((ANSWER, *ids_of("Hm.")))])
        assert fold.violation is None
    ended.apply(Text((TEXT_END,)))
    assert ended.violation == RuleViolation("not_json", 0)
    call = (TEXT_CALL, *ids_of("unknown"), ARGUMENTS, *ids_of("{}"), TEXT_END)
    apply_all(called, [Text(call), STOP, COMPLETED])
    output = called.response()["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]


def test_a_repair_that_voids_nothing_is_for_the_record() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Tokens((FINAL, A)), Repair(0, "repetition"), STOP])
    assert (fold.usage.voided_tokens, fold.recoveries) == (0, {"repetition": 1})
    fold.apply(Repair(0, "no_answer"))
    assert fold.recoveries == {"repetition": 1, "no_answer": 1}


@pytest.mark.parametrize("voided", [1, 2, 3, 4])
def test_what_somebody_saw_and_what_nobody_said_is_never_taken_back(voided: int) -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3, (FINAL,)), Tokens((A, END, END))])
    before = fold.usage
    assert fold.seen == 3
    repair = Repair(voided, "rule")
    if voided == 1:
        fold.apply(repair)
        assert fold.turns[0].output_ids.tolist() == [A, END]
        return
    with pytest.raises(ValueError, match="taken back"):
        fold.apply(repair)
    assert fold.turns[0].output_ids.tolist() == [A, END, END]
    assert fold.usage == before
    assert fold.recoveries == {}


def test_a_hold_lasts_as_long_as_its_turn_even_over_a_repair() -> None:
    fold = new_fold(rules=RULES)
    strict = (call("strict"), A, END)
    apply_all(fold, [TurnStarted(3), Tokens(strict[:0]), Hold(), Hold(), Tokens(strict)])
    assert (fold.is_held, fold.shown.is_visible, fold.called) == (True, False, True)
    assert fold.bodies == (Body("call", "strict", "a", 0, seen=False),)
    apply_all(fold, [Repair(3, "invalid_tool_call"), Tokens(strict)])
    assert (fold.is_held, fold.shown.is_visible) == (True, False)
    fold.apply(STOP)
    assert (fold.is_held, fold.shown.is_visible, fold.called) == (False, True, True)
    assert not fold.bodies


def test_what_a_prefill_says_is_shown_with_the_first_id_that_the_model_says() -> None:
    fold = new_fold()
    assert len(fold.apply(TurnStarted(3, (FINAL, A)))) == 2
    assert not fold.apply(Tokens(()))
    shown = fold.apply(Tokens((B,)))
    assert orjson.loads(shown[-1].data)["delta"] == "ab"


def test_a_turn_in_which_the_model_says_nothing_shows_nothing() -> None:
    fold = new_fold(rules=RULES)
    strict = (call("strict"), A, END)
    apply_all(fold, [TurnStarted(3, strict), STOP, TurnStarted(0, strict), Tokens((A,))])
    assert fold.bodies_after(FinishReason.STOP) == (Body("call", "strict", "a", 0, seen=True),)
    assert fold.seen == 4
    apply_all(fold, [STOP, TurnStarted(0, strict)])
    assert not fold.bodies_after(FinishReason.CUT)
    apply_all(fold, [STOP, COMPLETED])
    assert len(fold.items()) == 1


def test_the_body_that_only_the_end_of_the_turn_will_close_is_known_before() -> None:
    fold = new_fold(rules=RULES)
    assert not fold.bodies_after(FinishReason.STOP)
    apply_all(fold, [TurnStarted(3), Tokens((call("strict"), A))])
    assert not fold.bodies
    assert fold.bodies_after(FinishReason.STOP) == (Body("call", "strict", "a", 0, seen=True),)
    assert not fold.bodies_after(FinishReason.LENGTH)
    assert fold.bodies_after(FinishReason.CUT) == fold.bodies_after(FinishReason.STOP)
    fold.apply(Tokens((END,)))
    assert fold.bodies_after(FinishReason.STOP) == fold.bodies
    unruled = new_fold()
    apply_all(unruled, [TurnStarted(3), Tokens((call("strict"), A))])
    assert not unruled.bodies_after(FinishReason.STOP)


def test_where_nothing_is_demanded_a_hold_withholds_nothing() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Hold(), Tokens((FINAL, A))])
    assert (fold.is_held, fold.shown.is_visible) == (True, True)


@pytest.mark.requirement("order.summary")
@pytest.mark.parametrize(("summary", "expected"), [("detailed", "aab"), ("concise", "aab")])
def test_reasoning_has_the_summary_that_was_asked_for(
    summary: Literal["concise", "detailed"], expected: str
) -> None:
    fold = new_fold(rules=OutputRules({}, frozenset(), summary=summary))
    log: list[Entry] = [TurnStarted(3), Tokens((REASONING, A, A)), Tokens((B, END)), STOP]
    stream = check_stream(apply_all(fold, [*log, COMPLETED]))
    assert stream.items[0]["summary"] == [{"type": "summary_text", "text": expected}]


def test_what_is_withheld_is_dropped_when_the_turn_is_broken_off() -> None:
    fold = new_fold(rules=RULES)
    failed = Finished("failed", 9, code="invalid_tool_call", message="Try again.")
    log: list[Entry] = [TurnStarted(3), Hold(), Tokens((call("strict"), A, END)), failed]
    assert check_stream(apply_all(fold, log)).items == []


def test_a_stopped_answer_stays_stopped() -> None:
    fold = new_fold(rules=OutputRules({}, frozenset(), stop=("a",)))
    apply_all(fold, [TurnStarted(3), Tokens((FINAL, B, A, B))])
    assert fold.stopped
    apply_all(fold, [STOP, COMPLETED])
    assert fold.stopped
    assert fold.response()["output"][0]["content"][0]["text"] == "b"


def test_without_a_turn_there_is_nothing_to_know_of_it() -> None:
    fold = new_fold(rules=RULES)
    assert (fold.violation, fold.bodies, fold.seen) == (None, (), 0)
    assert (fold.called, fold.stopped, fold.is_held) == (False, False, False)
    assert fold.place == ParserPosition(Where.OVER, 0)


def test_reasoning_is_sealed_as_the_ids_that_repeat_it() -> None:
    fold = new_fold()
    said = Tokens((REASONING, A, END, REASONING, B, BROKEN, REASONING, A))
    apply_all(fold, [TurnStarted(3), said, TurnEnded(FinishReason.LENGTH), COMPLETED])
    output = fold.response()["output"]
    contents = [bytes.fromhex(item["encrypted_content"]) for item in output]
    assert [Unsealed.of(content) for content in contents] == [
        Unsealed(ids=fold.items()[0].ids),
        Unsealed(text="b"),
        Unsealed(text="a"),
    ]


@pytest.mark.parametrize("seal", [None, lambda _: None])
def test_reasoning_that_cannot_be_sealed_is_not(seal: Callable[[bytes], str | None] | None) -> None:
    fold = Fold(response_head(), parsed_by(ToyParser, FRAMING), NO_RULES, seal)
    apply_all(fold, [TurnStarted(3), Tokens((REASONING, A, END)), STOP, COMPLETED])
    assert "encrypted_content" not in fold.items()[0].item


def test_messages_are_shown_at_the_end_with_what_was_taken_back() -> None:
    shown = HarmonyMessages([{"role": "user"}])
    head = replace(response_head(), messages=shown)

    def transcribe(said: Sequence[int], taken_back: Any, *, with_ids: bool) -> list[dict[str, Any]]:
        assert with_ids is shown.with_output_ids
        return [{"said": list(said), "taken_back": [[rule, [*ids]] for rule, ids in taken_back]}]

    fold = Fold(head, parsed_by(ToyParser, FRAMING, transcribe), NO_RULES)
    apply_all(fold, [TurnStarted(3, (REASONING,)), Tokens((A, END, BROKEN, B)), Repair(2, "R1")])
    apply_all(fold, [STOP, TurnStarted(3), Tokens((FINAL, A, RETURN)), STOP])
    assert "output_messages" not in fold.response()
    apply_all(fold, [COMPLETED])
    response = fold.response()
    assert response["input_messages"] == [{"role": "user"}]
    assert response["output_messages"] == [
        {"said": [REASONING, A, END], "taken_back": [["R1", [BROKEN, B]]]},
        {"said": [FINAL, A, RETURN], "taken_back": []},
    ]
    assert orjson.loads(fold.shown.encoded_response()) == response


def _logprobs(fold: Fold) -> list[list[float]]:
    contents = [item["content"][0] for item in fold.response()["output"]]
    return [[entry["logprob"] for entry in part.get("logprobs", [])] for part in contents]


def _told(*ids: int) -> Tokens:
    return Tokens(ids, tuple(map(logprob_of, ids)))


def test_there_is_a_logprob_for_each_id_or_none_at_all() -> None:
    fold = new_fold()
    fold.apply(TurnStarted(3))
    with pytest.raises(ValueError, match="one logprob for each id"):
        fold.apply(Tokens((FINAL, A), (logprob_of(A),)))
    assert not fold.turns[0].output_ids


def test_logprobs_are_those_of_messages_and_as_exact_as_the_packed_log() -> None:
    fold = new_fold()
    log: list[Entry] = [TurnStarted(3), _told(REASONING, A, END, FINAL, A, B, END), STOP, COMPLETED]
    apply_all(fold, log)
    assert _logprobs(fold) == [[], [-1.0, pytest.approx(-8 / 7)]]
    entry = fold.response()["output"][1]["content"][0]["logprobs"][0]
    alternative = {"token": "a", "logprob": -1.0, "bytes": [97]}
    # The marker among the alternatives is no text.
    assert entry == {**alternative, "top_logprobs": [alternative]}
    replayed = new_fold()
    assert apply_all(replayed, unpack(pack(log)))
    assert replayed.response() == fold.response()


def test_a_text_of_which_some_ids_came_without_logprobs_has_none() -> None:
    fold = new_fold()
    log: list[Entry] = [TurnStarted(3), _told(FINAL, A), Tokens((B, END)), STOP, COMPLETED]
    apply_all(fold, log)
    assert _logprobs(fold) == [[]]
    assert fold.turns[0].logprobs == [logprob_of(FINAL), logprob_of(A), None, None]


def test_logprobs_that_come_late_find_their_ids() -> None:
    fold = new_fold()
    apply_all(fold, [TurnStarted(3), Tokens((FINAL,)), _told(A), STOP, COMPLETED])
    assert fold.turns[0].logprobs == [None, logprob_of(A)]
    assert _logprobs(fold) == [[]]


def test_what_the_gateway_wrote_itself_was_certain() -> None:
    fold = new_fold()
    first: list[Entry] = [TurnStarted(3), _told(REASONING, A), TurnEnded(FinishReason.CUT)]
    second: list[Entry] = [TurnStarted(0, (FINAL, B)), _told(A, END), STOP, COMPLETED]
    apply_all(fold, [*first, *second])
    assert _logprobs(fold)[1] == [0.0, -1.0]


def test_the_id_that_reaches_into_a_stop_string_is_shown_as_far_as_its_text() -> None:
    fold = new_fold(rules=OutputRules({}, frozenset(), stop=("words",)))
    two_words = TEXT + PIECES.index("two words")
    apply_all(fold, [TurnStarted(3), _told(FINAL, A, two_words, B), STOP, COMPLETED])
    part = fold.response()["output"][0]["content"][0]
    assert part["text"] == "atwo "
    assert [entry["token"] for entry in part["logprobs"]] == ["a", "two "]


@pytest.mark.parametrize("before", [[COMPACTED], [TurnStarted(3)], [TurnStarted(3), STOP]])
def test_a_compaction_comes_once_and_before_all_turns(before: list[Entry]) -> None:
    fold = new_fold()
    apply_all(fold, before)
    usage = fold.usage
    with pytest.raises(ValueError, match="not the first"):
        fold.apply(COMPACTED)
    assert fold.usage == usage


def test_a_compaction_takes_a_response_out_of_the_queue() -> None:
    events = apply_all(new_fold(background=True), [Queued(), COMPACTED])
    assert [event.type for event in events] == [
        *("response.created", "response.queued", "response.in_progress"),
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]


def test_entries_out_of_place_are_refused_and_change_nothing() -> None:
    fold = new_fold()
    for entry in (Tokens((A,)), STOP, Hop("backend", 3), Hold(), Repair(1, "rule")):
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
    assert fold.shown.is_finished
    assert (fold.usage.input_tokens, fold.hops) == (3, 0)
