"""`POST /v1/responses`: its parameters, and the checks of requests with some of them.

The order of the fields of `CreateResponse` and of the checks is that of OpenAI's validator, as
measured: only the first mistake is reported. Whatever is accepted is honoured, or `CreateResponse`
says that it has no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, InstanceOf, ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.base import (
    BodyModel,
    Integer,
    Many,
    as_integer,
    presentable,
    string_or,
    without_nulls,
)
from gateway.protocol.brought_tools import BroughtTools, offered, paths_of
from gateway.protocol.call_items import ReadItem
from gateway.protocol.context_item import with_phases
from gateway.protocol.documented import (
    COMPACT_PARAMETERS,
    COUNT_PARAMETERS,
    CREATE_PARAMETERS,
    IN_COMPACTIONS,
    IN_RESPONSES,
    Includable,
    ServiceTier,
    check_own,
    literal_values,
)
from gateway.protocol.hosted_tools import NO_FAMILIES
from gateway.protocol.items import CompactionTrigger, ItemReference, McpApprovalResponse
from gateway.protocol.json_body import parse_object
from gateway.protocol.parameters import (
    RESPONSE_ID_CHARS_MAX,
    AnyConversation,
    AnyToolChoice,
    ContextManagement,
    JsonObjectFormat,
    JsonSchemaFormat,
    Metadata,
    Moderation,
    PromptCacheOptions,
    PromptTemplate,
    ReasoningOptions,
    StreamOptions,
    TextOptions,
)
from gateway.protocol.request_errors import (
    invalid,
    missing,
    mutually_exclusive,
    refusal_of,
    unknown,
    unsupported,
    unsupported_value,
    wrong_value,
)
from gateway.protocol.responses.request_checks import (
    FILES,
    check_brought,
    check_counts,
    check_format,
    check_items,
    check_media,
    check_none_dropped,
    check_text,
    check_tool_choice,
    check_tools,
)
from gateway.protocol.tool_types import AnyTool, Tool, dropped, without_unserved

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.json_body import InputLimits


MODEL_CHARS_MAX: Final = 256
PROMPT_CACHE_KEY_CHARS_MAX: Final = 64
SAFETY_IDENTIFIER_CHARS_MAX: Final = 128
OUTPUT_TOKENS_MIN: Final = 16
TOP_LOGPROBS_MAX: Final = 20
STOPS_MAX: Final = 4
STOP_CHARS_MAX: Final = 256
SEED_MAX: Final = 2**63 - 1
TOP_K_MAX: Final = 2**31 - 1
TOP_K_OFF: Final = -1
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
"""Reasoning items come sealed, so that a client can send them back."""
INPUT_IDS: Final = "input_messages.token_ids"
OUTPUT_IDS: Final = "output_messages.token_ids"
TokenIds = Literal["input_messages.token_ids", "output_messages.token_ids"]
"""Not OpenAI's."""
TOKEN_ID_VALUES: Final = literal_values(TokenIds)


_ARRAYS: Final = (list, tuple)
_InputItems = string_or(
    "array of input items",
    _ARRAYS,
    lambda text: ({"role": "user", "content": text},) if text else (),
)


def _top_k(value: object) -> object:
    return None if value == TOP_K_OFF else value


