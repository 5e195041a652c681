"""Requests of Chat Completions and Completions, converted to requests of the Responses API.

Errors use the client's own parameter paths (`ParameterPaths`). One model reads all roles and all
parts, so that a mistake has the path that the client wrote.

Clients replay what other servers gave them, so more is accepted than OpenAI documents: nulls for
absent values, tool calls without a type, a URL in place of an image's object, reasoning under both
of its names.

A prompt of `POST /v1/completions` is a user's message: gpt-oss was trained on conversations only.
So `suffix`, `echo` and token ids are refused. Parameters outside `CHAT_PARAMETERS`, and the `name`
of a participant, have no effect and are named in the answer's headers.

A sound becomes a file, because there is no item for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.errors import InvalidRequest, shown
from gateway.protocol import documented
from gateway.protocol.base import Integer, Many, NullableModel, presentable, without_nulls
from gateway.protocol.chat_answers import ChatAdapter, CompletionAdapter, in_chat_words
from gateway.protocol.documented import IN_CHATS, IN_COMPLETIONS, check_own
from gateway.protocol.hosted_tools import NO_FAMILIES
from gateway.protocol.json_body import parse_object
from gateway.protocol.request_errors import (
    array_empty,
    invalid,
    missing,
    string_empty,
    unknown,
    unsupported,
    validated,
    wrong_type,
    wrong_value,
)
from gateway.protocol.responses.create_request import LOGPROBS, OUTPUT_TOKENS_MIN, parse_create
from gateway.protocol.responses.request_checks import check_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gateway.protocol.chat_answers import Adapter
    from gateway.protocol.documented import Remedies
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.responses.create_request import CreateResponse

    Json = dict[str, Any]

ChatRole = Literal["developer", "system", "user", "assistant", "tool", "function"]


def _image(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class ImageUrl(NullableModel):
    url: str
    detail: str | None = None


class InputAudio(NullableModel):
    data: str
    format: str | None = None


class ChatFile(NullableModel):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ChatPart(NullableModel):
    """Part of a message; the field of its `type` has the content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Annotated[ImageUrl | None, BeforeValidator(_image)] = None
    input_audio: InputAudio | None = None
    file: ChatFile | None = None


class CalledFunction(NullableModel):
    name: str
    arguments: str


class CalledCustom(NullableModel):
    name: str
    input: str


