"""The fields of the Response object that follow from the request alone.

Every key that Open Responses requires is there, null only where both it and the OpenAI SDK allow
that; optional keys without a value are left out, since Open Responses forbids them to be null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.protocol.parameters import DEFAULT_EFFORT, ToolChoice

if TYPE_CHECKING:
    from gateway.protocol.create import CreateResponse
    from gateway.protocol.parameters import Effort
    from gateway.protocol.tools import FunctionTool

SERVICE_TIER: Final = "default"
"""The tier that was used: there is only one."""
REASONING_CONTEXT: Final = "current_turn"
"""Reasoning before the last answer is not shown to the model again."""
REASONING_MODE: Final = "standard"
"""One run of the model answers; there is no mode that takes more."""


def echo(
    request: CreateResponse, *, model: str | None = None, default_effort: Effort = DEFAULT_EFFORT
) -> dict[str, Any]:
    """What the response repeats of its request, with the values in effect.

    `model` is the model that answers, where the request named an alias.
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
        "reasoning": _reasoning(request, default_effort),
        "safety_identifier": request.safety_identifier,
        "service_tier": SERVICE_TIER,
        "store": request.store,
        "background": request.background,
        "temperature": request.temperature,
        "text": _text(request),
        "tool_choice": _tool_choice(request),
        "tools": [_tool(tool) for tool in request.tools],
        "top_logprobs": request.top_logprobs,
        "top_p": request.top_p,
        "truncation": request.truncation,
        "user": request.user,
    }


def _reasoning(request: CreateResponse, default_effort: Effort) -> dict[str, Any]:
    """`context` and `mode` only for those who asked for one, with the one value that is served."""
    asked = request.reasoning
    return {
        "effort": request.effort_or(default_effort),
        "summary": asked.summary or asked.generate_summary,
        **({"context": REASONING_CONTEXT} if asked.context else {}),
        **({"mode": REASONING_MODE} if asked.mode else {}),
    }


def _text(request: CreateResponse) -> dict[str, Any]:
    text: dict[str, Any] = {"format": {"type": "text"}}
    if request.text.verbosity:
        text["verbosity"] = request.text.verbosity
    return text


def _tool_choice(request: CreateResponse) -> str | dict[str, Any]:
    choice = request.tool_choice
    return choice.model_dump(exclude_none=True) if isinstance(choice, ToolChoice) else choice


def _tool(tool: FunctionTool) -> dict[str, Any]:
    """All five keys, null where the request said nothing."""
    return {
        "type": tool.type,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
