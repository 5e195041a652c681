"""Items: the units of a context, as they come in and as they are stored and listed.

Clients replay what other servers gave them, so more is accepted than OpenAI documents: nulls for
absent values, text parts of another role (they are converted), a `phase` on messages that have none
(dropped), unknown keys, any `status`, and the videos of Open Responses, which become files.

A reader may ask (`include`) for fields that the item's request did not include. They are stored
beside the item: its *includable* fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import orjson
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.protocol.base import (
    FAIL_FAST,
    AnyStatus,
    CallId,
    Count,
    Integer,
    ItemId,
    Many,
    NullableModel,
    WireModel,
    by_shape,
    without_nulls,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


Json = dict[str, Any]
Searcher = Literal["server", "client"]


class HostedItem(WireModel):
    """Item of a tool that a server runs; other members are kept as they came."""

    model_config = ConfigDict(extra="allow")

    id: ItemId | None = None
    status: str | None = None


class WebSearchCall(HostedItem):
    type: Literal["web_search_call"] = "web_search_call"
    action: Json | None = None


class FileSearchCall(HostedItem):
    type: Literal["file_search_call"] = "file_search_call"
    queries: Many[str]
    results: Many[Json] | None = None


class CodeInterpreterCall(HostedItem):
    type: Literal["code_interpreter_call"] = "code_interpreter_call"
    container_id: str | None = None
    code: str | None = None
    outputs: Many[Json] | None = None


class ImageGenerationCall(HostedItem):
    """Image, in Base64 as `result`."""

    type: Literal["image_generation_call"] = "image_generation_call"
    revised_prompt: str | None = None
    result: str | None = None


class ComputerCall(HostedItem):
    type: Literal["computer_call"] = "computer_call"
    call_id: str | None = None
    action: Json | None = None
    actions: Many[Json] | None = None


class ComputerCallOutput(HostedItem):
    type: Literal["computer_call_output"] = "computer_call_output"
    call_id: str | None = None
    output: Json | None = None


class McpListTools(HostedItem):
    type: Literal["mcp_list_tools"] = "mcp_list_tools"
    server_label: str | None = None
    tools: Many[Json] | None = None
    error: Json | str | None = None


class McpApprovalRequest(HostedItem):
    type: Literal["mcp_approval_request"] = "mcp_approval_request"
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(HostedItem):
    type: Literal["mcp_approval_response"] = "mcp_approval_response"
    approval_request_id: ItemId
    approve: bool
    reason: str | None = None


class McpCall(HostedItem):
    type: Literal["mcp_call"] = "mcp_call"
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Json | str | None = None


class ToolSearchCall(HostedItem):
    """Search for tools, by the client or, without a `call_id`, by a server."""

    type: Literal["tool_search_call"] = "tool_search_call"
    call_id: CallId | None = None
    execution: Searcher | None = None
    arguments: Any = None


class ToolSearchOutput(HostedItem):
    type: Literal["tool_search_output"] = "tool_search_output"
    call_id: CallId | None = None
    execution: Searcher | None = None
    tools: Any = None


class AdditionalTools(HostedItem):
    """More tools, as a request declares them (`protocol.brought_tools`)."""

    type: Literal["additional_tools"] = "additional_tools"
    role: Literal["developer"] = "developer"
    tools: Any = None


class Program(HostedItem):
    type: Literal["program"] = "program"
    call_id: str | None = None
    code: str


class ProgramOutput(HostedItem):
    type: Literal["program_output"] = "program_output"
    call_id: str | None = None
    result: str


AnyHostedItem = (
    WebSearchCall
    | FileSearchCall
    | CodeInterpreterCall
    | ImageGenerationCall
    | ComputerCall
    | ComputerCallOutput
    | McpListTools
    | McpApprovalRequest
    | McpApprovalResponse
    | McpCall
    | AdditionalTools
    | Program
    | ProgramOutput
)
IMAGE_URL_CHARS_MAX: Final = 20_971_520
ENCRYPTED_CHARS_MAX: Final = 10_485_760
FILE_DATA_CHARS_MAX: Final = 33_554_432
"""OpenAI's bounds."""
Role = Literal["user", "assistant", "system", "developer"]
Phase = Literal["commentary", "final_answer"]


class InputText(WireModel):
    type: Literal["input_text"] = "input_text"
    text: str


class InputImage(WireModel):
    type: Literal["input_image"] = "input_image"
    image_url: Annotated[str, StringConstraints(max_length=IMAGE_URL_CHARS_MAX)] | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] = "auto"


class InputFile(WireModel):
    type: Literal["input_file"] = "input_file"
    file_id: str | None = None
    file_url: str | None = None
    file_data: Annotated[str, StringConstraints(max_length=FILE_DATA_CHARS_MAX)] | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


URL_CITATION: Final = "url_citation"
"""Type of annotations. Others are of files, which only OpenAI's dialect has."""


