"""Errors of requests, in OpenAI's sentences, each with its code.

Source: envelopes measured against api.openai.com and published (responses-api §5.2). Validators of
this package raise `PydanticCustomError` with one of the types at the end of the table of
translations.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import ValidationError

from gateway.errors import InvalidRequest, shown
from gateway.protocol.base import COUNT_MAX, BodyModel, WireModel, presentable
from gateway.protocol.context_item import Kind
from gateway.protocol.documented import ITEM_TYPES, literal_values
from gateway.protocol.hosted_tools import DOMAIN_CHARS_MAX, FAMILIES
from gateway.protocol.tool_types import SERVED_TOOL_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic_core import ErrorDetails

    Location = tuple[int | str, ...]
    Translation = Callable[[str, ErrorDetails], InvalidRequest]

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
    """Join values in prose: `'a'`, `'a' and 'b'`, `'a', 'b', and 'c'`."""
    quoted = [f"'{value}'" for value in values]
    if len(quoted) <= 2:
        return f" {conjunction} ".join(quoted)
    return f"{', '.join(quoted[:-1])}, {conjunction} {quoted[-1]}"


def invalid(param: str, what: str, code: str = "invalid_value") -> InvalidRequest:
    """Return the refusal of `param`; `what` follows its name, as in `empty array. Expected ...`."""
    return InvalidRequest(f"Invalid '{param}': {what}", code=code, param=param)


def unknown_approval(request_id: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'input': there is no approval request '{request_id}' in the context of this "
        "request. Send its item before the answer, or continue the response that asked "
        "('previous_response_id').",
        code="approval_not_found",
        param="input",
    )


ApprovalFault = Literal["unknown", "expired", "used", "mismatch"]
"""Not stored (any more); too late; used by another response; for another call, tool or server."""


class ApprovalUsed(InvalidRequest):
    """Approval that another response has already used."""


_ASK_AGAIN: Final = "Leave the answer out, and let the model ask again."
_APPROVAL_FAULTS: Final[Mapping[ApprovalFault, tuple[str, str]]] = {
    "unknown": (
        "approval_not_found",
        f"this server knows no approval request '{{}}'. {_ASK_AGAIN}",
    ),
    "expired": ("approval_expired", f"the approval request '{{}}' has expired. {_ASK_AGAIN}"),
    "used": (
        "approval_already_used",
        "the approval request '{}' was answered before, and an answer counts once. Continue the "
        "response that it was answered with.",
    ),
    "mismatch": (
        "approval_mismatch",
        "what the approval request '{}' was made for is not what would be called now: its "
        "arguments, the tool or the server have changed, or the request does not offer the server "
        "any more. Offer the same server in 'tools' with the same credentials, or leave the answer "
        "out and let the model ask again.",
    ),
}


def refused_approval(request_id: str, fault: ApprovalFault) -> InvalidRequest:
    code, what = _APPROVAL_FAULTS[fault]
    refusal = ApprovalUsed if fault == "used" else InvalidRequest
    return refusal(f"Invalid 'input': {what.format(request_id)}", code=code, param="input")


def unknown_place(param: str = "after") -> InvalidRequest:
    return invalid(
        param,
        f"this list has no item of that id, or has it no longer. Begin again without '{param}'.",
    )


def mutually_exclusive(first: str, second: str, *, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(
        f"Mutually exclusive parameters: '{first}' and '{second}'. Ensure you are only providing "
        "one of them.",
        code="mutually_exclusive_parameters",
        param=param,
    )


def missing(param: str, hint: str = "") -> InvalidRequest:
    message = f"Missing required parameter: '{param}'."
    return InvalidRequest(
        f"{message} {hint}" if hint else message, code="missing_required_parameter", param=param
    )


def unknown(param: str) -> InvalidRequest:
    param = shown(param)
    return InvalidRequest(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)


def wrong_type(param: str, expected: str, value: object) -> InvalidRequest:
    """Return the refusal of a type; `expected` in OpenAI's words, such as `a string`."""
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
    kind, limit = ("integer", f"{bound}") if isinstance(bound, int) else ("decimal", f"{bound:g}")
    side, sign = ("above maximum", "<=") if above else ("below minimum", ">=")
    what = f"{kind} {side} value. Expected a value {sign} {limit}, but got {value} instead."
    return invalid(param, what, f"{kind}_{'above_max' if above else 'below_min'}_value")


def string_too_long(param: str, length: int, maximum: int) -> InvalidRequest:
    expected = f"Expected a string with maximum length {maximum}"
    what = f"string too long. {expected}, but got a string with length {length} instead."
    return invalid(param, what, "string_above_max_length")


