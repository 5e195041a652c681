"""Chat Completions and Completions as they come in: their parameters, and the messages of a chat.

One model for all roles and one for all parts: a mistake is then told with the path that the client
wrote. Which role may say what is looked at when they are converted (`to_responses`).

More is accepted than OpenAI documents, because clients replay what other servers gave them: nulls
for absent values, tool calls without a type, a URL in place of an image's object, and reasoning
under both of its names. The `name` of a participant has no effect: Harmony has none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.protocol.base import Integer, Many, NullableModel

ChatRole = Literal["developer", "system", "user", "assistant", "tool", "function"]


def _image(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class ImageUrl(NullableModel):
    """An image, by URL or as a data URL."""

    url: str
    detail: str | None = None


class InputAudio(NullableModel):
    """A sound; `data` is Base64."""

    data: str
    format: str | None = None


class ChatFile(NullableModel):
    """A file, by id or as a data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ChatPart(NullableModel):
    """A part of a message: what its `type` names."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Annotated[ImageUrl | None, BeforeValidator(_image)] = None
    input_audio: InputAudio | None = None
    file: ChatFile | None = None


class CalledFunction(NullableModel):
    """The call of a function; `arguments` is JSON, as the model wrote it."""

    name: str
    arguments: str


class CalledCustom(NullableModel):
    """The call of a custom tool; `input` is its text."""

    name: str
    input: str


class ChatCall(NullableModel):
    """One tool call of an assistant's message."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class ChatMessage(NullableModel):
    """A message of any role. Its content is a `text`, or parts, or nothing."""

    role: ChatRole
    text: str | None = None
    content: Many[ChatPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Many[ChatCall] = ()
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        # Texts and parts have fields of their own, so that neither is read as the other.
        if not isinstance(value, dict):
            return value
        content = value.get("content")
        if isinstance(content, str):
            return {**value, "content": None, "text": content}
        return {name: member for name, member in value.items() if name != "text"}

    @field_validator("content", mode="before")
    @classmethod
    def _either(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return value
        expected = "one of a string or array of objects"
        raise PydanticCustomError("expected", "", {"expected": expected})

    @property
    def thought(self) -> tuple[str, str] | None:
        """Return the field name and text of the chain of thought that the client sends back."""
        for name in ("reasoning_content", "reasoning"):
            value = getattr(self, name)
            if isinstance(value, str) and value:
                return name, value
        return None


def in_chat_words(message: str) -> str:
    """Replace names of Responses API parameters in a message by those of this API."""
    for name, word in _WORDS.items():
        message = message.replace(name, word)
    return message


_WORDS: dict[str, str] = {
    "text.format": "response_format",
    "max_output_tokens": "max_completion_tokens",
}


class ChatStreamOptions(NullableModel):
    """Options of a stream. `include_usage`: usage in a last chunk;
    `include_obfuscation`: padded deltas.
    """

    include_usage: bool = False
    include_obfuscation: bool = True


class ChatTool(NullableModel):
    """A function or a custom tool; what it is stands under the name of its type."""

    type: str
    function: dict[str, Any] | None = None
    custom: dict[str, Any] | None = None


class ChatRequest(NullableModel):
    """The parameters of `POST /v1/chat/completions` that are not the same in the Responses API."""

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
    web_search_options: dict[str, Any] | None = None

    @property
    def has_names(self) -> bool:
        return any(message.name and message.role != "function" for message in self.messages)


class CompletionRequest(NullableModel):
    """The parameters of `POST /v1/completions` that are not the same in the Responses API."""

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