class OutputText(WireModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: Many[dict[str, Any]] = ()


class Refusal(WireModel):
    type: Literal["refusal"] = "refusal"
    refusal: str


class SummaryText(NullableModel):
    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningText(NullableModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


def _readable(part: object) -> object:
    if not isinstance(part, dict):
        return part
    if part.get("type") == "input_video" and "video_url" in part:
        part = {"type": "input_file", "file_url": part["video_url"]}
    return without_nulls(part)


ContentPart = Annotated[
    InputText | InputImage | InputFile | OutputText | Refusal, Discriminator("type")
]
ToolOutputPart = Annotated[
    InputText | InputImage | InputFile, Discriminator("type"), BeforeValidator(_readable)
]
ToolOutput = Annotated[
    Annotated[str, Tag("text")] | Annotated[Many[ToolOutputPart], Tag("parts")],
    by_shape("text", "parts", list, tuple),
]


def _part_of(role: object, part: object) -> object:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if role == "assistant":
        return without_nulls({**part, "type": "output_text"} if kind == "input_text" else part)
    if kind == "output_text":
        return without_nulls({**part, "type": "input_text"})
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "input_text", "text": part["refusal"]}
    return _readable(part)


class Message(WireModel):
    """Message of any role; only the assistant's has a phase."""

    type: Literal["message"] = "message"
    id: ItemId | None = None
    role: Role
    content: Many[ContentPart]
    status: AnyStatus = None
    phase: Phase | None = None

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, value: object) -> object:
        # One pass also removes nulls of message and parts: most items are messages.
        if not isinstance(value, dict):
            return value
        role, content = value.get("role"), value.get("content")
        if isinstance(content, str):
            content = [
                {"type": "output_text" if role == "assistant" else "input_text", "text": content}
            ]
        elif isinstance(content, list | tuple):
            content = [_part_of(role, part) for part in content]
        message = without_nulls({**value, "content": content})
        if role != "assistant" and "phase" in message:
            del message["phase"]
        return message