class ChatCall(NullableModel):
    id: str
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class ChatMessage(NullableModel):
    role: ChatRole
    text: str | None = None
    content: Many[ChatPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Many[ChatCall] = ()
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        # Texts and parts have fields of their own, so that neither is read as the other.
        if not isinstance(value, dict):
            return value
        content = value.get("content")
        if isinstance(content, str):
            return {**value, "content": None, "text": content}
        return {name: member for name, member in value.items() if name != "text"}

    @field_validator("content", mode="before")
    @classmethod
    def _either(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return value
        expected = "one of a string or array of objects"
        raise PydanticCustomError("expected", "", {"expected": expected})

    @property
    def thought(self) -> tuple[str, str] | None:
        """Return the field name and text of the chain of thought that the client sends back."""
        for name in ("reasoning_content", "reasoning"):
            value = getattr(self, name)
            if isinstance(value, str) and value:
                return name, value
        return None


class ChatStreamOptions(NullableModel):
    include_usage: bool = False
    include_obfuscation: bool = True


class ChatTool(NullableModel):
    type: str
    function: dict[str, Any] | None = None
    custom: dict[str, Any] | None = None


class ChatRequest(NullableModel):
    """Parameters that differ from the Responses API."""

    messages: Many[ChatMessage] = Field(min_length=1)
    tools: Many[ChatTool] = ()
    tool_choice: Any = None
    functions: Many[dict[str, Any]] = ()
    function_call: Any = None
    response_format: Any = None
    max_completion_tokens: Integer | None = Field(None, ge=1)
    max_tokens: Integer | None = Field(None, ge=1)
    n: Integer | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Integer | None = None
    logit_bias: dict[str, Any] | None = None
    modalities: Many[str] | None = None
    reasoning: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    stream_options: ChatStreamOptions | None = None
    web_search_options: dict[str, Any] | None = None


class CompletionRequest(NullableModel):
    prompt: Any
    max_tokens: Integer | None = Field(None, ge=1)
    n: Integer | None = Field(None, ge=1)
    best_of: Integer | None = Field(None, ge=1)
    echo: bool = False
    suffix: str | None = None
    logprobs: Integer | None = None
    logit_bias: dict[str, Any] | None = None
    reasoning_effort: Any = None
    stream_options: ChatStreamOptions | None = None


SHARED: Final = frozenset({
    "frequency_penalty", "metadata", "min_p", "model", "moderation", "parallel_tool_calls",
    "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "temperature", "top_k",
    "top_p", "user",
})  # fmt: skip
"""The same in all these APIs, but for the default of `store`."""
CHAT_PARAMETERS: Final = frozenset(ChatRequest.model_fields) | SHARED


def parse_chat(
    body: bytes,
    *,
    limits: InputLimits,
    strict: bool = False,
    served: Collection[HostedFamily] = NO_FAMILIES,
) -> Converted:
    """Parse a request. Raises only `InvalidRequest`, whatever the bytes are."""
    document = _document(body, limits, IN_CHATS, required="messages")
    ignored = tuple(name for name in document if name not in CHAT_PARAMETERS)
    if strict and (unheard := [n for n in ignored if n not in documented.CHAT_PARAMETERS]):
        raise unknown(unheard[0])
    places = ParameterPaths({"input": "messages", "text.verbosity": "verbosity"})
    try:
        check_counts({"input": document["messages"]}, limits)
    except InvalidRequest as error:
        raise places.restated(error) from None
    request = validated(ChatRequest, document)
    _check_served(request)
    adapter = ChatAdapter(
        logprobs=request.logprobs,
        is_deprecated=bool(request.functions),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
    )
    is_named = any(one.name and one.role != "function" for one in request.messages)
    return _convert(
        _shared_parameters(document) | _members(request, places),
        partial(parse_create, limits=limits, strict=strict, served=served),
        places=places,
        adapter=adapter,
        ignored=(*ignored, "messages.name") if is_named else ignored,
    )


def _members(request: ChatRequest, places: ParameterPaths) -> Json:
    options = request.stream_options
    places.add("include", "logprobs")
    text = {"format": _format_of(request.response_format, places), "verbosity": request.verbosity}
    members: Json = {
        "input": _items_of(request.messages, places),
        "tools": _tools_of(request, places),
        "tool_choice": _tool_choice_of(request, places),
        "text": without_nulls(text),
        "reasoning": _reasoning_of(request, places),
        "max_output_tokens": _output_tokens(request, places),
        "include": [LOGPROBS] if request.logprobs else None,
        "top_logprobs": request.top_logprobs,
        "parallel_tool_calls": False if request.functions else None,
        "stream_options": options and {"include_obfuscation": options.include_obfuscation},
    }
    return without_nulls(members)


def _output_tokens(request: ChatRequest, places: ParameterPaths) -> int | None:
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    places.add("max_output_tokens", name)
    return request.max_completion_tokens or request.max_tokens


TOOL_TYPES: Final = ("function", "custom")


def _tools_of(request: ChatRequest, places: ParameterPaths) -> list[Json]:
    if request.tools and request.functions:
        raise InvalidRequest(
            "Mutually exclusive parameters: 'functions' and 'tools'. 'functions' is deprecated: "
            "send 'tools' only.",
            code="mutually_exclusive_parameters",
            param="functions",
        )
    if request.functions:
        places.add("tools", "functions")
        tools: list[Json] = [{**function, "type": "function"} for function in request.functions]
    else:
        tools = [_tool(tool, index, places) for index, tool in enumerate(request.tools)]
    if request.web_search_options is not None:
        tools.append(_search_tool(request.web_search_options, f"tools[{len(tools)}]", places))
    return tools


def _search_tool(options: Json, at: str, places: ParameterPaths) -> Json:
    # OpenAI nests the location in an `approximate` object here.
    for name in ("", ".type"):
        places.add(f"{at}{name}", "web_search_options")
    located = options.get("user_location")
    if not isinstance(located, dict):
        return {**options, "type": "web_search"}
    path = "web_search_options.user_location.approximate"
    places.add(f"{at}.user_location", path)
    place = _object(located.get("approximate"), path)
    return {**options, "type": "web_search", "user_location": {**place, "type": "approximate"}}


def _tool(tool: ChatTool, index: int, places: ParameterPaths) -> Json:
    at = f"tools[{index}]"
    if tool.type not in TOOL_TYPES:
        raise wrong_value(f"{at}.type", tool.type, TOOL_TYPES)
    spec = tool.function if tool.type == "function" else tool.custom
    if spec is None:
        raise _not_within(f"{at}.{tool.type}", tool.type)
    places.add(at, f"{at}.{tool.type}")
    format_ = spec.get("format")
    if tool.type == "custom" and isinstance(format_, dict) and format_.get("type") == "grammar":
        path = f"{at}.custom.format.grammar"
        places.add(f"{at}.format", path)
        spec = {**spec, "format": {**_object(format_.get("grammar"), path), "type": "grammar"}}
    return {**spec, "type": tool.type}


def _not_within(path: str, kind: str) -> InvalidRequest:
    return missing(path, f"In a chat the name and all else of a tool stand within '{kind}'.")


def _object(value: object, path: str) -> Json:
    if value is None:
        raise missing(path)
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return value


def _tool_choice_of(request: ChatRequest, places: ParameterPaths) -> object:
    choice = request.tool_choice
    if choice is None:
        return _function_call(request.function_call, places)
    if _type_of(choice) == "allowed_tools":
        return _allowed_tools(choice, places)
    return _named_choice(choice, "tool_choice", places)


def _function_call(choice: object, places: ParameterPaths) -> object:
    places.add("tool_choice", "function_call")
    return {**choice, "type": "function"} if isinstance(choice, dict) else choice


def _named_choice(choice: object, at: str, places: ParameterPaths) -> object:
    kind = _type_of(choice)
    if not isinstance(choice, dict) or kind not in TOOL_TYPES:
        return choice
    path = f"{places.original(at)}.{kind}"
    if choice.get(kind) is None:
        raise _not_within(path, kind)
    places.add(f"{at}.name", f"{path}.name")
    return {**_object(choice.get(kind), path), "type": kind}


def _allowed_tools(choice: Json, places: ParameterPaths) -> Json:
    path = "tool_choice.allowed_tools"
    for name in ("mode", "tools"):
        places.add(f"tool_choice.{name}", f"{path}.{name}")
    allowed = _object(choice.get("allowed_tools"), path)
    tools = allowed.get("tools")
    if isinstance(tools, list):
        tools = [
            _named_choice(tool, f"tool_choice.tools[{i}]", places) for i, tool in enumerate(tools)
        ]
    return {**allowed, "type": "allowed_tools", "tools": tools}


def _type_of(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else None


def _format_of(response_format: object, places: ParameterPaths) -> object:
    places.add("text.format", "response_format")
    if not isinstance(response_format, dict) or response_format.get("type") != "json_schema":
        return response_format
    path = "response_format.json_schema"
    places.add("text.format", path)
    places.add("text.format.type", "response_format.type")
    return {**_object(response_format.get("json_schema"), path), "type": "json_schema"}


def _reasoning_of(request: ChatRequest, places: ParameterPaths) -> object:
    if request.reasoning_effort is None:
        return request.reasoning
    places.add("reasoning.effort", "reasoning_effort")
    match request.reasoning:
        case None:
            return {"effort": request.reasoning_effort}
        case dict(options):
            return {**options, "effort": request.reasoning_effort}
        case other:
            return other


def _check_served(request: ChatRequest) -> None:
    if request.n is not None and request.n > 1:
        raise unsupported("n", "Send the request as often as you want answers.")
    if request.logit_bias:
        raise unsupported("logit_bias", "Tell the model in a message what to say and what not.")
    if request.modalities and "audio" in request.modalities:
        raise unsupported("modalities", "This model writes text only.", value="audio")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "it needs 'logprobs' to be true.")


def _items_of(messages: Sequence[ChatMessage], places: ParameterPaths) -> list[Json]:
    builder = _ItemBuilder(places)
    for index, message in enumerate(messages):
        builder.add(message, f"messages[{index}]")
    builder.check_answered()
    if not builder.items:
        raise missing("messages[0].content")
    return builder.items


@dataclass(frozen=True, slots=True)
class _OpenCall:
    path: str
    kind: str
    name: str | None = None


class _ItemBuilder:
    def __init__(self, places: ParameterPaths) -> None:
        self.items: list[Json] = []
        self._places = places
        self._open: dict[str, _OpenCall] = {}

    def add(self, message: ChatMessage, path: str) -> None:
        match message.role:
            case "assistant":
                self._add_assistant(message, path)
            case "tool":
                self._add_tool_output(message, path)
            case "function":
                self._add_function_output(message, path)
            case _:
                _check_content(message, path)
                self._add(self._message(message, path), path)

    def check_answered(self) -> None:
        # Raises `InvalidRequest` for a call without an output.
        for call_id, call in self._open.items():
            raise _missing_outputs(call_id, call)

    def _add_assistant(self, message: ChatMessage, path: str) -> None:
        _check_says(message, path)
        if message.thought is not None:
            name, text = message.thought
            self._add(_reasoning(text), path, {".content[0].text": f".{name}"})
        answer = self._message(message, path)
        if message.refusal is not None:
            at = f"{self._next}.content[{len(answer['content'])}]"
            self._places.add(f"{at}.refusal", f"{path}.refusal")
            answer["content"].append({"type": "refusal", "refusal": message.refusal})
        if any(part.get("text") or part.get("refusal") for part in answer["content"]):
            self._add(answer, path)
        for index, call in enumerate(message.tool_calls):
            self._call(call, f"{path}.tool_calls[{index}]")
        if message.function_call is not None:
            self._call_by_name(message, path)

    def _call(self, call: ChatCall, path: str) -> None:
        self._expect_output(call.id, _OpenCall(path, call.type))
        if call.type == "function":
            if call.function is None:
                raise missing(f"{path}.function")
            item = {"type": "function_call", **call.function.model_dump()}
        else:
            if call.custom is None:
                raise missing(f"{path}.custom")
            item = {"type": "custom_tool_call", **call.custom.model_dump()}
        names = {f".{name}": f".{call.type}.{name}" for name in ("name", "arguments", "input")}
        self._add({**item, "call_id": call.id}, path, {**names, ".call_id": ".id"})

    def _call_by_name(self, message: ChatMessage, path: str) -> None:
        assert message.function_call is not None
        call_id = f"function_call_{len(self.items)}"
        self._expect_output(call_id, _OpenCall(path, "function", message.function_call.name))
        call = {"type": "function_call", "call_id": call_id, **message.function_call.model_dump()}
        self._add(call, f"{path}.function_call")

    def _expect_output(self, call_id: str, call: _OpenCall) -> None:
        if call_id in self._open:
            raise _missing_outputs(call_id, self._open[call_id])
        self._open[call_id] = call

    def _add_tool_output(self, message: ChatMessage, path: str) -> None:
        if message.tool_call_id is None:
            raise missing(f"{path}.tool_call_id")
        answered = self._open.pop(message.tool_call_id, None)
        if answered is None:
            raise InvalidRequest(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding "
                f"message with 'tool_calls'. No call has the id '{shown(message.tool_call_id)}'.",
                param=f"{path}.role",
            )
        self._output(message, path, message.tool_call_id, answered.kind)

    def _add_function_output(self, message: ChatMessage, path: str) -> None:
        if message.name is None:
            raise missing(f"{path}.name")
        call_id = next(
            (key for key in reversed(self._open) if self._open[key].name == message.name), None
        )
        if call_id is None:
            raise InvalidRequest(
                "Invalid parameter: messages with role 'function' must be a response to a "
                f"preceding message with a 'function_call' of '{shown(message.name)}'.",
                param=f"{path}.role",
            )
        del self._open[call_id]
        self._output(message, path, call_id, "function")

    def _output(self, message: ChatMessage, path: str, call_id: str, kind: str) -> None:
        _check_content(message, path)
        item_type = "custom_tool_call_output" if kind == "custom" else "function_call_output"
        output: str | list[Json] | None = message.text
        if output is None:
            output = _parts(message, path, self._places, f"{self._next}.output")
        item = {"type": item_type, "call_id": call_id, "output": output}
        self._add(item, path, {".output": ".content", ".call_id": ".tool_call_id"})

    def _message(self, message: ChatMessage, path: str) -> Json:
        content = _parts(message, path, self._places, f"{self._next}.content")
        return {"type": "message", "role": message.role, "content": content}

    @property
    def _next(self) -> str:
        return f"input[{len(self.items)}]"

    def _add(self, item: Json, path: str, below: dict[str, str] | None = None) -> None:
        self._places.add(self._next, path)
        for name, original in (below or {}).items():
            self._places.add(f"{self._next}{name}", f"{path}{original}")
        self.items.append(item)


def _reasoning(text: str) -> Json:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content}


def _check_content(message: ChatMessage, path: str) -> None:
    if message.text is None and message.content is None:
        raise missing(f"{path}.content")


def _check_says(message: ChatMessage, path: str) -> None:
    # Some servers show an empty `tool_calls` array beside content, so that is accepted.
    contents = (message.thought, message.refusal, message.function_call)
    if message.tool_calls or any(one is not None for one in contents):
        return
    if (
        message.text is None
        and message.content is None
        and "tool_calls" in message.model_fields_set
    ):
        raise array_empty(f"{path}.tool_calls")
    _check_content(message, path)


def _missing_outputs(call_id: str, call: _OpenCall) -> InvalidRequest:
    if call.name is not None:
        return InvalidRequest(
            "An assistant message with 'function_call' must be followed by a message with role "
            f"'function' and the name '{shown(call.name)}'.",
            param=f"{call.path}.function_call",
        )
    return InvalidRequest(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{shown(call_id)}",
        param=call.path,
    )


_SPOKEN: Final = ("text", "refusal")
_SHOWN: Final = ("text", "image_url", "input_audio", "file")
PART_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "developer": ("text",),
    "system": ("text",),
    "user": _SHOWN,
    "assistant": _SPOKEN,
    "tool": _SHOWN,
    "function": _SHOWN,
}
"""OpenAI's tools return text; some return images."""


