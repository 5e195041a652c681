"""`text.format`: the shape of the answer."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from gateway.protocol.base import type_of
from gateway.protocol.nulls import NullableModel

FORMAT_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]+$"
FORMAT_NAME_CHARS_MAX: Final = 64

FormatName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=FORMAT_NAME_CHARS_MAX, pattern=FORMAT_NAME_PATTERN),
]


class TextFormat(NullableModel):
    """Any text."""

    type: Literal["text"] = "text"


class JsonObjectFormat(NullableModel):
    """Any JSON object."""

    type: Literal["json_object"] = "json_object"


class JsonSchemaFormat(NullableModel):
    """JSON. It must satisfy the schema if `strict`; otherwise the model is merely shown it."""

    type: Literal["json_schema"] = "json_schema"
    name: FormatName
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False


AnyFormat = Annotated[
    Annotated[TextFormat, Tag("text")]
    | Annotated[JsonSchemaFormat, Tag("json_schema")]
    | Annotated[JsonObjectFormat, Tag("json_object")],
    Discriminator(type_of),
]
