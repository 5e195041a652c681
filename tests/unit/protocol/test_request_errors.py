from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from pydantic import BaseModel, Field, ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.chat_conversion import parse_chat
from gateway.protocol.json_body import InputLimits
from gateway.protocol.request_errors import listed, param_path, refusal_of, unsupported_value
from gateway.protocol.responses.create_request import parse_create
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Callable


@each(
    ("location", "path"),
    [
        (("model",), "model"),
        (("input", 1, "message", "content", 0, "input_text", "text"), "input[1].content[0].text"),
        (("input", 0, "function_call_output", "output", "parts", 2), "input[0].output[2]"),
        (
            ("input", 0, "message", "content", 0, "refusal", "refusal"),
            "input[0].content[0].refusal",
        ),
        (("tool_choice", "object", "name"), "tool_choice.name"),
        (("metadata", "message"), "metadata.message"),
        (("metadata", "text"), "metadata.text"),
        (("tools", 0, "function_tool", "name"), "tools[0].name"),
        (
            ("tools", 0, "namespace_tool", "tools", 1, "custom_tool", "format", "grammar"),
            "tools[0].tools[1].format",
        ),
        (("tool_choice", "allowed", "tools", 0, "namespace"), "tool_choice.tools[0].namespace"),
        (("text", "format", "json_schema", "name"), "text.format.name"),
        (("messages", 1, "function_call", "name"), "messages[1].function_call.name"),
        (("functions", 0, "message"), "functions[0].message"),
        ((), ""),
    ],
)
def test_a_location_becomes_a_path_without_the_tags_of_unions(
    location: tuple[int | str, ...], path: str
) -> None:
    assert param_path(location) == path


@pytest.mark.parametrize(
    ("values", "text"),
    [(["a"], "'a'"), (["a", "b"], "'a' and 'b'"), (["a", "b", "c"], "'a', 'b', and 'c'")],
)
def test_values_are_listed_as_in_a_sentence(values: list[str], text: str) -> None:
    assert listed(values, "and") == text


def test_what_no_model_decides_is_not_said_of_one() -> None:
    refusal = unsupported_value("memory_limit", "64g", ("1g", "4g"), where="for this API key")
    assert str(refusal) == (
        "Unsupported value: 'memory_limit' does not support '64g' for this API key. Supported "
        "values are: '1g' and '4g'."
    )


def test_a_finding_without_a_row_is_still_the_caller_s_mistake() -> None:
    class Even(BaseModel):
        number: int = Field(multiple_of=2)

    with pytest.raises(ValidationError) as caught:
        Even(number=3)
    refusal = refusal_of(caught.value)
    assert (refusal.code, refusal.param) == ("invalid_value", "number")
    assert str(refusal) == "Invalid 'number': Input should be a multiple of 2."


LONG = "k" * 2_000
CALLED = {"name": LONG, "arguments": "{}"}


@each(
    ("parse", "body"),
    [
        (parse_create, {"input": "x", LONG: 1}),
        (parse_create, {"input": "x", "metadata": {LONG: 1}}),
        (parse_create, {"input": "x", "tools": [{"type": "mcp", "headers": {LONG: 1}}]}),
        (
            parse_create,
            {
                "input": [
                    {
                        "type": "local_shell_call",
                        "call_id": "c",
                        "action": {"command": ["ls"], "env": {LONG: 1}},
                    }
                ]
            },
        ),
        (parse_chat, {"messages": [{"role": "tool", "tool_call_id": LONG, "content": "x"}]}),
        (parse_chat, {"messages": [{"role": "function", "name": LONG, "content": "x"}]}),
        (parse_chat, {"messages": [{"role": "assistant", "function_call": CALLED}]}),
        (
            parse_chat,
            {"messages": [{"role": "assistant", "tool_calls": [{"id": LONG, "function": CALLED}]}]},
        ),
    ],
)
def test_a_refusal_is_short_whatever_it_quotes(
    parse: Callable[..., object], body: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(
            orjson.dumps({"model": "m", **body}), limits=InputLimits(), strict=True, served={"mcp"}
        )
    error = refused.value
    assert len(f"{error.message}{error.param}") < 1_000
