"""Laws of the fold, for whatever a log says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.log import Entry, Tokens, TurnStarted, pack, unpack
from tests.fakes.event_grammar import check_stream
from tests.fakes.toy_logs import apply_all, logs, new_fold

laws = settings(deadline=None)


@laws
@given(logs(), st.booleans())
def test_every_log_folds_to_a_lawful_stream(log: list[Entry], background: bool) -> None:
    check_stream(apply_all(new_fold(background=background), log))


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
@given(logs())
def test_the_response_can_be_read_at_any_time(log: list[Entry]) -> None:
    fold = new_fold(background=True)
    assert fold.response()["status"] == "queued"
    for entry in log[:-1]:
        fold.apply(entry)
        body = fold.response()
        assert (body["status"], body["usage"]) == ("in_progress", None)
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
