"""What OpenAI documents and this release refuses, and combinations that make no sense.

Nothing that is accepted is silently left undone: it is honoured, or `CreateResponse` says that it
has no effect, or it is refused here with what to do instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest
from gateway.protocol.items import InputFile, InputImage, Message
from gateway.protocol.parameters import ToolChoice
from gateway.protocol.refusals import unsupported, unsupported_value, wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.protocol.create import CreateResponse
    from gateway.protocol.tools import FunctionTool

LOGPROBS: Final = "message.output_text.logprobs"


def check_support(request: CreateResponse, *, strict: bool = False) -> None:
    """Raises `InvalidRequest` for the first refusal. The request's shape is valid already.

    With `strict`, images and files in messages are refused; otherwise the model is told in their
    place that they are missing.
    """
    for check in _CHECKS:
        check(request)
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


def _check_tool_choice(request: CreateResponse) -> None:
    choice = request.tool_choice
    match choice:
        case "auto" | "none":
            return
        case "required" if not request.tools:
            raise InvalidRequest(
                "Tool choice 'required' must be specified with 'tools' parameter.",
                param="tool_choice",
            )
        case ToolChoice(type=kind) if not _is_offered(choice, request.tools):
            raise InvalidRequest(
                f"Tool choice '{kind}' not found in 'tools' parameter.", param="tool_choice"
            )
        case _:
            kind = choice.type if isinstance(choice, ToolChoice) else choice
            raise unsupported("tool_choice", "Use 'auto' or 'none'.", value=kind)


def _is_offered(choice: ToolChoice, tools: Sequence[FunctionTool]) -> bool:
    """Whether the request has what the choice names; only functions can be offered here."""
    if choice.type == "function":
        return any(tool.name == choice.name for tool in tools)
    return choice.type == "allowed_tools" and bool(tools)


def _check_reasoning(request: CreateResponse) -> None:
    if request.reasoning.context == "all_turns":
        raise unsupported_value("reasoning.context", "all_turns", ("auto", "current_turn"))


def _check_text(request: CreateResponse) -> None:
    form = request.text.format
    if form and form.type != "text":
        remedy = "Use {'type': 'text'} and describe the format in 'instructions'."
        raise unsupported("text.format", remedy, value=form.type)


def _check_logprobs(request: CreateResponse) -> None:
    if LOGPROBS in request.include:
        path = f"include[{request.include.index(LOGPROBS)}]"
        raise unsupported(path, "Leave this value out.", value=LOGPROBS)
    if request.top_logprobs:
        raise unsupported("top_logprobs", "Leave it out, or set it to 0.")


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
    _check_text,
    _check_logprobs,
    _check_services,
)