class Reasoning(NullableModel):
    type: Literal["reasoning"] = "reasoning"
    id: ItemId | None = None
    summary: Many[SummaryText] = ()
    content: Many[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: AnyStatus = None


class FunctionCall(NullableModel):
    type: Literal["function_call"] = "function_call"
    id: ItemId | None = None
    call_id: CallId
    name: str
    namespace: str | None = None
    arguments: str
    status: AnyStatus = None


class FunctionCallOutput(NullableModel):
    """Output of a function call.

    Without a `call_id` it belongs to the call that the names identify, or to none: Codex sends the
    user's goal in an output that answers no call (`context.assembly`).
    """

    type: Literal["function_call_output"] = "function_call_output"
    id: ItemId | None = None
    call_id: CallId | None = None
    name: str | None = None
    namespace: str | None = None
    output: ToolOutput
    status: AnyStatus = None


class CustomToolCall(NullableModel):
    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: ItemId | None = None
    call_id: CallId
    name: str
    namespace: str | None = None
    input: str
    status: AnyStatus = None


class CustomToolCallOutput(NullableModel):
    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    id: ItemId | None = None
    call_id: CallId
    output: ToolOutput
    status: AnyStatus = None


class LocalShellAction(NullableModel):
    type: Literal["exec"] = "exec"
    command: Many[str]
    env: Annotated[dict[str, str], FAIL_FAST] = Field(default_factory=dict)
    timeout_ms: Count | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(NullableModel):
    type: Literal["local_shell_call"] = "local_shell_call"
    id: ItemId | None = None
    call_id: CallId
    action: LocalShellAction
    status: AnyStatus = None


class LocalShellCallOutput(NullableModel):
    """Output of a command. OpenAI's types have only an `id` here, the `call_id` of the call. Its
    SDKs send either or both.
    """

    type: Literal["local_shell_call_output"] = "local_shell_call_output"
    id: ItemId | None = None
    call_id: CallId
    output: str
    status: AnyStatus = None

    @model_validator(mode="before")
    @classmethod
    def _identify(cls, value: object) -> object:
        if not isinstance(value, dict) or value.get("id") is None:
            return value
        call_id = value.get("call_id")
        if call_id is not None and call_id != value["id"]:
            return value
        return {**value, "id": None, "call_id": value["id"]}


class ShellAction(NullableModel):
    """Shell commands, in order; `max_output_length` is in characters."""

    commands: Many[str]
    timeout_ms: Count | None = None
    max_output_length: Count | None = None


class ShellCall(NullableModel):
    type: Literal["shell_call"] = "shell_call"
    id: ItemId | None = None
    call_id: CallId
    action: ShellAction
    environment: dict[str, Any] | None = None
    status: AnyStatus = None


class ShellOutcome(NullableModel):
    type: Literal["exit", "timeout"]
    exit_code: Integer | None = None


class ShellOutput(NullableModel):
    stdout: str
    stderr: str
    outcome: ShellOutcome


class ShellCallOutput(NullableModel):
    type: Literal["shell_call_output"] = "shell_call_output"
    id: ItemId | None = None
    call_id: CallId
    output: Many[ShellOutput]
    max_output_length: Count | None = None
    status: AnyStatus = None


class FileOperation(NullableModel):
    """Change to one file; `diff` is in the V4A format."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> FileOperation:
        if self.type != "delete_file" and self.diff is None:
            raise PydanticCustomError("missing_member", "", {"member": "diff"})
        return self


class ApplyPatchCall(NullableModel):
    type: Literal["apply_patch_call"] = "apply_patch_call"
    id: ItemId | None = None
    call_id: CallId
    operation: FileOperation
    status: AnyStatus = None


class ApplyPatchCallOutput(NullableModel):
    type: Literal["apply_patch_call_output"] = "apply_patch_call_output"
    id: ItemId | None = None
    call_id: CallId
    output: str | None = None
    status: Literal["completed", "failed"]


class Compaction(NullableModel):
    """Summary of the earlier context, which only this gateway can read."""

    type: Literal["compaction"] = "compaction"
    id: ItemId | None = None
    encrypted_content: Annotated[
        str, StringConstraints(min_length=1, max_length=ENCRYPTED_CHARS_MAX)
    ]


class CompactionTrigger(NullableModel):
    """Request for a summary of all items before it."""

    type: Literal["compaction_trigger"] = "compaction_trigger"
    id: ItemId | None = None


class ItemReference(NullableModel):
    type: Literal["item_reference"] = "item_reference"
    id: ItemId


CallItem = (
    FunctionCall | CustomToolCall | LocalShellCall | ShellCall | ApplyPatchCall | ToolSearchCall
)
OutputItem = (
    FunctionCallOutput
    | CustomToolCallOutput
    | LocalShellCallOutput
    | ShellCallOutput
    | ApplyPatchCallOutput
    | ToolSearchOutput
)
PlainItem = Message | Reasoning | CallItem | OutputItem | AnyHostedItem
Item = PlainItem | Compaction
InputItem = Item | ItemReference | CompactionTrigger


def _with_type(value: object) -> object:
    # Messages and references may leave out their type (API §3.1).
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    if "role" in value:
        return {**value, "type": "message"}
    return {**value, "type": "item_reference"} if "id" in value else value


AnyInputItem = Annotated[
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | LocalShellCall
    | LocalShellCallOutput
    | ShellCall
    | ShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | AnyHostedItem
    | Compaction
    | CompactionTrigger
    | ItemReference,
    Discriminator("type"),
    BeforeValidator(_with_type),
]
"""In the order in which a refusal lists the types."""
_WITH_STATUS: Final = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("computer_call", "computer_call_output", "tool_search_call", "tool_search_output"),
        "program_output",
    }
)
"""Items that always have a status in OpenAI's types."""


def implied_members(item: AnyHostedItem | ToolSearchCall | ToolSearchOutput) -> Mapping[str, str]:
    implied = {"status": "completed"} if item.status is None and item.type in _WITH_STATUS else {}
    match item:
        case ToolSearchCall(execution=None) | ToolSearchOutput(execution=None):
            implied["execution"] = "server" if item.call_id is None else "client"
        case AdditionalTools():
            implied["role"] = item.role
        case _:
            pass
    return implied


SOURCES: Final = "web_search_call.action.sources"
OUTPUTS: Final = "code_interpreter_call.outputs"
INCLUDABLE: Final = frozenset({SOURCES, OUTPUTS})
"""Values of `include` for fields that are stored anyway."""
_INCLUDABLE_FIELDS: Final = {
    "web_search_call": ("action", SOURCES),
    "code_interpreter_call": ("outputs", OUTPUTS),
}
"""The field that is not shown in full, and the value that includes it."""


def without_includable(
    item_type: str, fields: Mapping[str, Any], include: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `fields` of an item into those shown and those that only `include` shows.

    A field that is shown in part, such as the action of a search without its sources, is in both.
    """
    shown = {**fields}
    field, value = _INCLUDABLE_FIELDS.get(item_type, ("", ""))
    if field not in shown or value in include:
        return shown, {}
    if field == "outputs":
        return shown, {field: shown.pop(field)}
    action = shown[field]
    if not isinstance(action, dict) or "sources" not in action:
        return shown, {}
    shown[field] = {name: action[name] for name in action if name != "sources"}
    return shown, {field: action}


def included(
    item: dict[str, Any], includable: Mapping[str, Any], include: Collection[str]
) -> dict[str, Any]:
    field, value = _INCLUDABLE_FIELDS.get(item["type"], ("", ""))
    if value not in include or field not in includable:
        return item
    return {**item, field: includable[field]}


def included_json(item: bytes, includable: bytes | None, include: Collection[str]) -> bytes:
    if not includable or INCLUDABLE.isdisjoint(include):
        return item
    return orjson.dumps(included(orjson.loads(item), orjson.loads(includable), include))


def included_body(body: bytes, includable: Mapping[str, bytes], include: Collection[str]) -> bytes:
    """Return the JSON of a Response object with the fields of `include`.

    `includable` is the JSON of the fields stored beside each item, by item id.
    """
    if not includable or INCLUDABLE.isdisjoint(include):
        return body
    response = orjson.loads(body)
    response["output"] = [
        included(item, orjson.loads(includable[item["id"]]), include)
        if item["id"] in includable
        else item
        for item in response["output"]
    ]
    return orjson.dumps(response)
