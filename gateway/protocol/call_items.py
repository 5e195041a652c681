"""Call items and their results ↔ what the model reads and writes: function calls with JSON.

Open Responses has no items for approvals. There a request is a call of `APPROVAL_FUNCTION`
(`open_responses`) with the request's id, and its output is the answer; both are read in any
dialect.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, ValidationError
from pydantic_core import PydanticCustomError

from gateway import ids
from gateway.generation import SegmentKind
from gateway.protocol.base import WireModel, without_nulls
from gateway.protocol.items import (
    AnyInputItem,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FileOperation,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OutputText,
    Program,
    ProgramOutput,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
)
from gateway.protocol.json_body import DEPTH_MAX, is_within_depth
from gateway.protocol.tool_types import (
    APPLY_PATCH,
    CUSTOM_INPUT,
    FUNCTION_NAME,
    LOCAL_SHELL,
    SHELL,
    TOOL_SEARCH,
    flat_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gateway.constraints.output_rules import ToolRule
    from gateway.protocol.context_item import HostedKind, Kind
    from gateway.protocol.items import AnyHostedItem, CallItem, ContentPart, Item, OutputItem


_Arguments = TypeVar("_Arguments", bound=WireModel)
ARGUMENTS_DEPTH_MAX: Final = DEPTH_MAX - 3
"""A client must be able to send the item back in an input."""
IMAGE_NOTE: Final = "[image omitted: this model reads text only]"
FILE_NOTE: Final = "[file omitted: this model reads text only]"


@dataclass(frozen=True, slots=True)
class Call:
    """Call by the model's name; `arguments` may be invalid JSON."""

    name: str
    arguments: str


class _Patch(WireModel):
    operation: FileOperation


def call_of(item: CallItem) -> Call:
    match item:
        case FunctionCall():
            return Call(flat_name(item.namespace, item.name), item.arguments)
        case CustomToolCall():
            return Call(flat_name(item.namespace, item.name), _json({CUSTOM_INPUT: item.input}))
        case LocalShellCall():
            action = item.action.model_dump(exclude={"type"}, exclude_none=True)
            return Call(LOCAL_SHELL, _json({k: v for k, v in action.items() if v != {}}))
        case ShellCall():
            return Call(SHELL, _json(item.action.model_dump(exclude_none=True)))
        case ToolSearchCall():
            return Call(TOOL_SEARCH, _json({} if item.arguments is None else item.arguments))
        case _:
            return Call(APPLY_PATCH, _json({"operation": _operation(item.operation)}))


def author_of(item: OutputItem) -> str | None:
    """Return the model's name of the function that an output names in place of its call."""
    if item.call_id is not None:
        return None
    if isinstance(item, FunctionCallOutput) and item.name is not None:
        return flat_name(item.namespace, item.name)
    return TOOL_SEARCH if isinstance(item, ToolSearchOutput) else None


def output_text(item: OutputItem) -> str:
    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            if isinstance(item.output, str):
                return item.output
            return "\n".join(map(part_text, item.output))
        case LocalShellCallOutput():
            return item.output
        case ShellCallOutput():
            return _json([command.model_dump(exclude_none=True) for command in item.output])
        case ToolSearchOutput():
            return _json({"tools": [*_function_summaries(item.tools)]})
        case _:
            return _json(without_nulls({"status": item.status, "output": item.output}))


def unread(items: Iterable[InputItem], *, sees: bool) -> Counter[str]:
    """Count images and files, by type, that the model sees as a note."""
    counts: Counter[str] = Counter()
    for item in items:
        match item:
            case Message():
                parts: Iterable[object] = item.content
            case FunctionCallOutput(output=tuple()) | CustomToolCallOutput(output=tuple()):
                parts = item.output
            case ImageGenerationCall(result=str()) | ComputerCallOutput():
                counts[item.type] += 1
                continue
            case _:
                continue
        is_shown = sees and getattr(item, "role", "user") == "user"
        for part in parts:
            if isinstance(part, InputFile) or (isinstance(part, InputImage) and not is_shown):
                counts[part.type] += 1
    return counts


def _function_summaries(tools: object, namespace: str | None = None) -> Iterator[dict[str, Any]]:
    for tool in tools if isinstance(tools, list | tuple) else ():
        match tool:
            case {"type": "namespace", "name": str(name), "tools": [*members]}:
                yield from _function_summaries(members, name)
            case {"type": "function" | "custom", "name": str(name)}:
                about = tool.get("description")
                yield without_nulls({"name": flat_name(namespace, name), "description": about})
            case _:
                pass


NO_RESULT: Final = "Nothing of what this call returned was kept."
UNKNOWN_RESULT: Final = "What this call returned is not known, nor whether it took effect."
NOT_APPROVED: Final = "The user did not approve this call. It was not made."


