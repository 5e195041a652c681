"""What agents report of their runs: read, bounded, found again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.protocol.trace_records import TRACE_ID_CHARS_MAX, TraceRecord, parse_traces
from tests.fakes.create_bodies import LIMITS

TRACE: dict[str, Any] = {
    "object": "trace",
    "id": "trace_1",
    "workflow_name": "Agent workflow",
    "group_id": None,
    "metadata": None,
}
SPAN: dict[str, Any] = {
    "object": "trace.span",
    "id": "span_1",
    "trace_id": "trace_1",
    "parent_id": None,
    "started_at": "2026-11-20T10:00:00+00:00",
    "ended_at": None,
    "span_data": {"type": "custom", "name": "x", "data": {}},
    "error": None,
}

VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just([]) | st.just({})
)
RECORDS = VALUES | st.fixed_dictionaries(
    {},
    optional={
        "object": st.sampled_from(["trace", "trace.span"]) | VALUES,
        "id": VALUES,
        "trace_id": VALUES,
        "span_data": VALUES | st.fixed_dictionaries({"response_id": VALUES}),
    },
)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.protocol.trace_records.RECORDS_MAX", 3)
    monkeypatch.setattr("gateway.protocol.trace_records.RECORD_BYTES_MAX", 300)


def parse(data: Any) -> list[TraceRecord]:
    body = json.dumps({"data": data}).encode()
    return parse_traces(body, limits=LIMITS)


def with_response(response_id: Any) -> dict[str, Any]:
    return {**SPAN, "span_data": {"type": "response", "response_id": response_id}}


def test_a_trace_and_its_span_are_kept_as_they_came() -> None:
    trace, span = parse([TRACE, SPAN])
    assert (trace.kind, trace.trace_id, trace.record_id) == ("trace", "trace_1", "trace_1")
    assert (span.kind, span.trace_id, span.record_id) == ("span", "trace_1", "span_1")
    assert [json.loads(record.json) for record in (trace, span)] == [TRACE, SPAN]
    assert trace.response is span.response is None


def test_what_nobody_knows_is_kept_too() -> None:
    (span,) = parse([{**SPAN, "span_data": None, "novel": {"a": [1]}}])
    assert json.loads(span.json)["novel"] == {"a": [1]}


def test_an_exporter_may_have_nothing_to_say() -> None:
    assert parse([]) == []


def test_a_span_of_a_response_names_it() -> None:
    uuid = ids.new_uuid()
    (ours,) = parse([with_response(ids.response_id(uuid))])
    assert ours.response == uuid
    for other in ("resp_of_another_server", "", None, 7):
        assert parse([with_response(other)])[0].response is None


def test_of_the_same_record_the_last_one_counts() -> None:
    ended = {**SPAN, "ended_at": "2026-11-20T10:00:01+00:00"}
    (span,) = parse([SPAN, ended])
    assert json.loads(span.json) == ended


def test_records_are_told_apart_by_kind_trace_and_id() -> None:
    spans = [SPAN, {**SPAN, "trace_id": "trace_2"}, {**SPAN, "id": "span_2"}]
    keys = {record.key for record in (*parse(spans), *parse([{**TRACE, "id": "span_1"}]))}
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (None, "missing_required_parameter", "data"),
        ({}, "invalid_type", "data"),
        ([TRACE] * 4, "array_above_max_length", "data"),
        ([TRACE, 7], "invalid_type", "data[1]"),
        ([{}], "missing_required_parameter", "data[0].object"),
        ([{**TRACE, "object": "metric"}], "invalid_value", "data[0].object"),
        ([{**TRACE, "object": {}}], "invalid_type", "data[0].object"),
        ([{**TRACE, "id": None}], "missing_required_parameter", "data[0].id"),
        ([{**TRACE, "id": ""}], "empty_string", "data[0].id"),
        ([{**SPAN, "trace_id": None}], "missing_required_parameter", "data[0].trace_id"),
        (
            [{**SPAN, "trace_id": "x" * (TRACE_ID_CHARS_MAX + 1)}],
            "string_above_max_length",
            "data[0].trace_id",
        ),
        ([TRACE, {**SPAN, "span_data": []}], "invalid_type", "data[1].span_data"),
        ([{**SPAN, "error": {"message": "x" * 300}}], "invalid_value", "data[0]"),
    ],
)
def test_what_is_no_trace_is_refused(data: Any, code: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(data)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.slow
@given(st.lists(RECORDS, max_size=4) | VALUES)
def test_any_body_is_kept_whole_or_refused(data: Any) -> None:
    try:
        records = parse(data)
    except InvalidRequest:
        return
    kept = [json.loads(record.json)["id"] for record in records]
    assert set(kept) == {value["id"] for value in data}
    assert len({record.key for record in records}) == len(kept)


def test_a_record_of_another_kind_is_told_which_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"Supported values are: 'trace' and 'trace\.span'"):
        parse([{**TRACE, "object": "metric"}])


def test_a_record_that_is_too_large_says_by_how_much() -> None:
    size = len(parse([SPAN])[0].json)
    at_most = {**SPAN, "error": "x" * (300 - size - 2 + len("null"))}
    assert len(parse([at_most])[0].json) == 300
    with pytest.raises(InvalidRequest, match=r"it has 301 bytes\. Expected at most 300 bytes"):
        parse([{**at_most, "error": at_most["error"] + "x"}])
