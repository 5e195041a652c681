from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, get_args

from pydantic import Field, TypeAdapter

from gateway.protocol.items import Item, McpApprovalResponse, Message, Phase, Role

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.protocol.items import InputItem

CallKind = Literal[
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "tool_search_call",
]
OutputKind = Literal[
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "tool_search_output",
]
HostedKind = Literal[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "additional_tools",
    "program",
    "program_output",
]
"""Items of tools that a server runs, and of declarations of more tools."""
Kind = Literal["message", "reasoning", "compaction"] | CallKind | OutputKind | HostedKind

CALL_KINDS: Final = frozenset(get_args(CallKind))
OUTPUT_KINDS: Final = frozenset(get_args(OutputKind))
_OUTLIVING: Final = frozenset({"user", "system", "developer"})
_ITEM: Final[TypeAdapter[Item]] = TypeAdapter(Annotated[Item, Field(discriminator="type")])


# Not frozen: one is made for each item of a request, and the guard would take most of that time.
@dataclass(slots=True)
class ContextItem:
    """An item, with what is needed of it without parsing.

    `json` is the item as stored and listed; empty where only its ids are needed. `ids` stand for it
    in a prompt (unsigned 32-bit), None if it was never rendered. `complete` is False if it was cut
    off. `name` is the model's name of a call, or of the function that an output names in place of
    its call; for an MCP approval request that of the tool, if it is valid. The `call_id` of its
    response and of the approved call is the id of its item. `parsed` of an opened compaction is the
    message that it stands for. `includable` is the JSON of the fields that `json` leaves out
    (`protocol.items`).
    """

    kind: Kind
    item_id: str
    json: bytes
    role: Role | None = None
    phase: Phase | None = None
    call_id: str | None = None
    name: str | None = None
    complete: bool = True
    ids: array[int] | None = None
    parsed: Item | None = None
    includable: bytes | None = None

    @property
    def is_call(self) -> bool:
        return self.kind in CALL_KINDS

    @property
    def is_output(self) -> bool:
        return self.kind in OUTPUT_KINDS

    @property
    def stands_alone(self) -> bool:
        # Such an output names its tool and answers no call.
        return self.is_output and self.call_id is None and self.name is not None

    @property
    def approves(self) -> bool:
        """Return True for the user's consent to an MCP call.

        The model never sees it, so it has no ids: its effect is the result of the call.
        """
        if self.kind != "mcp_approval_response" or self.ids is not None:
            return False
        item = self.item()
        return isinstance(item, McpApprovalResponse) and item.approve

    @property
    def outlives_compaction(self) -> bool:
        return self.role in _OUTLIVING

    def item(self) -> Item:
        # Parsed from `json` when it came from the store.
        return self.parsed or _ITEM.validate_json(self.json)

    def with_ids(self, ids: array[int]) -> ContextItem:
        # Drop `parsed`: the prompt now uses the ids, and a run keeps the item for minutes.
        return replace(self, ids=ids, parsed=None)


class Label(NamedTuple):
    kind: Kind
    role: Role | None
    phase: Phase | None
    complete: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """Items with their ids, without an object for each: there may be thousands.

    Item `i` has the label `labels[names[i]]`; its ids take `sizes[i]` bytes of `ids`.
    """

    names: Sequence[str]
    labels: Mapping[str, Label]
    sizes: array[int]
    ids: array[int]

    def starts(self) -> list[int]:
        width = self.ids.itemsize
        return list(accumulate((size // width for size in self.sizes), initial=0))


@dataclass(frozen=True, slots=True)
class StoredItem:
    """Row of `messages`."""

    position: int
    is_output: bool
    context: ContextItem


@dataclass(frozen=True, slots=True)
class ConversationPlace:
    """Conversation when it was read: its items below the position `end`."""

    uuid: UUID
    end: int


def with_phases(items: tuple[InputItem, ...], *, only_new: bool = False) -> tuple[InputItem, ...]:
    """Return items in which a message of the assistant right before a call is a preamble.

    Many clients drop its phase, and chat completions have none: as an answer it would end the
    reasoning before it. With `only_new`, messages that have an id stay as they are.
    """
    preambles = {
        at: item.model_copy(update={"phase": "commentary"})
        for at, (item, behind) in enumerate(pairwise(items))
        if behind.type in CALL_KINDS and isinstance(item, Message) and item.phase is None
        if item.role == "assistant" and not (only_new and item.id)
    }
    if not preambles:
        return items
    return tuple(preambles.get(at, item) for at, item in enumerate(items))
