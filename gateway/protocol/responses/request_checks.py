"""Checks of a create request's items, tools and tool choice, in OpenAI's order
(`create_request`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.constraints.schemas import schema_fault, size_fault
from gateway.errors import InvalidRequest
from gateway.protocol.brought_tools import BROUGHT_TOOLS_MAX, BroughtTools
from gateway.protocol.call_items import author_of, call_of, hosted_call, hosted_result, output_text
from gateway.protocol.hosted_tools import (
    FAMILIES,
    HEADERS_CHARS_MAX,
    AutoContainer,
    CodeInterpreterTool,
    McpServerTool,
    WebSearchTool,
)
from gateway.protocol.items import AdditionalTools, McpListTools, ToolSearchOutput, WebSearchCall
from gateway.protocol.parameters import (
    METADATA_PAIRS_MAX,
    AllowedTools,
    AnyToolChoice,
    JsonSchemaFormat,
    ToolChoice,
)
from gateway.protocol.request_errors import (
    array_too_long,
    dropped_tools,
    duplicate_name,
    grammars_too_long,
    invalid,
    missing,
    mutually_exclusive,
    pattern_mismatch,
    string_too_long,
    too_many_properties,
    tool_not_found,
    unsupported,
    wrong_type,
    wrong_value,
)
from gateway.protocol.tool_types import (
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
    flat_name,
    means,
    means_hosted,
    named,
    run_tools,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.hosted_tools import HostedFamily, RunTool
    from gateway.protocol.items import AnyHostedItem, CallItem, InputItem, OutputItem
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.parameters import ToolName
    from gateway.protocol.tool_types import ClientTool, NamedTool


def check_hosted(path: str, item: AnyHostedItem | ToolSearchOutput) -> None:
    match item:
        case McpListTools():
            if item.server_label is None:
                raise missing(f"{path}.server_label")
            if item.tools is None:
                raise missing(f"{path}.tools")
        case ToolSearchOutput() | AdditionalTools():
            if item.tools is None:
                raise missing(f"{path}.tools")
            _check_objects(f"{path}.tools", item.tools)
        case WebSearchCall(action=dict(action)) if action.get("sources") is not None:
            _check_objects(f"{path}.action.sources", action["sources"])
        case _:
            pass


def _check_objects(path: str, members: object) -> None:
    if not isinstance(members, list):
        raise wrong_type(path, "an array of objects", members)
    for index, member in enumerate(members):
        if not isinstance(member, dict):
            raise wrong_type(f"{path}[{index}]", "an object", member)


def check_text(path: str, text: str | None, limits: InputLimits) -> None:
    if text is not None and len(text) > limits.text_chars_max:
        raise string_too_long(path, len(text), limits.text_chars_max)


def check_name(path: str, name: str) -> None:
    """Refuse a name that the model could read as the end of a message header."""
    if not FUNCTION_NAME.fullmatch(name):
        raise pattern_mismatch(path, f"^{FUNCTION_NAME.pattern}$")


def check_tools(
    tools: Sequence[Tool], limits: InputLimits, *, within: str = "", unique: bool = True
) -> None:
    """Refuse too many tools, malformed or (if `unique`) duplicate names, and texts that are too
    long.
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
    families: set[HostedFamily] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        match tool:
            case McpServerTool():
                _check_server(path, tool, limits)
                if tool.server_label in labels:
                    raise duplicate_name(f"{path}.server_label", tool.server_label)
                labels.add(tool.server_label)
            case WebSearchTool() | CodeInterpreterTool():
                family = FAMILIES[tool.type]
                if family in families:
                    what = f"there is more than one tool of type '{family}'"
                    raise invalid(f"{path}.type", f"{what}. Leave all but one of them out.")
                families.add(family)
                container = tool.container if isinstance(tool, CodeInterpreterTool) else None
                policy = container.network_policy if isinstance(container, AutoContainer) else None
                if policy is not None and policy.type != "disabled":
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
        raise mutually_exclusive(*places[:2], param=f"{path}.{places[1]}")
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
    remedy = "Leave the tool out, or offer a tool that your client executes."
    groups = [("", tools), *((each.path, each.tools) for each in brought)]
    for within, group in groups:
        for index, tool in enumerate(group):
            for one in dropped((tool,)):
                raise unsupported(f"{within}tools[{index}].type", remedy, value=one.type)


class OfferedTools(NamedTuple):
    """Tools of the client, tools that the gateway runs, and labels of dropped ones."""

    client: Sequence[NamedTool]
    run: Sequence[RunTool]
    dropped: Sequence[str]

    @classmethod
    def from_tools(cls, tools: Sequence[Tool], dropped: Sequence[str]) -> OfferedTools:
        return cls(tuple(named(tools)), run_tools(tools), dropped)

    def has(self, wanted: ToolName) -> bool:
        return means_hosted(wanted, self.run) or any(means(wanted, one) for one in self.client)

    def dropped_one(self, wanted: ToolName) -> bool:
        # Matches by type, or by the dropped tool's name.
        return any(_is_variant(wanted, label) for label in self.dropped)


def check_tool_choice(choice: AnyToolChoice, tools: Sequence[Tool], dropped: Sequence[str]) -> None:
    offered = OfferedTools.from_tools(tools, dropped)
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


_PART_TEXTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
"""Images and files are bounded by their models."""


