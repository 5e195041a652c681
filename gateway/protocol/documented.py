"""Names that OpenAI documents, from the types of its SDK and in their order.

A name that is documented but not served is refused as unsupported; any other is a mistake.
Importing the SDK's types would cost 14 MiB and half a second; a test compares them instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gateway.errors import InvalidRequest
from gateway.protocol.base import as_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    Remedies = Mapping[str, str]

Effort = Literal[
    "none", "minimal", "low", "medium", "high", "xhigh", "max",
]  # fmt: skip
Includable = Literal[
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs", "reasoning.encrypted_content",
    "message.output_text.logprobs",
]  # fmt: skip
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]


def literal_values(annotation: object) -> tuple[str, ...]:
    if isinstance(annotation, str):
        return (annotation,)
    return tuple(value for part in get_args(annotation) for value in literal_values(part))


EFFORTS: Final = literal_values(Effort)
INCLUDE_VALUES: Final = literal_values(Includable)
NEWER_PARAMETERS: Final = frozenset({"background_options"})
"""Parameters of SDK releases newer than the one in the tests."""
CREATE_PARAMETERS: Final = NEWER_PARAMETERS | frozenset({
    "access_programs", "background", "context_management", "conversation", "image", "include",
    "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
    "moderation", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier",
    "service_tier", "store", "stream", "stream_options", "temperature", "text", "tool_choice",
    "tools", "top_logprobs", "top_p", "truncation", "user",
})  # fmt: skip
"""Parameters of `POST /v1/responses`."""
COUNT_PARAMETERS: Final = frozenset({
    "conversation", "input", "instructions", "model", "parallel_tool_calls", "personality",
    "previous_response_id", "reasoning", "text", "tool_choice", "tools", "truncation",
})  # fmt: skip
"""Parameters of `POST /v1/responses/input_tokens`."""
COMPACT_PARAMETERS: Final = frozenset({
    "image", "input", "instructions", "model", "previous_response_id", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "service_tier",
})  # fmt: skip
"""Parameters of `POST /v1/responses/compact`."""
CHAT_PARAMETERS: Final = frozenset({
    "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model",
    "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
    "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
    "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
    "verbosity", "web_search_options",
})  # fmt: skip
"""Parameters of `POST /v1/chat/completions`."""
ITEM_TYPES: Final = (
    "message", "file_search_call", "computer_call", "computer_call_output", "web_search_call",
    "function_call", "function_call_output", "tool_search_call", "tool_search_output",
    "additional_tools", "configuration_update", "reasoning", "compaction",
    "image_generation_call", "code_interpreter_call", "local_shell_call",
    "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
    "mcp_call", "custom_tool_call_output", "custom_tool_call", "compaction_trigger",
    "item_reference", "program", "program_output",
)  # fmt: skip
TOOL_CHOICE_TYPES: Final = (
    "allowed_tools", "file_search", "web_search_preview", "computer", "computer_use_preview",
    "computer_use", "web_search_preview_2025_03_11", "image_generation", "code_interpreter",
    "function", "mcp", "custom", "programmatic_tool_calling", "apply_patch", "shell",
)  # fmt: skip
TOOL_TYPES: Final = (
    "function", "file_search", "computer", "computer_use_preview", "web_search",
    "web_search_2025_08_26", "mcp", "code_interpreter", "programmatic_tool_calling",
    "image_generation", "local_shell", "shell", "custom", "namespace", "tool_search",
    "web_search_preview", "web_search_preview_2025_03_11", "apply_patch",
)  # fmt: skip


_CONVERSATION: Final = "'messages': a chat has all of its conversation in each request"
_PREWARM: Final = "'prompt_cache_options' with 'prewarm' set to true"
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "functions": ([],),
    "tools": ([],),
    "function_call": ("auto", "none"),
    "background": (False,),
    "generate": (True,),
    "truncation": ("disabled",),
    "instructions": ("",),
    "text": ({}, {"format": {"type": "text"}}),
    "response_format": ({"type": "text"},),
}
"""Values that change nothing."""

IN_RESPONSES: Final[Remedies] = {
    "messages": "'input', which takes the same messages",
    "response_format": "'text.format'",
    "max_tokens": "'max_output_tokens'",
    "max_completion_tokens": "'max_output_tokens'",
    "functions": "'tools'",
    "function_call": "'tool_choice'",
    "logprobs": "'include' with 'message.output_text.logprobs', and 'top_logprobs'",
    "n": "one request for each answer",
    "best_of": "one request for each answer",
    "echo": "'input', which you can repeat yourself",
    "suffix": "'instructions' that tell what follows",
    "logit_bias": "'instructions' that tell what to say and what not",
    "generate": _PREWARM,
}
"""Replacements for parameters of the other APIs."""
IN_COMPACTIONS: Final[Remedies] = {
    **IN_RESPONSES,
    "conversation": "POST /v1/responses with it and a 'compaction_trigger' as the last input item",
}
"""For compactions, where OpenAI has no conversations."""
IN_CHATS: Final[Remedies] = {
    "input": "'messages'",
    "prompt": "'messages'",
    "instructions": "a message of the role 'developer'",
    "max_output_tokens": "'max_completion_tokens'",
    "text": "'response_format' and 'verbosity'",
    "previous_response_id": _CONVERSATION,
    "conversation": _CONVERSATION,
    "context_management": "'messages' that you make shorter yourself",
    "truncation": "'messages' that you make shorter yourself",
    "background": "POST /v1/responses, which has background responses",
    "best_of": "one request for each answer",
    "echo": "'messages', which you can repeat yourself",
    "suffix": "a message that tells what follows",
    "generate": f"POST /v1/responses and {_PREWARM}",
}
IN_COMPLETIONS: Final[Remedies] = {
    "input": "'prompt'",
    "messages": "'prompt', or POST /v1/chat/completions",
    "instructions": "'prompt'",
    "max_output_tokens": "'max_tokens'",
    "max_completion_tokens": "'max_tokens'",
    "text": "POST /v1/responses",
    "response_format": "POST /v1/chat/completions",
    "tools": "POST /v1/chat/completions",
    "functions": "POST /v1/chat/completions",
    "previous_response_id": "'prompt', which has all of the conversation",
    "conversation": "'prompt', which has all of the conversation",
    "background": "POST /v1/responses, which has background responses",
    "generate": f"POST /v1/responses and {_PREWARM}",
}


def check_own(document: Mapping[str, Any], remedies: Remedies) -> None:
    for name in document:
        if name in remedies and not is_harmless(name, document[name]):
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' is not a parameter of this API. Use "
                f"{remedies[name]} instead.",
                code="unsupported_parameter",
                param=name,
            )


def is_harmless(name: str, value: object) -> bool:
    return value is None or any(_is_same(value, one) for one in _HARMLESS.get(name, ()))


def _is_same(value: object, other: object) -> bool:
    # In JSON 1 equals 1.0 and differs from true; in Python `1 == True`.
    value = as_integer(value)
    return type(value) is type(other) and value == other
