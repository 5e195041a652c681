"""Checks of the bounds on what a request may hold: texts, names, schemas, grammars, media.

Each check raises `InvalidRequest` for the first thing beyond a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.constraints.schemas import schema_fault, size_fault
from gateway.errors import InvalidRequest
from gateway.protocol.calls import author_of, call_of, hosted_text, output_text
from gateway.protocol.items import (
    ApplyPatchCall,
    Compaction,
    CompactionTrigger,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    HostedItem,
    InputFile,
    InputImage,
    InputText,
    ItemReference,
    LocalShellCall,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    ShellCall,
    SummaryText,
)
from gateway.protocol.parameters import METADATA_PAIRS_MAX, JsonSchemaFormat
from gateway.protocol.refusals import (
    array_too_long,
    duplicate_name,
    grammars_too_long,
    pattern_mismatch,
    string_too_long,
    too_many_properties,
    unsupported,
    wrong_value,
)
from gateway.protocol.tools import (
    FUNCTION_NAME,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    NamespaceTool,
    ShellTool,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.protocol.items import InputItem
    from gateway.protocol.limits import InputLimits
    from gateway.protocol.parameters import AnyFormat
    from gateway.protocol.tools import ClientTool, Tool


def check_counts(document: dict[str, Any], limits: InputLimits) -> None:
    """How many, before anything looks at each of them. Wrong types are left to the models."""
    for name, maximum in (("input", limits.items_max), ("tools", limits.tools_max)):
        value = document.get(name)
        if isinstance(value, list) and len(value) > maximum:
            raise array_too_long(name, len(value), maximum)
    if "metadata" in document:
        check_metadata(document)
    text = document.get("input")
    if isinstance(text, str):
        check_text("input", text, limits)


def check_metadata(document: dict[str, Any]) -> None:
    """How many pairs of metadata there are."""
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and len(metadata) > METADATA_PAIRS_MAX:
        raise too_many_properties("metadata", len(metadata), METADATA_PAIRS_MAX)


def check_text(path: str, text: str | None, limits: InputLimits) -> None:
    """How long the text is that stands at `path`; None where there is none."""
    if text is not None and len(text) > limits.text_chars_max:
        raise string_too_long(path, len(text), limits.text_chars_max)


def check_name(name: str, path: str) -> None:
    """A name that will stand in a Harmony header."""
    if not FUNCTION_NAME.fullmatch(name):
        raise pattern_mismatch(path, f"^{FUNCTION_NAME.pattern}$")


def check_items(items: Iterable[InputItem], limits: InputLimits, *, param: str = "input") -> None:
    """Texts and names of items, which stand at `param`."""
    for index, item in enumerate(items):
        path = f"{param}[{index}]"
        for place, text in _texts(item, path):
            check_text(place, text, limits)
        if isinstance(item, FunctionCall | CustomToolCall):
            check_name(call_of(item).name, f"{path}.name")
        elif isinstance(item, FunctionCallOutput) and (name := author_of(item)):
            check_name(name, f"{path}.name")


def check_media(items: Sequence[InputItem], *, strict: bool, param: str = "input") -> None:
    """Images and files: the assistant has none, and with `strict` nobody brings new ones.

    What the model has answered already is not new: clients that keep the history themselves could
    never go on with a conversation that has an image in it. Those in outputs of tools are not
    looked at: a tool that returns one must not end a session. `param` names the items.
    """
    is_new = strict
    refused: InvalidRequest | None = None
    for i in reversed(range(len(items))):
        item = items[i]
        if not isinstance(item, Message):
            is_new = is_new and isinstance(item, CompactionTrigger)
            continue
        is_new = is_new and item.role != "assistant"
        for j in reversed(range(len(item.content))):
            part = item.content[j]
            if isinstance(part, InputImage | InputFile):
                path = f"{param}[{i}].content[{j}].type"
                if item.role == "assistant":
                    refused = wrong_value(path, part.type, ("output_text", "refusal"))
                elif is_new:
                    refused = unsupported(path, "This model reads text only.", value=part.type)
    if refused is not None:
        raise refused  # the first of them


def check_tools(tools: Sequence[Tool], limits: InputLimits) -> None:
    """Tools that cannot be told to the model."""
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            check_name(tool.name, f"tools[{index}].name")
            check_text(f"tools[{index}].description", tool.description, limits)
    callables = tuple(named(tools))
    if len(callables) > limits.tools_max:
        raise array_too_long("tools", len(callables), limits.tools_max)
    taken: set[str] = set()
    grammars_bytes = 0
    for each in callables:
        path = f"tools{each.path}"
        check_name(each.name, f"{path}.name")
        if each.name in taken:
            raise duplicate_name(f"{path}.name", each.name)
        taken.add(each.name)
        _check_tool(each.tool, path, limits)
        if isinstance(each.tool, CustomTool) and isinstance(each.tool.format, GrammarFormat):
            grammars_bytes += len(each.tool.format.definition.encode())
        if grammars_bytes > limits.grammar_bytes_max:
            where = f"{path}.format.definition"
            raise grammars_too_long(where, grammars_bytes, limits.grammar_bytes_max)


def check_format(asked: AnyFormat | None, limits: InputLimits) -> None:
    """A schema that an answer cannot be held to."""
    if not isinstance(asked, JsonSchemaFormat):
        return
    check_text("text.format.description", asked.description, limits)
    fault = schema_fault(asked.schema_, limits, of_objects=asked.strict)
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for response_format '{asked.name}': {fault}",
            code="invalid_json_schema",
            param="text.format.schema",
        )


def _check_tool(tool: ClientTool, path: str, limits: InputLimits) -> None:
    match tool:
        case FunctionTool():
            check_text(f"{path}.description", tool.description, limits)
            _check_parameters(tool, path, limits)
        case CustomTool():
            check_text(f"{path}.description", tool.description, limits)
        case ShellTool():
            for index, skill in enumerate(tool.skills):
                place = f"{path}.environment.skills[{index}].description"
                check_text(place, skill.description, limits)
        case _:
            pass


def _check_parameters(tool: FunctionTool, path: str, limits: InputLimits) -> None:
    """That of a function that is not strict is only shown: whatever can be read of it is.

    Tools come from servers whose schemas nobody who sends the request can mend (`required: true`,
    `type: any`, `properties: []`), and the engines' own endpoints take them.
    """
    schema = tool.parameters
    if schema is None:
        return
    if tool.strict:
        fault = schema_fault(schema, limits, of_objects=True)
    else:
        fault = size_fault(schema, limits)
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for function '{tool.name}': {fault}",
            code="invalid_function_parameters",
            param=f"{path}.parameters",
        )


def _texts(item: InputItem, path: str) -> Iterator[tuple[str, str]]:
    """Every free text of an item, with its path; a command or a patch counts as one text."""
    match item:
        case Message():
            yield from _part_texts(item.content, f"{path}.content")
        case Reasoning():
            yield from _part_texts(item.summary, f"{path}.summary")
            yield from _part_texts(item.content or (), f"{path}.content")
        case FunctionCall():
            yield f"{path}.arguments", item.arguments
        case CustomToolCall():
            yield f"{path}.input", item.input
        case LocalShellCall() | ShellCall():
            yield f"{path}.action", call_of(item).arguments
        case ApplyPatchCall():
            yield f"{path}.operation", call_of(item).arguments
        case ItemReference() | Compaction() | CompactionTrigger():
            pass
        case FunctionCallOutput(output=tuple(parts)) | CustomToolCallOutput(output=tuple(parts)):
            yield from _part_texts(parts, f"{path}.output")
        case HostedItem():
            yield path, hosted_text(item)
        case _:
            yield f"{path}.output", output_text(item)


def _part_texts(parts: Iterable[object], path: str) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(parts):
        match part:
            case Refusal():
                yield f"{path}[{index}].refusal", part.refusal
            case InputText() | OutputText() | SummaryText() | ReasoningText():
                yield f"{path}[{index}].text", part.text
            case _:  # images and files: their content is bounded by their models
                pass
