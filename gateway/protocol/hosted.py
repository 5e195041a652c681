"""Items of tools that OpenAI runs. None is made here, but they come back in histories from there.

They are kept and listed as they came, unknown keys and all; `protocol.calls` says what the model is
shown of them. Only what is shown has to have its type.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from gateway.protocol.base import WireModel
from gateway.protocol.fields import ItemId, Many

Json = dict[str, Any]


class HostedItem(WireModel):
    """What all of them have."""

    model_config = ConfigDict(extra="allow")

    id: ItemId | None = None
    status: str | None = None


class WebSearchCall(HostedItem):
    """A search, or a look at a page. What was found is not in the item."""

    type: Literal["web_search_call"] = "web_search_call"
    action: Json | None = None


class FileSearchCall(HostedItem):
    """A search in files, with what was found if the request asked for it."""

    type: Literal["file_search_call"] = "file_search_call"
    queries: Many[str]
    results: Many[Json] | None = None


class CodeInterpreterCall(HostedItem):
    """A program, with what it printed if the request asked for it."""

    type: Literal["code_interpreter_call"] = "code_interpreter_call"
    code: str | None = None
    outputs: Many[Json] | None = None


class ImageGenerationCall(HostedItem):
    """An image; `result` is its content in Base64."""

    type: Literal["image_generation_call"] = "image_generation_call"
    revised_prompt: str | None = None
    result: str | None = None


class ComputerCall(HostedItem):
    """What was done with a screen, a mouse and a keyboard."""

    type: Literal["computer_call"] = "computer_call"
    action: Json | None = None
    actions: Many[Json] | None = None


class ComputerCallOutput(HostedItem):
    """A screenshot."""

    type: Literal["computer_call_output"] = "computer_call_output"
    output: Json | None = None


class McpListTools(HostedItem):
    """The tools of an MCP server."""

    type: Literal["mcp_list_tools"] = "mcp_list_tools"


class McpApprovalRequest(HostedItem):
    """A question whether a tool of an MCP server may be called."""

    type: Literal["mcp_approval_request"] = "mcp_approval_request"
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(HostedItem):
    """The answer."""

    type: Literal["mcp_approval_response"] = "mcp_approval_response"
    approve: bool
    reason: str | None = None


class McpCall(HostedItem):
    """A call of a tool of an MCP server, and what it returned."""

    type: Literal["mcp_call"] = "mcp_call"
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Json | str | None = None


class ToolSearchCall(HostedItem):
    """A search for tools."""

    type: Literal["tool_search_call"] = "tool_search_call"


class ToolSearchOutput(HostedItem):
    """The tools that were found."""

    type: Literal["tool_search_output"] = "tool_search_output"


class Program(HostedItem):
    """A program that calls tools."""

    type: Literal["program"] = "program"
    code: str


class ProgramOutput(HostedItem):
    """What it returned."""

    type: Literal["program_output"] = "program_output"
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
    | ToolSearchCall
    | ToolSearchOutput
    | Program
    | ProgramOutput
)
