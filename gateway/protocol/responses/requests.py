"""`POST /v1/responses`, and requests with some of its parameters: how they are read.

One mistake is reported at a time, in the order measured on OpenAI's validator: a missing model,
another missing parameter, unknown names, then types, bounds and values field by field, and last
what OpenAI documents and this release refuses, and combinations that make no sense. Parameters of
another API are told at once: whoever sends `messages` misses no `input`.

Nothing that is accepted is silently left undone: it is honoured, or `CreateResponse` says that it
has no effect, or it is refused here with what to do instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest
from gateway.protocol.base import without_nulls
from gateway.protocol.bounds import (
    check_counts,
    check_format,
    check_items,
    check_media,
    check_text,
    check_tools,
)
from gateway.protocol.documented import (
    COMPACT_PARAMETERS,
    COUNT_PARAMETERS,
    CREATE_PARAMETERS,
    IN_RESPONSES,
    check_own,
)
from gateway.protocol.items import CompactionTrigger
from gateway.protocol.json_body import parse_object
from gateway.protocol.parameters import AllowedTools, JsonObjectFormat, JsonSchemaFormat, ToolChoice
from gateway.protocol.refusals import (
    dropped_tools,
    missing,
    tool_not_found,
    unknown,
    unsupported,
    unsupported_value,
    wrong_value,
)
from gateway.protocol.responses.create import PARAMETERS, CreateResponse
from gateway.protocol.tools import HostedTool, allowed_names, means, named
from gateway.protocol.validation import validated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.limits import InputLimits
    from gateway.protocol.tools import NamedTool

__all__ = ["CreateResponse", "create_of", "parse_create"]

IGNORED_NAMES_MAX: Final = 32

_CONTEXTS: Final = frozenset({"input", "previous_response_id", "conversation", "prompt"})
"""A request has at least one of them."""
_HEADER_SAFE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names of parameters: `served` have the effect that they have on a response, `documented` are
    no mistake.
    """

    served: frozenset[str]
    documented: frozenset[str]

    @classmethod
    def of(cls, documented: frozenset[str]) -> Parameters:
        """Those of an API that has some of the parameters of a response."""
        return cls(documented & PARAMETERS, documented)


CREATION: Final = Parameters(PARAMETERS, CREATE_PARAMETERS)
"""`POST /v1/responses`; `image` and `access_programs` are documented, and have no effect."""
_COUNTED: Final = Parameters.of(COUNT_PARAMETERS)
# With `truncation: auto` the prompt depends on how much room the answer wants.
COUNTING: Final = replace(_COUNTED, served=_COUNTED.served | {"max_output_tokens"})
"""`POST /v1/responses/input_tokens`"""
COMPACTION: Final = Parameters.of(COMPACT_PARAMETERS)
"""`POST /v1/responses/compact`"""


def parse_create(body: bytes, *, limits: InputLimits, strict: bool = False) -> CreateResponse:
    """The request that `body` spells.

    Unknown top-level keys are listed in `ignored`, tools that are not served in `dropped_tools`;
    with `strict` they are refused, and so are images and files. Raises `InvalidRequest` with
    OpenAI's message, code and param, and nothing else for any bytes.
    """
    return create_of(parse_object(body, limits), limits=limits, strict=strict)


def parse_subset(
    body: bytes, parameters: Parameters, *, limits: InputLimits, strict: bool = False
) -> CreateResponse:
    """The same for an API that has only these `parameters`. Nothing of it is stored."""
    fields = parse_object(body, limits)
    request = create_of(fields, parameters, limits=limits, strict=strict)
    # So it is not refused while a conversation has a writer.
    return request.model_copy(update={"store": False})


def create_of(
    fields: dict[str, Any],
    parameters: Parameters = CREATION,
    *,
    limits: InputLimits,
    strict: bool = False,
) -> CreateResponse:
    """The same for a body that is read already (`json_body.parse_object`)."""
    document = without_nulls(fields)
    if "model" not in document:
        raise missing("model")
    if not document.keys().isdisjoint(IN_RESPONSES):
        check_own(document, IN_RESPONSES)
    served = parameters.served
    if not _CONTEXTS & served & document.keys():
        raise missing("input")
    if document.keys() <= served:
        return checked(document, limits=limits, strict=strict)
    ignored = tuple(name for name in document if name not in served)
    for name in ignored:
        if strict and name not in parameters.documented:
            raise unknown(name)
    known = {name: value for name, value in document.items() if name in served}
    request = checked(known, limits=limits, strict=strict)
    return request.model_copy(update={"ignored": presentable(ignored)})


def checked(document: dict[str, Any], *, limits: InputLimits, strict: bool) -> CreateResponse:
    """The request of a document that has known names only. Raises `InvalidRequest`."""
    check_counts(document, limits)
    request = validated(CreateResponse, document)
    check_items(request.input, limits)
    if request.tools:
        check_tools(request.tools, limits)
    if request.text.format:
        check_format(request.text.format, limits)
    check_text("instructions", request.instructions, limits)
    check_support(request, strict=strict)
    check_media(request.input, strict=strict or limits.rejects_media)
    return request


def presentable(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that may stand in a response header; others are not from any client's author."""
    return tuple(name for name in names if _HEADER_SAFE.fullmatch(name))[:IGNORED_NAMES_MAX]


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
    if request.tool_choice != "auto":
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
