"""OpenAI's sentences for what is wrong with a request, each with its code.

Source: envelopes measured against api.openai.com and published (responses-api §5.2). What this
gateway refuses on its own account says what to do instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPE_NAMES: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def listed(values: Sequence[str], conjunction: str) -> str:
    """`'a'`, `'a' and 'b'`, `'a', 'b', and 'c'`."""
    quoted = [f"'{value}'" for value in values]
    if len(quoted) <= 2:
        return f" {conjunction} ".join(quoted)
    return f"{', '.join(quoted[:-1])}, {conjunction} {quoted[-1]}"


def unknown_place() -> InvalidRequest:
    """The refusal of an `after` that is not the id of an item of the list."""
    return InvalidRequest(
        "Invalid 'after': this list has no item of that id, or has it no longer. Begin again "
        "without 'after'.",
        code="invalid_value",
        param="after",
    )


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )


def unknown(param: str) -> InvalidRequest:
    return InvalidRequest(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)


def wrong_type(param: str, expected: str, value: object) -> InvalidRequest:
    """`expected` in OpenAI's words, such as `a string` or `one of 'auto' or 'disabled'`."""
    return InvalidRequest(
        f"Invalid type for '{param}': expected {expected}, but got {_TYPE_NAMES[type(value)]} "
        "instead.",
        code="invalid_type",
        param=param,
    )


def wrong_value(param: str, value: str, supported: Sequence[str]) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value: '{shown(value)}'. Supported values are: {listed(supported, 'and')}.",
        code="invalid_value",
        param=param,
    )


def number_out_of_range(param: str, value: float, *, bound: float, above: bool) -> InvalidRequest:
    """`bound` itself is allowed; the message speaks of integers where the bound is one."""
    kind, limit = ("integer", f"{bound}") if isinstance(bound, int) else ("decimal", f"{bound:g}")
    side, sign = ("above maximum", "<=") if above else ("below minimum", ">=")
    code = f"{kind}_{'above_max' if above else 'below_min'}_value"
    return InvalidRequest(
        f"Invalid '{param}': {kind} {side} value. Expected a value {sign} {limit}, but got "
        f"{value} instead.",
        code=code,
        param=param,
    )


def string_too_long(param: str, length: int, maximum: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': string too long. Expected a string with maximum length {maximum}, "
        f"but got a string with length {length} instead.",
        code="string_above_max_length",
        param=param,
    )


def string_empty(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': empty string. Expected a string with minimum length 1, but got an "
        "empty string instead.",
        code="empty_string",
        param=param,
    )


def pattern_mismatch(param: str, pattern: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': string does not match pattern. Expected a string that matches the "
        f"pattern '{pattern}'.",
        code="invalid_value",
        param=param,
    )


def bad_id(param: str, value: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': '{shown(value)}'. Expected an ID that contains letters, numbers, "
        "underscores, or dashes, but this value contained additional characters.",
        code="invalid_value",
        param=param,
    )


def array_too_long(param: str, length: int, maximum: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': array too long. Expected an array with maximum length {maximum}, but "
        f"got an array with length {length} instead.",
        code="array_above_max_length",
        param=param,
    )


def array_empty(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead.",
        code="empty_array",
        param=param,
    )


def too_many_properties(param: str, count: int, maximum: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': too many properties. Expected an object with at most {maximum} "
        f"properties, but got an object with {count} properties instead.",
        code="object_above_max_properties",
        param=param,
    )


def property_name_too_long(param: str, name: str, maximum: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid property name in '{param}': '{shown(name)}' is too long. Expected a string with "
        f"maximum length {maximum}, but got a string with length {len(name)} instead.",
        code="property_name_above_max_length",
        param=f"{param}.{shown(name)}",
    )


def unsupported(param: str, remedy: str, *, value: str | None = None) -> InvalidRequest:
    """Documented by OpenAI, not served here. `remedy` is a sentence: what to do instead."""
    what = f"'{param}'" if value is None else f"'{param}' with value '{shown(value)}'"
    return InvalidRequest(
        f"Unsupported parameter: {what} is not supported by this server. {remedy}",
        code="unsupported_parameter",
        param=param,
    )


def unsupported_value(param: str, value: str, supported: Sequence[str]) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported value: '{param}' does not support '{shown(value)}' with this model. "
        f"Supported values are: {listed(supported, 'and')}.",
        code="unsupported_value",
        param=param,
    )


def tool_not_found(kind: str, param: str = "tool_choice") -> InvalidRequest:
    """A choice of a tool of this type, which the request does not have."""
    return InvalidRequest(f"Tool choice '{kind}' not found in 'tools' parameter.", param=param)


def dropped_tools(kinds: Sequence[str], param: str = "tool_choice") -> InvalidRequest:
    """A choice that only tools could satisfy which are not served here. `kinds` are their types."""
    names = listed(tuple(dict.fromkeys(kinds)), "and")
    return InvalidRequest(
        f"Unsupported parameter: '{param}' needs {names}, which this server does not run: hosted "
        "tools are dropped, and named in the x-gateway-dropped-tools header. Offer a tool that "
        "your client executes, or leave 'tool_choice' out.",
        code="unsupported_parameter",
        param=param,
    )


def duplicate_name(param: str, name: str) -> InvalidRequest:
    """Two tools that the model could not tell apart."""
    return InvalidRequest(
        f"Invalid '{param}': there is more than one tool named '{shown(name)}'. Give every tool a "
        "name of its own.",
        code="invalid_value",
        param=param,
    )


def grammars_too_long(param: str, size: int, maximum: int) -> InvalidRequest:
    """The grammars of the custom tools up to this one, in bytes of UTF-8."""
    return InvalidRequest(
        f"Invalid '{param}': the grammars of the tools up to this one have {size} bytes together. "
        f"Expected at most {maximum} bytes.",
        code="invalid_value",
        param=param,
    )
