"""Laws of the fold, for whatever a log says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules
from gateway.entries import (
    Alive,
    Compacted,
    Entry,
    Hop,
    Queued,
    Repair,
    Tokens,
    TurnEnded,
    TurnStarted,
    pack,
    unpack,
)
from tests.fakes.event_grammar import check_stream
from tests.fakes.toy_logs import COMPACTED, apply_all, logs, new_fold, steered_logs

if TYPE_CHECKING:
    from gateway.eventlog.fold.fold import Fold

laws = settings(deadline=None)
Case = tuple[OutputRules, list[Entry]]


@pytest.mark.slow
@pytest.mark.requirement("accept.stream-laws")
@pytest.mark.requirement("stream.numbers")
@pytest.mark.requirement("stream.output-index")
@pytest.mark.requirement("stream.part-indexes")
@pytest.mark.requirement("stream.item-id")
@pytest.mark.requirement("stream.end-has-all-items")
@pytest.mark.requirement("status.transitions")
@pytest.mark.requirement("usage.adds-up")
@laws
@given(logs())
def test_every_log_folds_to_a_lawful_stream(log: list[Entry]) -> None:
    check_stream(apply_all(new_fold(), log))


@pytest.mark.slow
@pytest.mark.requirement("accept.stream-laws")
@laws
@given(logs(background=True))
def test_every_log_of_what_was_queued_folds_to_a_lawful_stream(log: list[Entry]) -> None:
    check_stream(apply_all(new_fold(background=True), log))


@pytest.mark.slow
@laws
@given(logs())
def test_a_background_log_that_was_never_queued_still_folds(log: list[Entry]) -> None:
    assert apply_all(new_fold(background=True), log)[-1].is_terminal


@pytest.mark.slow
@laws
@given(logs())
def test_a_hop_shows_nothing(log: list[Entry]) -> None:
    straight = [entry for entry in log if not isinstance(entry, Hop)]
    hopped, whole = new_fold(), new_fold()
    assert apply_all(hopped, log) == apply_all(whole, straight)
    assert hopped.items() == whole.items()
    hops = [entry for entry in log if isinstance(entry, Hop)]
    assert hopped.usage.recomputed_tokens == sum(hop.recomputed_tokens for hop in hops)
    assert hopped.hops == sum(hop.reason == "backend" for hop in hops)


@pytest.mark.slow
@laws
@given(logs(), st.data())
def test_the_fold_knows_where_the_log_stands(log: list[Entry], data: st.DataObject) -> None:
    fold = new_fold()
    said: list[list[int]] = []
    ended = 0
    for entry in log[: data.draw(st.integers(0, len(log)))]:
        fold.apply(entry)
        if isinstance(entry, TurnStarted):
            said.append([])
        elif isinstance(entry, Tokens):
            said[-1] += entry.ids
        ended += isinstance(entry, TurnEnded)
    assert [turn.output_ids.tolist() for turn in fold.turns] == said
    assert sum(turn.finish is not None for turn in fold.turns) == ended
    is_open = len(said) > ended and not fold.shown.is_finished
    assert fold.open_turn is (fold.turns[-1] if is_open else None)


@pytest.mark.slow
@pytest.mark.requirement("stream.end-has-all-items")
@laws
@given(logs())
def test_the_response_is_the_one_inside_the_terminal_event(log: list[Entry]) -> None:
    fold = new_fold()
    events = apply_all(fold, log)
    assert fold.shown.is_finished
    assert orjson.loads(events[-1].data)["response"] == fold.response()
    assert fold.response()["output"] == [rendered.item for rendered in fold.items()]


@pytest.mark.slow
@laws
@given(logs())
def test_what_is_encoded_piece_by_piece_is_what_encoding_all_of_it_gives(log: list[Entry]) -> None:
    fold = new_fold()
    for entry in log:
        for event in fold.apply(entry):
            said = orjson.loads(event.data)
            assert event.data == orjson.dumps(said)
            assert (said["type"], said["sequence_number"]) == (event.type, event.sequence_number)
            assert not event.text or orjson.loads(event.text) == said["delta"]


@pytest.mark.slow
@laws
@given(logs())
def test_the_same_log_folds_to_the_same_bytes(log: list[Entry]) -> None:
    assert apply_all(new_fold(), log) == apply_all(new_fold(), unpack(pack(log)))


@pytest.mark.slow
@laws
@given(logs(), st.data())
def test_a_prefix_and_then_the_rest_fold_like_all(log: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole, parts = new_fold(), new_fold()
    expected = apply_all(whole, log)
    assert apply_all(parts, log[:cut]) + apply_all(parts, log[cut:]) == expected
    assert parts.items() == whole.items()
    assert (parts.usage, parts.recoveries) == (whole.usage, whole.recoveries)


@pytest.mark.slow
@laws
@given(logs())
def test_the_cut_into_entries_changes_only_the_cut_into_deltas(log: list[Entry]) -> None:
    coarse, fine = new_fold(), new_fold()
    coarse_events = check_stream(apply_all(coarse, log))
    fine_events = check_stream(apply_all(fine, one_id_an_entry(log)))
    assert without_cuts(coarse_events.events) == without_cuts(fine_events.events)
    assert coarse.items() == fine.items()
    assert coarse.response() == fine.response()


@pytest.mark.slow
@laws
@given(logs())
def test_an_entry_yields_at_most_one_delta_of_a_part(log: list[Entry]) -> None:
    fold = new_fold()
    for entry in log:
        deltas = [orjson.loads(e.data) for e in fold.apply(entry) if e.type.endswith(".delta")]
        parts = [delta["item_id"] for delta in deltas]
        assert len(parts) == len(set(parts))


@pytest.mark.slow
@pytest.mark.requirement("usage.exact")
@laws
@given(logs())
def test_output_tokens_are_the_ids_of_the_log(log: list[Entry]) -> None:
    fold = new_fold()
    apply_all(fold, log)
    extra = COMPACTED if COMPACTED in log else Compacted((), "")
    assert fold.output_tokens == sum(len(entry.ids) for entry in log if isinstance(entry, Tokens))
    assert fold.usage.output_tokens == fold.output_tokens + extra.output_tokens
    assert fold.usage.input_tokens == extra.input_tokens + sum(
        entry.input_tokens for entry in log if isinstance(entry, TurnStarted)
    )


@pytest.mark.slow
@laws
@given(logs())
def test_a_compaction_is_the_first_item_and_counts_in_the_usage_alone(log: list[Entry]) -> None:
    fold, plain = new_fold(), new_fold()
    apply_all(fold, log)
    apply_all(plain, [entry for entry in log if entry != COMPACTED])
    compacted = [item for item in fold.items() if item.item["type"] == "compaction"]
    assert [item.ids for item in compacted] == [COMPACTED.ids] * (log[0] == COMPACTED)
    assert compacted == fold.items()[: len(compacted)]
    extra = COMPACTED if compacted else Compacted((), "")
    for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"):
        usage, said = getattr(fold.usage, name), getattr(plain.usage, name)
        assert usage == said + getattr(extra, name)


@pytest.mark.slow
@laws
@given(logs())
def test_an_item_that_is_not_complete_is_never_repeated_as_ids(log: list[Entry]) -> None:
    fold = new_fold()
    apply_all(fold, log)
    for rendered in fold.items():
        if rendered.item.get("status") == "incomplete":
            assert rendered.ids is None


@pytest.mark.slow
@laws
@given(logs(background=True))
def test_the_response_can_be_read_at_any_time(log: list[Entry]) -> None:
    fold = new_fold(background=True)
    status = "queued"
    assert fold.response()["status"] == status
    for entry in log[:-1]:
        fold.apply(entry)
        body = fold.response()
        if not isinstance(entry, Queued | Alive):
            status = "in_progress"
        assert (body["status"], body["usage"]) == (status, None)
        assert body["output"][: len(fold.items())] == [item.item for item in fold.items()]
        assert all(item["status"] == "in_progress" for item in body["output"][len(fold.items()) :])


@pytest.mark.slow
@laws
@given(steered_logs())
def test_every_steered_log_folds_to_a_lawful_stream(case: Case) -> None:
    rules, log = case
    fold = new_fold(rules=rules)
    stream = check_stream(apply_all(fold, log))
    assert stream.response == fold.response()
    assert apply_all(new_fold(rules=rules), unpack(pack(log))) == apply_all(
        new_fold(rules=rules), log
    )


@pytest.mark.slow
@laws
@given(steered_logs())
def test_the_cut_of_a_steered_log_changes_only_the_cut_into_deltas(case: Case) -> None:
    rules, log = case
    coarse, fine = new_fold(rules=rules), new_fold(rules=rules)
    coarse_events = check_stream(apply_all(coarse, log)).events
    fine_events = check_stream(apply_all(fine, one_id_an_entry(log))).events
    assert without_cuts(coarse_events) == without_cuts(fine_events)
    assert coarse.items() == fine.items()
    assert (coarse.usage, coarse.recoveries) == (fine.usage, fine.recoveries)


@pytest.mark.slow
@laws
@given(steered_logs(), st.data())
def test_what_a_fold_knows_does_not_depend_on_the_cut(case: Case, data: st.DataObject) -> None:
    rules, log = case
    log = log[: data.draw(st.integers(0, len(log)))]
    coarse, fine = new_fold(rules=rules), new_fold(rules=rules)
    apply_all(coarse, log)
    apply_all(fine, one_id_an_entry(log))
    assert _knowledge(coarse) == _knowledge(fine)


@pytest.mark.slow
@laws
@given(steered_logs())
def test_ids_that_were_taken_back_might_as_well_never_have_been_said(case: Case) -> None:
    rules, log = case
    repaired, spotless = new_fold(rules=rules), new_fold(rules=rules)
    # One id an entry, so that none is cut in two.
    log = one_id_an_entry(log)
    repaired_events = check_stream(apply_all(repaired, log)).events
    spotless_events = check_stream(apply_all(spotless, _without_void_ids(log))).events
    assert without_cuts(repaired_events) == without_cuts(spotless_events)
    assert repaired.items() == spotless.items()


@pytest.mark.slow
@laws
@given(steered_logs())
def test_every_id_is_counted_once(case: Case) -> None:
    rules, log = case
    fold = new_fold(rules=rules)
    apply_all(fold, log)
    said = sum(len(entry.ids) for entry in log if isinstance(entry, Tokens))
    voided = sum(entry.voided for entry in log if isinstance(entry, Repair))
    assert (fold.usage.output_tokens, fold.usage.voided_tokens) == (said - voided, voided)
    assert fold.usage.output_tokens == sum(len(turn.output_ids) for turn in fold.turns)
    assert all(len(turn.logprobs) in {0, len(turn.output_ids)} for turn in fold.turns)


@pytest.mark.slow
@laws
@given(steered_logs())
def test_what_the_rules_forbid_is_in_no_event(case: Case) -> None:
    rules, log = case
    items = check_stream(apply_all(new_fold(rules=rules), log)).items
    calls = [item for item in items if item["type"].endswith("_call")]
    names = {item["name"] for item in calls if "name" in item}
    if rules.tools:
        assert "barred" not in names
    if rules.calls == "none":
        assert not calls
    if not rules.open_calls:
        assert "unknown" not in names
    if rules.one_call:
        assert len(calls) <= 1
    answers = [item for item in items if item.get("phase") == "final_answer"]
    if rules.calls == "required" and answers:
        assert items.index(calls[0]) < items.index(answers[0])
    for item in answers if rules.answer else ():
        (part,) = item["content"]
        text = part["text"] if part["type"] == "output_text" else "{"
        assert text.lstrip().startswith("{")
    for item in answers:
        (part,) = item["content"]
        assert not any(stop in part.get("text", "") for stop in rules.stop)


@pytest.mark.slow
@laws
@given(steered_logs())
def test_nothing_of_a_held_body_comes_before_its_turn_has_ended(case: Case) -> None:
    rules, log = case
    fold = new_fold(rules=rules)
    for entry in log:
        was_held = fold.is_held
        known = {item["id"] for item in fold.response()["output"]}
        events = [orjson.loads(event.data) for event in fold.apply(entry)]
        if not was_held or isinstance(entry, TurnEnded):
            continue
        added = [event["item"] for event in events if event["type"].endswith("item.added")]
        assert not [item for item in added if _is_checked(rules, item)]
        written = {event["item_id"] for event in events if "delta" in event} - known
        assert written <= {item["id"] for item in added}


@pytest.mark.slow
@laws
@given(steered_logs())
def test_logprobs_spell_the_text_unless_something_is_amiss(case: Case) -> None:
    rules, log = case
    fold = new_fold(rules=rules)
    items = check_stream(apply_all(fold, log)).items
    tells = any(isinstance(entry, Tokens) and entry.logprobs for entry in log)
    for item in items:
        for part in item.get("content", ()):
            assert tells or not part.get("logprobs")


def _is_checked(rules: OutputRules, item: dict[str, Any]) -> bool:
    """Whether the body of an item is checked at the end of its turn."""
    if item.get("phase") == "final_answer":
        return rules.answer is not None
    is_known = item.get("name") in {"strict", "patch", "barred", None}
    return bool(rules.tools) and item["type"].endswith("_call") and is_known


def _knowledge(fold: Fold) -> dict[str, Any]:
    """All that a fold says of itself."""
    names = (
        *("violation", "bodies", "called", "is_repaired", "place", "seen", "stopped"),
        *("is_held", "turns", "usage", "recoveries"),
    )
    is_visible = fold.shown.is_visible
    return {"is_visible": is_visible, **{name: getattr(fold, name) for name in names}}


def _without_void_ids(log: list[Entry]) -> list[Entry]:
    """The same log, as if what was taken back had not been said. It has one id an entry."""
    left: list[Entry] = []
    for entry in log:
        if not isinstance(entry, Repair):
            left.append(entry)
            continue
        spoken = [at for at, e in enumerate(left) if isinstance(e, Tokens) and e.ids]
        for at in reversed(spoken[len(spoken) - entry.voided :]):
            del left[at]
    return left


def one_id_an_entry(log: list[Entry]) -> list[Entry]:
    """The same log, as if every id had come alone."""
    entries: list[Entry] = []
    for entry in log:
        if isinstance(entry, Tokens):
            entries += [
                Tokens((token,), entry.logprobs[at : at + 1]) for at, token in enumerate(entry.ids)
            ]
        else:
            entries.append(entry)
    return entries


def without_cuts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Deltas of one part joined, keep-alives and numbers left out.

    The two texts of a reasoning item take turns, so the joined one stands where it began.
    """
    joined: list[dict[str, Any]] = []
    open_deltas: dict[str, dict[str, Any]] = {}
    for event in events[2:]:
        bare = {key: value for key, value in event.items() if key != "sequence_number"}
        if bare["type"] == "response.in_progress":
            continue
        if not bare["type"].endswith(".delta"):
            open_deltas = {
                kind: d for kind, d in open_deltas.items() if "part.added" in bare["type"]
            }
        elif bare["type"] in open_deltas:
            before = open_deltas[bare["type"]]
            before["delta"] += bare["delta"]
            if "logprobs" in bare:
                before["logprobs"] = before["logprobs"] + bare["logprobs"]
            continue
        else:
            open_deltas[bare["type"]] = bare
        joined.append(bare)
    return joined
