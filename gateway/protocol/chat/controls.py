"""Tools, choices and formats of a chat request, respelled.

Only as far as the two APIs differ: what is the same in both is passed on as it came, and looked at
once (`protocol.responses.requests.checked`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest
from gateway.protocol.refusals import missing, unsupported, wrong_type, wrong_value

if TYPE_CHECKING:
    from gateway.protocol.chat.parameters import ChatRequest, ChatTool
    from gateway.protocol.chat.places import Places

    Json = dict[str, Any]

TOOL_TYPES: Final = ("function", "custom")


def tools_of(request: ChatRequest, places: Places) -> list[Json]:
    """The tools, or else the deprecated functions. Raises `InvalidRequest` for both at once."""
    if request.tools and request.functions:
        raise InvalidRequest(
            "Mutually exclusive parameters: 'functions' and 'tools'. 'functions' is deprecated: "
            "send 'tools' only.",
            code="mutually_exclusive_parameters",
            param="functions",
        )
    if request.functions:
        places.add("tools", "functions")
        return [{**function, "type": "function"} for function in request.functions]
    return [_tool(tool, index, places) for index, tool in enumerate(request.tools)]


def _tool(tool: ChatTool, index: int, places: Places) -> Json:
    at = f"tools[{index}]"
    if tool.type not in TOOL_TYPES:
        raise wrong_value(f"{at}.type", tool.type, TOOL_TYPES)
    spec = tool.function if tool.type == "function" else tool.custom
    if spec is None:
        raise missing(f"{at}.{tool.type}")
    places.add(at, f"{at}.{tool.type}")
    asked = spec.get("format")
    if tool.type == "custom" and isinstance(asked, dict) and asked.get("type") == "grammar":
        path = f"{at}.custom.format.grammar"
        places.add(f"{at}.format", path)
        spec = {**spec, "format": {**_object(asked.get("grammar"), path), "type": "grammar"}}
    return {**spec, "type": tool.type}


def _object(value: object, path: str) -> Json:
    """`value`, which must be there and be an object. Raises `InvalidRequest`."""
    if value is None:
        raise missing(path)
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return value


def tool_choice_of(request: ChatRequest, places: Places) -> object:
    """The choice, or else the deprecated one of a function; None for neither."""
    choice = request.tool_choice
    if choice is None:
        return _function_call(request.function_call, places)
    if _type_of(choice) == "allowed_tools":
        return _allowed(choice, places)
    return _named(choice, "tool_choice", places)


def _function_call(choice: object, places: Places) -> object:
    places.add("tool_choice", "function_call")
    return {"type": "function", **choice} if isinstance(choice, dict) else choice


def _named(choice: object, at: str, places: Places) -> object:
    """`{"type": "function", "function": {"name": …}}`, and the same for a custom tool."""
    kind = _type_of(choice)
    if not isinstance(choice, dict) or kind not in TOOL_TYPES:
        return choice
    path = f"{places.original(at)}.{kind}"
    places.add(f"{at}.name", f"{path}.name")
    return {**_object(choice.get(kind), path), "type": kind}


def _allowed(choice: Json, places: Places) -> Json:
    path = "tool_choice.allowed_tools"
    for name in ("mode", "tools"):
        places.add(f"tool_choice.{name}", f"{path}.{name}")
    allowed = _object(choice.get("allowed_tools"), path)
    tools = allowed.get("tools")
    if isinstance(tools, list):
        tools = [_named(tool, f"tool_choice.tools[{i}]", places) for i, tool in enumerate(tools)]
    return {**allowed, "type": "allowed_tools", "tools": tools}


def _type_of(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else None


def format_of(asked: object, places: Places) -> object:
    """`response_format` as `text.format`."""
    places.add("text.format", "response_format")
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return asked
    path = "response_format.json_schema"
    places.add("text.format", path)
    places.add("text.format.type", "response_format.type")
    return {**_object(asked.get("json_schema"), path), "type": "json_schema"}


def reasoning_of(request: ChatRequest, places: Places) -> object:
    """`reasoning`, with the effort that `reasoning_effort` names."""
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


def check_served(request: ChatRequest) -> None:
    """Raises `InvalidRequest` for what would be answered in another way than it was asked for."""
    if request.n is not None and request.n > 1:
        raise unsupported("n", "Send the request as often as you want answers.")
    if request.logit_bias:
        raise unsupported("logit_bias", "Tell the model in a message what to say and what not.")
    if request.modalities and "audio" in request.modalities:
        raise unsupported("modalities", "This model writes text only.", value="audio")
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest(
            "Invalid 'top_logprobs': it needs 'logprobs' to be true.",
            code="invalid_value",
            param="top_logprobs",
        )
