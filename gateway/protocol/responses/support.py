"""What OpenAI documents and this release refuses, and combinations that make no sense.

Nothing that is accepted is silently left undone: it is honoured, or `CreateResponse` says that it
has no effect, or it is refused here with what to do instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest
from gateway.protocol.items import CompactionTrigger
from gateway.protocol.parameters import AllowedTools, JsonObjectFormat, JsonSchemaFormat, ToolChoice
from gateway.protocol.refusals import (
    dropped_tools,
    tool_not_found,
    unsupported,
    unsupported_value,
    wrong_value,
)
from gateway.protocol.tools import HostedTool, allowed_names, means, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.responses.create import CreateResponse
    from gateway.protocol.tools import NamedTool


def check_support(request: CreateResponse, *, strict: bool = False) -> None:
    """Raises `InvalidRequest` for the first refusal. The request's shape is valid already.

    With `strict`, tools that are not served here are refused, which are dropped otherwise.
    """
    if request.conversation and request.previous_response_id is not None:
        raise InvalidRequest(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of them.",
            code="mutually_exclusive_parameters",
        )
    if request.prompt:
        raise unsupported("prompt", "Send the text of the prompt in 'instructions' and 'input'.")
    if not (request.input or request.conversation or request.previous_response_id is not None):
        raise InvalidRequest(
            "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be "
            "provided.",
            code="missing_required_parameter",
        )
    if request.background and not request.store:
        raise InvalidRequest(
            "Unsupported parameter: 'background' cannot be true when 'store' is false. Set 'store' "
            "to true, or leave 'background' out.",
            code="unsupported_parameter",
            param="background",
        )
    if request.stream_options and not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    if request.tools or request.tool_choice != "auto":
        _check_tool_choice(request)
    _check_model_options(request)
    if request.moderation:
        raise unsupported("moderation", "Moderate the text with a service of your own.")
    if strict and request.tools:
        _check_hosted(request)


def _check_hosted(request: CreateResponse) -> None:
    for index, tool in enumerate(request.tools):
        if isinstance(tool, HostedTool):
            remedy = "Leave the tool out, or offer a tool that your client executes."
            raise unsupported(f"tools[{index}].type", remedy, value=tool.type)


def _check_tool_choice(request: CreateResponse) -> None:
    tools = tuple(named(request.tools))
    match request.tool_choice:
        case ToolChoice() as choice:
            _check_choice(choice, tools, request.dropped_tools)
        case AllowedTools() as allowed:
            _check_allowed(allowed, tools, request.dropped_tools)
        case "required" if not tools and request.dropped_tools:
            raise dropped_tools(request.dropped_tools)
        case "required" if not tools:
            raise InvalidRequest(
                "Tool choice 'required' must be specified with 'tools' parameter.",
                param="tool_choice",
            )
        case _:
            pass


def _check_choice(choice: ToolChoice, tools: Sequence[NamedTool], dropped: Sequence[str]) -> None:
    if any(means(choice, tool) for tool in tools):
        return
    if any(_is_variant(choice.type, kind) for kind in dropped):
        raise dropped_tools([choice.type])
    raise tool_not_found(choice.type)


def _is_variant(chosen: str, kind: str) -> bool:
    """Hosted tools have several names each: `web_search_preview` is chosen for `web_search`."""
    return chosen.startswith(kind) or kind.startswith(chosen)


def _check_allowed(
    allowed: AllowedTools, tools: Sequence[NamedTool], dropped: Sequence[str]
) -> None:
    """Dropped tools may be in the list, but not alone."""
    for index, wanted in enumerate(allowed.tools):
        is_dropped = any(_is_variant(wanted.type, kind) for kind in dropped)
        found = is_dropped or any(means(wanted, tool) for tool in tools)
        if not found:
            raise tool_not_found(wanted.type, f"tool_choice.tools[{index}]")
    if not allowed_names(allowed, tools):
        raise dropped_tools([wanted.type for wanted in allowed.tools])


def _check_model_options(request: CreateResponse) -> None:
    """Reasoning, stop, compaction. A stop could end the answer in the middle of its JSON."""
    if request.reasoning.context == "all_turns":
        raise unsupported_value("reasoning.context", "all_turns", ("auto", "current_turn"))
    asked = request.text.format
    if request.stop and isinstance(asked, JsonObjectFormat | JsonSchemaFormat):
        remedy = f"Leave 'stop' out, or 'text.format' of type '{asked.type}'."
        raise unsupported("stop", f"An answer in a format ends where its JSON does. {remedy}")
    for index, entry in enumerate(request.context_management or ()):
        if entry.type != "compaction":
            raise wrong_value(f"context_management[{index}].type", entry.type, ("compaction",))
    for index, item in enumerate(request.input[:-1]):
        if isinstance(item, CompactionTrigger):
            raise InvalidRequest(
                f"Invalid 'input[{index}]': a compaction_trigger must be the last input item.",
                code="invalid_value",
                param=f"input[{index}]",
            )
