"""Bounds of a request that its models do not know: those that are settings, and on names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.protocol.calls import author_of, call_of, hosted_text, output_text
from gateway.protocol.constraint_limits import check_format, check_name, check_tools
from gateway.protocol.hosted import HostedItem
from gateway.protocol.items import (
    ApplyPatchCall,
    Compaction,
    CompactionTrigger,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
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
from gateway.protocol.parameters import METADATA_PAIRS_MAX
from gateway.protocol.refusals import array_too_long, string_too_long, too_many_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.protocol.create import CreateResponse
    from gateway.protocol.items import InputItem
    from gateway.protocol.limits import InputLimits


def check_counts(document: dict[str, Any], limits: InputLimits) -> None:
    """How many, before anything looks at each of them. Wrong types are left to the models."""
    for name, maximum in (("input", limits.items_max), ("tools", limits.tools_max)):
        value = document.get(name)
        if isinstance(value, list) and len(value) > maximum:
            raise array_too_long(name, len(value), maximum)
    check_metadata(document)
    text = document.get("input")
    if isinstance(text, str) and len(text) > limits.text_chars_max:
        raise string_too_long("input", len(text), limits.text_chars_max)


def check_metadata(document: dict[str, Any]) -> None:
    """How many pairs of metadata there are. Raises `InvalidRequest`."""
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and len(metadata) > METADATA_PAIRS_MAX:
        raise too_many_properties("metadata", len(metadata), METADATA_PAIRS_MAX)


def check_items(items: Iterable[InputItem], limits: InputLimits, *, param: str = "input") -> None:
    """Texts and names of items. Raises `InvalidRequest` for the first beyond a bound."""
    for index, item in enumerate(items):
        path = f"{param}[{index}]"
        _check_texts(_texts(item, path), limits)
        if isinstance(item, FunctionCall | CustomToolCall):
            check_name(call_of(item).name, f"{path}.name")
        elif isinstance(item, FunctionCallOutput) and (name := author_of(item)):
            check_name(name, f"{path}.name")


def check_bounds(request: CreateResponse, limits: InputLimits) -> None:
    """Texts, schemas, grammars and names. Raises `InvalidRequest` for the first beyond a bound."""
    check_items(request.input, limits)
    check_tools(request.tools, limits)
    check_format(request.text.format, limits)
    _check_texts([("instructions", request.instructions or "")], limits)


def _check_texts(texts: Iterable[tuple[str, str]], limits: InputLimits) -> None:
    for path, text in texts:
        if len(text) > limits.text_chars_max:
            raise string_too_long(path, len(text), limits.text_chars_max)


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