def mcp_name(item: McpCall | McpApprovalRequest) -> str | None:
    """Return the model's name of an MCP tool; None if an item of another server has an invalid
    one.
    """
    name = flat_name(item.server_label, item.name)
    return name if FUNCTION_NAME.fullmatch(name) else None


def approval_tool(item: Item) -> str | None:
    return mcp_name(item) if isinstance(item, McpApprovalRequest) else None


def approval_request_of(item: Item) -> str | None:
    if not isinstance(item, McpApprovalResponse | McpCall):
        return None
    request_id = getattr(item, "approval_request_id", None)
    return request_id if isinstance(request_id, str) else None


def mcp_result_text(item: McpCall) -> str:
    if item.output is not None:
        return item.output
    if item.error is None:
        return UNKNOWN_RESULT
    return item.error if isinstance(item.error, str) else _json(item.error)


def refusal_text(item: McpApprovalResponse) -> str:
    """Return the result of a call that was not approved, or whose outcome is unknown."""
    if item.approve:
        return UNKNOWN_RESULT
    return f"{NOT_APPROVED} What they say: {item.reason}" if item.reason else NOT_APPROVED


def hosted_author(kind: Kind) -> str:
    name = kind.removesuffix("_output").removesuffix("_call")
    return "mcp" if name.startswith("mcp") else name


def hosted_call(item: AnyHostedItem) -> str | None:
    """Return the arguments of a hosted call as JSON; None if the item has none."""
    arguments, results = _HOSTED_MEMBERS[item.type]
    if not arguments:
        return None
    members = _members_of(item, arguments)
    return _json(members) if members or _members_of(item, results) else None


def hosted_result(item: AnyHostedItem) -> str | None:
    """Return the result of a hosted tool as JSON, or a note; None for an item that is only a
    call.
    """
    arguments, results = _HOSTED_MEMBERS[item.type]
    members = _members_of(item, results)
    if not results or not (members or _members_of(item, arguments)):
        return None
    if item.status in _UNFINISHED:
        members["status"] = item.status
    return _json(members) if members else NO_RESULT


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    text: str


def hosted_exchange(item: AnyHostedItem, function: str | None) -> tuple[Call | None, Result | None]:
    """Return the call and the result that the model is shown of an item of a hosted tool.

    `function` is that of the approval request, whose call is shown before.
    """
    if isinstance(item, McpCall) and (name := mcp_name(item)):
        result = Result(name, mcp_result_text(item))
        return None if function else Call(name, item.arguments), result
    if isinstance(item, McpApprovalRequest) and (name := mcp_name(item)):
        return Call(name, item.arguments), None
    if isinstance(item, McpApprovalResponse) and function:
        return None, Result(function, refusal_text(item))
    author, arguments, returned = hosted_author(item.type), hosted_call(item), hosted_result(item)
    call = None if arguments is None else Call(author, arguments)
    return call, None if returned is None else Result(author, returned)


def _members_of(item: AnyHostedItem, names: tuple[str, ...]) -> dict[str, Any]:
    members = {name: _readable(getattr(item, name, None)) for name in names}
    match item:
        case ImageGenerationCall(result=str()) if "result" in members:
            members["result"] = IMAGE_NOTE
        case ComputerCallOutput():
            members["output"] = IMAGE_NOTE
        case _:
            pass
    return without_nulls(members)


def hosted_call_id(item: Item) -> str | None:
    """Return the id that joins a hosted call and the item of its result."""
    if isinstance(item, Program | ProgramOutput | ComputerCall | ComputerCallOutput):
        return item.call_id
    return approval_request_of(item)


def _readable(value: object) -> object:
    match value:
        case str() if value.startswith("data:"):
            return IMAGE_NOTE
        case dict():
            return {key: _readable(member) for key, member in value.items()}
        case list() | tuple():
            return [_readable(member) for member in value]
        case _:
            return value