def _parts(message: ChatMessage, path: str, places: ParameterPaths, to: str) -> list[Json]:
    # The content of the message at `path`, for `to` of the new request.
    if message.text is not None:
        places.add(f"{to}[0].text", f"{path}.content")
        return [{"type": "input_text", "text": message.text}]
    return [
        _part(message.role, part, f"{path}.content[{index}]", places, f"{to}[{index}]")
        for index, part in enumerate(message.content or ())
    ]


def _part(role: str, part: ChatPart, path: str, places: ParameterPaths, to: str) -> Json:
    if part.type not in PART_TYPES[role]:
        raise wrong_value(f"{path}.type", part.type, PART_TYPES[role])
    if getattr(part, part.type) is None:
        raise missing(f"{path}.{part.type}")
    places.add(to, path)
    match part.type:
        case "text":
            return {"type": "input_text", "text": part.text}
        case "refusal":
            return {"type": "refusal", "refusal": part.refusal}
        case "image_url":
            assert part.image_url is not None
            places.add(f"{to}.image_url", f"{path}.image_url.url")
            places.add(f"{to}.detail", f"{path}.image_url.detail")
            image = {"image_url": part.image_url.url, "detail": part.image_url.detail}
            return {"type": "input_image", **without_nulls(image)}
        case "input_audio":
            assert part.input_audio is not None
            places.add(f"{to}.file_data", f"{path}.input_audio.data")
            name = f"audio.{part.input_audio.format}" if part.input_audio.format else "audio"
            return {"type": "input_file", "file_data": part.input_audio.data, "filename": name}
        case _:
            assert part.file is not None
            for name in ("file_id", "file_data", "filename"):
                places.add(f"{to}.{name}", f"{path}.file.{name}")
            return {"type": "input_file", **part.file.model_dump(exclude_none=True)}


