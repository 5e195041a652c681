"""What Open Responses has another name or another form for, and what it has not."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from gateway.constraints.output_rules import INPUT_OBJECT
from gateway.eventlog.fold.lifecycle import EVENT_FIELDS
from gateway.protocol.responses import open_responses
from gateway.protocol.stream_events import HOSTED_ITEMS, DeltaPattern, Deltas, Event
from gateway.protocol.tool_types import SHELL_PARAMETERS
from tests.fakes.call_items import CALLS, OUTPUTS
from tests.fakes.cases import each
from tests.fakes.response_heads import ECHO

Json = dict[str, Any]

LEFT_OUT = {
    "response.compaction.compacting",
    "response.custom_tool_call_input.delta",
    "response.shell_call_command.added",
    "response.shell_call_command.delta",
    "response.shell_call_command.done",
    *(
        f"response.{kind}"
        for kind in (
            *(f"web_search_call.{state}" for state in ("in_progress", "searching", "completed")),
            *("code_interpreter_call.in_progress", "code_interpreter_call_code.delta"),
            *("code_interpreter_call_code.done", "code_interpreter_call.interpreting"),
            *("code_interpreter_call.completed", "mcp_call.in_progress"),
            *("mcp_call_arguments.delta", "mcp_call_arguments.done"),
            *("mcp_call.completed", "mcp_call.failed"),
            *(f"mcp_list_tools.{state}" for state in ("in_progress", "completed", "failed")),
        )
    ),
}
ANNOTATED = "response.output_text.annotation.added"
CITATION = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
FUNCTION = ECHO["tools"][0]
CUSTOM = {"type": "custom", "name": "note", "description": "Keeps a text."}
NAMESPACE = {"type": "namespace", "name": "ns", "description": "", "tools": [FUNCTION, CUSTOM]}


def event(kind: str, **fields: Any) -> Event:
    data = orjson.dumps({"type": kind, "sequence_number": 7, **fields})
    return Event(kind, 7, data, len(fields.get("delta", "")))


def shown(said: Event) -> Json:
    found = open_responses.shown(said)
    assert found is not None
    assert found.sequence_number == said.sequence_number
    body: Json = orjson.loads(found.data)
    assert (body["type"], body["sequence_number"]) == (found.type, found.sequence_number)
    return body


def item(said: Json) -> Json:
    (one,) = open_responses.items([said])
    return one


def response(**fields: Any) -> Json:
    return open_responses.body({**ECHO, "object": "response", "output": [], **fields})


def test_every_event_of_a_stream_has_a_form_or_is_left_out() -> None:
    known = open_responses.UNCHANGED | set(open_responses.RENAMED)
    changed = {"response.output_item.added", "response.output_item.done"}
    changed |= {"response.custom_tool_call_input.done", ANNOTATED}
    assert set(EVENT_FIELDS) - known - changed == LEFT_OUT


HOSTED: list[Json] = [
    {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}},
    {"id": "ci_1", "type": "code_interpreter_call", "status": "completed", "code": "1"},
    {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "a", "tools": []},
    {"id": "mcp_1", "type": "mcp_call", "server_label": "a", "name": "b", "arguments": "{}"},
]


def test_what_is_left_out_is_counted() -> None:
    assert {item["type"] for item in HOSTED} == HOSTED_ITEMS


@each("said", HOSTED)
@each("step", ["added", "done"])
def test_what_the_gateway_ran_is_left_out(said: Json, step: str) -> None:
    assert open_responses.items([said]) == []
    kind = f"response.output_item.{step}"
    assert open_responses.shown(event(kind, output_index=0, item=said)) is None
    running = event(f"response.{said['type']}.in_progress", output_index=0, item_id=said["id"])
    assert open_responses.shown(running) is None


def test_of_annotations_citations_of_pages_are_shown() -> None:
    assert shown(event(ANNOTATED, annotation=CITATION))["annotation"] == CITATION
    assert open_responses.shown(event(ANNOTATED, annotation={"type": "file_path"})) is None


SEARCH = {"type": "web_search", "search_context_size": "low"}
SERVER = {"type": "mcp", "server_label": "a", "server_url": "https://a.example/<redacted>"}


def test_tools_that_the_gateway_runs_are_left_out() -> None:
    assert response(tools=[SEARCH, FUNCTION, SERVER])["tools"] == [FUNCTION]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "web_search"}, "required"),
        ({"type": "mcp", "server_label": "a", "name": "b"}, "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "auto"),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "mcp", "server_label": "a"}, {"type": "shell"}],
            },
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "shell"}],
            },
        ),
    ],
)
def test_a_choice_of_what_the_gateway_runs_is_one_of_a_call(choice: Any, expected: Any) -> None:
    assert response(tool_choice=choice, tools=[SEARCH, SERVER])["tool_choice"] == expected
    assert {kind for kind in LEFT_OUT if open_responses.shown(event(kind))} == set()


def test_what_is_the_same_in_both_is_the_same_object() -> None:
    said = event("response.output_text.delta", delta="a")
    assert open_responses.shown(said) is said


@pytest.mark.parametrize("kind", ["added", "done"])
def test_an_item_of_a_tool_that_the_gateway_runs_is_left_out(kind: str) -> None:
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {}}
    said = event(f"response.output_item.{kind}", output_index=0, item=item)
    assert open_responses.shown(said) is None
    assert open_responses.items([item]) == []


def test_reasoning_has_another_name_and_the_text_about_it_keeps_its_own() -> None:
    text = 'an event "response.reasoning_text.delta"'
    said = event("response.reasoning_text.delta", delta=text)
    found = open_responses.shown(said)
    assert found is not None
    assert (found.type, found.delta_length) == ("response.reasoning.delta", len(text))
    assert shown(said)["delta"] == text


@each("kind", sorted({*open_responses.UNCHANGED, *open_responses.RENAMED}))
def test_a_run_of_deltas_is_the_run_of_what_is_shown_of_each(kind: str) -> None:
    head = b'{"type":"%b","sequence_number":' % kind.encode()
    deltas = Deltas(DeltaPattern(kind, head, b',"delta":', b"}"), 7, ("a", '"type"'))
    run = open_responses.shown_deltas(deltas)
    assert run is not None
    assert list(run) == [open_responses.shown(said) for said in deltas]


@each("kind", sorted({*open_responses.UNCHANGED, *open_responses.RENAMED}))
def test_indexes_are_counted_without_what_is_left_out(kind: str) -> None:
    data = b'{"type":"%b","sequence_number":7,"item_id":"i","output_index":5,"delta":"a"}'
    said = Event(kind, 7, data % kind.encode(), 1, b'"a"', hosted_before=3)
    assert shown(said)["output_index"] == 2
    before = b'{"type":"%b","sequence_number":' % kind.encode()
    pattern = DeltaPattern(kind, before, b',"item_id":"i","output_index":5,"delta":', b"}", 3)
    run = open_responses.shown_deltas(Deltas(pattern, 7, ("a", '"output_index":9')))
    assert run is not None
    each = [open_responses.shown(one) for one in Deltas(pattern, 7, ("a", '"output_index":9'))]
    assert [(one.type, orjson.loads(one.data)) for one in run] == [
        (one.type, orjson.loads(one.data)) for one in each if one
    ]


def test_an_event_of_the_whole_response_has_no_index() -> None:
    said = event("error", code="c", message="m")
    moved = replace(said, hosted_before=2)
    assert shown(moved) == shown(said)


def test_a_request_for_approval_is_a_call_that_is_complete_in_the_end() -> None:
    asked = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "s", "name": "n"}
    asked["arguments"] = "{}"
    told = [
        shown(
            replace(
                event(f"response.output_item.{kind}", output_index=4, item=asked), hosted_before=4
            )
        )
        for kind in ("added", "done")
    ]
    assert [one["output_index"] for one in told] == [0, 0]
    assert [one["item"]["status"] for one in told] == ["in_progress", "completed"]
    assert told[0]["item"]["arguments"] == ""
    assert orjson.loads(told[1]["item"]["arguments"]) == {
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    assert told[1]["item"]["call_id"] == "mcpr_1"


def test_an_output_that_no_call_asked_for_is_left_out() -> None:
    alone = {"id": "o", "type": "function_call_output", "name": "goal", "output": "x"}
    assert open_responses.items([alone]) == []
    assert item({**alone, "call_id": "c"}) == {
        "id": "o",
        "type": "function_call_output",
        "status": "completed",
        "call_id": "c",
        "output": "x",
    }


def test_a_run_of_deltas_that_the_dialect_does_not_have_is_left_out() -> None:
    kind = "response.custom_tool_call_input.delta"
    deltas = Deltas(DeltaPattern(kind, b"{", b"", b"}"), 7, ("a",))
    assert open_responses.shown_deltas(deltas) is None


def test_the_input_of_a_custom_tool_is_an_argument_that_is_known_in_the_end() -> None:
    said = event("response.custom_tool_call_input.done", item_id="i", output_index=2, input='"a"\n')
    body = shown(said)
    assert body["type"] == "response.function_call_arguments.done"
    assert (body["item_id"], body["output_index"]) == ("i", 2)
    assert json.loads(body["arguments"]) == {"input": '"a"\n'}


@pytest.mark.parametrize("step", ["added", "done"])
def test_an_item_of_a_stream_is_in_its_form(step: str) -> None:
    call = {"id": "c", "type": "custom_tool_call", "status": "completed", "call_id": "x"}
    said = event(f"response.output_item.{step}", item={**call, "name": "note", "input": "a"})
    assert shown(said)["item"]["type"] == "function_call"


@pytest.mark.parametrize(("step", "status"), [("added", "in_progress"), ("done", "completed")])
def test_an_item_without_a_status_has_that_of_its_event(step: str, status: str) -> None:
    compaction = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
    said = event(f"response.output_item.{step}", output_index=0, item=compaction)
    assert shown(said)["item"] == {**compaction, "status": status}


@pytest.mark.parametrize("status", ["created", "queued", "in_progress", "completed", "failed"])
def test_a_response_of_a_stream_is_in_its_form(status: str) -> None:
    body = {**ECHO, "object": "response", "output": [], "tools": [CUSTOM]}
    said = event(f"response.{status}", response=body)
    assert shown(said)["response"]["tools"][0]["type"] == "function"


@each("call, arguments", [(call, arguments) for call, _, arguments in CALLS])
def test_every_call_is_one_of_a_function(call: Json, arguments: str) -> None:
    said = {"id": "c", "status": "completed", "call_id": "x", **call}
    found = item(said)
    assert found["type"] == "function_call"
    assert found["name"] == call.get("name", call["type"].removesuffix("_call"))
    assert found.get("namespace") == call.get("namespace")
    assert found["arguments"] == arguments
    assert [found[name] for name in ("id", "status", "call_id")] == ["c", "completed", "x"]


def test_the_arguments_of_a_call_that_was_announced_are_yet_to_come() -> None:
    call = {"id": "c", "type": "local_shell_call", "call_id": "x"}
    said = {**call, "status": "in_progress", "action": {"type": "exec", "command": ["ls"]}}
    assert item(said)["arguments"] == ""
    assert json.loads(item({**said, "status": None})["arguments"]) == {"command": ["ls"]}


@pytest.mark.parametrize(("output", "text"), OUTPUTS)
def test_every_output_is_one_of_a_function(output: Json, text: str) -> None:
    said = {"id": "o", "status": "completed", "call_id": "x", **output}
    found = item(said)
    assert (found["type"], found["status"]) == ("function_call_output", "completed")
    assert (found["id"], found["call_id"]) == ("o", "x")
    if isinstance(found["output"], str):
        assert found["output"] == text


def test_an_item_has_a_status_and_no_nulls() -> None:
    assert item({"id": "r", "type": "reasoning", "summary": [], "encrypted_content": None}) == {
        "id": "r",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
    }
    compaction = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
    assert item(compaction) == {**compaction, "status": "completed"}


def test_an_item_that_the_dialect_does_not_have_is_left_out() -> None:
    assert open_responses.items([{"id": "t", "type": "compaction_trigger"}]) == []


def test_parts_are_as_the_document_has_them() -> None:
    parts = [
        {"type": "input_image", "file_id": "f", "detail": "original"},
        {"type": "input_image", "image_url": "https://x", "detail": "low"},
        {"type": "output_text", "text": "a", "annotations": [CITATION, {"type": "file_path"}]},
        {"type": "input_file", "filename": None, "file_url": "https://x"},
    ]
    assert item({"id": "m", "type": "message", "role": "user", "content": parts})["content"] == [
        {"type": "input_image", "image_url": None, "file_id": "f", "detail": "high"},
        {"type": "input_image", "image_url": "https://x", "detail": "low"},
        {"type": "output_text", "text": "a", "annotations": [CITATION]},
        {"type": "input_file", "file_url": "https://x"},
    ]


def test_a_format_is_shown_without_its_schema() -> None:
    form: Json = {
        "type": "json_schema",
        "name": "n",
        "description": None,
        "schema": {},
        "strict": True,
    }
    assert response(text={"format": form})["text"] == {"format": {**form, "schema": None}}
    assert response()["text"] == ECHO["text"]


def test_tools_are_the_functions_that_the_model_is_told_of() -> None:
    tools = response(tools=[FUNCTION, NAMESPACE, {"type": "shell"}])["tools"]
    assert tools[0] == FUNCTION
    assert [(tool["name"], tool.get("namespace")) for tool in tools] == [
        ("get_weather", None),
        ("get_weather", "ns"),
        ("note", "ns"),
        ("shell", None),
    ]
    assert [tool["parameters"] for tool in tools[2:]] == [INPUT_OBJECT, SHELL_PARAMETERS]
    assert tools[2] == {
        "type": "function",
        "name": "note",
        "description": "Keeps a text.",
        "parameters": INPUT_OBJECT,
        "strict": None,
        "namespace": "ns",
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ({"type": "function", "name": "f"}, {"type": "function", "name": "f"}),
        ({"type": "custom", "name": "note"}, {"type": "function", "name": "note"}),
        ({"type": "shell"}, {"type": "function", "name": "shell"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "local_shell"}]},
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "local_shell"}],
            },
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "namespace", "name": "ns"}],
            },
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [
                    {"type": "function", "name": "get_weather", "namespace": "ns"},
                    {"type": "function", "name": "note", "namespace": "ns"},
                ],
            },
        ),
    ],
)
def test_a_choice_is_of_functions(choice: Any, expected: Any) -> None:
    assert response(tool_choice=choice, tools=[FUNCTION, NAMESPACE])["tool_choice"] == expected


def test_lists_and_compactions_hold_items() -> None:
    said = {"id": "r", "type": "reasoning", "summary": []}
    listed = open_responses.body({"object": "list", "data": [said], "has_more": True})
    assert listed["data"] == [{**said, "status": "completed"}]
    assert listed["has_more"]
    compaction = open_responses.body({"object": "response.compaction", "output": [said]})
    assert compaction["output"] == [{**said, "status": "completed"}]
