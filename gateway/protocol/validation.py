"""pydantic's findings → OpenAI's error envelopes: one table, by the type of the finding.

Validators of this package that find what pydantic has no type for raise `PydanticCustomError` with
one of the types at the end of the table; everything the sentence needs is in its context.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.base import WireModel
from gateway.protocol.context import Kind
from gateway.protocol.documented import ITEM_TYPES, literal_values
from gateway.protocol.refusals import (
    array_empty,
    array_too_long,
    bad_id,
    listed,
    missing,
    number_out_of_range,
    pattern_mismatch,
    property_name_too_long,
    string_empty,
    string_too_long,
    unsupported,
    unsupported_value,
    wrong_type,
    wrong_value,
)
from gateway.protocol.tools import SERVED_TOOL_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_core import ErrorDetails

    Location = tuple[int | str, ...]
    Translation = Callable[[str, ErrorDetails], InvalidRequest]

M = TypeVar("M", bound=WireModel)

_ITEM_TAGS: Final = frozenset(literal_values(Kind)) | {"item_reference", "compaction_trigger"}
_PART_TAGS: Final = frozenset({"input_text", "input_image", "input_file", "output_text", "refusal"})
_TOOL_TAGS: Final = frozenset(f"{kind}_tool" for kind in (*SERVED_TOOL_TYPES, "hosted"))
_SHAPE_TAGS: Final[dict[int | str, frozenset[str]]] = {
    "output": frozenset({"text", "parts"}),
    "tool_choice": frozenset({"mode", "allowed", "object"}),
    "format": frozenset({"text", "json_schema", "json_object", "grammar"}),
}
_SHAPES: Final[dict[int | str, str]] = {
    "output": "one of a string or array of objects",
    "tool_choice": "one of an object or 'none', 'auto', or 'required'",
}
_ARRAYS: Final = {
    "tools": "an array of tools",
    "include": "an array of strings",
    "message.content": "one of a string or array of objects",
}
_MEMBER_TAGS: Final = _ITEM_TAGS | _PART_TAGS | _TOOL_TAGS
_REMEDIES: Final = {
    "additional_tools": "Offer them in 'tools'.",
    "configuration_update": "Set 'reasoning' and 'text' of each request.",
}
"""What to do in place of items that are not served."""
_QUOTED: Final = re.compile(r"'([^']*)'")


def validated(model: type[M], document: dict[str, Any]) -> M:
    """What the document says, as the model. Raises `InvalidRequest` for the first mistake."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise refusal_of(error) from None


def refusal_of(error: ValidationError) -> InvalidRequest:
    """The first mistake, in OpenAI's words."""
    details = error.errors(include_url=False)[0]
    translate = _TRANSLATIONS.get(details["type"], _other)
    return translate(param_path(details["loc"]), details)


def param_path(location: Location) -> str:
    """`("input", 1, "message", "content", 0, "text")` → `input[1].content[0].text`.

    pydantic puts the tag of a union's member after what holds it: an index or a field's name.
    """
    path = ""
    before: int | str = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_tag(part, before):
            path += f".{part}" if path else part
        before = part
    return path


def _is_tag(part: str, before: int | str) -> bool:
    if before in _SHAPE_TAGS:
        return part in _SHAPE_TAGS[before]
    return isinstance(before, int) and part in _MEMBER_TAGS


def _context(details: ErrorDetails) -> dict[str, Any]:
    return details.get("ctx", {})


def _expecting(expected: str) -> Translation:
    return lambda path, details: wrong_type(path, expected, details["input"])


def _object(path: str, details: ErrorDetails) -> InvalidRequest:
    expected = "a metadata object" if path == "metadata" else "an object"
    return wrong_type(path, expected, details["input"])


def _array(path: str, details: ErrorDetails) -> InvalidRequest:
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
    """A finding this table does not know: our own omission, but still the caller's mistake."""
    return InvalidRequest(
        f"Invalid '{path}': {details['msg']}.", code="invalid_value", param=path or None
    )


_TRANSLATIONS: Final[dict[str, Translation]] = {
    "missing": lambda path, _: missing(path),
    "string_type": _expecting("a string"),
    "int_type": _expecting("an integer"),
    "int_parsing": _expecting("an integer"),
    "int_parsing_size": _expecting("an integer"),
    "int_from_float": _expecting("an integer"),
    "float_type": _expecting("a decimal"),
    "bool_type": _expecting("a boolean"),
    "dict_type": _object,
    "model_type": _object,
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
    "expected": lambda path, details: wrong_type(
        path, _context(details)["expected"], details["input"]
    ),
    "missing_member": lambda path, details: missing(f"{path}.{_context(details)['member']}"),
    "unknown_name": lambda path, details: wrong_value(
        path, details["input"], _context(details)["supported"]
    ),
    "unknown_member": _unknown_member,
    "unsupported_value": lambda path, details: unsupported_value(
        path, details["input"], _context(details)["supported"]
    ),
}
