"""The fields of the Response object that follow from the request alone.

Every key that Open Responses requires is there, null only where both it and the OpenAI SDK allow
that; optional keys without a value are left out, since Open Responses forbids them to be null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.protocol.parameters import DEFAULT_EFFORT, AllowedTools, JsonSchemaFormat, ToolChoice
from gateway.protocol.tools import HOSTED_TOOL_TYPES, FunctionTool, HostedTool, NamespaceTool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.protocol.parameters import Effort, ReasoningOptions, TextOptions
    from gateway.protocol.responses.create import CreateResponse
    from gateway.protocol.tools import Tool

ServiceTier = Literal["default", "flex", "priority"]

REASONING_CONTEXT: Final = "current_turn"
"""Reasoning before the last answer is not shown to the model again."""
REASONING_MODE: Final = "standard"
"""One run of the model answers; there is no mode that takes more."""


def echo(
    request: CreateResponse,
    *,
    model: str | None = None,
    default_effort: Effort = DEFAULT_EFFORT,
    service_tier: ServiceTier = "default",
    summaries: bool = True,
) -> dict[str, Any]:
    """What the response repeats of its request, with the values in effect.

    `model` is the model that answers, where the request named an alias, `service_tier` the tier
    that it gets. Without `summaries` there are none, whatever the request asks for.
    `protocol.rules.rules_of` reads it back, so it holds every demand on the output.
    """
    choice = request.tool_choice
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata,
        "model": model or request.model,
        "parallel_tool_calls": request.parallel_tool_calls,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": _reasoning(request.reasoning, default_effort, summaries=summaries),
        "safety_identifier": request.safety_identifier,
        "service_tier": service_tier,
        "store": request.store,
        "background": request.background,
        "temperature": request.temperature,
        "text": _text(request.text),
        "tool_choice": choice if isinstance(choice, str) else _tool_choice(choice),
        "tools": _tools(request.tools) if request.tools else [],
        "top_logprobs": request.top_logprobs,
        "top_p": request.top_p,
        "truncation": request.truncation,
        "user": request.user,
        **_used(request),
    }


def _used(request: CreateResponse) -> dict[str, Any]:
    """What is shown to those alone who used it: the conversation, as OpenAI does, and parameters
    that OpenAI has not.
    """
    used: dict[str, Any] = {}
    if request.conversation:
        used["conversation"] = {"id": request.conversation.id}
    for name in ("seed", "top_k", "min_p"):
        if (value := getattr(request, name)) is not None:
            used[name] = value
    if request.stop:
        used["stop"] = list(request.stop)
    return used


def _reasoning(
    asked: ReasoningOptions, default_effort: Effort, *, summaries: bool
) -> dict[str, Any]:
    """`context` and `mode` only for those who asked for one, with the one value that is served."""
    return {
        "effort": asked.effective_effort(default_effort),
        "summary": asked.asked_summary if summaries else None,
        **({"context": REASONING_CONTEXT} if asked.context else {}),
        **({"mode": REASONING_MODE} if asked.mode else {}),
        **({"max_tokens": asked.max_tokens} if asked.max_tokens else {}),
    }


def _text(asked: TextOptions) -> dict[str, Any]:
    text: dict[str, Any] = {"format": {"type": asked.format.type if asked.format else "text"}}
    if isinstance(asked.format, JsonSchemaFormat):
        text["format"] |= {
            "name": asked.format.name,
            "description": asked.format.description,
            "schema": asked.format.schema_,
            "strict": asked.format.strict,
        }
    if asked.verbosity:
        text["verbosity"] = asked.verbosity
    return text


def _tool_choice(choice: AllowedTools | ToolChoice) -> dict[str, Any]:
    """In a form that OpenAI's types have: they know no choice of `local_shell` alone."""
    match choice:
        case AllowedTools() as allowed:
            tools = [tool for tool in allowed.tools if tool.type not in HOSTED_TOOL_TYPES]
            return {
                "type": allowed.type,
                "mode": allowed.mode,
                "tools": [tool.model_dump(exclude_none=True) for tool in tools],
            }
        case ToolChoice(type="local_shell" as kind):
            return {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
        case _:
            return choice.model_dump(exclude_none=True)


def _tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    return [_tool(tool) for tool in tools if not isinstance(tool, HostedTool)]


def _tool(tool: Tool) -> dict[str, Any]:
    """Of a function all five keys, null where the request said nothing (Open Responses)."""
    match tool:
        case FunctionTool():
            return {
                "type": tool.type,
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
        case NamespaceTool():
            return {
                "type": tool.type,
                "name": tool.name,
                "description": tool.description,
                "tools": _tools(tool.tools),
            }
        case _:
            return tool.model_dump(mode="json", exclude_none=True)
