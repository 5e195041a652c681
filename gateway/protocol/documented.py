"""The names that OpenAI documents, read from the types of its own SDK.

A name that is documented but not served is refused as unsupported; any other is a mistake. Reading
them from the SDK keeps the two apart without a list that grows stale.
"""

from __future__ import annotations

from typing import Any, Final, get_args, get_type_hints

from openai.types.responses import (
    ResponseIncludable,
    response_create_params,
)
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam
from openai.types.shared import ReasoningEffort


def literal_values(annotation: object) -> tuple[str, ...]:
    """Every string in the `Literal`s of a (possibly nested, optional, annotated) type."""
    if isinstance(annotation, str):
        return (annotation,)
    return tuple(value for part in get_args(annotation) for value in literal_values(part))


def _type_tags(union: object) -> tuple[str, ...]:
    """The values of `type` in a union of typed dicts or models, in the SDK's order."""
    tags: list[str] = []
    for member in get_args(union):
        hints: dict[str, Any] = get_type_hints(member) if isinstance(member, type) else {}
        tags += literal_values(hints.get("type"))
    return tuple(dict.fromkeys(tags))


CREATE_PARAMETERS: Final = frozenset(
    get_type_hints(response_create_params.ResponseCreateParamsBase)
) | {"stream"}
EFFORTS: Final = literal_values(ReasoningEffort)
INCLUDE_VALUES: Final = literal_values(ResponseIncludable)
ITEM_TYPES: Final = _type_tags(ResponseInputItemParam)
TOOL_CHOICE_TYPES: Final = _type_tags(response_create_params.ToolChoice)
TOOL_TYPES: Final = _type_tags(ToolParam)
