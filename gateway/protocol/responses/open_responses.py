"""The dialect of Open Responses 2026-04-24; everywhere else the names are OpenAI's.

A strict reader of its OpenAPI document refuses events and items that it does not list, and nulls of
optional values. So some are renamed, calls of client tools and approvals become function calls, and
hosted tools, their items and events are left out. Sequence numbers keep gaps, because streams are
resumed by them in both dialects; indexes of items are those in the shorter `output`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
from msgspec.structs import replace
from pydantic import Field, TypeAdapter

from gateway.protocol.base import without_nulls
from gateway.protocol.call_items import APPROVAL_FUNCTION, call_of, output_text
from gateway.protocol.items import URL_CITATION, CallItem, OutputItem
from gateway.protocol.stream_events import Deltas, Event
from gateway.protocol.tool_types import CUSTOM_INPUT, HOSTED_TOOL_TYPES, AnyTool, declared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Json = dict[str, Any]

UNCHANGED: Final = frozenset(
    {
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.refusal.delta",
        "response.refusal.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "error",
    }
)
"""Events that are the same in both dialects."""
RENAMED: Final[Mapping[str, str]] = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
_HEADS: Final = {
    old: (len(b'{"type":"' + old.encode()), b'{"type":"' + new.encode())
    for old, new in RENAMED.items()
}
"""Length of an event's data through its type, and its replacement, by type of event."""

_OUTPUT_INDEX: Final = re.compile(rb'("output_index":)(\d+)')
_ALONE: Final = frozenset({"function_call_output", "tool_search_call", "tool_search_output"})
"""Outputs without a call, and searches of a server, have no `call_id`."""
_OF_THE_TOOL: Final = frozenset({"name", "namespace"})
"""The dialect has them in the call of an output, not in the output."""

_CALL: Final[TypeAdapter[CallItem]] = TypeAdapter(Annotated[CallItem, Field(discriminator="type")])
_OUTPUT: Final[TypeAdapter[OutputItem]] = TypeAdapter(
    Annotated[OutputItem, Field(discriminator="type")]
)
_TOOL: Final[TypeAdapter[AnyTool]] = TypeAdapter(AnyTool)


def shown(event: Event) -> Event | None:
    """Convert an event, with its own number; None if the dialect lacks it."""
    if event.type in UNCHANGED:
        return _with_shown_index(event) if event.hosted_before else event
    name = RENAMED.get(event.type)
    if name is not None:
        # Its type is the first thing that the data says.
        size, head = _HEADS[event.type]
        renamed = replace(event, type=name, data=head + event.data[size:])
        return _with_shown_index(renamed) if event.hosted_before else renamed
    change = _CHANGED.get(event.type)
    if change is None:
        return None
    data = change(orjson.loads(event.data))
    if data is None:
        return None
    return _with_shown_index(
        replace(event, type=data["type"], data=orjson.dumps(data), delta_length=0, text=b"")
    )


def _with_shown_index(event: Event) -> Event:
    data = orjson.loads(event.data)
    if "output_index" in data:
        data["output_index"] -= event.hosted_before
    return replace(event, data=orjson.dumps(data), hosted_before=0)


def shown_deltas(deltas: Deltas) -> Deltas | None:
    """Convert deltas that differ from the dialect only by name; None for others."""
    pattern = deltas.pattern
    if pattern.type in UNCHANGED and not pattern.hosted_before:
        return deltas
    if pattern.type not in UNCHANGED:
        name = RENAMED.get(pattern.type)
        if name is None:
            return None
        size, head = _HEADS[pattern.type]
        pattern = replace(pattern, type=name, before=head + pattern.before[size:])
    hosted = pattern.hosted_before

    def moved(index: re.Match[bytes]) -> bytes:
        return b"%b%d" % (index[1], int(index[2]) - hosted)

    # No text of anybody's stands there: an id of ours and numbers.
    between = _OUTPUT_INDEX.sub(moved, pattern.between)
    return Deltas(
        replace(pattern, between=between, hosted_before=0), deltas.sequence_number, deltas.texts
    )


def body(document: Json) -> Json:
    match document["object"]:
        case "response":
            return response(document)
        case "list":
            return {**document, "data": items(document["data"])}
        case _:
            return {**document, "output": items(document["output"])}


def response(document: Json) -> Json:
    return {
        **document,
        "output": items(document["output"]),
        "text": _text(document["text"]),
        "tool_choice": _tool_choice(document["tool_choice"], document["tools"]),
        "tools": [function for tool in document["tools"] for function in _functions(tool)],
    }


def items(listed: list[Json]) -> list[Json]:
    """Convert items, without types that the dialect lacks and outputs without a call."""
    return [_ITEMS[item["type"]](item) for item in listed if _is_in_dialect(item)]


def _is_in_dialect(item: Json) -> bool:
    kind = item["type"]
    return kind in _ITEMS and (kind not in _ALONE or item.get("call_id") is not None)


def _response_event(event: Json) -> Json:
    return {**event, "response": response(event["response"])}


def _item_event(event: Json) -> Json | None:
    # OpenAI leaves out the status of some items.
    if not _is_in_dialect(event["item"]):
        return None
    is_announced = event["type"] == "response.output_item.added"
    item = {"status": "in_progress" if is_announced else "completed", **event["item"]}
    return {**event, "item": _ITEMS[item["type"]](item)}


def _annotation_event(event: Json) -> Json | None:
    # The dialect only has URL citations.
    return event if event["annotation"]["type"] == URL_CITATION else None


