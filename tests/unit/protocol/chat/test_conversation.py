"""Messages of a chat, and the items that they mean."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.cases import each
from tests.fakes.chat_bodies import CALLING, HI, OUTPUT, Row, check_refusal, items

Json = dict[str, Any]

IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}}


def message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": ({"type": "input_text", "text": text},)}


def spoken(text: str, **more: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": ()}
    return {"type": "message", "role": "assistant", "content": (part,), **more}


CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
RETURN: Json = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_a_text_is_a_message_of_its_role(role: str) -> None:
    assert items({"role": role, "content": "x"}) == [message(role, "x")]


def test_parts_keep_their_order_and_their_kind() -> None:
    parts: list[Json] = [
        {"type": "text", "text": "a"},
        IMAGE,
        {"type": "image_url", "image_url": "https://host/x.png"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
        {"type": "file", "file": {"file_id": "file_1"}},
    ]
    (item,) = items({"role": "user", "content": parts})
    assert list(item["content"]) == [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:,x", "detail": "low"},
        {"type": "input_image", "image_url": "https://host/x.png", "detail": "auto"},
        {"type": "input_file", "file_data": "AAAA", "filename": "audio.wav"},
        {"type": "input_file", "file_data": "AAAA", "filename": "audio"},
        {"type": "input_file", "file_id": "file_1"},
    ]


def test_what_an_assistant_answered_is_an_answer() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "x"}]}
    assert items(HI, said)[1:] == [spoken("x")]


def test_what_an_assistant_said_beside_its_calls_is_a_preamble() -> None:
    calling = {**CALLING, "content": "I look."}
    preamble = spoken("I look.", phase="commentary")
    assert items(HI, calling, OUTPUT)[1:] == [preamble, CALL, RETURN]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_that_is_given_back_comes_before_what_it_led_to(name: str) -> None:
    calling = {**CALLING, name: "Hm.", "content": ""}
    thought = {
        "type": "reasoning",
        "summary": (),
        "content": ({"type": "reasoning_text", "text": "Hm."},),
    }
    assert items(HI, calling, OUTPUT)[1:] == [thought, CALL, RETURN]


@pytest.mark.parametrize("value", [None, "", {"text": "x"}])
def test_reasoning_that_is_no_text_adds_nothing(value: object) -> None:
    said = {"role": "assistant", "content": "x", "reasoning": value, "reasoning_content": value}
    assert len(items(HI, said)) == 2


def test_a_refusal_is_said_by_the_assistant() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    for said in ({"refusal": "no"}, {"content": [refusal]}):
        assert items(HI, {"role": "assistant", **said})[1] == {
            "type": "message",
            "role": "assistant",
            "content": (refusal,),
        }


@pytest.mark.parametrize("said", [{"content": ""}, {"content": []}, {"refusal": ""}])
def test_an_assistant_that_says_nothing_adds_nothing(said: Json) -> None:
    assert items(HI, {"role": "assistant", **said}, HI) == items(HI, HI)


def test_no_calls_beside_a_content_are_no_mistake() -> None:
    said = {"role": "assistant", "content": "x"}
    assert items(HI, {**said, "tool_calls": []}) == items(HI, said)


def test_a_call_without_a_type_is_one_of_a_function() -> None:
    (call,) = CALLING["tool_calls"]
    untyped = {name: value for name, value in call.items() if name != "type"}
    assert items(HI, {**CALLING, "tool_calls": [untyped]}, OUTPUT)[1:] == [CALL, RETURN]


def test_an_output_is_of_the_kind_of_its_call() -> None:
    calling: Json = {
        "role": "assistant",
        "tool_calls": [
            {"id": "c", "type": "custom", "custom": {"name": "p", "input": "x"}},
            {"id": "d", "type": "function", "function": {"name": "f", "arguments": ""}},
        ],
    }
    parts = [{"type": "text", "text": "seen"}, IMAGE]
    outputs: list[Json] = [
        {"role": "tool", "tool_call_id": "d", "content": parts},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]
    _, custom, function, shown, done = items(HI, calling, *outputs)
    assert custom == {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"}
    assert function["call_id"] == "d"
    assert done == {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    assert (shown["type"], shown["call_id"]) == ("function_call_output", "d")
    assert [part["type"] for part in shown["output"]] == ["input_text", "input_image"]


def test_an_id_may_be_used_again_once_it_was_answered() -> None:
    assert items(HI, CALLING, OUTPUT, CALLING, OUTPUT)[1:] == [CALL, RETURN] * 2


def test_a_deprecated_call_is_answered_by_its_name() -> None:
    def calling(name: str) -> Json:
        return {"role": "assistant", "function_call": {"name": name, "arguments": "{}"}}

    def returned(name: str) -> Json:
        return {"role": "function", "name": name, "content": name}

    _, f, g, f_output, g_output = items(
        HI, calling("f"), calling("g"), returned("f"), returned("g")
    )
    assert (f["call_id"], f["name"]) == (f_output["call_id"], f_output["output"])
    assert (g["call_id"], g["name"]) == (g_output["call_id"], g_output["output"])
    assert f["call_id"] != g["call_id"]


def said(*messages: object) -> Json:
    return {"messages": list(messages)}


def user(*parts: object) -> Json:
    return said({"role": "user", "content": list(parts)})


LONG = "x" * 5_001
EMPTY: tuple[Any, ...] = ("", [])
CALLED = {"id": "c", "type": "function"}
ANSWERED = {"role": "tool", "tool_call_id": "c", "content": "x"}
ROWS: list[Row] = [
    (said(), "empty_array", "messages", "Invalid 'messages': empty array."),
    ({"messages": "hi"}, "invalid_type", "messages", "an array of objects"),
    (said("hi"), "invalid_type", "messages[0]", "Invalid type for 'messages[0]': expected an obj"),
    (said({"content": "x"}), "missing_required_parameter", "messages[0].role", "'messages[0].role"),
    (said({"role": "bot"}), "invalid_value", "messages[0].role", "'developer', 'system', 'user', "),
    (said({"role": 3}), "invalid_type", "messages[0].role", "but got an integer"),
    (said({"role": "user"}), "missing_required_parameter", "messages[0].content", "Missing"),
    (said({"role": "system"}), "missing_required_parameter", "messages[0].content", "Missing"),
    (
        said({"role": "user", "content": 3}),
        "invalid_type",
        "messages[0].content",
        "expected one of a string or array of objects, but got an integer instead.",
    ),
    (user("x"), "invalid_type", "messages[0].content[0]", "expected an object"),
    (user({}), "missing_required_parameter", "messages[0].content[0].type", "Missing"),
    (user({"type": "text"}), "missing_required_parameter", "messages[0].content[0].text", "Mis"),
    (user({"type": "text", "text": 3}), "invalid_type", "messages[0].content[0].text", "integer"),
    (
        user({"type": "video_url"}),
        "invalid_value",
        "messages[0].content[0].type",
        "Supported values are: 'text', 'image_url', 'input_audio', and 'file'.",
    ),
    (
        user({"type": "refusal", "refusal": "no"}),
        "invalid_value",
        "messages[0].content[0].type",
        "'refusal'",
    ),
    (
        said({"role": "assistant", "content": [IMAGE]}),
        "invalid_value",
        "messages[0].content[0].type",
        "Invalid value: 'image_url'. Supported values are: 'text' and 'refusal'.",
    ),
    (
        said({"role": "system", "content": [IMAGE]}),
        "invalid_value",
        "messages[0].content[0].type",
        "'text'",
    ),
    (
        user({"type": "image_url", "image_url": {"url": "x", "detail": "huge"}}),
        "invalid_value",
        "messages[0].content[0].image_url.detail",
        "'huge'",
    ),
    (
        user({"type": "image_url", "image_url": {}}),
        "missing_required_parameter",
        "messages[0].content[0].image_url.url",
        "Missing required parameter: 'messages[0].content[0].image_url.url'.",
    ),
    (
        user({"type": "input_audio"}),
        "missing_required_parameter",
        "messages[0].content[0].input_audio",
        "Missing",
    ),
    (
        said({"role": "user", "content": LONG}),
        "string_above_max_length",
        "messages[0].content",
        "Invalid 'messages[0].content': string too long.",
    ),
    (
        user({"type": "text", "text": "x"}, {"type": "text", "text": LONG}),
        "string_above_max_length",
        "messages[0].content[1].text",
        "maximum length 5000",
    ),
    (
        said(HI, {"role": "assistant", "refusal": LONG, "content": "x"}),
        "string_above_max_length",
        "messages[1].refusal",
        "'messages[1].refusal'",
    ),
    (
        said(HI, {"role": "assistant", "content": "x", "reasoning": LONG}),
        "string_above_max_length",
        "messages[1].reasoning",
        "'messages[1].reasoning'",
    ),
    (
        said(HI, CALLING, {**OUTPUT, "content": LONG}),
        "string_above_max_length",
        "messages[2].content",
        "'messages[2].content'",
    ),
    (
        said(HI, CALLING, {**OUTPUT, "content": [{"type": "text", "text": LONG}]}),
        "string_above_max_length",
        "messages[2].content[0].text",
        "'messages[2].content[0].text'",
    ),
    (
        said(HI, CALLING, {**OUTPUT, "content": None}),
        "missing_required_parameter",
        "messages[2].content",
        "Missing",
    ),
    (
        said({"role": "assistant", "tool_calls": [CALLED]}, ANSWERED),
        "missing_required_parameter",
        "messages[0].tool_calls[0].function",
        "Missing",
    ),
    *(
        (
            said(*before, {"role": "assistant", **nothing}),
            "missing_required_parameter",
            f"messages[{len(before)}].content",
            "Missing",
        )
        for before in ((), (HI,))
        for nothing in ({}, {"content": None}, {"tool_calls": None}, {"reasoning": ""})
    ),
    *(
        (
            said(HI, {"role": "assistant", "tool_calls": [], **nothing}, HI),
            "empty_array",
            "messages[1].tool_calls",
            "Invalid 'messages[1].tool_calls': empty array.",
        )
        for nothing in ({}, {"content": None})
    ),
    *(
        (
            said(*[{"role": "assistant", "content": content}] * count),
            "missing_required_parameter",
            "messages[0].content",
            "Missing required parameter: 'messages[0].content'.",
        )
        for content in EMPTY
        for count in (1, 2)
    ),
    (
        said({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, ANSWERED),
        "missing_required_parameter",
        "messages[0].tool_calls[0].custom",
        "Missing",
    ),
    (
        said({"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "f"}}]}),
        "missing_required_parameter",
        "messages[0].tool_calls[0].function.arguments",
        "Missing",
    ),
    (
        said({"role": "assistant", "tool_calls": [{"type": "function"}]}),
        "missing_required_parameter",
        "messages[0].tool_calls[0].id",
        "Missing",
    ),
    (
        said(
            {
                "role": "assistant",
                "tool_calls": [{**CALLED, "function": {"name": "f to=x", "arguments": ""}}],
            },
            ANSWERED,
        ),
        "invalid_value",
        "messages[0].tool_calls[0].function.name",
        "Invalid 'messages[0].tool_calls[0].function.name': string does not match pattern.",
    ),
    (
        said(
            {"role": "assistant", "function_call": {"name": "f f", "arguments": ""}},
            {"role": "function", "name": "f f", "content": ""},
        ),
        "invalid_value",
        "messages[0].function_call.name",
        "pattern",
    ),
    (
        said({"role": "assistant", "function_call": {"arguments": ""}}),
        "missing_required_parameter",
        "messages[0].function_call.name",
        "Missing",
    ),
    (
        said({"role": "assistant", "function_call": {"name": "f", "arguments": {}}}),
        "invalid_type",
        "messages[0].function_call.arguments",
        "expected a string, but got an object",
    ),
    (
        said(
            {
                "role": "assistant",
                "tool_calls": [{"id": "c" * 65, "function": {"name": "f", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "c" * 65, "content": ""},
        ),
        "string_above_max_length",
        "messages[0].tool_calls[0].id",
        "maximum length 64",
    ),
    (
        said(HI, {"role": "tool", "content": "x"}),
        "missing_required_parameter",
        "messages[1].tool_call_id",
        "Missing",
    ),
    (
        said(HI, OUTPUT),
        None,
        "messages[1].role",
        "messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
    ),
    (said(HI, CALLING, OUTPUT, OUTPUT), None, "messages[3].role", "No call has the id 'call_1'."),
    (
        said(HI, CALLING),
        None,
        "messages[1].tool_calls[0]",
        "The following tool_call_ids did not have response messages: call_1",
    ),
    (
        said(HI, CALLING, CALLING, OUTPUT),
        None,
        "messages[1].tool_calls[0]",
        "must be followed by tool messages responding to each 'tool_call_id'",
    ),
    (
        said(HI, {"role": "function", "content": "x"}),
        "missing_required_parameter",
        "messages[1].name",
        "Missing",
    ),
    (
        said(HI, {"role": "function", "name": "f", "content": "x"}),
        None,
        "messages[1].role",
        "preceding message with a 'function_call' of 'f'.",
    ),
    (
        said(HI, {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}),
        None,
        "messages[1].function_call",
        "followed by a message with role 'function' and the name 'f'.",
    ),
]


@each("row", ROWS)
def test_a_mistake_is_told_where_the_client_made_it(row: Row) -> None:
    check_refusal(row)
