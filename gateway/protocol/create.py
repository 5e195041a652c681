"""`CreateResponse`: every parameter of `POST /v1/responses`.

The order of the fields is the order in which OpenAI's validator looks at them, measured: of two
mistakes the one in the earlier field is reported.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from openai.types.responses import ResponseIncludable
from openai.types.responses.service_tier import ServiceTier
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gateway.protocol.base import WireModel
from gateway.protocol.items import AnyInputItem, Many
from gateway.protocol.parameters import (
    DEFAULT_EFFORT,
    AnyConversation,
    AnyToolChoice,
    ContextManagement,
    Effort,
    Metadata,
    Moderation,
    PromptCacheOptions,
    PromptTemplate,
    ReasoningOptions,
    StreamOptions,
    TextOptions,
)
from gateway.protocol.tools import AnyTool, FunctionTool

MODEL_CHARS_MAX: Final = 256
RESPONSE_ID_CHARS_MAX: Final = 512
PROMPT_CACHE_KEY_CHARS_MAX: Final = 64
SAFETY_IDENTIFIER_CHARS_MAX: Final = 128
OUTPUT_TOKENS_MIN: Final = 16
TOP_LOGPROBS_MAX: Final = 20


def _input_items(value: object) -> object:
    """A string is one user message, the empty string none."""
    match value:
        case "":
            return ()
        case str():
            return ({"type": "message", "role": "user", "content": value},)
        case list() | tuple():
            return value
        case _:
            expected = "one of a string or array of input items"
            raise PydanticCustomError("expected", "", {"expected": expected})


class CreateResponse(WireModel):
    """Every documented parameter, with OpenAI's default where one is left out.

    Accepted without any effect, because there is nothing they could change here: `max_tool_calls`
    (it counts built-in tools, of which there are none), `service_tier` (there is one tier),
    `prompt_cache_*` and `user` (hints), `include` of what hosted tools would return, and
    `reasoning.encrypted_content` in `include`: several clients always ask for it, and reasoning
    items carry the raw text, which holds the same and is accepted back.
    """

    model: Annotated[str, Field(max_length=MODEL_CHARS_MAX)]
    input: Annotated[Many[AnyInputItem], BeforeValidator(_input_items)] = ()
    conversation: AnyConversation | None = None
    previous_response_id: Annotated[str, Field(max_length=RESPONSE_ID_CHARS_MAX)] | None = None
    prompt: PromptTemplate | None = None
    moderation: Moderation | None = None
    include: Many[ResponseIncludable] = ()
    tools: Many[AnyTool] = ()
    tool_choice: AnyToolChoice = "auto"
    metadata: Metadata = Field(default_factory=dict)
    text: TextOptions = TextOptions()
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False
    max_output_tokens: int | None = Field(None, ge=OUTPUT_TOKENS_MIN)
    max_tool_calls: int | None = Field(None, ge=1)
    reasoning: ReasoningOptions = ReasoningOptions()
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=SAFETY_IDENTIFIER_CHARS_MAX)
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_key: str | None = Field(None, max_length=PROMPT_CACHE_KEY_CHARS_MAX)
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    instructions: str | None = None
    store: bool = True
    service_tier: ServiceTier = None
    top_logprobs: int = Field(0, ge=0, le=TOP_LOGPROBS_MAX)
    context_management: Many[ContextManagement] | None = Field(None, min_length=1)

    ignored: tuple[str, ...] = Field((), exclude=True)
    """Top-level keys that were sent and mean nothing here, as far as their names are fit for a
    header. Not a parameter itself."""

    def effort_or(self, default: Effort) -> Effort:
        """The effort that the model is told; `default` when the request names none."""
        return self.reasoning.effective_effort(default)

    @property
    def effort(self) -> Effort:
        """The effort that the model is told, with gpt-oss's own default."""
        return self.effort_or(DEFAULT_EFFORT)

    @property
    def offered_tools(self) -> tuple[FunctionTool, ...]:
        """The tools the model may know of."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def obfuscated(self) -> bool:
        """Whether delta events are padded; OpenAI's default."""
        return self.stream_options is None or self.stream_options.include_obfuscation


PARAMETERS: Final = frozenset(CreateResponse.model_fields) - {"ignored"}
"""The names a body may use."""