class CreateResponse(BodyModel):
    """Every documented parameter, with OpenAI's default.

    Accepted without effect: `prompt_cache_*` but for `prewarm`, `user`, `include` of results of
    tools that are not run here, and `max_tool_calls` where none are run. Not OpenAI's: `seed`,
    `stop` (not part of the answer), `top_k` (-1: off), `min_p`, `reasoning.max_tokens`, and vLLM's
    `enable_response_messages`.
    """

    model: Annotated[str, Field(max_length=MODEL_CHARS_MAX)]
    input: Annotated[Many[ReadItem], _InputItems] = ()
    conversation: AnyConversation | None = None
    previous_response_id: Annotated[str, Field(max_length=RESPONSE_ID_CHARS_MAX)] | None = None
    prompt: PromptTemplate | None = None
    moderation: Moderation | None = None
    include: Many[Literal[Includable, TokenIds]] = ()
    tools: Many[AnyTool] = ()
    tool_choice: AnyToolChoice = "auto"
    metadata: Metadata = Field(default_factory=dict)
    text: TextOptions = TextOptions()
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    seed: Annotated[
        int | None, Field(ge=-SEED_MAX - 1, le=SEED_MAX), BeforeValidator(as_integer)
    ] = None
    stop: Annotated[
        Many[Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]],
        Field(max_length=STOPS_MAX),
        string_or("array of strings", _ARRAYS, lambda text: (text,)),
    ] = ()
    top_k: Annotated[
        int | None, Field(ge=1, le=TOP_K_MAX), BeforeValidator(_top_k), BeforeValidator(as_integer)
    ] = None
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    enable_response_messages: bool = False
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False
    max_output_tokens: Integer | None = Field(None, ge=OUTPUT_TOKENS_MIN)
    max_tool_calls: Integer | None = Field(None, ge=1)
    reasoning: ReasoningOptions = ReasoningOptions()
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=SAFETY_IDENTIFIER_CHARS_MAX)
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_key: str | None = Field(None, max_length=PROMPT_CACHE_KEY_CHARS_MAX)
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    instructions: str | None = None
    store: bool = True
    service_tier: ServiceTier | None = None
    top_logprobs: Integer = Field(0, ge=0, le=TOP_LOGPROBS_MAX)
    context_management: Many[ContextManagement] | None = Field(None, min_length=1)

    rejects_images: bool = Field(default=False, exclude=True)
    brought: tuple[InstanceOf[BroughtTools], ...] = Field((), exclude=True)
    """By items of the input; once it is looked up, by those of the context."""

    @property
    def visible_tools(self) -> tuple[Tool, ...]:
        # `tool_choice` plays no role here.
        return offered(self.tools, self.brought) if self.tools or self.brought else ()

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        return () if self.tool_choice == "none" else self.visible_tools

    @property
    def tool_paths(self) -> dict[str, str]:
        return paths_of(self.tools, self.brought)

    @property
    def dropped_tools(self) -> tuple[str, ...]:
        if not (self.tools or self.brought):
            return ()
        groups = (self.tools, *(each.tools for each in self.brought))
        return tuple(tool.label for group in groups for tool in dropped(group))

    @property
    def looks_back(self) -> bool:
        continues = self.previous_response_id is not None or self.conversation is not None
        return continues or any(isinstance(item, ItemReference) for item in self.input)

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs > 0

    @property
    def wants_messages(self) -> bool:
        if not self.include:
            return self.enable_response_messages
        return self.enable_response_messages or self.wants_input_ids or self.wants_output_ids

    @property
    def wants_input_ids(self) -> bool:
        return INPUT_IDS in self.include

    @property
    def wants_output_ids(self) -> bool:
        return OUTPUT_IDS in self.include

    @property
    def prewarms(self) -> bool:
        return self.prompt_cache_options is not None and self.prompt_cache_options.prewarm

    @property
    def obfuscated(self) -> bool:
        return self.stream_options is None or self.stream_options.include_obfuscation


