"""Context items, written in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from gateway.models.format import RenderOptions
from gateway.protocol.calls import author_of, call_of
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import (
    CallItem,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputItem,
    OutputText,
    Phase,
    Reasoning,
    ReasoningText,
    Role,
)

if TYPE_CHECKING:
    from gateway.constraints.rules import AnswerFormat
    from gateway.protocol.tools import FunctionTool

_ITEM: TypeAdapter[Item] = TypeAdapter(Item)


def context_item(item: Item, *, complete: bool = True) -> ContextItem:
    """An item as a request or the store brings it, without ids."""
    return ContextItem(
        kind=item.type,
        item_id=item.id or "item_1",
        json=item.model_dump_json().encode(),
        role=item.role if isinstance(item, Message) else None,
        phase=item.phase if isinstance(item, Message) else None,
        call_id=item.call_id if isinstance(item, CallItem | OutputItem) else None,
        name=_function_of(item),
        complete=complete,
        parsed=item,
    )


def _function_of(item: Item) -> str | None:
    if isinstance(item, CallItem):
        return call_of(item).name
    return author_of(item) if isinstance(item, OutputItem) else None


def from_wire(item: dict[str, Any]) -> ContextItem:
    """The same, from JSON."""
    return context_item(_ITEM.validate_python(item))


def said(role: Role, text: str, phase: Phase | None = None) -> ContextItem:
    """A message with one part."""
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return context_item(Message(role=role, content=(part,), phase=phase))


def user(text: str = "hi") -> ContextItem:
    return said("user", text)


def answer(text: str = "hello", phase: Phase | None = "final_answer") -> ContextItem:
    return said("assistant", text, phase)


def thought(text: str = "hm") -> ContextItem:
    return context_item(Reasoning(content=(ReasoningText(text=text),)))


def call(
    call_id: str = "c1", name: str = "f", arguments: str = "{}", *, complete: bool = True
) -> ContextItem:
    item = FunctionCall(call_id=call_id, name=name, arguments=arguments)
    return context_item(item, complete=complete)


def output(call_id: str = "c1", text: str = "ok") -> ContextItem:
    return context_item(FunctionCallOutput(call_id=call_id, output=text))


def uncalled(name: str | None = None, namespace: str | None = None) -> ContextItem:
    """An output that names no call."""
    return context_item(FunctionCallOutput(name=name, namespace=namespace, output="ok"))


def options(
    *,
    instructions: str | None = None,
    tools: tuple[FunctionTool, ...] = (),
    current_date: str | None = None,
    commentary_without_tools: bool = False,
    answer: AnswerFormat | None = None,
) -> RenderOptions:
    """Options with the defaults of gpt-oss."""
    return RenderOptions(
        instructions=instructions,
        tools=tools,
        effort="medium",
        current_date=current_date,
        model_identity="You are ChatGPT, a large language model trained by OpenAI.",
        knowledge_cutoff="2024-06",
        commentary_without_tools=commentary_without_tools,
        answer=answer,
    )
