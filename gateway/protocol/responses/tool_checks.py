"""Tools of a create request and the choice among them: what is refused, each with what to do.

`responses.create` has every other check; these come at the same places in its order. All of them
raise `InvalidRequest` for the first thing that is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.constraints.schemas import schema_fault, size_fault
from gateway.errors import InvalidRequest
from gateway.protocol.hosted.tools import (
    HEADERS_CHARS_MAX,
    AutoContainer,
    CodeInterpreterTool,
    McpServerTool,
    WebSearchTool,
    family_of,
)
from gateway.protocol.parameters import AllowedTools, ToolChoice
from gateway.protocol.request_errors import (
    array_too_long,
    dropped_tools,
    duplicate_name,
    grammars_too_long,
    invalid,
    missing,
    pattern_mismatch,
    string_too_long,
    tool_not_found,
    unsupported,
)
from gateway.protocol.tools import (
    FUNCTION_NAME,
    MEMBER_TYPES,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    HostedTool,
    NamespaceTool,
    ShellTool,
    Tool,
    ToolSearchTool,
    allowed_names,
    dropped,
    means,
    means_hosted,
    named,
    run_tools,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.brought_tools import BroughtTools
    from gateway.protocol.hosted.tools import HostedFamily, RunTool
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.parameters import AnyToolChoice, ToolName
    from gateway.protocol.tools import ClientTool, NamedTool


def check_text(path: str, text: str | None, limits: InputLimits) -> None:
    """Refuse a text that is too long; `path` is its parameter."""
    if text is not None and len(text) > limits.text_chars_max:
        raise string_too_long(path, len(text), limits.text_chars_max)


def check_name(path: str, name: str) -> None:
    """Refuse a name that the model could read as the end of a message header."""
    if not FUNCTION_NAME.fullmatch(name):
        raise pattern_mismatch(path, f"^{FUNCTION_NAME.pattern}$")


def check_tools(
    tools: Sequence[Tool], limits: InputLimits, *, within: str = "", unique: bool = True
) -> None:
    """Refuse too many tools, and tools that the model cannot be shown.

    Those have malformed names, duplicate names (if `unique`) or texts that are too long. `within`
    begins their paths.
    """
    param = f"{within}tools"
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            check_name(f"{param}[{index}].name", tool.name)
            check_text(f"{param}[{index}].description", tool.description, limits)
    callables = tuple(named(tools))
    if len(callables) > limits.tools_max:
        raise array_too_long(param, len(callables), limits.tools_max)
    taken: set[str] = set()
    grammars_bytes = 0
    for each in callables:
        path = f"{param}{each.path}"
        check_name(f"{path}.name", each.name)
        if unique and each.name in taken:
            raise duplicate_name(f"{path}.name", each.name)
        taken.add(each.name)
        _check_tool(path, each.tool, limits)
        if isinstance(each.tool, CustomTool) and isinstance(each.tool.format, GrammarFormat):
            grammars_bytes += len(each.tool.format.definition.encode())
        if grammars_bytes > limits.grammar_bytes_max:
            where = f"{path}.format.definition"
            raise grammars_too_long(where, grammars_bytes, limits.grammar_bytes_max)
    _check_run_tools(tools, limits)


def _check_tool(path: str, tool: ClientTool, limits: InputLimits) -> None:
    # The schema of a non-strict function is only shown to the model, so a faulty one is accepted:
    # MCP servers publish such schemas (`required: true`), and engines take them.
    if isinstance(tool, ShellTool):
        for index, skill in enumerate(tool.skills):
            place = f"{path}.environment.skills[{index}].description"
            check_text(place, skill.description, limits)
    if not isinstance(tool, FunctionTool | CustomTool | ToolSearchTool):
        return
    check_text(f"{path}.description", tool.description, limits)
    if not isinstance(tool, CustomTool) and tool.parameters is not None:
        if isinstance(tool, FunctionTool) and tool.strict:
            fault = schema_fault(tool.parameters, limits, of_objects=True)
        else:
            fault = size_fault(tool.parameters, limits)
        if fault is not None:
            name = tool.name if isinstance(tool, FunctionTool) else tool.type
            raise InvalidRequest(
                f"Invalid schema for function '{name}': {fault}",
                code="invalid_function_parameters",
                param=f"{path}.parameters",
            )


def _check_run_tools(tools: Sequence[Tool], limits: InputLimits) -> None:
    labels = {tool.name for tool in tools if isinstance(tool, NamespaceTool)}
    families: set[HostedFamily | None] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        match tool:
            case McpServerTool():
                _check_server(path, tool, limits)
                if tool.server_label in labels:
                    raise duplicate_name(f"{path}.server_label", tool.server_label)
                labels.add(tool.server_label)
            case WebSearchTool() | CodeInterpreterTool():
                family = family_of(tool.type)
                if family in families:
                    what = f"there is more than one tool of type '{family}'"
                    raise invalid(f"{path}.type", f"{what}. Leave all but one of them out.")
                families.add(family)
                _check_container(path, tool)
            case _:
                pass


def _check_container(path: str, tool: RunTool) -> None:
    match tool:
        case CodeInterpreterTool(container=AutoContainer(network_policy=policy)) if (
            policy is not None and policy.type != "disabled"
        ):
            raise unsupported(
                f"{path}.container.network_policy.type",
                "Containers have no network here. Send 'disabled', or leave it out.",
                value=policy.type,
            )
        case _:
            pass


_WHERE: Final = ("server_url", "connector_id", "tunnel_id")


def _check_server(path: str, tool: McpServerTool, limits: InputLimits) -> None:
    # A server without an address is one that the operator registered under this label.
    places = [name for name in _WHERE if getattr(tool, name) is not None]
    if len(places) > 1:
        raise InvalidRequest(
            f"Mutually exclusive parameters: '{places[0]}' and '{places[1]}'. Ensure you are only "
            "providing one of them.",
            code="mutually_exclusive_parameters",
            param=f"{path}.{places[1]}",
        )
    if places and places[0] != "server_url":
        raise unsupported(
            f"{path}.{places[0]}",
            "OpenAI's connectors and tunnels are not to be had here. Send the 'server_url' of an "
            "MCP server, or the 'server_label' of one that the operator registered.",
        )
    check_text(f"{path}.server_description", tool.server_description, limits)
    headers = tool.headers or {}
    if tool.authorization is not None and any(n.lower() == "authorization" for n in headers):
        raise invalid(
            f"{path}.headers",
            "the header 'Authorization' cannot be sent beside 'authorization'. Leave one of them "
            "out.",
        )
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > HEADERS_CHARS_MAX:
        what = f"the headers have {size} characters together"
        raise invalid(f"{path}.headers", f"{what}. Expected at most {HEADERS_CHARS_MAX}.")


def check_none_dropped(tools: Sequence[Tool], brought: Sequence[BroughtTools] = ()) -> None:
    """Refuse tools that only OpenAI runs, or only programs call, and the gateway drops."""
    remedy = "Leave the tool out, or offer a tool that your client executes."
    groups = [("", tools), *((each.path, each.tools) for each in brought)]
    for within, group in groups:
        for index, tool in enumerate(group):
            for one in dropped((tool,)):
                raise unsupported(f"{within}tools[{index}].type", remedy, value=one.type)


class OfferedTools(NamedTuple):
    """The tools of a request: those of the client, those that the gateway runs, and the labels of
    those that are dropped.
    """

    client: Sequence[NamedTool]
    run: Sequence[RunTool]
    dropped: Sequence[str]

    @classmethod
    def of(cls, tools: Sequence[Tool], dropped: Sequence[str]) -> OfferedTools:
        return cls(tuple(named(tools)), run_tools(tools), dropped)

    def has(self, wanted: ToolName) -> bool:
        return means_hosted(wanted, self.run) or any(means(wanted, one) for one in self.client)

    def dropped_one(self, wanted: ToolName) -> bool:
        # Matches by type, or by the dropped tool's name.
        return any(_is_variant(wanted, label) for label in self.dropped)


def check_tool_choice(choice: AnyToolChoice, tools: Sequence[Tool], dropped: Sequence[str]) -> None:
    """Refuse a choice of a tool that the request lacks, or that is `dropped`."""
    offered = OfferedTools.of(tools, dropped)
    match choice:
        case ToolChoice() as wanted:
            _check_choice(wanted, offered)
        case AllowedTools() as allowed:
            _check_allowed(allowed, offered)
        case "required" if not (offered.client or offered.run) and dropped:
            raise dropped_tools(dropped)
        case "required" if not (offered.client or offered.run):
            raise InvalidRequest(
                "Tool choice 'required' must be specified with 'tools' parameter.",
                code="invalid_value",
                param="tool_choice",
            )
        case _:
            pass


def _check_choice(choice: ToolChoice, offered: OfferedTools) -> None:
    _check_server_choice(choice, "tool_choice")
    if offered.has(choice):
        return
    if offered.dropped_one(choice):
        raise dropped_tools([choice.type])
    raise tool_not_found(choice.type)


def _check_server_choice(choice: ToolName, path: str) -> None:
    if choice.type == "mcp" and choice.server_label is None:
        raise missing(f"{path}.server_label")


def _is_variant(wanted: ToolName, label: str) -> bool:
    # Hosted tools have several names, such as `web_search_preview` for `web_search`.
    if wanted.type in MEMBER_TYPES:
        return label == HostedTool(type=wanted.type, name=wanted.name).label
    return wanted.type.startswith(label) or label.startswith(wanted.type)


def _check_allowed(allowed: AllowedTools, offered: OfferedTools) -> None:
    # Dropped tools may be in the list, but not alone.
    for index, wanted in enumerate(allowed.tools):
        path = f"tool_choice.tools[{index}]"
        if not (offered.dropped_one(wanted) or offered.has(wanted)):
            _check_server_choice(wanted, path)
            raise tool_not_found(wanted.type, path)
    is_run = any(means_hosted(wanted, offered.run) for wanted in allowed.tools)
    if not is_run and not allowed_names(allowed, offered.client):
        raise dropped_tools([wanted.type for wanted in allowed.tools])
