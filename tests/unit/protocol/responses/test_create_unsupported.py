"""What is documented and not served, or makes no sense: body → code, param, message."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.responses.create_request import parse_create
from gateway.protocol.responses.request_checks import check_images
from tests.fakes.cases import each
from tests.fakes.create_bodies import (
    CALL,
    CUSTOM,
    FUNCTION,
    LIMITS,
    NAMESPACE,
    Row,
    body_of,
    parse,
    refusal,
)


def _unsupported(fields: dict[str, Any], param: str, remedy: str, value: str = "") -> Row:
    what = f"'{param}' with value '{value}'" if value else f"'{param}'"
    message = f"Unsupported parameter: {what} is not supported by this server. {remedy}"
    return fields, "unsupported_parameter", param, message


def _not_found(choice: dict[str, Any], *, at: int | None = None) -> Row:
    """A choice, or the entry `at` of a list of allowed tools, that the request does not have."""
    kind = choice["type"] if at is None else choice["tools"][at]["type"]
    param = "tool_choice" if at is None else f"tool_choice.tools[{at}]"
    message = f"Tool choice '{kind}' not found in 'tools' parameter."
    return (
        {"tool_choice": choice, "tools": [FUNCTION, CUSTOM, NAMESPACE]},
        "invalid_value",
        param,
        message,
    )


DROPPED = (
    "which this server does not run for this API key: such tools are dropped, and named in the "
    "x-gateway-dropped-tools header. Offer a tool that your client executes, leave 'tool_choice' "
    "out, or ask the operator to allow them."
)
_F = {"type": "function", "name": "f"}
_SCHEMA_FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
REFUSED: list[Row] = [
    *(
        _unsupported(
            {"stop": ["}"], "text": {"format": asked}},
            "stop",
            "An answer in a format ends where its JSON does. Leave 'stop' out, or 'text.format' of "
            f"type '{asked['type']}'.",
        )
        for asked in ({"type": "json_object"}, _SCHEMA_FORMAT)
    ),
    (
        {"background": True, "store": False},
        "unsupported_parameter",
        "background",
        "Unsupported parameter: 'background' cannot be true when 'store' is false. Set 'store' to "
        "true, or leave 'background' out.",
    ),
    (
        {"conversation": "conv_1", "previous_response_id": "resp_1"},
        "mutually_exclusive_parameters",
        None,
        "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you are "
        "only providing one of them.",
    ),
    _unsupported(
        {"prompt": {"id": "pmpt_1"}, "input": ...},
        "prompt",
        "Send the text of the prompt in 'instructions' and 'input'.",
    ),
    (
        {"tool_choice": "required"},
        "invalid_value",
        "tool_choice",
        "Tool choice 'required' must be specified with 'tools' parameter.",
    ),
    (
        {"tool_choice": "required", "tools": [{"type": "web_search"}, {"type": "mcp"}]},
        "unsupported_parameter",
        "tool_choice",
        f"Unsupported parameter: 'tool_choice' needs 'web_search' and 'mcp', {DROPPED}",
    ),
    *(
        _not_found(choice)
        for choice in (
            {"type": "function", "name": "g"},
            {"type": "function", "name": "c"},
            {"type": "function", "name": "m"},
            {"type": "function", "name": "m", "namespace": "f"},
            {"type": "custom", "name": "g"},
            {"type": "custom", "name": "f"},
            {"type": "web_search_preview"},
            {"type": "apply_patch"},
            {"type": "local_shell"},
        )
    ),
    _not_found({"type": "allowed_tools", "tools": [_F, {"type": "custom", "name": "f"}]}, at=1),
    _not_found({"type": "allowed_tools", "tools": [{"type": "namespace", "name": "f"}]}, at=0),
    _not_found({"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "s"}]}, at=0),
    *(
        (
            {"tool_choice": choice, "tools": [FUNCTION, {"type": kind}]},
            "unsupported_parameter",
            "tool_choice",
            f"Unsupported parameter: 'tool_choice' needs '{chosen}', {DROPPED}",
        )
        for choice, kind, chosen in (
            ({"type": "file_search"}, "file_search", "file_search"),
            ({"type": "web_search"}, "web_search", "web_search"),
            ({"type": "web_search_preview"}, "web_search", "web_search_preview"),
            ({"type": "web_search"}, "web_search_2025_08_26", "web_search"),
            ({"type": "mcp", "server_label": "s"}, "mcp", "mcp"),
            (
                {"type": "allowed_tools", "tools": [{"type": "web_search"}] * 2},
                "web_search",
                "web_search",
            ),
        )
    ),
    _unsupported(
        {"input": [{"type": "configuration_update"}]},
        "input[0].type",
        "Set 'reasoning' and 'text' of each request.",
        "configuration_update",
    ),
    (
        {"context_management": [{"type": "magic"}]},
        "invalid_value",
        "context_management[0].type",
        "Invalid value: 'magic'. Supported values are: 'compaction'.",
    ),
    (
        {"input": [{"type": "compaction_trigger"}, {"role": "user", "content": "x"}]},
        "invalid_value",
        "input[0]",
        "Invalid 'input[0]': a compaction_trigger must be the last input item.",
    ),
    _unsupported(
        {"moderation": {"model": "m"}},
        "moderation",
        "Moderate the text with a service of your own.",
    ),
    (
        {"stream_options": {"include_obfuscation": False}},
        None,
        "stream_options",
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    ),
]


@pytest.mark.requirement("context.configuration-update")
@pytest.mark.requirement("kinds.additions-of-2026")
@pytest.mark.requirement("kinds.hosted-calls")
@pytest.mark.requirement("choice.hosted")
@pytest.mark.requirement("control.choice-is-checked")
@each(("fields", "code", "param", "message"), REFUSED)
def test_what_is_not_served_is_refused_and_says_what_to_do(
    fields: dict[str, Any], code: str | None, param: str | None, message: str
) -> None:
    assert refusal(**fields) == (code, param, message)


HOSTED: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "mcp", "server_label": "s"},
    {"type": "tool_search"},
    {"type": "shell", "environment": {"type": "container_auto"}},
]


@pytest.mark.requirement("kinds.programmatic-tools")
@pytest.mark.requirement("control.hosted-tools")
@pytest.mark.parametrize("tool", HOSTED, ids=lambda tool: tool["type"])
def test_hosted_tools_are_refused_only_when_strict(tool: dict[str, Any]) -> None:
    assert parse(tools=[FUNCTION, tool]).dropped_tools == (tool["type"],)
    code, param, message = refusal(strict=True, tools=[FUNCTION, tool])
    assert (code, param) == ("unsupported_parameter", "tools[1].type")
    assert message.endswith("Leave the tool out, or offer a tool that your client executes.")


MEDIA = ("input_image", "input_file")


@pytest.mark.parametrize("kind", MEDIA)
def test_the_assistant_has_no_images_and_files(kind: str) -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": ""}, {"type": kind}],
    }
    assert refusal(input=[message]) == (
        "invalid_value",
        "input[0].content[1].type",
        f"Invalid value: '{kind}'. Supported values are: 'output_text' and 'refusal'.",
    )


@pytest.mark.requirement("parts.input-image")
@pytest.mark.requirement("parts.input-file")
@pytest.mark.parametrize("kind", MEDIA)
def test_images_and_files_in_messages_are_refused_only_when_strict(kind: str) -> None:
    items = [{"role": "user", "content": [{"type": kind}]}]
    assert not parse(input=items).rejects_images
    code, param, message = media_refusal(items)
    assert (code, param) == ("unsupported_parameter", "input[0].content[0].type")
    assert message.endswith("This model reads text only." if "image" in kind else "no files.")


def read_strictly(items: list[Any]) -> None:
    """By a model that sees nothing."""
    request = parse(strict=True, input=items)
    assert request.rejects_images
    check_images(request.input)


def media_refusal(items: list[Any]) -> tuple[str | None, str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        read_strictly(items)
    return caught.value.code, caught.value.param, caught.value.message


def test_an_image_from_a_tool_never_ends_a_session() -> None:
    output = {**CALL, "type": "function_call_output", "output": [{"type": "input_image"}]}
    assert len(parse(strict=True, input=[CALL, output]).input) == 2


def test_media_may_be_refused_alone() -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}
    limits = replace(LIMITS, rejects_media=True)
    made = parse_create(json.dumps(body_of({"input": [picture]})).encode(), limits=limits)
    assert made.rejects_images
    with pytest.raises(InvalidRequest) as caught:
        check_images(made.input)
    assert caught.value.param == "input[0].content[0].type"
    tools = {"tools": [FUNCTION, {"type": "web_search"}]}
    assert parse_create(json.dumps(body_of(tools)).encode(), limits=limits).dropped_tools


def test_what_the_model_has_answered_does_not_end_a_session() -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}
    history = [picture, {"role": "assistant", "content": "I cannot see it."}]
    asked = parse(strict=True, input=[*history, {"role": "user", "content": "Then read."}])
    assert len(asked.input) == 3
    again = [*history, picture, {"role": "user", "content": "x"}, {"type": "compaction_trigger"}]
    _, param, _ = media_refusal(again)
    assert param == "input[2].content[0].type"
