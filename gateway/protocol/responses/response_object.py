"""The Response object from a request and its outcome.

Sources: `Response` of the OpenAI SDK (3.52) and `ResponseResource` of Open Responses 2026-04-24,
which requires nearly every key, null where there is nothing to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from gateway import ids
from gateway.protocol.base import without_nulls
from gateway.protocol.hosted_tools import (
    CodeInterpreterTool,
    McpServerTool,
    WebSearchTool,
    echoed_tool,
)
from gateway.protocol.items import INCLUDABLE
from gateway.protocol.parameters import (
    DEFAULT_EFFORT,
    EFFECTIVE_EFFORTS,
    UNLISTED_CHOICE_TYPES,
    AllowedTools,
    ToolChoice,
)
from gateway.protocol.responses.request_checks import OfferedTools
from gateway.protocol.responses.response_rules import OFFERED
from gateway.protocol.tool_types import FunctionTool, HostedTool, NamespaceTool

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from gateway.generation import TokenUsage
    from gateway.protocol.grants import Grants
    from gateway.protocol.parameters import Effort, TextOptions, ToolName
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.protocol.tool_types import Tool
    from gateway.sealing import Binding


ServiceTier = Literal["default", "flex", "priority"]
REASONING_CONTEXT: Final = "current_turn"
REASONING_MODE: Final = "standard"
ECHO_FIELDS: Final = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
    "parallel_tool_calls", "presence_penalty", "frequency_penalty", "previous_response_id",
    "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "temperature",
    "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
)  # fmt: skip
"""In the order shown. `ResponseHead.echo` must hold them, and may hold more."""
_echoed: Final = itemgetter(*ECHO_FIELDS)
LONG_ECHO_BYTES: Final = 4 << 10
"""Less takes microseconds to encode for each event, and a stream may last for minutes."""
_MADE: Final = {"model", "reasoning", "service_tier", "text", "tool_choice", "tools"}
_COPIED: Final = (*(name for name in ECHO_FIELDS if name not in _MADE), "background")
_copied: Final = attrgetter(*_COPIED)
_NAME_MEMBERS: Final = {
    "function": ("name", "namespace"),
    "custom": ("name", "namespace"),
    "namespace": ("name",),
    "mcp": ("name", "server_label"),
}
"""Members that identify a tool besides its type, which suffices for others."""


def echo(
    request: CreateResponse,
    *,
    model: str | None = None,
    default_effort: Effort = DEFAULT_EFFORT,
    service_tier: ServiceTier = "default",
    summaries: bool = True,
    unthinks: bool = False,
) -> dict[str, Any]:
    """Return the parameters that the response repeats, with the values in effect.

    `model` replaces an alias. `unthinks`: thinking can be switched off for the model. `rules_of`
    reads the result, so it holds every demand on the output.
    """
    choice, options = request.tool_choice, request.reasoning
    summary = (options.summary or options.generate_summary) if summaries else None
    effort = EFFECTIVE_EFFORTS[options.effort] if options.effort else default_effort
    reasoning: dict[str, Any] = {
        "effort": "none" if unthinks and options.effort == "none" else effort,
        "summary": summary,
    }
    # Only one value of these is served. They are shown if the request set them.
    if options.context:
        reasoning["context"] = REASONING_CONTEXT
    if options.mode:
        reasoning["mode"] = REASONING_MODE
    if options.max_tokens:
        reasoning["max_tokens"] = options.max_tokens
    echoed: dict[str, Any] = {
        **dict(zip(_COPIED, _copied(request), strict=True)),
        "model": model or request.model,
        "reasoning": reasoning,
        "service_tier": service_tier,
        "text": _text(request.text),
        "tool_choice": choice
        if isinstance(choice, str)
        else _tool_choice(
            choice, OfferedTools.from_tools(request.visible_tools, request.dropped_tools)
        ),
        "tools": _tools(request.tools) if request.tools else [],
    }
    if (visible := request.visible_tools) != request.tools:
        echoed[OFFERED] = _tools(visible)
    # Shown only if the request set them: conversation and retention, as OpenAI does, and the
    # parameters that OpenAI does not have.
    if request.conversation:
        echoed["conversation"] = {"id": request.conversation.id}
    for name in ("prompt_cache_retention", "seed", "top_k", "min_p"):
        if (value := getattr(request, name)) is not None:
            echoed[name] = value
    if request.stop:
        echoed["stop"] = list(request.stop)
    caches = request.prompt_cache_options
    if caches is not None and caches.comparison_response_id is not None:
        echoed["prompt_cache_diagnostics"] = {"type": "unavailable"}
    return echoed


def _text(options: TextOptions) -> dict[str, Any]:
    if options.format is None:
        text: dict[str, Any] = {"format": {"type": "text"}}
    else:  # of `schema_` the name is `schema`
        text = {"format": {name.rstrip("_"): value for name, value in options.format}}
    if options.verbosity:
        text["verbosity"] = options.verbosity
    return text


def _tool_choice(choice: AllowedTools | ToolChoice, offered: OfferedTools) -> dict[str, Any]:
    match choice:
        case AllowedTools() as allowed:
            tools = [
                _named_tool(tool)
                for tool in allowed.tools
                if offered.has(tool) or not offered.dropped_one(tool)
            ]
            return {"type": allowed.type, "mode": allowed.mode, "tools": tools}
        case ToolChoice(type=kind) if kind in UNLISTED_CHOICE_TYPES:
            return {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
        case _:
            return _named_tool(choice)


def _named_tool(tool: ToolName) -> dict[str, Any]:
    members = _NAME_MEMBERS.get(tool.type, ())
    named = {name: getattr(tool, name) for name in members}
    return without_nulls({"type": tool.type, **named})


def _tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    return [_tool(tool) for tool in tools if not isinstance(tool, HostedTool)]


def _tool(tool: Tool) -> dict[str, Any]:
    # Open Responses requires all five keys of a function, null where the request had none.
    match tool:
        case FunctionTool():
            shown = {**vars(tool)}  # `dict(tool)` takes three times as long
            if not tool.defer_loading:
                del shown["defer_loading"]
            return shown
        case WebSearchTool() | CodeInterpreterTool() | McpServerTool():
            return echoed_tool(tool)
        case NamespaceTool():
            return {**vars(tool), "tools": _tools(tool.tools)}
        case _:
            return tool.model_dump(mode="json", exclude_none=True)


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class HarmonyMessages:
    """Messages of the prompt (`ModelFormat.messages`) for the terminal Response object."""

    input: list[dict[str, Any]] = field(hash=False)
    with_output_ids: bool = False


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Data of a response from before its first token; the fold's only other input.

    `echo` has every field of the Response object that follows from the request alone. With a
    `binding` reasoning items are sealed. `spelled` is `kept_echo(echo)`. `format` is that of the
    log, by name; "": older releases did not keep it.
    """

    uuid: UUID
    created_at: int
    background: bool
    echo: dict[str, Any] = field(hash=False)
    binding: Binding | None = None
    spelled: bytes = field(default=b"", compare=False, repr=False)
    messages: HarmonyMessages | None = field(default=None, hash=False)
    grants: Grants | None = field(default=None, hash=False)
    format: str = ""

    def is_logged_in(self, format_name: str) -> bool:
        # A model may have another format since, or not be known here any more.
        return self.format in {"", format_name}

    def including(self, include: Collection[str]) -> ResponseHead:
        """Return the head for a reader whose `include` is longer than the request's."""
        if self.grants is None:
            return self
        more = sorted(INCLUDABLE.intersection(include).difference(self.grants.include))
        if not more:
            return self
        return replace(self, grants=replace(self.grants, include=(*self.grants.include, *more)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """End or state of a response.

    `completed_at` is in unix seconds. `messages` are `input_messages` and `output_messages`.
    `web_searches` is None if the gateway ran no tool.
    """

    status: ResponseStatus = "in_progress"
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    usage: TokenUsage | None = None
    messages: dict[str, Any] | None = field(default=None, hash=False)
    web_searches: int | None = None


def response_body(
    head: ResponseHead, outcome: Outcome, output: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(
        encoded_body(head, outcome, output, echo=spelled_echo(head.echo))
    )
    return body


def encoded_body(
    head: ResponseHead, outcome: Outcome, output: Sequence[dict[str, Any]], *, echo: bytes
) -> bytes:
    """Return the Response object as JSON, with keys in a fixed order; `echo` is a
    `spelled_echo`.
    """
    fate = orjson.dumps(
        {
            "id": ids.response_id(head.uuid),
            "object": "response",
            "created_at": head.created_at,
            "status": outcome.status,
            "background": head.echo.get("background", head.background),
            "completed_at": outcome.completed_at,
            "error": outcome.error,
            "incomplete_details": outcome.incomplete_details,
            "output": list(output),
        }
    )
    usage = orjson.dumps(usage_body(outcome.usage)) if outcome.usage else b"null"
    rest: dict[str, Any] = outcome.messages or {}
    if outcome.web_searches is not None:
        rest = {"tool_usage": tool_usage_body(outcome.web_searches), **rest}
    more = b"," + orjson.dumps(rest)[1:-1] if rest else b""
    return b'%b,%b,"usage":%b%b}' % (fate[:-1], echo, usage, more)


def spelled_echo(echo: Mapping[str, Any]) -> bytes:
    """Return the members of `echo` that the Response object shows, as JSON without braces."""
    shown = {**dict(zip(ECHO_FIELDS, _echoed(echo), strict=True)), **echo}
    shown.pop("background", None)  # it stands before the output
    shown.pop(OFFERED, None)
    return orjson.dumps(shown)[1:-1]


def kept_echo(echo: Mapping[str, Any]) -> bytes:
    spelled = spelled_echo(echo)
    return spelled if len(spelled) >= LONG_ECHO_BYTES else b""


def usage_body(usage: TokenUsage) -> dict[str, Any]:
    """Return `usage` as the API has it. Counts are of ids, so they are exact on every exit path.

    * input: without text that the gateway adds to make a model continue that stopped without an
      answer.
    * output: all ids that the model generated, headers, markers and discarded ones included.
    * reasoning: the bodies of messages that became reasoning items.
    * cache writes: 0, because backends cache every prompt and charge nothing for it.
    * estimated: some turn of a model without token ids had no usage, so its characters were
      counted.
    * tool output: results of hosted tools, a part of the input (vLLM's name).
    """
    details = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.tool_output_tokens:
        details["tool_output_tokens"] = usage.tool_output_tokens
    marked = {"estimated": True} if usage.estimated else {}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": details,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        **marked,
    }


def tool_usage_body(web_searches: int) -> dict[str, Any]:
    """Return `tool_usage`. OpenAI's type requires both families; the gateway makes no images."""
    image_details = {"image_tokens": 0, "text_tokens": 0}
    return {
        "image_gen": {
            "input_tokens": 0,
            "input_tokens_details": image_details,
            "output_tokens": 0,
            "output_tokens_details": image_details,
            "total_tokens": 0,
        },
        "web_search": {"num_requests": web_searches},
    }


def compaction_body(item_id: str, seal: str) -> dict[str, Any]:
    # The published types of compaction items have no status.
    return {"id": item_id, "type": "compaction", "encrypted_content": seal}


def compacted_response(
    uuid: UUID, created_at: int, output: Sequence[dict[str, Any]], usage: TokenUsage
) -> dict[str, Any]:
    """Return the body of `POST /v1/responses/compact`; `created_at` is in unix seconds.

    The keys are those of `CompactResource` (Open Responses 2026-04-24) and of OpenAI's SDK.
    """
    return {
        "id": ids.response_id(uuid),
        "object": "response.compaction",
        "created_at": created_at,
        "output": list(output),
        "usage": usage_body(usage),
    }
