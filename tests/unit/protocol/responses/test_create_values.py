"""Wrong values and bounds, in OpenAI's words: body → code, param, message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.cases import each
from tests.fakes.create_bodies import (
    CALL,
    CUSTOM,
    FUNCTION,
    GRAMMAR,
    NAMESPACE,
    SCHEMA,
    Row,
    refusal,
)

VALUES: list[Row] = [
    (
        {"input": [{"type": "bogus"}]},
        "invalid_value",
        "input[0]",
        "Invalid value: 'bogus'. Supported values are: 'message', 'reasoning', 'function_call', "
        "'function_call_output', 'custom_tool_call', 'custom_tool_call_output', "
        "'local_shell_call', 'local_shell_call_output', 'shell_call', 'shell_call_output', "
        "'apply_patch_call', 'apply_patch_call_output', 'tool_search_call', 'tool_search_output', "
        "'web_search_call', 'file_search_call', "
        "'code_interpreter_call', 'image_generation_call', 'computer_call', "
        "'computer_call_output', 'mcp_list_tools', 'mcp_approval_request', "
        "'mcp_approval_response', 'mcp_call', 'additional_tools', "
        "'program', 'program_output', 'compaction', 'compaction_trigger', and 'item_reference'.",
    ),
    (
        {"input": [{"role": "bogus", "content": "x"}]},
        "invalid_value",
        "input[0].role",
        "Invalid value: 'bogus'. Supported values are: 'user', 'assistant', 'system', and "
        "'developer'.",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "invalid_value",
        "input[0].content[0].type",
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'input_file', "
        "'output_text', and 'refusal'.",
    ),
    (
        {"input": [{"role": "assistant", "content": "x", "phase": "bogus"}]},
        "invalid_value",
        "input[0].phase",
        "Invalid value: 'bogus'. Supported values are: 'commentary' and 'final_answer'.",
    ),
    (
        {"input": [{"type": "item_reference", "id": "msg 1"}]},
        "invalid_value",
        "input[0].id",
        "Invalid 'input[0].id': 'msg 1'. Expected an ID that contains letters, numbers, "
        "underscores, or dashes, but this value contained additional characters.",
    ),
    (
        {"input": [{**CALL, "call_id": ""}]},
        "empty_string",
        "input[0].call_id",
        "Invalid 'input[0].call_id': empty string. Expected a string with minimum length 1, but "
        "got an empty string instead.",
    ),
    (
        {"input": [{**CALL, "name": "f to=system"}]},
        "invalid_value",
        "input[0].name",
        "Invalid 'input[0].name': string does not match pattern. Expected a string that matches "
        "the pattern '^[A-Za-z0-9_.-]{1,128}$'.",
    ),
    (
        {"tools": [{**FUNCTION, "name": "<|start|>"}]},
        "invalid_value",
        "tools[0].name",
        "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches "
        "the pattern '^[A-Za-z0-9_.-]{1,128}$'.",
    ),
    (
        {"tools": [{**FUNCTION, "name": "f\n"}]},
        "invalid_value",
        "tools[0].name",
        "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches "
        "the pattern '^[A-Za-z0-9_.-]{1,128}$'.",
    ),
    (
        {"tools": [{"type": "bogus"}]},
        "invalid_value",
        "tools[0].type",
        "Invalid value: 'bogus'. Supported values are: 'function', 'custom', 'namespace', "
        "'local_shell', 'shell', 'apply_patch', and 'tool_search'.",
    ),
    (
        {"tools": [{**NAMESPACE, "tools": [{"type": "shell"}]}]},
        "invalid_value",
        "tools[0].tools[0].type",
        "Invalid value: 'shell'. Supported values are: 'function' and 'custom'.",
    ),
    (
        {"tools": [{**CUSTOM, "format": {"type": "bogus"}}]},
        "invalid_value",
        "tools[0].format.type",
        "Invalid value: 'bogus'. Supported values are: 'text' and 'grammar'.",
    ),
    (
        {"tools": [{**GRAMMAR, "format": {**GRAMMAR["format"], "syntax": "ebnf"}}]},
        "invalid_value",
        "tools[0].format.syntax",
        "Invalid value: 'ebnf'. Supported values are: 'lark' and 'regex'.",
    ),
    (
        {"tools": [{**NAMESPACE, "name": "a b"}]},
        "invalid_value",
        "tools[0].name",
        "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches "
        "the pattern '^[A-Za-z0-9_.-]{1,128}$'.",
    ),
    (
        {"tools": [{**NAMESPACE, "tools": [{**FUNCTION, "name": "x" * 126}]}]},
        "invalid_value",
        "tools[0].tools[0].name",
        "Invalid 'tools[0].tools[0].name': string does not match pattern. Expected a string that "
        "matches the pattern '^[A-Za-z0-9_.-]{1,128}$'.",
    ),
    (
        {"tools": [NAMESPACE, {**FUNCTION, "name": "ns.n"}]},
        "invalid_value",
        "tools[1].name",
        "Invalid 'tools[1].name': there is more than one tool named 'ns.n'. Give every tool a name "
        "of its own.",
    ),
    (
        {"tools": [{"type": "apply_patch"}, {**CUSTOM, "name": "apply_patch"}]},
        "invalid_value",
        "tools[1].name",
        "Invalid 'tools[1].name': there is more than one tool named 'apply_patch'. Give every tool "
        "a name of its own.",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "bogus"}]}},
        "invalid_value",
        "tool_choice.tools[0].type",
        "Invalid value: 'bogus'. Supported values are: 'function', 'file_search', 'computer', "
        "'computer_use_preview', 'web_search', 'web_search_2025_08_26', 'mcp', "
        "'code_interpreter', 'programmatic_tool_calling', 'image_generation', 'local_shell', "
        "'shell', 'custom', 'namespace', 'tool_search', 'web_search_preview', "
        "'web_search_preview_2025_03_11', and 'apply_patch'.",
    ),
    (
        {"text": {"format": {**SCHEMA, "name": "a b"}}},
        "invalid_value",
        "text.format.name",
        "Invalid 'text.format.name': string does not match pattern. Expected a string that matches "
        "the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    (
        {"tool_choice": "bogus"},
        "invalid_value",
        "tool_choice",
        "Invalid value: 'bogus'. Supported values are: 'none', 'auto', and 'required'.",
    ),
    (
        {"tool_choice": {"type": "bogus"}},
        "invalid_value",
        "tool_choice.type",
        "Invalid value: 'bogus'. Supported values are: 'allowed_tools', 'file_search', "
        "'web_search_preview', 'computer', 'computer_use_preview', 'computer_use', "
        "'web_search_preview_2025_03_11', 'image_generation', 'code_interpreter', 'function', "
        "'mcp', 'custom', 'programmatic_tool_calling', 'apply_patch', 'shell', 'local_shell', "
        "'web_search', 'web_search_2025_08_26', and 'tool_search'.",
    ),
    (
        {"include": ["reasoning.encrypted_content", "bogus"]},
        "invalid_value",
        "include[1]",
        "Invalid value: 'bogus'. Supported values are: 'file_search_call.results', "
        "'web_search_call.results', 'web_search_call.action.sources', "
        "'message.input_image.image_url', 'computer_call_output.output.image_url', "
        "'code_interpreter_call.outputs', 'reasoning.encrypted_content', "
        "'message.output_text.logprobs', 'input_messages.token_ids', and "
        "'output_messages.token_ids'.",
    ),
    (
        {"truncation": "bogus"},
        "invalid_value",
        "truncation",
        "Invalid value: 'bogus'. Supported values are: 'auto' and 'disabled'.",
    ),
    (
        {"text": {"verbosity": "bogus"}},
        "invalid_value",
        "text.verbosity",
        "Invalid value: 'bogus'. Supported values are: 'low', 'medium', and 'high'.",
    ),
    (
        {"text": {"format": {"type": "bogus"}}},
        "invalid_value",
        "text.format.type",
        "Invalid value: 'bogus'. Supported values are: 'text', 'json_schema', and 'json_object'.",
    ),
    (
        {"reasoning": {"summary": "bogus"}},
        "invalid_value",
        "reasoning.summary",
        "Invalid value: 'bogus'. Supported values are: 'auto', 'concise', and 'detailed'.",
    ),
    (
        {"reasoning": {"effort": "bogus"}},
        "unsupported_value",
        "reasoning.effort",
        "Unsupported value: 'reasoning.effort' does not support 'bogus' with this model. Supported "
        "values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'.",
    ),
    (
        {"reasoning": {"context": "all_turns"}},
        "unsupported_value",
        "reasoning.context",
        "Unsupported value: 'reasoning.context' does not support 'all_turns' with this model. "
        "Supported values are: 'auto' and 'current_turn'.",
    ),
    (
        {"prompt_cache_retention": "x" * 200},
        "invalid_value",
        "prompt_cache_retention",
        f"Invalid value: '{'x' * 128}...'. Supported values are: 'in_memory' and '24h'.",
    ),
]

BOUNDS: list[Row] = [
    (
        {"max_output_tokens": 15},
        "integer_below_min_value",
        "max_output_tokens",
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got "
        "15 instead.",
    ),
    (
        {"max_tool_calls": 0},
        "integer_below_min_value",
        "max_tool_calls",
        "Invalid 'max_tool_calls': integer below minimum value. Expected a value >= 1, but got 0 "
        "instead.",
    ),
    (
        {"top_logprobs": 21},
        "integer_above_max_value",
        "top_logprobs",
        "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 "
        "instead.",
    ),
    *(
        (
            {name: sign * 2**64},
            f"integer_{code}_value",
            name,
            f"Invalid '{name}': integer {words} {bound}, but got {sign * 2**64} instead.",
        )
        for name in ("seed", "max_output_tokens")
        for sign, code, words, bound in (
            (1, "above_max", "above maximum value. Expected a value <=", 2**63 - 1),
            (-1, "below_min", "below minimum value. Expected a value >=", -(2**63)),
        )
    ),
    (
        {"temperature": 2.1},
        "decimal_above_max_value",
        "temperature",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.1 "
        "instead.",
    ),
    (
        {"top_p": -1},
        "decimal_below_min_value",
        "top_p",
        "Invalid 'top_p': decimal below minimum value. Expected a value >= 0, but got -1 instead.",
    ),
    (
        {"frequency_penalty": 2.5},
        "decimal_above_max_value",
        "frequency_penalty",
        "Invalid 'frequency_penalty': decimal above maximum value. Expected a value <= 2, but got "
        "2.5 instead.",
    ),
    (
        {"presence_penalty": -2.5},
        "decimal_below_min_value",
        "presence_penalty",
        "Invalid 'presence_penalty': decimal below minimum value. Expected a value >= -2, but got "
        "-2.5 instead.",
    ),
    (
        {"metadata": {"k": "v" * 513}},
        "string_above_max_length",
        "metadata.k",
        "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, but got "
        "a string with length 513 instead.",
    ),
    (
        {"metadata": {"k" * 65: "v"}},
        "property_name_above_max_length",
        f"metadata.{'k' * 65}",
        f"Invalid property name in 'metadata': '{'k' * 65}' is too long. Expected a string with "
        "maximum length 64, but got a string with length 65 instead.",
    ),
    (
        {"metadata": {f"k{number}": "v" for number in range(17)}},
        "object_above_max_properties",
        "metadata",
        "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
        "but got an object with 17 properties instead.",
    ),
    (
        {"prompt_cache_key": "x" * 65},
        "string_above_max_length",
        "prompt_cache_key",
        "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    (
        {"safety_identifier": "x" * 129},
        "string_above_max_length",
        "safety_identifier",
        "Invalid 'safety_identifier': string too long. Expected a string with maximum length 128, "
        "but got a string with length 129 instead.",
    ),
    (
        {"input": [{**CALL, "call_id": "c" * 65}]},
        "string_above_max_length",
        "input[0].call_id",
        "Invalid 'input[0].call_id': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    (
        {"input": [{"role": "user", "content": "x"}] * 1_001},
        "array_above_max_length",
        "input",
        "Invalid 'input': array too long. Expected an array with maximum length 1000, but got an "
        "array with length 1001 instead.",
    ),
    (
        {"tools": [FUNCTION] * 65},
        "array_above_max_length",
        "tools",
        "Invalid 'tools': array too long. Expected an array with maximum length 64, but got an "
        "array with length 65 instead.",
    ),
    (
        {"tools": [{**NAMESPACE, "tools": [{**FUNCTION, "name": f"f{n}"} for n in range(65)]}]},
        "array_above_max_length",
        "tools",
        "Invalid 'tools': array too long. Expected an array with maximum length 64, but got an "
        "array with length 65 instead.",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "shell"}] * 129}},
        "array_above_max_length",
        "tool_choice.tools",
        "Invalid 'tool_choice.tools': array too long. Expected an array with maximum length 128, "
        "but got an array with length 129 instead.",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "tools": []}},
        "empty_array",
        "tool_choice.tools",
        "Invalid 'tool_choice.tools': empty array. Expected an array with minimum length 1, but "
        "got an empty array instead.",
    ),
    (
        {"stop": ["a"] * 5},
        "array_above_max_length",
        "stop",
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array "
        "with length 5 instead.",
    ),
    (
        {"stop": ["a", ""]},
        "empty_string",
        "stop[1]",
        "Invalid 'stop[1]': empty string. Expected a string with minimum length 1, but got an "
        "empty string instead.",
    ),
    (
        {"stop": "x" * 257},
        "string_above_max_length",
        "stop[0]",
        "Invalid 'stop[0]': string too long. Expected a string with maximum length 256, but got a "
        "string with length 257 instead.",
    ),
    (
        {"seed": 2**63},
        "integer_above_max_value",
        "seed",
        "Invalid 'seed': integer above maximum value. Expected a value <= 9223372036854775807, but "
        "got 9223372036854775808 instead.",
    ),
    (
        {"top_k": 0},
        "integer_below_min_value",
        "top_k",
        "Invalid 'top_k': integer below minimum value. Expected a value >= 1, but got 0 instead.",
    ),
    (
        {"min_p": 1.5},
        "decimal_above_max_value",
        "min_p",
        "Invalid 'min_p': decimal above maximum value. Expected a value <= 1, but got 1.5 instead.",
    ),
    (
        {"reasoning": {"max_tokens": 0}},
        "integer_below_min_value",
        "reasoning.max_tokens",
        "Invalid 'reasoning.max_tokens': integer below minimum value. Expected a value >= 1, but "
        "got 0 instead.",
    ),
    (
        {"text": {"format": {**SCHEMA, "name": "x" * 65}}},
        "string_above_max_length",
        "text.format.name",
        "Invalid 'text.format.name': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    (
        {"tools": [{**GRAMMAR, "format": {**GRAMMAR["format"], "definition": "é" * 32_769}}]},
        "invalid_value",
        "tools[0].format.definition",
        "Invalid 'tools[0].format.definition': the grammars of the tools up to this one have "
        "65538 bytes together. Expected at most 65536 bytes.",
    ),
    (
        {
            "tools": [
                {
                    **GRAMMAR,
                    "name": name,
                    "format": {**GRAMMAR["format"], "definition": "e" * 40_000},
                }
                for name in ("f", "g")
            ]
        },
        "invalid_value",
        "tools[1].format.definition",
        "Invalid 'tools[1].format.definition': the grammars of the tools up to this one have "
        "80000 bytes together. Expected at most 65536 bytes.",
    ),
    (
        {"context_management": []},
        "empty_array",
        "context_management",
        "Invalid 'context_management': empty array. Expected an array with minimum length 1, but "
        "got an empty array instead.",
    ),
    (
        {"tools": [{**FUNCTION, "parameters": {"description": "x" * 16_384}}]},
        "invalid_function_parameters",
        "tools[0].parameters",
        "Invalid schema for function 'f': it has 16402 bytes. Expected at most 16384 bytes.",
    ),
]


@pytest.mark.requirement("error.lengths")
@pytest.mark.requirement("error.value")
@pytest.mark.requirement("error.number-bounds")
@pytest.mark.requirement("choice.allowed-tools-length")
@pytest.mark.requirement("items.limits")
@pytest.mark.requirement("create.max-output-tokens")
@pytest.mark.requirement("create.prompt-cache-key")
@pytest.mark.requirement("create.safety-identifier")
@pytest.mark.requirement("create.text-format")
@pytest.mark.requirement("error.schemas")
@each(("fields", "code", "param", "message"), [*VALUES, *BOUNDS])
def test_a_wrong_value_is_answered_in_openais_words(
    fields: dict[str, Any], code: str | None, param: str | None, message: str
) -> None:
    assert refusal(**fields) == (code, param, message)