def _custom_input_done(event: Json) -> Json:
    return {
        "type": "response.function_call_arguments.done",
        "sequence_number": event["sequence_number"],
        "item_id": event["item_id"],
        "output_index": event["output_index"],
        "arguments": orjson.dumps({CUSTOM_INPUT: event["input"]}).decode(),
    }


_CHANGED: Final[Mapping[str, Callable[[Json], Json | None]]] = {
    "response.created": _response_event,
    "response.queued": _response_event,
    "response.in_progress": _response_event,
    "response.completed": _response_event,
    "response.incomplete": _response_event,
    "response.failed": _response_event,
    "response.output_item.added": _item_event,
    "response.output_item.done": _item_event,
    "response.output_text.annotation.added": _annotation_event,
    "response.custom_tool_call_input.done": _custom_input_done,
}


def _item(item: Json) -> Json:
    return {"status": "completed", **without_nulls(item)}


def _message(item: Json) -> Json:
    return {**_item(item), "content": [_part(part) for part in item["content"]]}


def _call(item: Json) -> Json:
    call = call_of(_CALL.validate_python(item))
    return _function_call(
        item,
        item["call_id"],
        call.arguments,
        name=item.get("name", call.name),
        namespace=item.get("namespace"),
    )


def _function_call(item: Json, call_id: str, arguments: str, **names: str | None) -> Json:
    # Arguments are not known before the call is complete.
    status = item.get("status") or "completed"
    return without_nulls(
        {
            "id": item["id"],
            "type": "function_call",
            "status": status,
            "call_id": call_id,
            **names,
            "arguments": "" if status == "in_progress" else arguments,
        }
    )


def _function_output(item: Json) -> Json:
    output = item["output"]
    if isinstance(output, list):
        output = [_part(part) for part in output]
    fields = {name: value for name, value in _item(item).items() if name not in _OF_THE_TOOL}
    return {**fields, "type": "function_call_output", "output": output}


def _output(item: Json) -> Json:
    return _text_output(item, item["call_id"], output_text(_OUTPUT.validate_python(item)))


def _text_output(item: Json, call_id: str, output: str) -> Json:
    return {
        "id": item["id"],
        "type": "function_call_output",
        "status": "completed",
        "call_id": call_id,
        "output": output,
    }


def _approval(item: Json) -> Json:
    arguments = {name: item[name] for name in ("server_label", "name", "arguments")}
    written = orjson.dumps(arguments).decode()
    return _function_call(item, item["id"], written, name=APPROVAL_FUNCTION)


def _approval_answer(item: Json) -> Json:
    answer = without_nulls({"approve": item["approve"], "reason": item.get("reason")})
    return _text_output(item, item["approval_request_id"], orjson.dumps(answer).decode())


_ITEMS: Final[Mapping[str, Callable[[Json], Json]]] = {
    "message": _message,
    "reasoning": _item,
    "compaction": _item,
    "function_call": _item,
    "function_call_output": _function_output,
    "custom_tool_call": _call,
    "custom_tool_call_output": _function_output,
    "local_shell_call": _call,
    "local_shell_call_output": _output,
    "shell_call": _call,
    "shell_call_output": _output,
    "apply_patch_call": _call,
    "apply_patch_call_output": _output,
    "tool_search_call": _call,
    "tool_search_output": _output,
    "mcp_approval_request": _approval,
    "mcp_approval_response": _approval_answer,
}


def _part(listed: Json) -> Json:
    part = without_nulls(listed)
    match listed["type"]:
        case "input_image":
            detail = part.get("detail", "auto")
            detail = "high" if detail == "original" else detail
            return {**part, "image_url": listed.get("image_url"), "detail": detail}
        case "output_text":
            citations = [one for one in listed["annotations"] if one.get("type") == URL_CITATION]
            return {**part, "annotations": citations}
        case _:
            return part


def _text(text: Json) -> Json:
    # The published Open Responses types allow no schema here but null.
    form = text["format"]
    return {**text, "format": {**form, "schema": None}} if "schema" in form else text


def _functions(tool: Json) -> list[Json]:
    match tool["type"]:
        case "function":
            return [{name: value for name, value in tool.items() if name != "defer_loading"}]
        case "namespace":
            members = [function for member in tool["tools"] for function in _functions(member)]
            return [{**function, "namespace": tool["name"]} for function in members]
        case _:
            return [
                one.model_dump(exclude={"defer_loading"})
                for one in declared([_TOOL.validate_python(tool)])
            ]


def _tool_choice(choice: str | Json, tools: list[Json]) -> str | Json:
    if isinstance(choice, str):
        return choice
    if choice["type"] == "allowed_tools":
        functions = [one for tool in choice["tools"] for one in _chosen_functions(tool, tools)]
        return {**choice, "tools": functions} if functions else choice["mode"]
    return next(iter(_chosen_functions(choice, tools)), "required")


def _chosen_functions(tool: Json, tools: list[Json]) -> list[Json]:
    if tool["type"] in HOSTED_TOOL_TYPES:
        return []
    if tool["type"] != "namespace":
        return [{**tool, "type": "function", "name": tool.get("name", tool["type"])}]
    spaces = [one for one in tools if one["type"] == "namespace" and one["name"] == tool["name"]]
    return [
        {"type": "function", "name": one["name"], "namespace": one["namespace"]}
        for space in spaces
        for one in _functions(space)
    ]
