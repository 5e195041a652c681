"""Context items, written in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from gateway.models.format import RenderOptions
from gateway.protocol.call_items import approval_request_of, approval_tool, author_of, call_of
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
    from gateway.constraints.output_rules import AnswerFormat
    from gateway.protocol.tool_types import FunctionTool

_ITEM: TypeAdapter[Item] = TypeAdapter(Item)


def context_item(item: Item, *, complete: bool = True) -> ContextItem:
    """An item as a request or the store brings it, without ids."""
    return ContextItem(
        kind=item.type,
        item_id=item.id or "item_1",
        json=item.model_dump_json().encode(),
        role=item.role if isinstance(item, Message) else None,
        phase=item.phase if isinstance(item, Message) else None,
        call_id=item.call_id
        if isinstance(item, CallItem | OutputItem)
        else approval_request_of(item),
        name=_function_of(item),
        complete=complete,
        parsed=item,
    )


def _function_of(item: Item) -> str | None:
    if isinstance(item, CallItem):
        return call_of(item).name
    return author_of(item) if isinstance(item, OutputItem) else approval_tool(item)


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


def searched(item_id: str = "ws_1") -> ContextItem:
    action = {"type": "search", "query": "x"}
    return from_wire({"type": "web_search_call", "id": item_id, "action": action})


def computed(code: str = "1 + 1") -> ContextItem:
    return from_wire({"type": "code_interpreter_call", "id": "ci_1", "code": code})


def served(returned: str | None = "ok", approved: str | None = None) -> ContextItem:
    """A call of the tool `add` of the server `crm`; `approved` is the id of its request."""
    made = {"type": "mcp_call", "id": "mcp_1", **_ADD, "output": returned}
    return from_wire({**made, "approval_request_id": approved} if approved else made)


def asking(item_id: str = "mcpr_1") -> ContextItem:
    """May that tool be called?"""
    return from_wire({"type": "mcp_approval_request", "id": item_id, **_ADD})


def answering(
    request_id: str = "mcpr_1", *, approve: bool, reason: str | None = None
) -> ContextItem:
    """It may, or may not."""
    return from_wire(
        {
            "type": "mcp_approval_response",
            "id": f"mcpa_{request_id}",
            "approval_request_id": request_id,
            "approve": approve,
            "reason": reason,
        }
    )


_ADD = {"server_label": "crm", "name": "add", "arguments": '{"a": 1}'}


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
