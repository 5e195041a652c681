"""Bounds of a request that its models do not know: those that are settings, and on names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gateway.errors import InvalidRequest
from gateway.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
)
from gateway.protocol.parameters import METADATA_PAIRS_MAX
from gateway.protocol.refusals import (
    array_too_long,
    pattern_mismatch,
    string_too_long,
    too_many_properties,
)
from gateway.protocol.tools import FUNCTION_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.protocol.create import CreateResponse
    from gateway.protocol.items import InputItem
    from gateway.protocol.limits import InputLimits
    from gateway.protocol.tools import FunctionTool


def check_counts(document: dict[str, Any], limits: InputLimits) -> None:
    """How many, before anything looks at each of them. Wrong types are left to the models."""
    for name, maximum in (("input", limits.items_max), ("tools", limits.tools_max)):
        value = document.get(name)
        if isinstance(value, list) and len(value) > maximum:
            raise array_too_long(name, len(value), maximum)
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and len(metadata) > METADATA_PAIRS_MAX:
        raise too_many_properties("metadata", len(metadata), METADATA_PAIRS_MAX)
    text = document.get("input")
    if isinstance(text, str) and len(text) > limits.text_chars_max:
        raise string_too_long("input", len(text), limits.text_chars_max)


def check_bounds(request: CreateResponse, limits: InputLimits) -> None:
    """Texts, schemas and function names. Raises `InvalidRequest` for the first beyond a bound."""
    for index, item in enumerate(request.input):
        path = f"input[{index}]"
        _check_texts(_texts(item, path), limits)
        if isinstance(item, FunctionCall):
            _check_name(item.name, path)
    for index, tool in enumerate(request.tools):
        _check_tool(tool, f"tools[{index}]", limits)
    _check_texts([("instructions", request.instructions or "")], limits)


def _check_texts(texts: Iterable[tuple[str, str]], limits: InputLimits) -> None:
    for path, text in texts:
        if len(text) > limits.text_chars_max:
            raise string_too_long(path, len(text), limits.text_chars_max)


def _check_name(name: str, path: str) -> None:
    if not FUNCTION_NAME.fullmatch(name):
        raise pattern_mismatch(f"{path}.name", f"^{FUNCTION_NAME.pattern}$")


def _check_tool(tool: FunctionTool, path: str, limits: InputLimits) -> None:
    _check_name(tool.name, path)
    _check_texts([(f"{path}.description", tool.description or "")], limits)
    size = len(orjson.dumps(tool.parameters))
    if size > limits.schema_bytes_max:
        raise InvalidRequest(
            f"Invalid schema for function '{tool.name}': it has {size} bytes. Expected at most "
            f"{limits.schema_bytes_max} bytes.",
            code="invalid_function_parameters",
            param=f"{path}.parameters",
        )


def _texts(item: InputItem, path: str) -> Iterator[tuple[str, str]]:
    """Every free text of an item, with its path."""
    match item:
        case Message():
            yield from _part_texts(item.content, f"{path}.content")
        case Reasoning():
            yield from _part_texts(item.summary, f"{path}.summary")
            yield from _part_texts(item.content or (), f"{path}.content")
        case FunctionCall():
            yield f"{path}.arguments", item.arguments
        case FunctionCallOutput():
            if isinstance(item.output, str):
                yield f"{path}.output", item.output
            else:
                yield from _part_texts(item.output, f"{path}.output")
        case _:  # a reference has no text
            pass


def _part_texts(parts: Iterable[object], path: str) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(parts):
        match part:
            case Refusal():
                yield f"{path}[{index}].refusal", part.refusal
            case InputText() | OutputText() | SummaryText() | ReasoningText():
                yield f"{path}[{index}].text", part.text
            case _:  # images and files: their content is bounded by their models
                pass
