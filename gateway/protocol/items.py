"""Items: the units of a context, as they come in and as they are stored and listed.

Content is normalised here once: a string becomes one text part, so that no later stage knows the
shorthand. `phase` is kept, and is absent (never null) when unknown.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.protocol.base import WireModel

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]
Phase = Literal["commentary", "final_answer"]


class InputText(WireModel):
    """Text from a caller or from a tool."""

    type: Literal["input_text"] = "input_text"
    text: str


class InputImage(WireModel):
    """An image; gpt-oss cannot see it (see `harmony.messages` for what the model is told)."""

    type: Literal["input_image"] = "input_image"
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] | None = None


class InputFile(WireModel):
    """A file, by id, URL or content."""

    type: Literal["input_file"] = "input_file"
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None


class OutputText(WireModel):
    """Text of the assistant."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: tuple[dict[str, Any], ...] = ()


class Refusal(WireModel):
    """What the assistant said instead of an answer."""

    type: Literal["refusal"] = "refusal"
    refusal: str


class SummaryText(WireModel):
    """A summary of reasoning."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningText(WireModel):
    """Raw chain of thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


ContentPart = Annotated[
    InputText | InputImage | InputFile | OutputText | Refusal, Field(discriminator="type")
]
ToolOutputPart = Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]


class Message(WireModel):
    """A message of any role."""

    type: Literal["message"] = "message"
    id: str | None = None
    role: Role
    content: tuple[ContentPart, ...]
    status: Status | None = None
    phase: Phase | None = None


class Reasoning(WireModel):
    """Chain of thought, as the model's analysis channel gave it."""

    type: Literal["reasoning"] = "reasoning"
    id: str | None = None
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class FunctionCall(WireModel):
    """A call of a function that the client executes."""

    type: Literal["function_call"] = "function_call"
    id: str | None = None
    call_id: str
    name: str
    arguments: str
    status: Status | None = None


class FunctionCallOutput(WireModel):
    """What the function returned."""

    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    call_id: str
    output: str | tuple[ToolOutputPart, ...]
    status: Status | None = None


class ItemReference(WireModel):
    """A stored item, by id."""

    type: Literal["item_reference"] = "item_reference"
    id: str


Item = Message | Reasoning | FunctionCall | FunctionCallOutput
"""What a context is made of."""
InputItem = Item | ItemReference
"""What a request may hold."""
