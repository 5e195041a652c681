"""Laws of the fold, for whatever a log says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.log import Alive, Entry, Hop, Queued, Tokens, TurnEnded, TurnStarted, pack, unpack
from tests.fakes.event_grammar import check_stream
from tests.fakes.toy_logs import apply_all, logs, new_fold

laws = settings(deadline=None)


@laws
@given(logs())
def test_every_log_folds_to_a_lawful_stream(log: list[Entry]) -> None:
    check_stream(apply_all(new_fold(), log))


@laws
@given(logs(background=True))
def test_every_log_of_what_was_queued_folds_to_a_lawful_stream(log: list[Entry]) -> None:
    check_stream(apply_all(new_fold(background=True), log))


@laws
@given(logs())
def test_a_background_log_that_was_never_queued_still_folds(log: list[Entry]) -> None:
    assert apply_all(new_fold(background=True), log)[-1].is_terminal


@laws
@given(logs())
def test_a_hop_shows_nothing(log: list[Entry]) -> None:
    straight = [entry for entry in log if not isinstance(entry, Hop)]
    hopped, whole = new_fold(), new_fold()
    assert apply_all(hopped, log) == apply_all(whole, straight)
    assert hopped.items() == whole.items()
    hops = [entry for entry in log if isinstance(entry, Hop)]
    assert hopped.usage.recomputed_tokens == sum(hop.recomputed_tokens for hop in hops)
    assert hopped.hops + hopped.takeovers == len(hops)


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
    assert [turn.said for turn in fold.turns] == said
    assert sum(turn.finish is not None for turn in fold.turns) == ended
    is_open = len(said) > ended and not fold.is_finished
    assert fold.open_turn is (fold.turns[-1] if is_open else None)


@laws
@given(logs())
def test_the_response_is_the_one_inside_the_terminal_event(log: list[Entry]) -> None:
    fold = new_fold()
    events = apply_all(fold, log)
    assert fold.is_finished
    assert orjson.loads(events[-1].data)["response"] == fold.response()
    assert fold.response()["output"] == [rendered.item for rendered in fold.items()]


@laws
@given(logs())
def test_the_same_log_folds_to_the_same_bytes(log: list[Entry]) -> None:
    assert apply_all(new_fold(), log) == apply_all(new_fold(), unpack(pack(log)))


@laws
@given(logs(), st.data())
def test_a_prefix_and_then_the_rest_fold_like_all(log: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole, parts = new_fold(), new_fold()
    expected = apply_all(whole, log)
    assert apply_all(parts, log[:cut]) + apply_all(parts, log[cut:]) == expected
    assert parts.items() == whole.items()
    assert (parts.usage, parts.recoveries) == (whole.usage, whole.recoveries)


@laws
@given(logs())
def test_the_cut_into_entries_changes_only_the_cut_into_deltas(log: list[Entry]) -> None:
    coarse, fine = new_fold(), new_fold()
    coarse_events = check_stream(apply_all(coarse, log))
    fine_events = check_stream(apply_all(fine, _one_id_an_entry(log)))
    assert _without_cuts(coarse_events.events) == _without_cuts(fine_events.events)
    assert coarse.items() == fine.items()
    assert coarse.response() == fine.response()


@laws
@given(logs())
def test_an_entry_yields_at_most_one_delta_of_a_part(log: list[Entry]) -> None:
    fold = new_fold()
    for entry in log:
        deltas = [orjson.loads(e.data) for e in fold.apply(entry) if e.type.endswith(".delta")]
        parts = [delta["item_id"] for delta in deltas]
        assert len(parts) == len(set(parts))


@laws
@given(logs())
def test_output_tokens_are_the_ids_of_the_log(log: list[Entry]) -> None:
    fold = new_fold()
    apply_all(fold, log)
    assert fold.usage.output_tokens == sum(
        len(entry.ids) for entry in log if isinstance(entry, Tokens)
    )
    assert fold.usage.input_tokens == sum(
        entry.input_tokens for entry in log if isinstance(entry, TurnStarted)
    )


@laws
@given(logs())
def test_an_item_that_is_not_complete_is_never_repeated_as_ids(log: list[Entry]) -> None:
    fold = new_fold()
    apply_all(fold, log)
    for rendered in fold.items():
        if rendered.item["status"] == "incomplete":
            assert rendered.ids is None


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


def _one_id_an_entry(log: list[Entry]) -> list[Entry]:
    """The same log, as if every id had come alone."""
    entries: list[Entry] = []
    for entry in log:
        if isinstance(entry, Tokens):
            entries += [replace(entry, ids=(token,)) for token in entry.ids]
        else:
            entries.append(entry)
    return entries


def _without_cuts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Deltas of one part joined, keep-alives and numbers left out."""
    joined: list[dict[str, Any]] = []
    for event in events[2:]:
        bare = {key: value for key, value in event.items() if key != "sequence_number"}
        if bare["type"] == "response.in_progress":
            continue
        if "delta" in bare and joined[-1]["type"] == bare["type"]:
            bare["delta"] = joined.pop()["delta"] + bare["delta"]
        joined.append(bare)
    return joined
