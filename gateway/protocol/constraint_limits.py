"""Bounds of what binds the output: names of tools, schemas and grammars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.constraints.schema_forms import form_fault
from gateway.constraints.schemas import root_fault, shape_fault, size_fault
from gateway.errors import InvalidRequest
from gateway.protocol.callables import named
from gateway.protocol.formats import JsonSchemaFormat
from gateway.protocol.refusals import (
    array_too_long,
    duplicate_name,
    grammars_too_long,
    pattern_mismatch,
    string_too_long,
)
from gateway.protocol.tools import (
    FUNCTION_NAME,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    NamespaceTool,
    ShellTool,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.formats import AnyFormat
    from gateway.protocol.limits import InputLimits
    from gateway.protocol.tools import ClientTool, Tool


def check_tools(tools: Sequence[Tool], limits: InputLimits) -> None:
    """Raises `InvalidRequest` for the first tool that cannot be told to the model."""
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            check_name(tool.name, f"tools[{index}].name")
            _check_text(tool.description, f"tools[{index}].description", limits)
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
        grammars_bytes += _grammar_bytes(each.tool)
        if grammars_bytes > limits.grammar_bytes_max:
            where = f"{path}.format.definition"
            raise grammars_too_long(where, grammars_bytes, limits.grammar_bytes_max)


def check_name(name: str, path: str) -> None:
    """A name that will stand in a Harmony header."""
    if not FUNCTION_NAME.fullmatch(name):
        raise pattern_mismatch(path, f"^{FUNCTION_NAME.pattern}$")


def check_format(asked: AnyFormat | None, limits: InputLimits) -> None:
    """Raises `InvalidRequest` for a schema that an answer cannot be held to."""
    if not isinstance(asked, JsonSchemaFormat):
        return
    _check_text(asked.description, "text.format.description", limits)
    schema = asked.schema_
    fault = size_fault(schema, limits) or shape_fault(schema, limits) or form_fault(schema)
    if fault is None and asked.strict:
        fault = root_fault(asked.schema_)
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for response_format '{asked.name}': {fault}",
            code="invalid_json_schema",
            param="text.format.schema",
        )


def _check_tool(tool: ClientTool, path: str, limits: InputLimits) -> None:
    match tool:
        case FunctionTool():
            _check_text(tool.description, f"{path}.description", limits)
            _check_parameters(tool, path, limits)
        case CustomTool():
            _check_text(tool.description, f"{path}.description", limits)
        case ShellTool():
            for index, skill in enumerate(tool.skills):
                skill_path = f"{path}.environment.skills[{index}]"
                _check_text(skill.description, f"{skill_path}.description", limits)
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
    fault = size_fault(schema, limits)
    if fault is None and tool.strict:
        fault = shape_fault(schema, limits) or form_fault(schema) or root_fault(schema)
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for function '{tool.name}': {fault}",
            code="invalid_function_parameters",
            param=f"{path}.parameters",
        )


def _grammar_bytes(tool: ClientTool) -> int:
    if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarFormat):
        return len(tool.format.definition.encode())
    return 0


def _check_text(text: str | None, path: str, limits: InputLimits) -> None:
    if text is not None and len(text) > limits.text_chars_max:
        raise string_too_long(path, len(text), limits.text_chars_max)