def string_empty(param: str) -> InvalidRequest:
    expected = "Expected a string with minimum length 1"
    what = f"empty string. {expected}, but got an empty string instead."
    return invalid(param, what, "empty_string")


def pattern_mismatch(param: str, pattern: str) -> InvalidRequest:
    expected = f"Expected a string that matches the pattern '{pattern}'"
    return invalid(param, f"string does not match pattern. {expected}.")


def bad_id(param: str, value: str) -> InvalidRequest:
    expected = "Expected an ID that contains letters, numbers, underscores, or dashes"
    what = f"'{shown(value)}'. {expected}, but this value contained additional characters."
    return invalid(param, what)


def array_too_long(param: str, length: int, maximum: int) -> InvalidRequest:
    expected = f"Expected an array with maximum length {maximum}"
    what = f"array too long. {expected}, but got an array with length {length} instead."
    return invalid(param, what, "array_above_max_length")


def array_empty(param: str) -> InvalidRequest:
    expected = "Expected an array with minimum length 1"
    what = f"empty array. {expected}, but got an empty array instead."
    return invalid(param, what, "empty_array")


def too_many_properties(param: str, count: int, maximum: int) -> InvalidRequest:
    expected = f"Expected an object with at most {maximum} properties"
    what = f"too many properties. {expected}, but got an object with {count} properties instead."
    return invalid(param, what, "object_above_max_properties")


def property_name_too_long(param: str, name: str, maximum: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid property name in '{param}': '{shown(name)}' is too long. Expected a string with "
        f"maximum length {maximum}, but got a string with length {len(name)} instead.",
        code="property_name_above_max_length",
        param=f"{param}.{shown(name)}",
    )


def unsupported(param: str, remedy: str, *, value: str | None = None) -> InvalidRequest:
    """Return the refusal of a parameter that OpenAI documents; `remedy` is a sentence."""
    what = f"'{param}'" if value is None else f"'{param}' with value '{shown(value)}'"
    return InvalidRequest(
        f"Unsupported parameter: {what} is not supported by this server. {remedy}",
        code="unsupported_parameter",
        param=param,
    )


def unsupported_value(
    param: str, value: str, supported: Sequence[str], *, where: str = "with this model"
) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported value: '{param}' does not support '{shown(value)}' {where}. "
        f"Supported values are: {listed(supported, 'and')}.",
        code="unsupported_value",
        param=param,
    )


def tool_not_found(kind: str, param: str = "tool_choice") -> InvalidRequest:
    return InvalidRequest(
        f"Tool choice '{kind}' not found in 'tools' parameter.", code="invalid_value", param=param
    )


def dropped_tools(kinds: Sequence[str]) -> InvalidRequest:
    """Return the refusal of a choice that only unsupported tools of types `kinds` satisfy."""
    names = listed(tuple(dict.fromkeys(kinds)), "and")
    return InvalidRequest(
        f"Unsupported parameter: 'tool_choice' needs {names}, which this server does not run for "
        "this API key: such tools are dropped, and named in the x-gateway-dropped-tools header. "
        "Offer a tool that your client executes, leave 'tool_choice' out, or ask the operator to "
        "allow them.",
        code="unsupported_parameter",
        param="tool_choice",
    )


def duplicate_name(param: str, name: str) -> InvalidRequest:
    more = f"there is more than one tool named '{shown(name)}'"
    return invalid(param, f"{more}. Give every tool a name of its own.")


def grammars_too_long(param: str, size: int, maximum: int) -> InvalidRequest:
    problem = f"the grammars of the tools up to this one have {size} bytes together"
    return invalid(param, f"{problem}. Expected at most {maximum} bytes.")


M = TypeVar("M", bound=WireModel)
B = TypeVar("B", bound=BodyModel)

