"""The structured parameters of a create request, one model each.

Where OpenAI accepts a string or an object, the string is normalised to the object here, once.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from openai.types.shared import ReasoningEffort
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from gateway.protocol.documented import EFFORTS, TOOL_CHOICE_TYPES
from gateway.protocol.nulls import NullableModel

Effort = Literal["low", "medium", "high"]
Verbosity = Literal["low", "medium", "high"]
Summary = Literal["auto", "concise", "detailed"]
ToolChoiceMode = Literal["none", "auto", "required"]

DEFAULT_EFFORT: Final[Effort] = "medium"
COMPACT_THRESHOLD_MIN: Final = 1000
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_VALUE_CHARS_MAX: Final = 512
METADATA_PAIRS_MAX: Final = 16

_EFFECTIVE_EFFORTS: Final[dict[str, Effort]] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""gpt-oss knows three efforts; SDKs send all of OpenAI's (harmony-in-the-wild P36)."""


def _known_effort(effort: object) -> object:
    if isinstance(effort, str) and effort not in _EFFECTIVE_EFFORTS:
        raise PydanticCustomError("unsupported_value", "", {"supported": EFFORTS})
    return effort


RequestedEffort = Annotated[ReasoningEffort, BeforeValidator(_known_effort)]


class ReasoningOptions(NullableModel):
    """How much the model thinks, and what of it is carried over.

    `summary` and the older `generate_summary` are echoed and have no effect: reasoning items hold
    the raw chain of thought, and `summary` stays empty. `context` has one value that gpt-oss
    honours: reasoning before the last answer is not shown to the model again. `mode` is a hint.
    What was in effect of these two is echoed.
    """

    effort: RequestedEffort = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None

    def effective_effort(self, default: Effort) -> Effort:
        """The nearest effort that gpt-oss has."""
        return _EFFECTIVE_EFFORTS[self.effort] if self.effort else default


class TextFormat(NullableModel):
    """The shape of the answer. Only `text` is served."""

    type: Literal["text", "json_schema", "json_object"]


class TextOptions(NullableModel):
    """`verbosity` is echoed and has no effect: gpt-oss has no such control."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class StreamOptions(NullableModel):
    """`include_obfuscation` pads delta events, so that sizes on the wire tell nothing."""

    include_obfuscation: bool = True


class Conversation(NullableModel):
    """A conversation by id."""

    id: str


class PromptTemplate(NullableModel):
    """A stored prompt template."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class ContextManagement(NullableModel):
    """Server-side compaction."""

    type: str
    compact_threshold: Annotated[int, Field(ge=COMPACT_THRESHOLD_MIN)] | None = None


class Moderation(NullableModel):
    """Hosted moderation."""

    model: str
    policy: dict[str, Any] | None = None


class PromptCacheOptions(NullableModel):
    """Hints for a prompt cache; backends cache every prefix anyway, so they change nothing."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


def _known_kind(kind: str) -> str:
    if kind not in TOOL_CHOICE_TYPES:
        raise PydanticCustomError("unknown_name", "", {"supported": TOOL_CHOICE_TYPES})
    return kind


class ToolChoice(NullableModel):
    """A choice of one tool, of one kind of tools, or of a list of them."""

    type: Annotated[str, AfterValidator(_known_kind)]
    name: str | None = None

    @model_validator(mode="after")
    def _named(self) -> ToolChoice:
        if self.type in {"function", "custom"} and self.name is None:
            raise PydanticCustomError("missing_member", "", {"member": "name"})
        return self


def _shape_of(value: object) -> str | None:
    """What a tool choice is: one of the modes, or an object."""
    if isinstance(value, str):
        return "mode"
    return "object" if isinstance(value, dict | ToolChoice) else None


def _conversation(value: object) -> object:
    """`"conv_1"` → `{"id": "conv_1"}`."""
    return {"id": value} if isinstance(value, str) else value


AnyToolChoice = Annotated[
    Annotated[ToolChoiceMode, Tag("mode")] | Annotated[ToolChoice, Tag("object")],
    Discriminator(_shape_of),
]
AnyConversation = Annotated[Conversation, BeforeValidator(_conversation)]
Metadata = dict[
    Annotated[str, Field(max_length=METADATA_KEY_CHARS_MAX)],
    Annotated[str, Field(max_length=METADATA_VALUE_CHARS_MAX)],
]
