"""`CreateResponse`: every parameter of `POST /v1/responses`.

The order of the fields is the order in which OpenAI's validator looks at them, measured: of two
mistakes the one in the earlier field is reported.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gateway.protocol.base import Integer, Many, WireModel, whole
from gateway.protocol.documented import Includable, ServiceTier, literal_values
from gateway.protocol.items import AnyInputItem
from gateway.protocol.parameters import (
    AnyConversation,
    AnyToolChoice,
    ContextManagement,
    Metadata,
    Moderation,
    PromptCacheOptions,
    PromptTemplate,
    ReasoningOptions,
    StreamOptions,
    TextOptions,
)
from gateway.protocol.tools import AnyTool, HostedTool, Tool

MODEL_CHARS_MAX: Final = 256
RESPONSE_ID_CHARS_MAX: Final = 512
PROMPT_CACHE_KEY_CHARS_MAX: Final = 64
SAFETY_IDENTIFIER_CHARS_MAX: Final = 128
OUTPUT_TOKENS_MIN: Final = 16
TOP_LOGPROBS_MAX: Final = 20
STOPS_MAX: Final = 4
STOP_CHARS_MAX: Final = 256
SEED_MAX: Final = 2**63 - 1
TOP_K_MAX: Final = 2**31 - 1
TOP_K_OFF: Final = -1

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
"""With it reasoning items come sealed, so that a client can give them back."""
INPUT_IDS: Final = "input_messages.token_ids"
OUTPUT_IDS: Final = "output_messages.token_ids"
TokenIds = Literal["input_messages.token_ids", "output_messages.token_ids"]
"""What this gateway knows to include beside what OpenAI documents."""
TOKEN_ID_VALUES: Final = literal_values(TokenIds)


def _input_items(value: object) -> object:
    """A string is one user message, the empty string none."""
    match value:
        case "":
            return ()
        case str():
            return ({"role": "user", "content": value},)
        case list() | tuple():
            return value
        case _:
            expected = "one of a string or array of input items"
            raise PydanticCustomError("expected", "", {"expected": expected})


def _stops(value: object) -> object:
    """One string is a list of one."""
    match value:
        case str():
            return (value,)
        case list() | tuple():
            return value
        case _:
            expected = "one of a string or array of strings"
            raise PydanticCustomError("expected", "", {"expected": expected})


def _top_k(value: object) -> object:
    return None if value == TOP_K_OFF else value


class CreateResponse(WireModel):
    """Every documented parameter, with OpenAI's default where one is left out.

    Accepted without any effect, because there is nothing they could change here: `max_tool_calls`
    (it counts built-in tools, of which there are none), `prompt_cache_*` and `user` (hints), and
    `include` of what hosted tools would return.

    Not OpenAI's, but common among servers of open models: `seed`, `stop` (ends the answer, and is
    not part of it), `top_k` (-1: off), `min_p`, `reasoning.max_tokens`, and, as vLLM has it,
    `enable_response_messages`.
    """

    model: Annotated[str, Field(max_length=MODEL_CHARS_MAX)]
    input: Annotated[Many[AnyInputItem], BeforeValidator(_input_items)] = ()
    conversation: AnyConversation | None = None
    previous_response_id: Annotated[str, Field(max_length=RESPONSE_ID_CHARS_MAX)] | None = None
    prompt: PromptTemplate | None = None
    moderation: Moderation | None = None
    include: Many[Literal[Includable, TokenIds]] = ()
    tools: Many[AnyTool] = ()
    tool_choice: AnyToolChoice = "auto"
    metadata: Metadata = Field(default_factory=dict)
    text: TextOptions = TextOptions()
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    seed: Annotated[int | None, Field(ge=-SEED_MAX - 1, le=SEED_MAX), BeforeValidator(whole)] = None
    stop: Annotated[
        Many[Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]],
        Field(max_length=STOPS_MAX),
        BeforeValidator(_stops),
    ] = ()
    top_k: Annotated[
        int | None, Field(ge=1, le=TOP_K_MAX), BeforeValidator(_top_k), BeforeValidator(whole)
    ] = None
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    enable_response_messages: bool = False
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False
    max_output_tokens: Integer | None = Field(None, ge=OUTPUT_TOKENS_MIN)
    max_tool_calls: Integer | None = Field(None, ge=1)
    reasoning: ReasoningOptions = ReasoningOptions()
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=SAFETY_IDENTIFIER_CHARS_MAX)
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_key: str | None = Field(None, max_length=PROMPT_CACHE_KEY_CHARS_MAX)
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    instructions: str | None = None
    store: bool = True
    service_tier: ServiceTier | None = None
    top_logprobs: Integer = Field(0, ge=0, le=TOP_LOGPROBS_MAX)
    context_management: Many[ContextManagement] | None = Field(None, min_length=1)

    ignored: tuple[str, ...] = Field((), exclude=True)
    """Top-level keys that were sent and mean nothing here, as far as their names are fit for a
    header. Not a parameter itself."""

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools the model may know of."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def dropped_tools(self) -> tuple[str, ...]:
        """The types of the tools that are not served here, in their order."""
        if not self.tools:
            return ()
        return tuple([tool.type for tool in self.tools if isinstance(tool, HostedTool)])

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer comes with the probabilities of its tokens."""
        return LOGPROBS in self.include or self.top_logprobs > 0

    @property
    def wants_messages(self) -> bool:
        """Whether the response comes with the Harmony messages of its prompt and its output."""
        if not self.include:
            return self.enable_response_messages
        return self.enable_response_messages or self.wants_input_ids or self.wants_output_ids

    @property
    def wants_input_ids(self) -> bool:
        """Whether those of the prompt come with their token ids."""
        return INPUT_IDS in self.include

    @property
    def wants_output_ids(self) -> bool:
        """Whether those of the output come with their token ids."""
        return OUTPUT_IDS in self.include

    @property
    def obfuscated(self) -> bool:
        """Whether delta events are padded; OpenAI's default."""
        return self.stream_options is None or self.stream_options.include_obfuscation


PARAMETERS: Final = frozenset(CreateResponse.model_fields) - {"ignored"}
"""The names a body may use."""