_ITEM_TAGS: Final = frozenset(literal_values(Kind)) | {"item_reference", "compaction_trigger"}
_PART_TAGS: Final = frozenset({"input_text", "input_image", "input_file", "output_text", "refusal"})
_TOOL_TAGS: Final = frozenset(
    f"{kind}_tool" for kind in (*SERVED_TOOL_TYPES, *FAMILIES.values(), "hosted")
)
_SHAPE_TAGS: Final[dict[int | str, frozenset[str]]] = {
    "output": frozenset({"text", "parts"}),
    "tool_choice": frozenset({"mode", "allowed", "object"}),
    "format": frozenset({"text", "json_schema", "json_object", "grammar"}),
    "container": frozenset({"container_id", "container_auto"}),
    "require_approval": frozenset({"approval_mode", "approval_filters"}),
}
_SHAPES: Final[dict[int | str, str]] = {
    "output": "one of a string or array of objects",
    "tool_choice": "one of an object or 'none', 'auto', or 'required'",
    "container": "one of a string or object",
    "require_approval": "one of an object or 'always' or 'never'",
}
_ARRAYS: Final = {
    "tools": "an array of tools",
    "include": "an array of strings",
    "message.content": "one of a string or array of objects",
}
_OF_STRINGS: Final = frozenset(
    {
        *("allowed_callers", "allowed_domains", "file_ids", "modalities", "search_content_types"),
        "tool_names",
    }
)
_MEMBER_TAGS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("input", "items"), _ITEM_TAGS),
    **dict.fromkeys(("content", "output"), _PART_TAGS),
    "tools": _TOOL_TAGS,
}
"""By the field with an array of a union's members. Elsewhere these words are fields, as the
`function_call` of a message in a chat is.
"""
_REMEDIES: Final = {"configuration_update": "Set 'reasoning' and 'text' of each request."}
"""For items that are not served, by type."""
_QUOTED: Final = re.compile(r"'([^']*)'")


def validated(model: type[M], document: dict[str, Any], context: object = None) -> M:
    try:
        return model.model_validate(document, context=context)
    except ValidationError as error:
        raise refusal_of(error) from None


def validated_body(
    model: type[B], document: dict[str, Any], *, strict: bool, unreported: tuple[str, ...] = ()
) -> B:
    """Parse the body of a request, with the names besides its parameters in `ignored`.

    `unreported` names are left out. If `strict`, the others raise `InvalidRequest`.
    """
    parameters = model.parameters()
    others = tuple(name for name in document if name not in {*parameters, *unreported})
    if strict and others:
        raise unknown(min(others))
    body = validated(model, {name: document[name] for name in document.keys() & parameters})
    return body.model_copy(update={"ignored": presentable(others)}) if others else body


def refusal_of(error: ValidationError, within: str = "") -> InvalidRequest:
    details = error.errors(include_url=False)[0]
    translate = _TRANSLATIONS.get(details["type"], _other)
    return translate(within + param_path(details["loc"]), details)


def param_path(location: Location) -> str:
    """Return the parameter path of a location.

    `("input", 1, "message", "content", 0, "text")` → `input[1].content[0].text`: pydantic puts the
    tag of a union's member after the index or field that holds it.
    """
    path = field = ""
    before: int | str = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_tag(part, before, field):
            path += f".{shown(part)}" if path else part
            field = part
        before = part
    return path


def _is_tag(part: str, before: int | str, field: str) -> bool:
    if before in _SHAPE_TAGS:
        return part in _SHAPE_TAGS[before]
    return isinstance(before, int) and part in _MEMBER_TAGS.get(field, ())


def _context(details: ErrorDetails) -> dict[str, Any]:
    return details.get("ctx", {})


def _expecting(expected: str) -> Translation:
    return lambda path, details: wrong_type(path, expected, details["input"])


def _integer(path: str, details: ErrorDetails) -> InvalidRequest:
    # Integers of more than 64 bits come out of the JSON parser as floats.
    value = details["input"]
    if isinstance(value, float) and abs(value) > COUNT_MAX:
        above = value > 0
        bound = COUNT_MAX if above else -COUNT_MAX - 1
        return number_out_of_range(path, int(value), bound=bound, above=above)
    return wrong_type(path, "an integer", value)


def _object(path: str, details: ErrorDetails) -> InvalidRequest:
    expected = "a metadata object" if path == "metadata" else "an object"
    return wrong_type(path, expected, details["input"])


def _array(path: str, details: ErrorDetails) -> InvalidRequest:
    if details["loc"][-1] in _OF_STRINGS:
        return wrong_type(path, "an array of strings", details["input"])
    place = ".".join(str(part) for part in details["loc"][-2:])
    return wrong_type(path, _ARRAYS.get(place, "an array of objects"), details["input"])


def _literal(path: str, details: ErrorDetails) -> InvalidRequest:
    supported = _QUOTED.findall(_context(details)["expected"])
    value = details["input"]
    if isinstance(value, str):
        return wrong_value(path, value, supported)
    return wrong_type(path, f"one of {listed(supported, 'or')}", value)


def _too_small(path: str, details: ErrorDetails) -> InvalidRequest:
    return number_out_of_range(path, details["input"], bound=_context(details)["ge"], above=False)


