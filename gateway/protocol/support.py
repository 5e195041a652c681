"""What OpenAI documents and this release refuses, and combinations that make no sense.

Nothing that is accepted is silently left undone: it is honoured, or `CreateResponse` says that it
has no effect, or it is refused here with what to do instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest
from gateway.protocol.callables import named
from gateway.protocol.choices import allowed_names, means
from gateway.protocol.formats import JsonObjectFormat, JsonSchemaFormat
from gateway.protocol.items import CompactionTrigger, InputFile, InputImage, Message
from gateway.protocol.parameters import AllowedTools, ToolChoice
from gateway.protocol.refusals import (
    dropped_tools,
    tool_not_found,
    unsupported,
    unsupported_value,
    wrong_value,
)
from gateway.protocol.tools import HostedTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.protocol.callables import NamedTool
    from gateway.protocol.create import CreateResponse
    from gateway.protocol.items import InputItem


def check_support(
    request: CreateResponse, *, strict: bool = False, reject_media: bool = False
) -> None:
    """Raises `InvalidRequest` for the first refusal. The request's shape is valid already.

    With `strict`, tools that are not served here are refused, which are dropped otherwise. With
    either, so are images and files in new messages; otherwise the model is told in their place that
    they are missing.
    """
    for check in _CHECKS:
        check(request)
    if strict:
        _check_tools(request)
    check_media(request.input, strict=strict or reject_media)


def check_input(
    request: CreateResponse, *, strict: bool = False, reject_media: bool = False
) -> None:
    """The same for a request that differs in its input alone from one that was not refused."""
    _check_context(request)
    _check_compaction(request)
    check_media(request.input, strict=strict or reject_media)


def check_media(items: Sequence[InputItem], *, strict: bool, param: str = "input") -> None:
    """Images and files: the assistant has none, and with `strict` nobody brings new ones.

    What the model has answered already is not new: clients that keep the history themselves could
    never go on with a conversation that has an image in it. `param` names the items. Raises
    `InvalidRequest`.
    """
    spoken = (i for i in reversed(range(len(items))) if not _is_from_caller(items[i]))
    first_new = next(spoken, -1) + 1
    for index, path, role, part in _media(items, param):
        if role == "assistant":
            raise wrong_value(path, part.type, ("output_text", "refusal"))
        if strict and index >= first_new:
            raise unsupported(path, "This model reads text only.", value=part.type)


def _is_from_caller(item: InputItem) -> bool:
    return isinstance(item, CompactionTrigger) or (
        isinstance(item, Message) and item.role != "assistant"
    )


def _media(
    items: Sequence[InputItem], param: str
) -> Iterator[tuple[int, str, str, InputImage | InputFile]]:
    """The images and files in messages: the index of the message, the path of the type, the role,
    the part.

    Those in outputs of tools are not looked at: a tool that returns one must not end a session.
    """
    for i, item in enumerate(items):
        if isinstance(item, Message):
            for j, part in enumerate(item.content):
                if isinstance(part, InputImage | InputFile):
                    yield i, f"{param}[{i}].content[{j}].type", item.role, part


def _check_context(request: CreateResponse) -> None:
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


def _check_background(request: CreateResponse) -> None:
    if request.background and not request.store:
        raise InvalidRequest(
            "Unsupported parameter: 'background' cannot be true when 'store' is false. Set 'store' "
            "to true, or leave 'background' out.",
            code="unsupported_parameter",
            param="background",
        )


def _check_stream_options(request: CreateResponse) -> None:
    if request.stream_options and not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )


def _check_tools(request: CreateResponse) -> None:
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


def _check_reasoning(request: CreateResponse) -> None:
    if request.reasoning.context == "all_turns":
        raise unsupported_value("reasoning.context", "all_turns", ("auto", "current_turn"))


def _check_stop(request: CreateResponse) -> None:
    """A stop could end the answer in the middle of its JSON."""
    asked = request.text.format
    if request.stop and isinstance(asked, JsonObjectFormat | JsonSchemaFormat):
        remedy = f"Leave 'stop' out, or 'text.format' of type '{asked.type}'."
        raise unsupported("stop", f"An answer in a format ends where its JSON does. {remedy}")


def _check_compaction(request: CreateResponse) -> None:
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


def _check_services(request: CreateResponse) -> None:
    if request.moderation:
        raise unsupported("moderation", "Moderate the text with a service of your own.")


_CHECKS: Final[tuple[Callable[[CreateResponse], None], ...]] = (
    _check_context,
    _check_background,
    _check_stream_options,
    _check_tool_choice,
    _check_reasoning,
    _check_stop,
    _check_compaction,
    _check_services,
)
