"""Streams of typical responses, event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from gateway import ids
from gateway.constraints.output_rules import OutputRules
from gateway.eventlog.fold.event_builder import Builder
from gateway.generation import SegmentEnded, SegmentKind, SegmentStarted, SegmentText
from gateway.protocol.responses.response_object import Outcome
from tests.fakes.event_grammar import check_stream
from tests.fakes.response_heads import NO_RULES, UUID_OF_TEST, response_head
from tests.fakes.toy_logs import ALLOWED, TOOL_RULES

if TYPE_CHECKING:
    from gateway.generation import SegmentEvent
    from gateway.protocol.stream_events import Event

COMPLETED = Outcome("completed", completed_at=9)
INCOMPLETE = Outcome("incomplete", incomplete_details={"reason": "max_output_tokens"})
END = SegmentEnded(0, 1)
CUT = SegmentEnded(0, 1, complete=False)


def segment(kind: SegmentKind, *texts: str, end: SegmentEnded = END) -> list[SegmentEvent]:
    return [SegmentStarted(kind, "f"), *map(SegmentText, texts), end]


def started() -> Builder:
    builder = Builder(response_head(), NO_RULES)
    builder.start()
    return builder


@pytest.mark.requirement("stream.item-envelope")
@pytest.mark.requirement("order.message")
@pytest.mark.requirement("order.reasoning")
def test_an_answer_after_reasoning_is_two_items() -> None:
    builder = Builder(response_head(), NO_RULES)
    events = builder.start()
    events += builder.feed(segment(SegmentKind.REASONING, "Easy", "."))
    events += builder.feed(segment(SegmentKind.FINAL, "4"))
    stream = check_stream(events + builder.finish(COMPLETED))
    assert stream.types() == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [item["id"] for item in stream.items] == [
        ids.output_item_id("rs_", UUID_OF_TEST, 0),
        ids.output_item_id("msg_", UUID_OF_TEST, 1),
    ]


@pytest.mark.requirement("order.function-call")
def test_a_call_without_arguments_still_has_a_delta() -> None:
    builder = started()
    events = builder.feed(segment(SegmentKind.FUNCTION_CALL))
    assert [event.type for event in events] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    done = orjson.loads(events[2].data)
    assert (done["arguments"], done["name"]) == ("", "f")


@pytest.mark.parametrize(
    ("kind", "text", "end"),
    [
        (SegmentKind.LOCAL_SHELL_CALL, '{"command":[]}', END),
        (SegmentKind.SHELL_CALL, '{"commands":"ls"}', END),
        (SegmentKind.APPLY_PATCH_CALL, "{", END),
        (SegmentKind.SHELL_CALL, '{"commands":["ls"]}', CUT),
    ],
)
def test_a_call_that_a_client_could_not_read_is_no_item(
    kind: SegmentKind, text: str, end: SegmentEnded
) -> None:
    builder = Builder(response_head(), OutputRules(TOOL_RULES, ALLOWED))
    builder.start()
    name = kind.value.removesuffix("_call")
    assert builder.feed([SegmentStarted(kind, name), SegmentText(text), end]) == []
    assert (builder.output, builder.is_visible, builder.is_called) == ([], False, False)


def test_a_call_that_is_shown_in_one_piece_is_complete_from_the_start() -> None:
    builder = Builder(response_head(), OutputRules(TOOL_RULES, ALLOWED))
    builder.start()
    kind, text = SegmentKind.LOCAL_SHELL_CALL, '{"command":["ls"]}'
    events = builder.feed([SegmentStarted(kind, "local_shell"), SegmentText(text), END])
    assert [orjson.loads(event.data)["item"]["status"] for event in events] == [
        "in_progress",
        "completed",
    ]
    assert builder.output[0]["action"]["command"] == ["ls"]
    assert (builder.is_visible, builder.is_called) == (True, True)


def test_a_tool_is_called_what_the_client_calls_it() -> None:
    builder = Builder(response_head(), OutputRules(TOOL_RULES, ALLOWED))
    builder.start()
    builder.feed([SegmentStarted(SegmentKind.FUNCTION_CALL, "strict"), END])
    builder.feed([SegmentStarted(SegmentKind.CUSTOM_CALL, "custom"), END])
    assert [(item["name"], item.get("namespace")) for item in builder.output] == [
        ("strict", "ns"),
        ("patch", None),
    ]


@pytest.mark.requirement("kinds.function-call")
def test_two_calls_have_different_call_ids() -> None:
    builder = started()
    builder.feed(segment(SegmentKind.FUNCTION_CALL, "{}") * 2)
    assert [item["call_id"] for item in builder.output] == [
        ids.call_id(UUID_OF_TEST, 0),
        ids.call_id(UUID_OF_TEST, 1),
    ]


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (SegmentKind.FUNCTION_CALL, "strict", "{}"),
        (SegmentKind.CUSTOM_CALL, "custom", "a"),
        (SegmentKind.LOCAL_SHELL_CALL, "local_shell", '{"command":["ls"]}'),
        (SegmentKind.SHELL_CALL, "shell", '{"commands":["ls"]}'),
        (
            SegmentKind.APPLY_PATCH_CALL,
            "apply_patch",
            '{"operation":{"type":"delete_file","path":"a"}}',
        ),
    ],
)
def test_the_call_id_of_every_kind_notes_the_form(kind: SegmentKind, name: str, text: str) -> None:
    builder = Builder(response_head(), OutputRules(TOOL_RULES, ALLOWED))
    builder.start()
    events = builder.feed([SegmentStarted(kind, name, 5), SegmentText(text), END])
    shown = [body["item"] for event in events if "item" in (body := orjson.loads(event.data))]
    assert {item["call_id"] for item in shown} == {ids.call_id(UUID_OF_TEST, 0, 5)}
    assert {ids.message_form(item["id"]) for item in shown} == {0}


@pytest.mark.parametrize("kind", [SegmentKind.COMMENTARY, SegmentKind.FINAL, SegmentKind.REFUSAL])
def test_the_id_of_a_message_notes_the_form(kind: SegmentKind) -> None:
    builder = started()
    builder.feed([SegmentStarted(kind, form=2), SegmentText("{}"), END])
    assert builder.output[0]["id"] == ids.output_item_id("msg_", UUID_OF_TEST, 0, 2)


def test_a_call_is_shown_before_its_arguments_come() -> None:
    events = started().feed([SegmentStarted(SegmentKind.FUNCTION_CALL, "f")])
    assert [event.type for event in events] == ["response.output_item.added"]


@pytest.mark.requirement("kinds.reasoning")
@pytest.mark.parametrize("kind", [SegmentKind.REASONING, SegmentKind.COMMENTARY, SegmentKind.FINAL])
def test_a_message_that_says_nothing_is_no_item(kind: SegmentKind) -> None:
    builder = started()
    assert builder.feed(segment(kind)) == []
    assert not builder.is_visible


def test_reasoning_alone_is_not_visible() -> None:
    builder = started()
    builder.feed(segment(SegmentKind.REASONING, "Hm."))
    assert not builder.is_visible
    builder.feed(segment(SegmentKind.FINAL, "4"))
    assert builder.is_visible


def test_texts_of_one_feed_are_one_delta() -> None:
    builder = started()
    builder.feed([SegmentStarted(SegmentKind.FINAL), SegmentText("a")])
    (event,) = builder.feed([SegmentText("b"), SegmentText("c")])
    assert (orjson.loads(event.data)["delta"], event.delta_length) == ("bc", 2)


@pytest.mark.requirement("order.truncation")
def test_a_cut_item_ends_with_the_response() -> None:
    builder = started()
    events = builder.feed(segment(SegmentKind.FINAL, "4", end=CUT))
    assert events[-1].type == "response.output_text.delta"
    events = builder.finish(INCOMPLETE)
    assert [event.type for event in events] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert builder.response()["output"][0]["status"] == "incomplete"


def test_a_cut_item_that_something_follows_is_completed() -> None:
    builder = started()
    builder.feed(segment(SegmentKind.REASONING, "Hm", end=CUT))
    builder.feed(segment(SegmentKind.FINAL, "4"))
    assert [item["status"] for item in builder.output] == ["completed", "completed"]
    assert builder.endings == {0: CUT, 1: END}


def test_an_item_that_never_ended_is_incomplete_when_the_response_fails() -> None:
    builder = started()
    builder.feed([SegmentStarted(SegmentKind.FINAL), SegmentText("4")])
    error = {"code": "server_error", "message": "Broken off."}
    events = builder.finish(Outcome("failed", error=error))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    flat = {"code": "server_error", "message": "Broken off.", "param": None}
    assert orjson.loads(events[-2].data) == {
        "type": "error",
        "sequence_number": events[-2].sequence_number,
        **flat,
        "error": {"type": "server_error", **flat},
    }
    assert builder.response()["error"] == error
    assert builder.response()["output"][0]["status"] == "incomplete"


@pytest.mark.requirement("stream-error.after")
@pytest.mark.parametrize(
    ("code", "kind"),
    [("server_error", "server_error"), ("context_length_exceeded", "invalid_request_error")],
)
def test_an_error_event_has_both_shapes(code: str, kind: str) -> None:
    error, _ = started().finish(Outcome("failed", error={"code": code, "message": "m"}))
    body = orjson.loads(error.data)
    flat = {"code": code, "message": "m", "param": None}
    assert body["error"] == {"type": kind, **flat}
    assert {name: body[name] for name in flat} == flat


@pytest.mark.requirement("stream-error.cancelled")
def test_a_cancelled_response_has_no_error_event() -> None:
    builder = started()
    (event,) = builder.finish(Outcome("cancelled"))
    assert event.type == "response.failed"
    assert orjson.loads(event.data)["response"]["status"] == "cancelled"


def shown(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.type, orjson.loads(event.data)["response"]["status"]) for event in events]


def test_a_response_may_be_queued_first() -> None:
    builder = Builder(response_head(background=True), NO_RULES)
    assert builder.response()["status"] == "queued"
    assert builder.is_waiting
    assert shown(builder.queue()) == [("response.created", "queued"), ("response.queued", "queued")]
    assert shown(builder.alive()) == [("response.queued", "queued")]
    assert builder.is_waiting
    assert shown(builder.start()) == [("response.in_progress", "in_progress")]
    assert shown(builder.alive()) == [("response.in_progress", "in_progress")]
    assert not builder.is_waiting


def test_what_is_queued_can_be_cancelled_and_do_nothing_else() -> None:
    builder = Builder(response_head(background=True), NO_RULES)
    assert not builder.may_finish("cancelled")
    builder.queue()
    assert builder.may_finish("cancelled")
    assert not builder.may_finish("completed")
    with pytest.raises(ValueError, match="it is queued"):
        builder.feed([])
    with pytest.raises(ValueError, match="completed cannot follow queued"):
        builder.finish(COMPLETED)
    with pytest.raises(ValueError, match="started before"):
        builder.queue()
    assert shown(builder.finish(Outcome("cancelled"))) == [("response.failed", "cancelled")]


def test_a_keep_alive_shows_no_items() -> None:
    builder = started()
    builder.feed(segment(SegmentKind.FINAL, "4"))
    (event,) = builder.alive()
    assert event.type == "response.in_progress"
    assert orjson.loads(event.data)["response"]["output"] == []


def test_a_response_in_progress_shows_the_open_item_so_far() -> None:
    builder = started()
    builder.feed(segment(SegmentKind.REASONING, "Hm"))
    builder.feed([SegmentStarted(SegmentKind.FINAL), SegmentText("4")])
    done, unfinished = builder.response()["output"]
    assert (done["status"], unfinished["status"]) == ("completed", "in_progress")
    assert unfinished["content"][0]["text"] == "4"


def test_nothing_can_precede_the_start_or_follow_the_end() -> None:
    builder = Builder(response_head(), NO_RULES)
    with pytest.raises(ValueError, match="not running"):
        builder.feed([])
    builder.start()
    with pytest.raises(ValueError, match="in_progress cannot follow in_progress"):
        builder.start()
    with pytest.raises(ValueError, match="queued cannot follow in_progress"):
        builder.finish(Outcome("queued"))
    builder.finish(COMPLETED)
    with pytest.raises(ValueError, match="not running"):
        builder.alive()
    with pytest.raises(ValueError, match="not running"):
        builder.finish(COMPLETED)


def test_segments_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="text outside of a segment"):
        started().feed([SegmentText("a")])
    with pytest.raises(ValueError, match="had not started"):
        started().feed([END])


def test_a_compaction_is_the_first_item_or_none() -> None:
    builder = started()
    builder.feed(segment(SegmentKind.FINAL, "4"))
    with pytest.raises(ValueError, match="the first item"):
        builder.compact("seal")