def _too_large(path: str, details: ErrorDetails) -> InvalidRequest:
    return number_out_of_range(path, details["input"], bound=_context(details)["le"], above=True)


def _long_string(path: str, details: ErrorDetails) -> InvalidRequest:
    value, maximum = details["input"], _context(details)["max_length"]
    if details["loc"][-1] == "[key]":
        return property_name_too_long(param_path(details["loc"][:-2]), value, maximum)
    return string_too_long(path, len(value), maximum)


def _long_array(path: str, details: ErrorDetails) -> InvalidRequest:
    return array_too_long(path, len(details["input"]), _context(details)["max_length"])


def _mismatch(path: str, details: ErrorDetails) -> InvalidRequest:
    if details["loc"][-1] == "id":
        return bad_id(path, details["input"])
    return pattern_mismatch(path, _context(details)["pattern"])


def _unknown_tag(path: str, details: ErrorDetails) -> InvalidRequest:
    context = _context(details)
    tag = context["tag"]
    if not isinstance(details["input"]["type"], str):
        return _no_tag(path, details)
    if not _is_item(details):
        return wrong_value(f"{path}.type", tag, _QUOTED.findall(context["expected_tags"]))
    if tag in ITEM_TYPES:
        remedy = _REMEDIES.get(tag, "Leave such items out of the input.")
        return unsupported(f"{path}.type", remedy, value=tag)
    return wrong_value(path, tag, _QUOTED.findall(context["expected_tags"]))


def _no_tag(path: str, details: ErrorDetails) -> InvalidRequest:
    value, place = details["input"], details["loc"][-1]
    if place in _SHAPES:
        return wrong_type(path, _SHAPES[place], value)
    if not isinstance(value, dict):
        return wrong_type(path, "an input item" if _is_item(details) else "an object", value)
    if value.get("type") is None:
        return missing(f"{path}.type")
    return wrong_type(f"{path}.type", "a string", value["type"])


def _is_item(details: ErrorDetails) -> bool:
    return len(details["loc"]) == 2 and details["loc"][0] in {"input", "items"}


def _unknown_member(path: str, details: ErrorDetails) -> InvalidRequest:
    context = _context(details)
    member = context["member"]
    return wrong_value(f"{path}.{member}", details["input"][member], context["supported"])


def _other(path: str, details: ErrorDetails) -> InvalidRequest:
    # An error type that the table lacks is still the caller's mistake.
    return InvalidRequest(
        f"Invalid '{path}': {details['msg']}.", code="invalid_value", param=path or None
    )


_TRANSLATIONS: Final[dict[str, Translation]] = {
    "missing": lambda path, _: missing(path),
    "string_type": _expecting("a string"),
    "int_type": _integer,
    "int_parsing": _expecting("an integer"),
    "int_parsing_size": _integer,
    "int_from_float": _integer,
    "float_type": _expecting("a decimal"),
    "bool_type": _expecting("a boolean"),
    "dict_type": _object,
    "model_type": _object,
    "model_attributes_type": _no_tag,
    "tuple_type": _array,
    "literal_error": _literal,
    "greater_than_equal": _too_small,
    "less_than_equal": _too_large,
    "string_too_long": _long_string,
    "string_too_short": lambda path, _: string_empty(path),
    "string_pattern_mismatch": _mismatch,
    "too_short": lambda path, _: array_empty(path),
    "too_long": _long_array,
    "union_tag_invalid": _unknown_tag,
    "union_tag_not_found": _no_tag,
    "approval_call": lambda path, details: invalid(
        f"{path}.{_context(details)['field']}",
        f"it is of a request for approval. Expected {_context(details)['expected']}.",
    ),
    "expected": lambda path, details: wrong_type(
        path, _context(details)["expected"], details["input"]
    ),
    "missing_member": lambda path, details: missing(f"{path}.{_context(details)['member']}"),
    "unknown_name": lambda path, details: wrong_value(
        path, details["input"], _context(details)["supported"]
    ),
    "unknown_member": _unknown_member,
    "not_a_domain": lambda path, details: invalid(
        path,
        f"'{shown(details['input'])}' is not a domain. Expected one such as 'example.com', of at "
        f"most {DOMAIN_CHARS_MAX} characters, without a path.",
    ),
    # Raised as `ValueError`: what is wrong, without its subject.
    "value_error": lambda path, details: invalid(path, f"it {_context(details)['error']}."),
    "unsupported_value": lambda path, details: unsupported_value(
        path, details["input"], _context(details)["supported"]
    ),
}