@dataclass(frozen=True, slots=True)
class Converted:
    """Request with the client's parameter names (`places`) and the converter of its answers."""

    request: CreateResponse
    places: ParameterPaths
    adapter: Adapter


def _document(body: bytes, limits: InputLimits, remedies: Remedies, *, required: str) -> Json:
    document = without_nulls(parse_object(body, limits))
    if "model" not in document:
        raise missing("model")
    check_own(document, remedies)
    if required not in document:
        raise missing(required)
    return document


def _shared_parameters(document: Json) -> Json:
    # These APIs store nothing unless the request says so.
    return {"store": False} | {name: document[name] for name in SHARED & document.keys()}


def _convert(
    parameters: Json,
    parse: Callable[[Json], CreateResponse],
    *,
    places: ParameterPaths,
    adapter: Adapter,
    ignored: tuple[str, ...],
) -> Converted:
    # These APIs have no minimum of output tokens, so the check sees a large enough number.
    bound = parameters.get("max_output_tokens")
    if bound is not None:
        parameters = {**parameters, "max_output_tokens": max(bound, OUTPUT_TOKENS_MIN)}
    try:
        request = parse(parameters)
    except InvalidRequest as error:
        raise places.restated(error) from None
    ignored = presentable((*ignored, *request.ignored))
    request = request.model_copy(update={"ignored": ignored, "max_output_tokens": bound})
    return Converted(request, places, adapter)