def check_counts(document: dict[str, Any], limits: InputLimits) -> None:
    """Refuse too many items, tools or metadata, before any of them is parsed."""
    items = document.get("input")
    if isinstance(items, str):
        if len(items) > limits.text_chars_max:
            raise string_too_long("input", len(items), limits.text_chars_max)
    elif isinstance(items, list) and len(items) > limits.items_max:
        raise array_too_long("input", len(items), limits.items_max)
    tools = document.get("tools")
    if isinstance(tools, list) and len(tools) > limits.tools_max:
        raise array_too_long("tools", len(tools), limits.tools_max)
    if "metadata" in document:
        check_metadata(document)


def check_metadata(document: dict[str, Any]) -> None:
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and len(metadata) > METADATA_PAIRS_MAX:
        raise too_many_properties("metadata", len(metadata), METADATA_PAIRS_MAX)


def check_items(items: Sequence[InputItem], limits: InputLimits, *, param: str = "input") -> None:
    """Refuse texts that are too long, bad names, and hosted items that could not be listed."""
    for index, item in enumerate(items):
        path = f"{param}[{index}]"
        match item.type:
            case "message":
                _check_parts(f"{path}.content", item.content, limits)
            case "reasoning":
                _check_parts(f"{path}.summary", item.summary, limits)
                _check_parts(f"{path}.content", item.content or (), limits)
            case "item_reference" | "compaction" | "compaction_trigger":
                pass
            case _:
                _check_tool_item(path, item, limits)


def check_brought(
    items: Sequence[InputItem], limits: InputLimits, *, param: str = "input"
) -> tuple[BroughtTools, ...]:
    """Return the tools that items bring, if the model can see them. A search may return a tool
    twice.
    """
    brought: list[BroughtTools] = []
    count = 0
    for index, item in enumerate(items):
        if not isinstance(item, AdditionalTools | ToolSearchOutput):
            continue
        each = BroughtTools.from_item(item, f"{param}[{index}].")
        brought.append(each)
        check_tools(each.tools, limits, within=each.path, unique=False)
        count += each.count
        if count > BROUGHT_TOOLS_MAX:
            raise invalid(
                f"{each.path}tools",
                f"the items before it and this one bring {count} tools, of {BROUGHT_TOOLS_MAX} at "
                "most. Leave out those that are not needed any more.",
                "array_above_max_length",
            )
    return tuple(brought)


def _check_tool_item(
    path: str, item: CallItem | OutputItem | AnyHostedItem, limits: InputLimits
) -> None:
    match item.type:
        case "function_call":
            check_text(f"{path}.arguments", item.arguments, limits)
            check_name(f"{path}.name", flat_name(item.namespace, item.name))
        case "custom_tool_call":
            check_text(f"{path}.input", item.input, limits)
            check_name(f"{path}.name", flat_name(item.namespace, item.name))
        case "tool_search_call":
            check_text(f"{path}.arguments", call_of(item).arguments, limits)
        case "local_shell_call" | "shell_call":
            check_text(f"{path}.action", call_of(item).arguments, limits)
        case "apply_patch_call":
            check_text(f"{path}.operation", call_of(item).arguments, limits)
        case "function_call_output" | "custom_tool_call_output" if not isinstance(item.output, str):
            _check_parts(f"{path}.output", item.output, limits)
        case (
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "shell_call_output"
            | "apply_patch_call_output"
        ):
            check_text(f"{path}.output", output_text(item), limits)
        case "tool_search_output":
            check_hosted(path, item)
        case _:
            check_hosted(path, item)
            check_text(path, hosted_call(item), limits)
            check_text(path, hosted_result(item), limits)
    if item.type == "function_call_output" and (name := author_of(item)):
        check_name(f"{path}.name", name)


def _check_parts(path: str, parts: Sequence[Any], limits: InputLimits) -> None:
    for index, part in enumerate(parts):
        field = _PART_TEXTS.get(part.type)
        if field is not None and len(getattr(part, field)) > limits.text_chars_max:
            check_text(f"{path}[{index}].{field}", getattr(part, field), limits)


FILES: Final = frozenset({"input_file"})
MEDIA: Final = FILES | {"input_image"}
_UNREAD: Final = {
    "input_file": "This model reads no files.",
    "input_image": "This model reads text only.",
}


def check_images(items: Sequence[InputItem]) -> None:
    check_media(items, strict=True, refused=MEDIA - FILES)


def check_media(
    items: Sequence[InputItem],
    *,
    strict: bool,
    param: str = "input",
    refused: frozenset[str] = MEDIA,
) -> None:
    """Refuse images and files of the assistant and, if `strict`, new ones of `refused` types.

    Media before an answer are not new: otherwise a client that keeps the history could never
    continue after an image. Media in tool outputs are not checked: a tool that returns one must not
    end a session.
    """
    is_new = strict
    fault: InvalidRequest | None = None
    for i in reversed(range(len(items))):
        item = items[i]
        if item.type != "message":
            is_new = is_new and item.type == "compaction_trigger"
            continue
        is_new = is_new and item.role != "assistant"
        for j in reversed(range(len(item.content))):
            part = item.content[j]
            if part.type in MEDIA:
                path = f"{param}[{i}].content[{j}].type"
                if item.role == "assistant":
                    fault = wrong_value(path, part.type, ("output_text", "refusal"))
                elif is_new and part.type in refused:
                    fault = unsupported(path, _UNREAD[part.type], value=part.type)
    if fault is not None:
        raise fault  # the first of them


def check_format(format_: JsonSchemaFormat, limits: InputLimits) -> None:
    check_text("text.format.description", format_.description, limits)
    fault = schema_fault(format_.schema_, limits, of_objects=format_.strict)
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for response_format '{format_.name}': {fault}",
            code="invalid_json_schema",
            param="text.format.schema",
        )
