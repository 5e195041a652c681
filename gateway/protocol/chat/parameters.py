"""The parameters of these APIs that the Responses API has not, or has in another shape."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gateway.protocol.chat.messages import ChatMessage
from gateway.protocol.fields import Many
from gateway.protocol.nulls import NullableModel
from gateway.protocol.numbers import Integer


class ChatStreamOptions(NullableModel):
    """`include_usage`: a last chunk with the usage. `include_obfuscation` pads deltas."""

    include_usage: bool = False
    include_obfuscation: bool = True


class ChatTool(NullableModel):
    """A function or a custom tool; what it is stands under the name of its type."""

    type: str
    function: dict[str, Any] | None = None
    custom: dict[str, Any] | None = None


class ChatRequest(NullableModel):
    """Of a chat completion."""

    messages: Many[ChatMessage] = Field(min_length=1)
    tools: Many[ChatTool] = ()
    tool_choice: Any = None
    functions: Many[dict[str, Any]] = ()
    function_call: Any = None
    response_format: Any = None
    max_completion_tokens: Integer | None = Field(None, ge=1)
    max_tokens: Integer | None = Field(None, ge=1)
    n: Integer | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Integer | None = None
    logit_bias: dict[str, Any] | None = None
    modalities: Many[str] | None = None
    reasoning: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    stream_options: ChatStreamOptions | None = None

    @property
    def has_names(self) -> bool:
        """A participant is named, of which the model is not told."""
        return any(message.name and message.role != "function" for message in self.messages)


class CompletionRequest(NullableModel):
    """Of a completion."""

    prompt: Any
    max_tokens: Integer | None = Field(None, ge=1)
    n: Integer | None = Field(None, ge=1)
    best_of: Integer | None = Field(None, ge=1)
    echo: bool = False
    suffix: str | None = None
    logprobs: Integer | None = None
    logit_bias: dict[str, Any] | None = None
    reasoning_effort: Any = None
    stream_options: ChatStreamOptions | None = None
