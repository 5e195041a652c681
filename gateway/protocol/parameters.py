from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.protocol import documented
from gateway.protocol.base import Integer, Many, NullableModel, string_or
from gateway.protocol.documented import EFFORTS, TOOL_CHOICE_TYPES, TOOL_TYPES

RESPONSE_ID_CHARS_MAX: Final = 512
FORMAT_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]+$"
FORMAT_NAME_CHARS_MAX: Final = 64

FormatName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=FORMAT_NAME_CHARS_MAX, pattern=FORMAT_NAME_PATTERN),
]


class TextFormat(NullableModel):
    type: Literal["text"] = "text"


class JsonObjectFormat(NullableModel):
    type: Literal["json_object"] = "json_object"


class JsonSchemaFormat(NullableModel):
    """JSON; without `strict` the schema is only shown to the model."""

    type: Literal["json_schema"] = "json_schema"
    name: FormatName
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False


AnyFormat = Annotated[TextFormat | JsonSchemaFormat | JsonObjectFormat, Discriminator("type")]


Effort = Literal["low", "medium", "high"]
Verbosity = Literal["low", "medium", "high"]
Summary = Literal["auto", "concise", "detailed"]
ToolChoiceMode = Literal["none", "auto", "required"]

DEFAULT_EFFORT: Final[Effort] = "medium"
COMPACT_THRESHOLD_MIN: Final = 1000
CONVERSATION_ID_CHARS_MAX: Final = 512
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_VALUE_CHARS_MAX: Final = 512
METADATA_PAIRS_MAX: Final = 16
ALLOWED_TOOLS_MAX: Final = 128

EFFECTIVE_EFFORTS: Final[dict[str, Effort]] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""gpt-oss has three efforts (harmony-in-the-wild P36)."""


def _supported_effort(effort: object) -> object:
    if isinstance(effort, str) and effort not in EFFECTIVE_EFFORTS:
        raise PydanticCustomError("unsupported_value", "", {"supported": EFFORTS})
    return effort


RequestedEffort = Annotated[documented.Effort | None, BeforeValidator(_supported_effort)]


class ReasoningOptions(NullableModel):
    """Options of reasoning. `summary` (or the older `generate_summary`) is how much of the chain of
    thought is repeated. gpt-oss honours one `context`: reasoning before the last answer is not
    shown again. `mode` is a hint. `max_tokens` is an extension: the reasoning ends there, and the
    answer begins.
    """

    effort: RequestedEffort = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None
    max_tokens: Integer | None = Field(None, ge=1)


class TextOptions(NullableModel):
    """Options of the text. `verbosity` has no effect: gpt-oss has no such control."""

    format: AnyFormat | None = None
    verbosity: Verbosity | None = None


class StreamOptions(NullableModel):
    """Options of a stream. `include_obfuscation` pads delta events, so that sizes reveal
    nothing.
    """

    include_obfuscation: bool = True


class Conversation(NullableModel):
    id: Annotated[str, Field(max_length=CONVERSATION_ID_CHARS_MAX)]


class PromptTemplate(NullableModel):
    """Prompt template stored at OpenAI, which is refused."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class ContextManagement(NullableModel):
    """Compaction by the server, from `compact_threshold` tokens of context on."""

    type: str
    compact_threshold: Annotated[Integer, Field(ge=COMPACT_THRESHOLD_MIN)] | None = None


class Moderation(NullableModel):
    """Moderation by OpenAI, which is refused."""

    model: str
    policy: dict[str, Any] | None = None


class PromptCacheOptions(NullableModel):
    """Options of the cache. Backends cache every prefix, so `mode` and `ttl` change nothing. With
    `prewarm` nothing is generated. Caches cannot be compared, which the response reports for a
    `comparison_response_id`.
    """

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool = False
    comparison_response_id: str | None = Field(None, max_length=RESPONSE_ID_CHARS_MAX)


UNLISTED_CHOICE_TYPES: Final = ("local_shell", "web_search", "web_search_2025_08_26", "tool_search")
"""Clients choose these although OpenAI's types have no choice of them alone."""
CHOICE_TYPES: Final = (*TOOL_CHOICE_TYPES, *UNLISTED_CHOICE_TYPES)
_NAMED: Final = frozenset({"function", "custom", "namespace"})


def _among(kinds: tuple[str, ...]) -> AfterValidator:
    def check(kind: str) -> str:
        if kind not in kinds:
            raise PydanticCustomError("unknown_name", "", {"supported": kinds})
        return kind

    return AfterValidator(check)


class ToolName(NullableModel):
    """Tool (or namespace) in a list of allowed ones, by its name or by its type alone.

    A tool in a namespace is named `namespace.name`, or by name and namespace. For an MCP server, a
    `server_label` without a name means all of its tools.
    """

    type: Annotated[str, _among(TOOL_TYPES)]
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.type in _NAMED and self.name is None:
            raise PydanticCustomError("missing_member", "", {"member": "name"})
        return self


class ToolChoice(ToolName):
    type: Annotated[str, _among(CHOICE_TYPES)]


class AllowedTools(NullableModel):
    """Tools that the model may call; the prompt lists all of them."""

    type: Literal["allowed_tools"] = "allowed_tools"
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[Many[ToolName], Field(min_length=1, max_length=ALLOWED_TOOLS_MAX)]


def _shape_of(value: object) -> str | None:
    match value:
        case str():
            return "mode"
        case {"type": "allowed_tools"} | AllowedTools():
            return "allowed"
        case dict() | ToolChoice():
            return "object"
        case _:
            return None


def _choice(value: object) -> object:
    # Open Responses also has `allowed_tools` with mode `none`.
    match value:
        case {"type": "allowed_tools", "mode": "none"}:
            return "none"
        case _:
            return value


AnyToolChoice = Annotated[
    Annotated[ToolChoiceMode, Tag("mode")]
    | Annotated[AllowedTools, Tag("allowed")]
    | Annotated[ToolChoice, Tag("object")],
    Discriminator(_shape_of),
    BeforeValidator(_choice),
]
AnyConversation = Annotated[
    Conversation, string_or("object", (dict, Conversation), lambda id_: {"id": id_})
]
Metadata = dict[
    Annotated[str, Field(max_length=METADATA_KEY_CHARS_MAX)],
    Annotated[str, Field(max_length=METADATA_VALUE_CHARS_MAX)],
]
