"""Laws of the calls that the gateway runs, for whatever a model says and whatever becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.entries import (
    ToolEnded,
    ToolHandle,
    ToolsListed,
    ToolStarted,
    TurnStarted,
    pack,
    unpack,
)
from gateway.eventlog.fold.hosted_calls import family_of
from gateway.protocol.items import included_body
from gateway.protocol.responses.response_object import ResponseHead
from tests.fakes.event_grammar import check_stream
from tests.fakes.examples import examples
from tests.fakes.toy_logs import apply_all, new_fold
from tests.fakes.toy_tools import FILES, INCLUDED, Case, hosted_cases
from tests.property.test_fold_laws import one_id_an_entry, without_cuts
from tests.property.test_replay_laws import check_replay, knowledge

if TYPE_CHECKING:
    from gateway.eventlog.fold.fold import Fold
    from gateway.protocol.grants import Grants
    from gateway.protocol.stream_events import Event

_SDK: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_PARSED: Any = {"content": {"__all__": {"parsed"}}, "parsed_arguments": True}
"""What the SDK adds by itself."""
laws = settings(deadline=None)
thorough = settings(deadline=None, max_examples=examples(300))


def fold_of(case: Case) -> Fold:
    return new_fold(rules=case.rules, grants=case.grants)


@pytest.mark.slow
@thorough
@given(hosted_cases())
def test_every_log_folds_to_a_lawful_stream(case: Case) -> None:
    fold = fold_of(case)
    stream = check_stream(apply_all(fold, case.log))
    assert stream.response == fold.response()
    assert [item.item for item in fold.items()] == stream.items


@pytest.mark.slow
@thorough
@given(hosted_cases())
def test_the_cut_into_entries_changes_only_the_cut_into_deltas(case: Case) -> None:
    coarse, fine = fold_of(case), fold_of(case)
    coarse_events = check_stream(apply_all(coarse, case.log)).events
    fine_events = check_stream(apply_all(fine, one_id_an_entry(case.log))).events
    assert without_cuts(coarse_events) == without_cuts(fine_events)
    assert knowledge(coarse) == knowledge(fine)


@pytest.mark.slow
@laws
@given(hosted_cases(), st.data())
def test_a_log_is_replayed_as_it_was_folded(case: Case, data: st.DataObject) -> None:
    packed = Case(case.rules, case.grants, unpack(pack(case.log)))
    check_replay(lambda: fold_of(packed), packed.log, data, is_whole=data.draw(st.booleans()))


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_every_event_can_be_resumed_behind(case: Case) -> None:
    log = unpack(pack(case.log))
    events = apply_all(fold_of(case), log)
    for after in range(-1, len(events)):
        fold = fold_of(case)
        replayed = [event for entry in log for event in fold.replay(entry, after)]
        assert [one for one in replayed if one.sequence_number > after] == events[after + 1 :]


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_the_openai_sdk_reads_every_event_and_ends_with_the_same_response(case: Case) -> None:
    events = apply_all(fold_of(case), case.log)
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        parsed = _SDK.validate_json(event.data, strict=True)
        assert parsed.type == event.type
        state.handle_event(_SDK.validate_json(event.data))
    if events[-1].type == "response.completed":
        final = state._completed_response
        assert final is not None
        output = [item.model_dump(exclude=_PARSED, exclude_unset=True) for item in final.output]
        assert output == check_stream(events).response["output"]


@pytest.mark.slow
@laws
@given(hosted_cases(), hosted_cases(), st.data())
def test_an_entry_out_of_order_raises_and_changes_nothing(
    case: Case, other: Case, data: st.DataObject
) -> None:
    """Entries of any log, anywhere in another: either refused, or the stream stays lawful."""
    fold = fold_of(case)
    begin = data.draw(st.integers(0, len(case.log) - 1))
    events = apply_all(fold, case.log[:begin])
    hosted = [entry for entry in other.log if isinstance(entry, HOSTED_ENTRIES)]
    strays = data.draw(st.permutations(hosted[:6]))
    for entry in (*strays, *case.log[begin:-1]):
        before = knowledge(fold)
        try:
            events += fold.apply(entry)
        except ValueError:
            assert knowledge(fold) == before
    check_stream([*events, *fold.apply(case.log[-1])])


HOSTED_ENTRIES = (ToolsListed, ToolStarted, ToolHandle, ToolEnded, TurnStarted)


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_a_call_has_one_item_and_one_result(case: Case) -> None:
    fold = fold_of(case)
    apply_all(fold, case.log)
    ended = [entry for entry in case.log if isinstance(entry, ToolEnded)]
    assert [entry.ordinal for entry in ended] == list(range(len(ended)))
    assert fold.hosted.results == len(ended)
    items = [item for item in fold.items() if item.item["type"] in RUN]
    answered = [item for item in items if item.item["status"] != "incomplete"]
    cancelled = sum(entry.outcome == "cancelled" for entry in ended)
    assert len(answered) == len(ended) - cancelled
    for item, entry in zip(items, ended, strict=False):
        wanted = {"ok": "completed", "cancelled": "incomplete"}.get(entry.outcome, "failed")
        if "incomplete" not in {one.item["status"] for one in items}:
            assert item.item["status"] == wanted
        if item.ids is not None and wanted == "completed" and len(items) == len(ended):
            assert item.ids[-len(entry.ids) :] == entry.ids


RUN = {"web_search_call", "code_interpreter_call", "mcp_call"}


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_results_are_counted_once_and_are_no_output(case: Case) -> None:
    fold = fold_of(case)
    events = apply_all(fold, case.log)
    ended = [entry for entry in case.log if isinstance(entry, ToolEnded)]
    ids = sum(len(entry.ids) for entry in ended)
    usage = orjson.loads(events[-1].data)["response"]["usage"]
    assert fold.usage.tool_output_tokens == fold.hosted.result_ids == ids
    assert usage["output_tokens_details"].get("tool_output_tokens", 0) == ids
    assert fold.output_tokens == sum(len(turn.output_ids) for turn in fold.turns)
    said = orjson.loads(events[-1].data)["response"]
    assert ("tool_usage" in said) == bool(ended)
    if ended:
        searched = said["tool_usage"]["web_search"]["num_requests"]
        assert searched <= sum(entry.outcome == "ok" for entry in ended)


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_rules_only_ever_lose_hosted_tools(case: Case) -> None:
    fold = fold_of(case)
    allowed = fold.rules.allowed
    assert allowed <= case.rules.allowed
    for entry in case.log:
        was, results = fold.rules, fold.hosted.results
        call = fold.hosted.call
        withdrawal = (
            fold.hosted.withdrawn_by(entry.outcome) if isinstance(entry, ToolEnded) else None
        )
        fold.apply(entry)
        rules = fold.rules
        gone = was.allowed - rules.allowed
        assert rules.allowed <= was.allowed
        assert all(case.rules.tools[name].is_hosted for name in gone)
        assert bool(gone) <= (withdrawal is not None)
        if withdrawal == "calls":
            assert not any(
                case.rules.tools[name].is_hosted
                for name in rules.allowed
                if name in case.rules.tools
            )
        if withdrawal == "failures" and call is not None:
            assert family_of(call.name) not in {family_of(name) for name in rules.allowed}
        if fold.hosted.results == results:
            assert rules is was
        elif rules == was:
            assert rules is was, "what is derived from them takes long"
        if fold.hosted.results:
            assert rules.calls != "required"


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_no_marker_reaches_a_client(case: Case) -> None:
    if case.grants.browser is None:
        return
    for event in check_stream(apply_all(fold_of(case), case.log)).events:
        texts = [event.get("delta", ""), event.get("text", "")]
        if "output_text" in event["type"]:
            assert not any("†" in text and "【1†" in text for text in texts)
        for item in _items_in(event):
            for part in item.get("content", ()):
                assert "【1†L2-L3】" not in part.get("text", "") or item["type"] == "reasoning"


@pytest.mark.slow
@laws
@given(hosted_cases())
def test_annotations_say_where_their_link_stands(case: Case) -> None:
    for item in check_stream(apply_all(fold_of(case), case.log)).items:
        for part in item.get("content", ()):
            for one in part.get("annotations", ()):
                cited = part["text"][one["start_index"] : one["end_index"]]
                if one["type"] == "url_citation":
                    assert (cited[:2], cited[-2:]) == ("([", "))")
                else:
                    assert FILES[cited.removeprefix("sandbox:")] == one["file_id"]


@pytest.mark.slow
@pytest.mark.requirement("stream.end-has-all-items")
@laws
@given(hosted_cases())
def test_what_was_not_asked_for_is_hidden_everywhere(case: Case) -> None:
    stream = check_stream(apply_all(fold_of(case), case.log))
    included = case.grants.include
    for event in stream.events:
        for item in _items_in(event):
            if item["type"] == "web_search_call" and not included:
                assert "sources" not in item["action"]
            if item["type"] == "code_interpreter_call" and not included:
                assert item["outputs"] is None


def _items_in(event: dict[str, Any]) -> list[dict[str, Any]]:
    own: list[dict[str, Any]] = [event["item"]] if "item" in event else []
    return [*own, *event.get("response", {}).get("output", [])]


@pytest.mark.slow
@laws
@given(hosted_cases(), st.sets(st.sampled_from(INCLUDED)), st.sets(st.sampled_from(INCLUDED)))
def test_what_a_reader_asks_for_is_what_the_request_could_have_asked_for(
    case: Case, first: set[str], later: set[str]
) -> None:
    """In the stream, in the body that was kept, and in each item of it."""

    def head(include: set[str]) -> Grants:
        return replace(case.grants, include=tuple(sorted(include)))

    def fold_with(grants: Grants) -> tuple[Fold, list[Event]]:
        fold = new_fold(rules=case.rules, grants=grants)
        return fold, apply_all(fold, case.log)

    created, _ = fold_with(head(first))
    asked, events = fold_with(head(first | later))
    body = created.shown.encoded_response()
    includable = {
        str(one.item["id"]): orjson.dumps(one.includable)
        for one in created.items()
        if one.includable is not None
    }
    assert included_body(body, includable, later) == asked.shown.encoded_response()
    shown = ResponseHead(UUID(int=0), 0, background=False, echo={}, grants=head(first))
    grants = shown.including(later).grants
    assert grants is not None
    assert fold_with(grants)[1] == events