_SEPARATORS: Final = ".["


class ParameterPaths:
    def __init__(self, places: Mapping[str, str]) -> None:
        # Paths below a mapped path follow it, unless they are mapped themselves.
        self._places = dict(places)

    def add(self, path: str, original: str) -> None:
        self._places[path] = original

    def original(self, path: str) -> str:
        prefix, rest = path, ""
        while prefix not in self._places:
            cut = max(map(prefix.rfind, _SEPARATORS))
            if cut < 0:
                return path
            prefix, rest = prefix[:cut], prefix[cut:] + rest
        return self._places[prefix] + rest

    def restated(self, error: InvalidRequest) -> InvalidRequest:
        if error.param is None:
            return InvalidRequest(in_chat_words(error.message), code=error.code)
        param = self.original(error.param)
        message = error.message.replace(f"'{error.param}'", f"'{param}'")
        return InvalidRequest(in_chat_words(message), code=error.code, param=param)


COMPLETION_PARAMETERS: Final = frozenset(CompletionRequest.model_fields) | SHARED


def parse_completion(body: bytes, *, limits: InputLimits, strict: bool = False) -> Converted:
    document = _document(body, limits, IN_COMPLETIONS, required="prompt")
    ignored = tuple(name for name in document if name not in COMPLETION_PARAMETERS)
    if strict and ignored:
        raise unknown(ignored[0])
    request = validated(CompletionRequest, document)
    _check_completion(request)
    text = _prompt(request.prompt)
    options = request.stream_options
    parameters = {
        "input": [{"type": "message", "role": "user", "content": text}],
        "max_output_tokens": request.max_tokens,
        "reasoning": request.reasoning_effort and {"effort": request.reasoning_effort},
        "stream_options": options and {"include_obfuscation": options.include_obfuscation},
    }
    places = ParameterPaths(
        {
            "input": "prompt",
            "input[0].content[0].text": "prompt",
            "max_output_tokens": "max_tokens",
            "reasoning.effort": "reasoning_effort",
        }
    )
    return _convert(
        _shared_parameters(document) | without_nulls(parameters),
        partial(parse_create, limits=limits, strict=strict),
        places=places,
        adapter=CompletionAdapter(include_usage=bool(options and options.include_usage)),
        ignored=ignored,
    )


def _prompt(prompt: object) -> str:
    match prompt:
        case str() if prompt:
            return prompt
        case str():
            raise string_empty("prompt")
        case []:
            raise array_empty("prompt")
        case [str(text)] if text:
            return text
        case [str(), *_]:
            raise unsupported("prompt", "Send one text, and a request for each.")
        case [int() | list(), *_]:
            raise unsupported("prompt", "Send the text of the prompt, not its token ids.")
        case _:
            raise wrong_type("prompt", "one of a string or array with one string", prompt)


def _check_completion(request: CompletionRequest) -> None:
    for name in ("n", "best_of"):
        if (getattr(request, name) or 1) > 1:
            raise unsupported(name, "Send the request as often as you want answers.")
    if request.echo:
        raise unsupported("echo", "Put the prompt before the answer yourself.")
    if request.suffix:
        raise unsupported("suffix", "Tell the model in the prompt what follows.")
    if request.logprobs is not None:
        raise unsupported("logprobs", "Send the prompt to /v1/chat/completions, which tells them.")
    if request.logit_bias:
        raise unsupported("logit_bias", "Tell the model in the prompt what to say and what not.")
