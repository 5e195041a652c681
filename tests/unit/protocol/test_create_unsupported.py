"""What is documented and not served, or makes no sense: body → code, param, message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.create_bodies import CALL, FUNCTION, Row, parse, refusal


def _unsupported(fields: dict[str, Any], param: str, remedy: str, value: str = "") -> Row:
    what = f"'{param}' with value '{value}'" if value else f"'{param}'"
    message = f"Unsupported parameter: {what} is not supported by this server. {remedy}"
    return fields, "unsupported_parameter", param, message


TOOL_REMEDY = "Leave the tool out, or offer a tool of type 'function' that your client executes."
FORMAT_REMEDY = "Use {'type': 'text'} and describe the format in 'instructions'."

REFUSED: list[Row] = [
    (
        {"background": True, "store": False},
        "unsupported_parameter",
        "background",
        "Unsupported parameter: 'background' cannot be true when 'store' is false. Set 'store' to "
        "true, or leave 'background' out.",
    ),
    _unsupported(
        {"conversation": "conv_1"},
        "conversation",
        "Continue a response with 'previous_response_id'.",
    ),
    _unsupported(
        {"conversation": {"id": "conv_1"}, "input": ...},
        "conversation",
        "Continue a response with 'previous_response_id'.",
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
    _unsupported(
        {"text": {"format": {"type": "json_object"}}}, "text.format", FORMAT_REMEDY, "json_object"
    ),
    _unsupported(
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
        "text.format",
        FORMAT_REMEDY,
        "json_schema",
    ),
    _unsupported(
        {"tool_choice": "required", "tools": [FUNCTION]},
        "tool_choice",
        "Use 'auto' or 'none'.",
        "required",
    ),
    _unsupported(
        {"tool_choice": {"type": "function", "name": "f"}, "tools": [FUNCTION]},
        "tool_choice",
        "Use 'auto' or 'none'.",
        "function",
    ),
    _unsupported(
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            },
            "tools": [FUNCTION],
        },
        "tool_choice",
        "Use 'auto' or 'none'.",
        "allowed_tools",
    ),
    (
        {"tool_choice": "required"},
        None,
        "tool_choice",
        "Tool choice 'required' must be specified with 'tools' parameter.",
    ),
    (
        {"tool_choice": {"type": "function", "name": "g"}, "tools": [FUNCTION]},
        None,
        "tool_choice",
        "Tool choice 'function' not found in 'tools' parameter.",
    ),
    (
        {"tool_choice": {"type": "custom", "name": "g"}, "tools": [FUNCTION]},
        None,
        "tool_choice",
        "Tool choice 'custom' not found in 'tools' parameter.",
    ),
    (
        {"tool_choice": {"type": "web_search_preview"}},
        None,
        "tool_choice",
        "Tool choice 'web_search_preview' not found in 'tools' parameter.",
    ),
    *(
        _unsupported({"tools": [FUNCTION, {"type": kind}]}, "tools[1].type", TOOL_REMEDY, kind)
        for kind in ("custom", "namespace", "local_shell", "web_search", "mcp", "shell")
    ),
    *(
        _unsupported(
            {"input": [{"type": kind}]},
            "input[0].type",
            "Leave such items out of the input.",
            kind,
        )
        for kind in ("custom_tool_call", "mcp_call", "compaction", "additional_tools", "program")
    ),
    _unsupported({"top_logprobs": 1}, "top_logprobs", "Leave it out, or set it to 0."),
    _unsupported(
        {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
        "include[1]",
        "Leave this value out.",
        "message.output_text.logprobs",
    ),
    _unsupported(
        {"context_management": [{"type": "compaction"}]},
        "context_management",
        "Set 'truncation' to 'auto' to drop old turns.",
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


@pytest.mark.parametrize(("fields", "code", "param", "message"), REFUSED)
def test_what_is_not_served_is_refused_and_says_what_to_do(
    fields: dict[str, Any], code: str | None, param: str | None, message: str
) -> None:
    assert refusal(**fields) == (code, param, message)


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


@pytest.mark.parametrize("kind", MEDIA)
def test_images_and_files_in_messages_are_refused_only_when_strict(kind: str) -> None:
    items = [{"role": "user", "content": [{"type": kind}]}]
    parse(input=items)
    code, param, message = refusal(strict=True, input=items)
    assert (code, param) == ("unsupported_parameter", "input[0].content[0].type")
    assert message.endswith("This model reads text only.")


def test_an_image_from_a_tool_never_ends_a_session() -> None:
    output = {**CALL, "type": "function_call_output", "output": [{"type": "input_image"}]}
    assert len(parse(strict=True, input=[CALL, output]).input) == 2