_UNFINISHED: Final = frozenset({"failed", "incomplete"})
_HOSTED_MEMBERS: Final[Mapping[HostedKind, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "web_search_call": (("action",), ("results",)),
    "file_search_call": (("queries",), ("results",)),
    "code_interpreter_call": (("code",), ("outputs",)),
    "image_generation_call": (("revised_prompt",), ("result",)),
    "computer_call": (("action", "actions"), ()),
    "computer_call_output": ((), ("output",)),
    "mcp_list_tools": ((), ()),
    "mcp_approval_request": (("server_label", "name", "arguments"), ()),
    "mcp_approval_response": ((), ("approve", "reason")),
    "mcp_call": (("server_label", "name", "arguments"), ("output", "error")),
    "additional_tools": ((), ()),
    "program": (("code",), ()),
    "program_output": ((), ("result",)),
}
"""Members of the arguments, and of the result."""


def call_fields(rule: ToolRule | None, name: str, arguments: str) -> dict[str, Any]:
    """Return the fields of a call item besides `id`, `type`, `status` and `call_id`.

    Without a `rule` nobody declared the function. `arguments` of the wrong shape are themselves the
    input of a custom tool; for a shell, a patch or a tool search they raise `ValueError`.
    """
    if rule is None:
        return {"name": name, "arguments": arguments}
    match rule.kind:
        case SegmentKind.LOCAL_SHELL_CALL:
            action = _parse_arguments(LocalShellAction, arguments)
            return {
                "action": _some(action.command, action.model_dump(mode="json", exclude_none=True))
            }
        case SegmentKind.SHELL_CALL:
            commands = _parse_arguments(ShellAction, arguments)
            return {"action": _some(commands.commands, commands.model_dump(mode="json"))}
        case SegmentKind.APPLY_PATCH_CALL:
            return {"operation": _operation(_parse_arguments(_Patch, arguments).operation)}
        case SegmentKind.TOOL_SEARCH_CALL:
            return {"execution": "client", "arguments": _object(arguments)}
        case SegmentKind.CUSTOM_CALL:
            text = {CUSTOM_INPUT: _custom_input(arguments)}
        case _:
            text = {"arguments": arguments}
    return without_nulls({"name": rule.shown_name, "namespace": rule.namespace, **text})


def _parse_arguments(model: type[_Arguments], arguments: str) -> _Arguments:
    try:
        return model.model_validate(orjson.loads(arguments))
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise ValueError(f"not the arguments of {model.__name__}: {error}") from None


def _object(arguments: str) -> dict[str, Any]:
    match orjson.loads(arguments):
        case dict(value) if is_within_depth(value, ARGUMENTS_DEPTH_MAX):
            return value
        case dict():
            raise ValueError(f"more than {ARGUMENTS_DEPTH_MAX} levels of objects and arrays")
        case _:
            raise ValueError("not a JSON object")


def _some(words: tuple[str, ...], action: dict[str, Any]) -> dict[str, Any]:
    if not words:
        raise ValueError("a command must have at least one word")
    return action


def _custom_input(arguments: str) -> str:
    try:
        document = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = document.get(CUSTOM_INPUT, "") if isinstance(document, dict) else None
    return text if isinstance(text, str) else arguments


def _operation(operation: FileOperation) -> dict[str, Any]:
    return operation.model_dump(exclude={"diff"} if operation.type == "delete_file" else None)


def part_text(part: ContentPart) -> str:
    match part:
        case InputText() | OutputText():
            return part.text
        case InputImage():
            return IMAGE_NOTE
        case InputFile():
            return FILE_NOTE
        case _:
            return part.refusal


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


APPROVAL_FUNCTION: Final = "mcp_approval_request"
APPROVAL_ID_PREFIX: Final = ids.HOSTED_PREFIXES[APPROVAL_FUNCTION]
_APPROVAL_EXPECTED: Final = {
    "arguments": "those with which the call was shown",
    "output": '{"approve": true}, or {"approve": false, "reason": "..."}',
}


class _RequestedCall(WireModel):
    """Arguments of `APPROVAL_FUNCTION`."""

    server_label: str
    name: str
    arguments: str


class _ApprovalAnswer(WireModel):
    """Output of `APPROVAL_FUNCTION`."""

    approve: bool
    reason: str | None = None


def _to_approval_item(item: InputItem) -> InputItem:
    match item:
        case FunctionCall(name=name, call_id=call_id) if (
            name == APPROVAL_FUNCTION and _is_approval_id(call_id)
        ):
            call = _parse_approval(_RequestedCall, "arguments", item.arguments)
            fields = {"id": call_id, "type": APPROVAL_FUNCTION, **call.model_dump()}
            return McpApprovalRequest.model_validate(fields)
        case FunctionCallOutput(call_id=call_id) if call_id is not None and _is_approval_id(
            call_id
        ):
            answer = _parse_approval(_ApprovalAnswer, "output", output_text(item))
            fields = {
                "id": item.id,
                "type": "mcp_approval_response",
                "approval_request_id": call_id,
                **answer.model_dump(),
            }
            # Fields without a value are not stored.
            return McpApprovalResponse.model_validate(without_nulls(fields))
        case _:
            return item


def _is_approval_id(call_id: str) -> bool:
    return call_id.startswith(APPROVAL_ID_PREFIX)


def _parse_approval(model: type[_Arguments], field: str, text: str) -> _Arguments:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        context = {"field": field, "expected": _APPROVAL_EXPECTED[field]}
        raise PydanticCustomError("approval_call", "", context) from None


ReadItem = Annotated[AnyInputItem, AfterValidator(_to_approval_item)]
"""`AnyInputItem` in which approvals of Open Responses have become items."""