PARAMETERS: Final = CreateResponse.parameters()
HINTS: Final = ("prompt_cache_options", "prompt_cache_retention")
"""Checked without effect, and named as ignored: backends cache every prefix as long as they can."""
PREWARM: Final = "prompt_cache_options.prewarm"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255
_CONTEXTS: Final = frozenset({"input", "previous_response_id", "conversation", "prompt"})
"""A request has at least one of them."""
_NAME_OF_TOOL: Final = re.compile(r"(?:tools\[(\d+)\]|tool_choice)\.name")
_KEY: Final = re.compile(rb"[!-~]{1,%d}" % IDEMPOTENCY_KEY_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names of parameters that are `served`, that are `documented` (no mistake), and that have a
    remedy.
    """

    served: frozenset[str]
    documented: frozenset[str]
    remedies: Mapping[str, str]

    @classmethod
    def from_documented(
        cls, documented: frozenset[str], remedies: Mapping[str, str] = IN_RESPONSES
    ) -> Parameters:
        return cls(documented & PARAMETERS, documented, remedies)


CREATION: Final = Parameters(PARAMETERS, CREATE_PARAMETERS, IN_RESPONSES)
"""`image`, `access_programs` and `background_options` have no effect."""
_COUNTED: Final = Parameters.from_documented(COUNT_PARAMETERS)
# With `truncation: auto` the prompt depends on how much room the answer wants.
COUNTING: Final = replace(_COUNTED, served=_COUNTED.served | {"max_output_tokens"})
COMPACTION: Final = Parameters.from_documented(COMPACT_PARAMETERS, IN_COMPACTIONS)


def _with_phases(request: CreateResponse) -> CreateResponse:
    # What may be a copy of a message in the history stays as it is; a message alone is no preamble.
    if request.previous_response_id or request.conversation or len(request.input) < 2:
        return request
    items = with_phases(request.input)
    return request if items is request.input else request.model_copy(update={"input": items})


def parse_subset(
    body: bytes,
    parameters: Parameters,
    *,
    limits: InputLimits,
    strict: bool = False,
    served: Collection[HostedFamily] = NO_FAMILIES,
) -> CreateResponse:
    """Parse a request to an API with only these `parameters`; it is never stored."""
    request = parse_create(body, parameters, limits=limits, strict=strict, served=served)
    if request.prewarms:
        raise unsupported(PREWARM, "What it is asked for has no cache. Leave the parameter out.")
    # So it is not refused while a conversation has a writer.
    return request.model_copy(update={"store": False})


def parse_create(
    body: bytes | dict[str, Any],
    parameters: Parameters = CREATION,
    *,
    limits: InputLimits,
    strict: bool = False,
    served: Collection[HostedFamily] = NO_FAMILIES,
    needs_input: bool = True,
) -> CreateResponse:
    """Parse a request from JSON bytes or from its fields.

    Of the hosted tools those in `served` are kept. If `needs_input`, the request must have input or
    continue something. If `strict`, unknown keys, unserved tools, images and files are refused.
    Raises only `InvalidRequest`, whatever the bytes are.
    """
    fields = body if isinstance(body, dict) else parse_object(body, limits)
    document, ignored = without_nulls(fields), tuple[str, ...]()
    if "model" not in document:
        raise missing("model")
    if not document.keys().isdisjoint(parameters.remedies):
        check_own(document, parameters.remedies)
    hints = not document.keys().isdisjoint(HINTS)
    needs_input = needs_input and not (hints and _prewarms(document))
    if needs_input and _CONTEXTS.isdisjoint(document.keys() & parameters.served):
        raise missing("input")
    if not document.keys() <= parameters.served:
        document, ignored = _without_unserved(document, parameters, strict=strict)
    ignored = _with_hints(ignored, document) if hints else ignored
    check_counts(document, limits)
    if "tools" in document:
        document = {**document, "tools": without_unserved(document["tools"], served)}
    request = _with_phases(_validated(document, served))
    check_items(request.input, limits)
    brought = check_brought(request.input, limits)
    if request.tools:
        check_tools(request.tools, limits)
    request = request.model_copy(update={"brought": brought}) if brought else request
    if isinstance(request.text.format, JsonSchemaFormat):
        check_format(request.text.format, limits)
    if request.instructions:
        check_text("instructions", request.instructions, limits)
    _check_support(request, needs_input=needs_input)
    if strict and request.dropped_tools:
        check_none_dropped(request.tools, request.brought)
    rejects_media = strict or limits.rejects_media
    check_media(request.input, strict=rejects_media, refused=FILES)
    noted = {"ignored": ignored, "rejects_images": rejects_media}
    request = request.model_copy(update=noted) if ignored or rejects_media else request
    return warm_up(request, f"'{PREWARM}' set to true") if request.prewarms else request


def _validated(document: dict[str, Any], served: Collection[HostedFamily]) -> CreateResponse:
    # The refusal points out tools and choices in the shape of Chat Completions.
    try:
        return CreateResponse.model_validate(document, context=served)
    except ValidationError as fault:
        error = refusal_of(fault)
        match = _NAME_OF_TOOL.fullmatch(error.param or "")
        if match is None or error.code != "missing_required_parameter":
            raise error from None
        tool = document["tool_choice"] if match[1] is None else document["tools"][int(match[1])]
        kind = tool["type"]
        if not isinstance(tool.get(kind), dict):
            raise error from None
        hint = f"Here what stands within '{kind}' stands beside 'type': move it up one level."
        raise missing(match[0], hint) from None


def _prewarms(document: dict[str, Any]) -> bool:
    options = document.get("prompt_cache_options")
    return isinstance(options, dict) and options.get("prewarm") is True


def warm_up(request: CreateResponse, parameter: str) -> CreateResponse:
    """Return the request without generation, as this `parameter` asks. Raises `InvalidRequest`.

    No token is spent: a compaction is left to the request that continues it.
    """
    # Both stand at the end: an answer before other items may be one that was heard long ago.
    for item in request.input[-1:]:
        if isinstance(item, CompactionTrigger | McpApprovalResponse):
            what = "compact" if isinstance(item, CompactionTrigger) else "call"
            raise InvalidRequest(
                f"Invalid input: a request with {parameter} generates nothing, so it cannot {what} "
                f"anything. Leave the '{item.type}' out, or the parameter.",
                code="invalid_value",
                param="input",
            )
    return request.model_copy(update={"context_management": None})


def _without_unserved(
    document: dict[str, Any], parameters: Parameters, *, strict: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    served: dict[str, Any] = {}
    others = []
    for name, value in document.items():
        if name in parameters.served:
            served[name] = value
        elif strict and name not in parameters.documented:
            raise unknown(name)
        else:
            others.append(name)
    return served, presentable(tuple(others))


def _with_hints(ignored: tuple[str, ...], document: dict[str, Any]) -> tuple[str, ...]:
    hints = HINTS[1:] if _prewarms(document) else HINTS
    return presentable((*ignored, *(name for name in hints if name in document)))


def _check_support(request: CreateResponse, *, needs_input: bool) -> None:
    if request.conversation and request.previous_response_id is not None:
        raise mutually_exclusive("previous_response_id", "conversation")
    if request.prompt:
        raise unsupported("prompt", "Send the text of the prompt in 'instructions' and 'input'.")
    has_context = request.conversation or request.previous_response_id is not None
    if needs_input and not (request.input or has_context):
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
    if request.tool_choice != "auto" and not request.looks_back:
        check_choice(request)
    _check_model_options(request)
    if request.moderation:
        raise unsupported("moderation", "Moderate the text with a service of your own.")


def check_choice(request: CreateResponse) -> None:
    """Refuse the choice of a missing tool; `request` has all tools that its context brings."""
    if request.tool_choice != "auto":
        check_tool_choice(request.tool_choice, request.visible_tools, request.dropped_tools)


def _check_model_options(request: CreateResponse) -> None:
    if request.reasoning.context == "all_turns":
        raise unsupported_value("reasoning.context", "all_turns", ("auto", "current_turn"))
    format_ = request.text.format
    if request.stop and isinstance(format_, JsonObjectFormat | JsonSchemaFormat):
        # A stop could end the answer in the middle of its JSON.
        remedy = f"Leave 'stop' out, or 'text.format' of type '{format_.type}'."
        raise unsupported("stop", f"An answer in a format ends where its JSON does. {remedy}")
    for index, entry in enumerate(request.context_management or ()):
        if entry.type != "compaction":
            raise wrong_value(f"context_management[{index}].type", entry.type, ("compaction",))
    for index, item in enumerate(request.input[:-1]):
        if item.type == "compaction_trigger":
            raise invalid(f"input[{index}]", "a compaction_trigger must be the last input item.")


@dataclass(frozen=True, slots=True)
class RequestKey:
    key_hash: bytes
    fingerprint: bytes


def request_key(values: Sequence[bytes], body: bytes, *, store: bool) -> RequestKey | None:
    """Return the idempotency key of a request, from its headers.

    OpenAI promises none for these routes. Here the same key and body return the same response, for
    `retention.idempotency_key_s` seconds.
    """
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        length = f"1 to {IDEMPOTENCY_KEY_CHARS_MAX} visible ASCII characters"
        raise invalid(IDEMPOTENCY_KEY, f"expected one header of {length}, such as a UUID.")
    if not store:
        raise InvalidRequest(
            f"'{IDEMPOTENCY_KEY}' cannot be used when 'store' is false, because the response is "
            "not kept and cannot be returned again. Set 'store' to true, or leave the header out.",
            code="unsupported_parameter",
            param=IDEMPOTENCY_KEY,
        )
    return RequestKey(sha256(values[0]).digest(), sha256(body).digest())


def refuse_key(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse an idempotency key where it would not prevent a second run."""
    if any(name == b"idempotency-key" for name, _ in headers):
        raise InvalidRequest(
            f"'{IDEMPOTENCY_KEY}' is not supported here: the same request would be done twice. It "
            "is supported by POST /v1/responses, and by chat completions and completions with "
            "'store'. Leave the header out.",
            code="unsupported_parameter",
            param=IDEMPOTENCY_KEY,
        )


def reused_key() -> InvalidRequest:
    return InvalidRequest(
        f"This '{IDEMPOTENCY_KEY}' was used with another request body. Use a new key for a new "
        "request.",
        code="idempotency_key_reused",
        param=IDEMPOTENCY_KEY,
    )
