"""The fields of the Response object that follow from the request alone.

Every key that Open Responses requires is there, null only where both it and the OpenAI SDK allow
that; optional keys without a value are left out, since Open Responses forbids them to be null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.protocol.base import without_nulls
from gateway.protocol.parameters import DEFAULT_EFFORT, AllowedTools, JsonSchemaFormat, ToolChoice
from gateway.protocol.tools import HOSTED_TOOL_TYPES, FunctionTool, HostedTool, NamespaceTool

if TYPE_CHECKING:
    from gateway.protocol.parameters import Effort
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
        "reasoning": _reasoning(request, default_effort, summaries=summaries),
        "safety_identifier": request.safety_identifier,
        "service_tier": service_tier,
        "store": request.store,
        "background": request.background,
        "temperature": request.temperature,
        "text": _text(request),
        "tool_choice": _tool_choice(request),
        "tools": [_tool(tool) for tool in request.tools if not isinstance(tool, HostedTool)],
        "top_logprobs": request.top_logprobs,
        "top_p": request.top_p,
        "truncation": request.truncation,
        "user": request.user,
        **_conversation(request),
        **_extensions(request),
    }


def _conversation(request: CreateResponse) -> dict[str, Any]:
    """Only for those who used one, as OpenAI does."""
    return {"conversation": {"id": request.conversation.id}} if request.conversation else {}


def _extensions(request: CreateResponse) -> dict[str, Any]:
    """Parameters that OpenAI has not, only for those who used them."""
    used = {"seed": request.seed, "top_k": request.top_k, "min_p": request.min_p}
    return without_nulls({**used, "stop": list(request.stop) or None})


def _reasoning(
    request: CreateResponse, default_effort: Effort, *, summaries: bool
) -> dict[str, Any]:
    """`context` and `mode` only for those who asked for one, with the one value that is served."""
    asked = request.reasoning
    return {
        "effort": request.effort_or(default_effort),
        "summary": asked.asked_summary if summaries else None,
        **({"context": REASONING_CONTEXT} if asked.context else {}),
        **({"mode": REASONING_MODE} if asked.mode else {}),
        **({"max_tokens": asked.max_tokens} if asked.max_tokens else {}),
    }


def _text(request: CreateResponse) -> dict[str, Any]:
    text: dict[str, Any] = {"format": _format(request)}
    if request.text.verbosity:
        text["verbosity"] = request.text.verbosity
    return text


def _format(request: CreateResponse) -> dict[str, Any]:
    asked = request.text.format
    if isinstance(asked, JsonSchemaFormat):
        return {
            "type": asked.type,
            "name": asked.name,
            "description": asked.description,
            "schema": asked.schema_,
            "strict": asked.strict,
        }
    return {"type": asked.type if asked else "text"}


def _tool_choice(request: CreateResponse) -> str | dict[str, Any]:
    """In a form that OpenAI's types have: they know no choice of `local_shell` alone."""
    match request.tool_choice:
        case AllowedTools() as allowed:
            tools = [tool for tool in allowed.tools if tool.type not in HOSTED_TOOL_TYPES]
            return {
                "type": allowed.type,
                "mode": allowed.mode,
                "tools": [tool.model_dump(exclude_none=True) for tool in tools],
            }
        case ToolChoice(type="local_shell" as kind):
            return {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
        case ToolChoice() as choice:
            return choice.model_dump(exclude_none=True)
        case mode:
            return mode


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
                "tools": [_tool(member) for member in tool.tools],
            }
        case _:
            return tool.model_dump(mode="json", exclude_none=True)
