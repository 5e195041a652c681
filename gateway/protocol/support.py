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
from gateway.protocol.items import InputFile, InputImage, Message
from gateway.protocol.parameters import AllowedTools, ToolChoice
from gateway.protocol.refusals import tool_not_found, unsupported, unsupported_value, wrong_value
from gateway.protocol.tools import HostedTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.protocol.callables import NamedTool
    from gateway.protocol.create import CreateResponse


def check_support(request: CreateResponse, *, strict: bool = False) -> None:
    """Raises `InvalidRequest` for the first refusal. The request's shape is valid already.

    With `strict`, images and files in messages are refused; otherwise the model is told in their
    place that they are missing. So are tools that are not served here, which are dropped otherwise.
    """
    for check in _CHECKS:
        check(request)
    if strict:
        _check_tools(request)
    for path, role, part in _media(request):
        if role == "assistant":
            raise wrong_value(path, part.type, ("output_text", "refusal"))
        if strict:
            raise unsupported(path, "This model reads text only.", value=part.type)


def _media(request: CreateResponse) -> Iterator[tuple[str, str, InputImage | InputFile]]:
    """The images and files in messages: the path of the type, the message's role, the part.

    Those in outputs of tools are not looked at: a tool that returns one must not end a session.
    """
    for i, item in enumerate(request.input):
        if isinstance(item, Message):
            for j, part in enumerate(item.content):
                if isinstance(part, InputImage | InputFile):
                    yield f"input[{i}].content[{j}].type", item.role, part


def _check_context(request: CreateResponse) -> None:
    if request.conversation and request.previous_response_id is not None:
        raise InvalidRequest(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of them.",
            code="mutually_exclusive_parameters",
        )
    if request.conversation:
        raise unsupported("conversation", "Continue a response with 'previous_response_id'.")
    if request.prompt:
        raise unsupported("prompt", "Send the text of the prompt in 'instructions' and 'input'.")
    if not request.input and request.previous_response_id is None:
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
    if choice.type in dropped:
        raise unsupported("tool_choice", "Choose a tool of your own.", value=choice.type)
    raise tool_not_found(choice.type)


def _check_allowed(
    allowed: AllowedTools, tools: Sequence[NamedTool], dropped: Sequence[str]
) -> None:
    """Dropped tools may be in the list, but not alone."""
    for index, wanted in enumerate(allowed.tools):
        found = wanted.type in dropped or any(means(wanted, tool) for tool in tools)
        if not found:
            raise tool_not_found(wanted.type, f"tool_choice.tools[{index}]")
    if not allowed_names(allowed, tools):
        kind = allowed.tools[0].type
        raise unsupported("tool_choice", "Allow a tool of your own.", value=kind)


def _check_reasoning(request: CreateResponse) -> None:
    if request.reasoning.context == "all_turns":
        raise unsupported_value("reasoning.context", "all_turns", ("auto", "current_turn"))


def _check_stop(request: CreateResponse) -> None:
    """A stop could end the answer in the middle of its JSON."""
    asked = request.text.format
    if request.stop and isinstance(asked, JsonObjectFormat | JsonSchemaFormat):
        remedy = f"Leave 'stop' out, or 'text.format' of type '{asked.type}'."
        raise unsupported("stop", f"An answer in a format ends where its JSON does. {remedy}")


def _check_services(request: CreateResponse) -> None:
    if request.context_management:
        raise unsupported("context_management", "Set 'truncation' to 'auto' to drop old turns.")
    if request.moderation:
        raise unsupported("moderation", "Moderate the text with a service of your own.")


_CHECKS: Final[tuple[Callable[[CreateResponse], None], ...]] = (
    _check_context,
    _check_background,
    _check_stream_options,
    _check_tool_choice,
    _check_reasoning,
    _check_stop,
    _check_services,
)
